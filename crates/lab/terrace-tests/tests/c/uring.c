/*
 * What programs do with liburing: `uring DIR READS`. Each read is compared with what the file holds; status 0 when the
 * program saw what it would see on any file system. DIR holds nothing before.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256, SIZE = PAGES * PAGE + 100, DEPTH = 32, LENGTH_MAX = 3 * PAGE };

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))
#define CHECK(what) do { if (!(what)) FAIL("not so: %s (errno %d)", #what, errno); } while (0)

static unsigned char truth[2][SIZE], buf[DEPTH][LENGTH_MAX];
static struct io_uring ring;
static char path[2][4096];

static uint64_t state;
static uint64_t any(uint64_t n) { state ^= state << 13, state ^= state >> 7, state ^= state << 17; return state % n; }

/* A system call that no library sees. */
static long unseen(long n, long a, long b, long c)
{
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return ret;
}

static struct io_uring_sqe *entry(uint64_t name)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    CHECK(sqe);
    memset(sqe, 0, sizeof *sqe);
    sqe->user_data = name;
    return sqe;
}

/* Waits for the next completion. */
static int result(uint64_t *name)
{
    struct io_uring_cqe *cqe;
    CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
    int res = cqe->res;
    *name = cqe->user_data;
    io_uring_cqe_seen(&ring, cqe);
    return res;
}

/* The result of the only request under way. */
static int alone(void)
{
    uint64_t name;
    CHECK(io_uring_submit(&ring) == 1);
    return result(&name);
}

static int length_at(size_t at, size_t n) { return at >= SIZE ? 0 : (int)(SIZE - at < n ? SIZE - at : n); }

static void random_reads(int fd, int reads)
{
    size_t at[DEPTH], n[DEPTH];
    struct iovec v[DEPTH][2];
    for (int done = 0; done < reads; done += DEPTH) {
        for (int i = 0; i < DEPTH; i++) {
            at[i] = any(2) ? any(PAGES) * PAGE : any(SIZE + PAGE);
            n[i] = any(2) ? PAGE : 1 + any(LENGTH_MAX);
            struct io_uring_sqe *sqe = entry((uint64_t)i);
            if (any(4)) {
                io_uring_prep_read(sqe, fd, buf[i], (unsigned)n[i], at[i]);
            } else {
                v[i][0] = (struct iovec){buf[i], n[i] / 3};
                v[i][1] = (struct iovec){buf[i] + n[i] / 3, n[i] - n[i] / 3};
                io_uring_prep_readv(sqe, fd, v[i], 2, at[i]);
            }
            sqe->user_data = (uint64_t)i;
        }
        CHECK(any(2) ? io_uring_submit(&ring) == DEPTH : io_uring_submit_and_wait(&ring, 1 + (unsigned)any(DEPTH)) == DEPTH);
        unsigned seen = 0;
        for (int k = 0; k < DEPTH; k++) {
            uint64_t i;
            int res = result(&i);
            CHECK(i < DEPTH && !(seen >> i & 1));
            seen |= 1u << i;
            if (res != length_at(at[i], n[i]) || memcmp(buf[i], truth[0] + at[i], (size_t)res))
                FAIL("%zu bytes at %zu: %d", n[i], at[i], res);
        }
    }
}

static void fill(unsigned char *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (unsigned char)any(256);
}

/* A page of the first file, with other content from here on. */
static unsigned char *renewed(void)
{
    unsigned char *page = truth[0] + any(PAGES) * PAGE;
    fill(page, PAGE);
    return page;
}

/* What follows a write in a chain sees it. */
static void linked(int fd, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        unsigned char *page = renewed();
        off_t at = page - truth[0];
        struct io_uring_sqe *sqe = entry(0);
        io_uring_prep_write(sqe, fd, page, PAGE, (uint64_t)at);
        sqe->user_data = 0, sqe->flags |= IOSQE_IO_LINK;
        sqe = entry(1);
        io_uring_prep_read(sqe, fd, buf[0], PAGE, (uint64_t)at);
        sqe->user_data = 1;
        CHECK(io_uring_submit(&ring) == 2);
        for (int k = 0; k < 2; k++) {
            uint64_t i;
            CHECK(result(&i) == PAGE);
        }
        CHECK(!memcmp(buf[0], page, PAGE));
    }
}

