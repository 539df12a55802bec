// Reads in turn with another program, on one processor: `turns FILE SLICES MICROSECONDS` reads pages of FILE at random for so long after each byte
// that comes from its standard input, and passes the byte on. Tells, on standard error, how many pages it read a second, slice by slice.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// On the first processor that is allowed, as the other one does.
static int pin(void) {
    cpu_set_t all, first;
    if (sched_getaffinity(0, sizeof all, &all)) return -1;
    CPU_ZERO(&first);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &first);
            return sched_setaffinity(0, sizeof first, &first);
        }
    }
    return -1;
}

int main(int argc, char **argv) {
    static char page[4096] __attribute__((aligned(4096)));
    struct stat st;
    if (argc != 4 || pin()) return 2;
    signal(SIGPIPE, SIG_IGN);
    int fd = open(argv[1], O_RDONLY);
    long slices = atol(argv[2]), us = atol(argv[3]);
    if (fd < 0 || fstat(fd, &st)) return 3;
    uint64_t pages = st.st_size / 4096, dice = 88172645463325252ull;
    // From now on all of them hit.
    for (int round = 0; round < 3; round++)
        for (uint64_t n = 0; n < pages; n++)
            if (pread(fd, page, sizeof page, n * 4096) != sizeof page) return 4;
    for (long slice = 0; slice < slices; slice++) {
        char turn;
        if (read(0, &turn, 1) != 1) return 5;
        uint64_t begun = now_ns(), now = begun, count = 0;
        for (; now < begun + us * 1000; now = now_ns()) {
            for (int n = 0; n < 64; n++, count++) {
                dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
                if (pread(fd, page, sizeof page, dice % pages * 4096) != sizeof page) return 6;
            }
        }
        fprintf(stderr, "%.0f\n", count * 1e9 / (now - begun));
        // At the end the other one may be gone.
        if (write(1, &turn, 1) != 1 && slice + 1 < slices) return 7;
    }
    return 0;
}
