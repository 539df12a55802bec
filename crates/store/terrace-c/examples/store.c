/* Buckets and blobs in a program of C. Compile: cc store.c -I.. -L../../../../target/release -lterrace -o store */

#include "terrace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int64_t result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, terrace_error());
        exit(1);
    }
}

static int show(const void *key, size_t len, void *user) {
    (void)user;
    printf("  %.*s\n", (int)len, (const char *)key);
    return 0;
}

int main(int argc, char **argv) {
    const char *dir = argc > 1 ? argv[1] : ".";
    terrace_options options;
    check(terrace_options_default(&options), "options");
    options.memory_bytes = 64 << 20;
    options.sync = TERRACE_SYNC_NEVER;

    terrace_store *store;
    terrace_bucket *planets;
    check(terrace_store_open(dir, &options, &store), "open");
    /* A thread reads the existing blobs ahead, if they fit in memory. This waits for it. */
    check(terrace_store_wait_warm(store), "wait");
    check(terrace_bucket_open(store, "planets", &planets), "bucket");

    check(terrace_put(planets, "earth", 5, "blue", 4), "put");
    check(terrace_put(planets, "mars", 4, "red", 3), "put");
    check(terrace_append(planets, "earth", 5, " and green", 10), "append");
    check(terrace_put_at(planets, "mars", 4, 0, "R", 1), "put at");
    check(terrace_rename(planets, "mars", 4, "mars, planet", 12), "rename");
    /* All changes are durable from here on. */
    check(terrace_store_sync(store), "sync");

    char room[64];
    int64_t size = terrace_get(planets, "earth", 5, room, sizeof room);
    check(size, "get");
    printf("earth is %.*s\n", (int)size, room);
    if (terrace_get(planets, "venus", 5, room, sizeof room) >= 0) return 1;
    printf("%lld blobs:\n", (long long)terrace_bucket_len(planets));
    check(terrace_list(planets, NULL, 0, show, NULL), "list");

    /* Errors are one line. */
    terrace_store *second;
    if (terrace_store_open(dir, &options, &second) >= 0) return 1;
    printf("a second time: %s\n", strstr(terrace_error(), "another program uses this store") ? "in use" : terrace_error());

    terrace_bucket_close(planets);
    check(terrace_store_close(store), "close");
    return 0;
}