static void odd_ones(int fd)
{
    /* At the position. (Direct opens do not move it: the kernel does so for reads only that end at once.) */
    CHECK(lseek(fd, 5000, SEEK_SET) == 5000);
    io_uring_prep_read(entry(1), fd, buf[0], PAGE, (uint64_t)-1);
    CHECK(alone() == PAGE && !memcmp(buf[0], truth[0] + 5000, PAGE));
    /* Nothing, behind the end, to no memory. */
    io_uring_prep_read(entry(1), fd, buf[0], 0, 0);
    CHECK(alone() == 0);
    io_uring_prep_read(entry(1), fd, buf[0], PAGE, SIZE);
    CHECK(alone() == 0);
    io_uring_prep_read(entry(1), fd, (void *)16, PAGE, 0);
    CHECK(alone() == -EFAULT);
    /* A registered file. */
    CHECK(io_uring_register_files(&ring, &fd, 1) == 0);
    struct io_uring_sqe *sqe = entry(1);
    io_uring_prep_read(sqe, 0, buf[0], PAGE, PAGE);
    sqe->flags |= IOSQE_FIXED_FILE;
    CHECK(alone() == PAGE && !memcmp(buf[0], truth[0] + PAGE, PAGE));
    CHECK(io_uring_unregister_files(&ring) == 0);
    /* A descriptor that is not open for reading. */
    int writer = open(path[0], O_WRONLY);
    CHECK(writer >= 0);
    io_uring_prep_read(entry(1), writer, buf[0], PAGE, 0);
    CHECK(alone() == -EBADF);
    CHECK(close(writer) == 0);
}

/* A ring closes a file; its number becomes another one's, unseen. */
static void closes(int fd)
{
    int other = open(path[1], O_RDONLY);
    CHECK(other >= 0 && pread(other, buf[0], PAGE, 0) == PAGE);
    io_uring_prep_close(entry(1), fd);
    CHECK(alone() == 0);
    CHECK(unseen(SYS_dup3, other, fd, 0) == fd);
    CHECK(pread(fd, buf[0], PAGE, PAGE) == PAGE && !memcmp(buf[0], truth[1] + PAGE, PAGE));
    io_uring_prep_read(entry(1), fd, buf[0], PAGE, 0);
    CHECK(alone() == PAGE && !memcmp(buf[0], truth[1], PAGE));
    CHECK(close(fd) == 0 && close(other) == 0);
    /* Opened by the ring. */
    io_uring_prep_openat(entry(1), AT_FDCWD, path[0], O_RDONLY, 0);
    CHECK((fd = alone()) >= 0);
    io_uring_prep_read(entry(1), fd, buf[0], PAGE, PAGE);
    CHECK(alone() == PAGE && !memcmp(buf[0], truth[0] + PAGE, PAGE));
    CHECK(pread(fd, buf[0], PAGE, 0) == PAGE && !memcmp(buf[0], truth[0], PAGE) && close(fd) == 0);
}

/* What follows a drain waits for all before it, also in later submissions. */
static void drained(int fd, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        unsigned char *page = renewed();
        off_t at = page - truth[0];
        struct io_uring_sqe *sqe = entry(0);
        io_uring_prep_write(sqe, fd, page, PAGE, (uint64_t)at);
        sqe->flags |= IOSQE_ASYNC;
        sqe = entry(1);
        io_uring_prep_nop(sqe);
        sqe->flags |= IOSQE_IO_DRAIN;
        CHECK(io_uring_submit(&ring) == 2);
        io_uring_prep_read(entry(2), fd, buf[0], PAGE, (uint64_t)at);
        CHECK(io_uring_submit(&ring) == 1);
        for (int k = 0; k < 3; k++) {
            uint64_t i;
            CHECK(result(&i) >= 0);
        }
        CHECK(!memcmp(buf[0], page, PAGE));
    }
}

static int made(int which)
{
    fill(truth[which], SIZE);
    int fd = open(path[which], O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && pwrite(fd, truth[which], SIZE, 0) == SIZE);
    return fd;
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    int reads = atoi(argv[2]);
    state = strtoull(argv[3], NULL, 10) * 2 + 1;
    snprintf(path[0], sizeof path[0], "%s/a", argv[1]);
    snprintf(path[1], sizeof path[1], "%s/b", argv[1]);
    CHECK(close(made(0)) == 0 && close(made(1)) == 0);
    int fd = open(path[0], O_RDWR);
    CHECK(fd >= 0);
    for (int round = 0; round < 2; round++)
        for (off_t at = 0; at < SIZE; at += PAGE)
            CHECK(pread(fd, buf[0], PAGE, at) == length_at((size_t)at, PAGE));
    for (unsigned flags = 0; flags < 2; flags++) {
        CHECK(io_uring_queue_init(DEPTH, &ring, flags ? IORING_SETUP_SQE128 | IORING_SETUP_CQE32 : 0) == 0);
        random_reads(fd, reads);
        linked(fd, 100);
        io_uring_queue_exit(&ring);
    }
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    odd_ones(fd);
    closes(fd);
    CHECK((fd = open(path[0], O_RDWR)) >= 0);
    drained(fd, 100);
    io_uring_queue_exit(&ring);
    return 0;
}
