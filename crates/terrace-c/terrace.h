/* terrace: buckets and blobs on a tiered cache, inside the program. Made by `make header` from crates/terrace-c: do not edit.
 *
 * Functions return 0 or more, or a negative errno; terrace_error() tells in one line what failed, why, and what helps. Keys and
 * values are bytes. Handles may be used by several threads at once; who closes one must be its last user. A store keeps its
 * changes when the program is killed; a power cut can cost what was not synced. */

#ifndef TERRACE_H
#define TERRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A thread syncs every sync_ms.
#define TERRACE_SYNC_EVERY 0

// Each change is durable when its call returns.
#define TERRACE_SYNC_ALWAYS 1

// At terrace_store_sync and at the end only.
#define TERRACE_SYNC_NEVER 2

// A bucket of an open store.
typedef struct terrace_bucket terrace_bucket;

// An open store.
typedef struct terrace_store terrace_store;

// The metadata of a blob.
typedef struct {
  // Bytes.
  uint64_t size;
  // The program's own word, set by terrace_put_meta.
  uint64_t meta;
  // How much it is worth to keep in memory, 0 to 1.
  float score;
} terrace_stat;

// Is given a key, which is valid during the call only. Anything but 0 ends the walk.
typedef int (*terrace_key_fn)(const void *key, size_t key_len, void *user);

// How a store is opened. terrace_options_default sets all fields.
typedef struct {
  // Name of the store in its directory; NULL: "store".
  const char *name;
  // Limit of all memory, bytes; at least 16 MiB.
  uint64_t memory_bytes;
  // Maximum of the file of blobs, bytes; 0: what the file system has.
  uint64_t capacity_bytes;
  // TERRACE_SYNC_EVERY, TERRACE_SYNC_ALWAYS or TERRACE_SYNC_NEVER.
  int sync;
  // Milliseconds between two syncs of TERRACE_SYNC_EVERY.
  uint64_t sync_ms;
} terrace_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Puts a blob, in the place of the one before. -ENOSPC: the store is full; -ENOMEM: memory holds no further name. The blob before stands.
int terrace_put(const terrace_bucket *bucket,
                const void *key,
                size_t key_len,
                const void *data,
                size_t len);

// As terrace_put, with a word of the program's; with `only_new`, -EEXIST if there is such a blob.
int terrace_put_meta(const terrace_bucket *bucket,
                     const void *key,
                     size_t key_len,
                     const void *data,
                     size_t len,
                     uint64_t meta,
                     bool only_new);

// Writes into a blob at `offset`; it is made if there is none, and a gap reads as zeros. The size of the blob then.
int64_t terrace_put_at(const terrace_bucket *bucket,
                       const void *key,
                       size_t key_len,
                       uint64_t offset,
                       const void *data,
                       size_t len);

// Writes at the end of a blob; it is made if there is none. The size of the blob then.
int64_t terrace_append(const terrace_bucket *bucket, const void *key, size_t key_len, const void *data, size_t len);

// Sets the size of a blob. -ENOENT: there is none.
int terrace_truncate(const terrace_bucket *bucket, const void *key, size_t key_len, uint64_t size);

// Copies the first `room_len` bytes of a blob into `to`. Its size, which may be more than was copied: then ask again with more room.
// -ENOENT: there is none.
int64_t terrace_get(const terrace_bucket *bucket,
                    const void *key,
                    size_t key_len,
                    void *to,
                    size_t room_len);

// Copies bytes of a blob from `offset` on into `to`. How many, fewer than `room_len` at its end only. -ENOENT: there is none.
int64_t terrace_get_at(const terrace_bucket *bucket,
                       const void *key,
                       size_t key_len,
                       uint64_t offset,
                       void *to,
                       size_t room_len);

// The metadata of a blob. -ENOENT: there is none.
int terrace_blob_stat(const terrace_bucket *bucket, const void *key, size_t key_len, terrace_stat *stat);

