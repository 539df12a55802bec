/*
 * Writes by a ring, beside reads: `ring_writes FILE STEPS SEED`. Each page holds the number of its last write. A read by a
 * call must have the number of the last completed write. Status 0 when all had.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 256, DEPTH = 16 };

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))
#define CHECK(what) do { if (!(what)) FAIL("not so: %s (errno %d)", #what, errno); } while (0)

static struct io_uring ring;
static uint64_t truth[PAGES], state, last;
static unsigned char *buf[DEPTH];
static struct iovec vector[DEPTH][2];

static uint64_t any(uint64_t n) { state ^= state << 13, state ^= state >> 7, state ^= state << 17; return state % n; }

static void check(int fd, int page)
{
    static unsigned char *out;
    CHECK(out || !posix_memalign((void **)&out, PAGE, PAGE));
    CHECK(pread(fd, out, PAGE, (off_t)page * PAGE) == PAGE);
    uint64_t first, end;
    memcpy(&first, out, 8), memcpy(&end, out + PAGE - 8, 8);
    if (first != truth[page] || end != truth[page])
        FAIL("page %d holds %lu and %lu, not %lu", page, first, end, truth[page]);
}

/* Takes `n` completions, in one of the ways that programs use. */
static void wait_for(unsigned n)
{
    struct io_uring_cqe *cqe, *many[DEPTH];
    while (n > 0) {
        unsigned got = any(2) ? io_uring_peek_batch_cqe(&ring, many, n) : 0;
        for (unsigned i = 0; i < got; i++)
            CHECK(many[i]->res == PAGE);
        if (got) {
            io_uring_cq_advance(&ring, got);
        } else {
            struct __kernel_timespec second = {.tv_sec = 1};
            CHECK((any(2) ? io_uring_wait_cqe(&ring, &cqe) : io_uring_wait_cqe_timeout(&ring, &cqe, &second)) == 0);
            CHECK(cqe->res == PAGE);
            io_uring_cqe_seen(&ring, cqe);
            got = 1;
        }
        n -= got;
    }
}

static void fill(unsigned char *out, uint64_t number)
{
    for (int at = 0; at < PAGE; at += 8)
        memcpy(out + at, &number, 8);
}

/* A write that waits for a pipe, among entries with its name that complete before. An entry of no bytes. */
static void equal_names(int fd)
{
    for (int round = 0; round < 20; round++) {
        int ends[2], page = any(PAGES);
        char byte;
        CHECK(pipe(ends) == 0);
        fill(buf[0], ++last);
        struct io_uring_sqe *sqe[5];
        for (int i = 0; i < 5; i++)
            CHECK(sqe[i] = io_uring_get_sqe(&ring));
        io_uring_prep_read(sqe[0], ends[0], &byte, 1, 0);
        io_uring_prep_write(sqe[1], fd, buf[0], 0, 0);
        io_uring_prep_nop(sqe[2]);
        /* The last write waits for this one. */
        io_uring_prep_poll_add(sqe[3], ends[0], 1);
        sqe[3]->flags |= IOSQE_IO_LINK;
        io_uring_prep_write(sqe[4], fd, buf[0], PAGE, (uint64_t)page * PAGE);
        for (int i = 0; i < 5; i++)
            sqe[i]->user_data = i < 2;
        CHECK(io_uring_submit(&ring) == 5);
        struct io_uring_cqe *cqe;
        for (int i = 0; i < 2; i++) {
            CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
            io_uring_cqe_seen(&ring, cqe);
        }
        io_uring_peek_batch_cqe(&ring, &cqe, 1);
        check(fd, page);
        usleep(20000);
        check(fd, page);
        CHECK(write(ends[1], "xx", 2) == 2);
        for (int i = 0; i < 3; i++) {
            CHECK(io_uring_wait_cqe(&ring, &cqe) == 0);
            io_uring_cqe_seen(&ring, cqe);
        }
        truth[page] = last;
        check(fd, page);
        close(ends[0]), close(ends[1]);
    }
}

/* A file of the ring's own table, whose descriptor is closed. */
static void registered(const char *path, int fd)
{
    int own = open(path, O_RDWR), page;
    CHECK(own >= 0 && io_uring_register_files(&ring, &own, 1) == 0 && close(own) == 0);
    for (int round = 0; round < 20; round++) {
        page = any(PAGES);
        fill(buf[0], truth[page] = ++last);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_write(sqe, 0, buf[0], PAGE, (uint64_t)page * PAGE);
        sqe->flags |= IOSQE_FIXED_FILE;
        CHECK(io_uring_submit(&ring) == 1);
        wait_for(1);
        check(fd, page);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    state = strtoull(argv[3], NULL, 10) * 2 + 1;
    int fds[2] = {open(argv[1], O_RDWR | O_CREAT, 0600), open(argv[1], O_RDWR | O_DIRECT)};
    CHECK(fds[0] >= 0 && fds[1] >= 0);
    for (int i = 0; i < DEPTH; i++)
        CHECK(!posix_memalign((void **)&buf[i], PAGE, PAGE));
    memset(buf[0], 0, PAGE);
    for (int page = 0; page < PAGES; page++)
        CHECK(pwrite(fds[0], buf[0], PAGE, (off_t)page * PAGE) == PAGE);
    int made = io_uring_queue_init(DEPTH, &ring, 0);
    if (made == -ENOSYS || made == -EPERM)
        return puts("no rings here"), 0;
    CHECK(made == 0);
    for (uint64_t step = strtoull(argv[2], NULL, 10); step > 0; step--) {
        unsigned n = 1 + any(4);
        int first = any(PAGES - n), fd = fds[any(2)];
        for (unsigned i = 0; i < n; i++) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            CHECK(sqe);
            truth[first + i] = ++last;
            fill(buf[i], last);
            vector[i][0] = (struct iovec){buf[i], PAGE / 2};
            vector[i][1] = (struct iovec){buf[i] + PAGE / 2, PAGE / 2};
            if (any(2))
                io_uring_prep_write(sqe, fd, buf[i], PAGE, (uint64_t)(first + i) * PAGE);
            else
                io_uring_prep_writev(sqe, fd, vector[i], 2, (uint64_t)(first + i) * PAGE);
            sqe->user_data = last;
        }
        CHECK(io_uring_submit(&ring) == (int)n);
        wait_for(n);
        for (unsigned i = 0; i < n; i++)
            check(fds[any(2)], first + i);
        for (int i = 0; i < 8; i++)
            check(fds[any(2)], any(PAGES));
        if (step % 500 == 0) {
            pid_t child = fork();
            if (child == 0) {
                for (int page = 0; page < PAGES; page++)
                    check(fds[0], page);
                _exit(0);
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
    }
    equal_names(fds[0]);
    io_uring_queue_exit(&ring);
    CHECK(io_uring_queue_init(DEPTH, &ring, 0) == 0);
    registered(argv[1], fds[0]);
    io_uring_queue_exit(&ring);
    return 0;
}
