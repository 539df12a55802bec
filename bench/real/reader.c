// Reads pages of a file by the page numbers on standard input (4 bytes each), with pread, in threads, for so many seconds. Statically linked, it is a program
// that no preload library reaches. Each read is checked by the page number that the data set has at the head of each page.
//
//   terrace-bench worker keys --file FILE --pattern zipf:0.8 | reader FILE THREADS SECONDS
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, KEYS_MAX = 1 << 22 };
static uint32_t keys[KEYS_MAX];
static size_t count;
static int fd;
static double until;

struct reader {
    pthread_t thread;
    size_t at;
    uint64_t reads, wrong;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *run(void *arg) {
    struct reader *me = arg;
    _Alignas(PAGE) char page[PAGE];
    while (me->reads % 64 || now() < until) {
        uint64_t key = keys[me->at], found;
        if (pread(fd, page, PAGE, (off_t)key * PAGE) != PAGE) {
            perror("pread");
            exit(1);
        }
        memcpy(&found, page, sizeof found);
        me->wrong += found != key;
        me->reads++;
        me->at = (me->at + 1) % count;
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: reader FILE THREADS SECONDS < KEYS\n");
        return 2;
    }
    size_t threads = strtoul(argv[2], NULL, 10);
    double seconds = strtod(argv[3], NULL);
    count = fread(keys, sizeof *keys, KEYS_MAX, stdin);
    fd = open(argv[1], O_RDONLY);
    struct reader *readers = calloc(threads, sizeof *readers);
    if (count == 0 || fd < 0 || readers == NULL) {
        perror(argv[1]);
        return 1;
    }
    double start = now();
    until = start + seconds;
    for (size_t i = 0; i < threads; i++) {
        readers[i].at = count / threads * i;
        if (pthread_create(&readers[i].thread, NULL, run, &readers[i])) {
            perror("pthread_create");
            return 1;
        }
    }
    uint64_t reads = 0, wrong = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(readers[i].thread, NULL);
        reads += readers[i].reads;
        wrong += readers[i].wrong;
    }
    double took = now() - start;
    if (wrong) {
        fprintf(stderr, "WRONG DATA in %llu reads\n", (unsigned long long)wrong);
        return 1;
    }
    printf("{\"reads_per_s\": %.1f, \"bytes\": %llu}\n", reads / took, (unsigned long long)reads * PAGE);
}
