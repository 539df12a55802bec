// The native methods of StoreDb: terrace's C interface for Java. A negative result becomes an IOException with the line of terrace_error.

#include "terrace.h"
#include "terrace_ycsb_StoreDb.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROOM = 8 << 10, KEY_MAX = 1 << 10 };

typedef struct {
    terrace_store *store;
    terrace_bucket *bucket;
} opened;

static void fail(JNIEnv *env) {
    (*env)->ThrowNew(env, (*env)->FindClass(env, "java/io/IOException"), terrace_error());
}

// A key's bytes, in `room`; its length.
static size_t key_of(JNIEnv *env, jbyteArray key, jbyte room[KEY_MAX]) {
    jsize length = (*env)->GetArrayLength(env, key);
    length = length > KEY_MAX ? KEY_MAX : length;
    (*env)->GetByteArrayRegion(env, key, 0, length, room);
    return (size_t)length;
}

JNIEXPORT jlong JNICALL Java_terrace_ycsb_StoreDb_open(JNIEnv *env, jclass class, jstring dir, jlong memory) {
    (void)class;
    terrace_options options;
    terrace_options_default(&options);
    options.memory_bytes = (uint64_t)memory;
    const char *path = (*env)->GetStringUTFChars(env, dir, NULL);
    opened *it = calloc(1, sizeof *it);
    if (terrace_store_open(path, &options, &it->store) < 0 || terrace_bucket_open(it->store, "usertable", &it->bucket) < 0 ||
        terrace_store_wait_warm(it->store) < 0) {
        fail(env);
    }
    (*env)->ReleaseStringUTFChars(env, dir, path);
    return (jlong)it;
}

JNIEXPORT void JNICALL Java_terrace_ycsb_StoreDb_close(JNIEnv *env, jclass class, jlong handle) {
    (void)env, (void)class;
    opened *it = (opened *)handle;
    terrace_bucket_close(it->bucket);
    if (terrace_store_close(it->store) < 0) {
        fprintf(stderr, "%s\n", terrace_error());
    }
    free(it);
}

JNIEXPORT void JNICALL Java_terrace_ycsb_StoreDb_put(JNIEnv *env, jclass class, jlong handle, jbyteArray key, jbyteArray value) {
    (void)class;
    jbyte name[KEY_MAX];
    size_t name_len = key_of(env, key, name);
    jbyte *bytes = (*env)->GetByteArrayElements(env, value, NULL);
    int result = terrace_put(((opened *)handle)->bucket, name, name_len, bytes, (size_t)(*env)->GetArrayLength(env, value));
    (*env)->ReleaseByteArrayElements(env, value, bytes, JNI_ABORT);
    if (result < 0) {
        fail(env);
    }
}

JNIEXPORT jbyteArray JNICALL Java_terrace_ycsb_StoreDb_get(JNIEnv *env, jclass class, jlong handle, jbyteArray key) {
    (void)class;
    jbyte name[KEY_MAX], fits[ROOM];
    size_t name_len = key_of(env, key, name), room_len = ROOM;
    jbyte *room = fits;
    int64_t size;
    while ((size = terrace_get(((opened *)handle)->bucket, name, name_len, room, room_len)) > (int64_t)room_len) {
        room_len = (size_t)size;
        room = realloc(room == fits ? NULL : room, room_len);
    }
    jbyteArray value = NULL;
    if (size >= 0) {
        value = (*env)->NewByteArray(env, (jsize)size);
        if (value) {
            (*env)->SetByteArrayRegion(env, value, 0, (jsize)size, room);
        }
    } else if (size != -ENOENT) {
        fail(env);
    }
    if (room != fits) {
        free(room);
    }
    return value;
}

JNIEXPORT jboolean JNICALL Java_terrace_ycsb_StoreDb_remove(JNIEnv *env, jclass class, jlong handle, jbyteArray key) {
    (void)class;
    jbyte name[KEY_MAX];
    int result = terrace_remove(((opened *)handle)->bucket, name, key_of(env, key, name));
    if (result < 0 && result != -ENOENT) {
        fail(env);
    }
    return result == 0;
}