// Whether there is such a blob: 1 or 0.
int terrace_contains(const terrace_bucket *bucket, const void *key, size_t key_len);

// Removes a blob. -ENOENT: there is none.
int terrace_remove(const terrace_bucket *bucket, const void *key, size_t key_len);

// Renames a blob, in the place of the one that had the new key. -ENOENT: there is none.
int terrace_rename(const terrace_bucket *bucket, const void *from, size_t from_len, const void *to, size_t to_len);

// Sets how much a blob is worth to keep in memory, 0 to 1. -ENOENT: there is none.
int terrace_set_score(const terrace_bucket *bucket, const void *key, size_t key_len, float score);

// Gives a blob a tag, or takes it. 1: something changed; 0: nothing, or there is no such blob.
int terrace_tag(const terrace_bucket *bucket, const void *key, size_t key_len, const char *tag, bool on);

// Closes the handle; the bucket stays.
void terrace_bucket_close(terrace_bucket *bucket);

// Blobs of the bucket.
int64_t terrace_bucket_len(const terrace_bucket *bucket);

// Bytes of its blobs.
int64_t terrace_bucket_bytes(const terrace_bucket *bucket);

// Removes all its blobs.
int terrace_bucket_clear(const terrace_bucket *bucket);

// Makes an empty bucket scratch: its blobs are gone when the store is opened again.
int terrace_bucket_make_scratch(const terrace_bucket *bucket);

// Has each blob written to a file of the directory `dir`, too: it holds the blobs as they were at the last sync, and is the bucket's alone. It is made if there
// is none, and must be empty.
int terrace_bucket_persist(const terrace_bucket *bucket,
                           const char *dir);

// Calls `each` with the keys that begin with `prefix`, sorted; how many there were.
int64_t terrace_list(const terrace_bucket *bucket,
                     const void *prefix,
                     size_t prefix_len,
                     terrace_key_fn each,
                     void *user);

// Calls `each` with about `count` keys from `*cursor` on (0: the start) in an order that stays, and sets `*cursor` to where the next call goes
// on (0: the end). A key that is there all the while comes at least once. How many there were.
int64_t terrace_scan(const terrace_bucket *bucket,
                     uint64_t *cursor,
                     size_t count,
                     terrace_key_fn each,
                     void *user);

// The error of the last failed call of this thread, in one line; empty if none failed. Valid until the next call of this thread.
const char *terrace_error(void);

// Sets all fields: 1 GiB of memory, a sync every second.
int terrace_options_default(terrace_options *options);

// Opens the store in a directory, which must exist, and makes it if there is none. options NULL: the defaults. -EBUSY: another program uses it.
int terrace_store_open(const char *dir,
                       const terrace_options *options,
                       terrace_store **store);

// Makes everything durable and closes the store; the handle is gone then, in any case. Buckets of it answer -EBADF and are still to be closed.
int terrace_store_close(terrace_store *store);

// Makes all changes durable that were done before the call.
int terrace_store_sync(const terrace_store *store);

// Waits until a store whose bytes fit in memory has read them: that begins when it is opened. At once where they do not fit.
int terrace_store_wait_warm(const terrace_store *store);

// Writes the record log anew, without its garbage. Happens by itself when most of it is garbage.
int terrace_store_checkpoint(const terrace_store *store);

// Removes the files of a store. -EBUSY: it is open.
int terrace_store_destroy(const char *dir, const char *name);

// The bucket of this name, made if there is none; to be closed.
int terrace_bucket_open(const terrace_store *store, const char *name, terrace_bucket **bucket);

// The bucket of this name, to be closed. -ENOENT: there is none.
int terrace_bucket_find(const terrace_store *store, const char *name, terrace_bucket **bucket);

// Renames a bucket. -ENOENT: there is none; -EEXIST: there is one of the new name.
int terrace_bucket_rename(const terrace_store *store, const char *from, const char *to);

// Removes a bucket with its blobs. -ENOENT: there is none.
int terrace_bucket_remove(const terrace_store *store, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRACE_H */
