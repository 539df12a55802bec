/*
 * A hostile client of the preload server: `hostile PRELOAD.SOCK FILE SECONDS SEED [noise]`. It registers as any client, then scribbles
 * over all that it can write (touch table, ring), forges page fills for FILE, and sends garbage to the socket. It ends with
 * status 3 if it was given something that it may not have: a writable segment, or a writable descriptor of the source.
 * With `noise` it only makes noise: for a user who may write the files, a forged page is no worse than a write.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, SOURCE = 2, MAPPED = 3, FLUSH = 4, RING = 5, PAGE = 4096, READY = 2 };

struct request { uint32_t op, version; };
struct reply { uint32_t error, ring_slots; uint64_t mount_dev, object; uint32_t may_write, direct_align; };
struct fill { uint64_t state, object, page, seen, clock, len, pad[2]; };

static uint64_t state;

static uint64_t next(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval wait = {2, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(s, (struct sockaddr *)&address, sizeof address) < 0) {
        close(s);
        return -1;
    }
    return s;
}

/* Sends one message, with a descriptor if fd >= 0; fills what comes back. Descriptors received, or -1. */
static int ask(int s, const void *bytes, size_t len, int fd, struct reply *reply, int fds[8])
{
    char control[CMSG_SPACE(8 * sizeof(int))];
    struct iovec iov = {(void *)bytes, len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control, msg.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    if (sendmsg(s, &msg, MSG_NOSIGNAL) < 0)
        return -1;
    iov = (struct iovec){reply, sizeof *reply};
    msg = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(s, &msg, 0) != (ssize_t)sizeof *reply)
        return -1;
    int n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
        }
    return n;
}

static int must_not(int broken, const char *what)
{
    if (broken) {
        fprintf(stderr, "it was possible to %s\n", what);
        exit(3);
    }
    return broken;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    int noise = argc > 5;
    time_t end = time(NULL) + atoi(argv[3]);
    state = strtoull(argv[4], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    int s = dial(argv[1]);
    if (s < 0) {
        printf("refused: %s\n", strerror(errno));
        return 0;
    }
    struct request hello = {HELLO, 1}, source = {SOURCE, 1};
    struct reply reply, of;
    int fds[8], more[8];
    int n = ask(s, &hello, sizeof hello, -1, &reply, fds);
    if (n < 3 || reply.error) {
        printf("refused: %d descriptors, error %u\n", n, n < 0 ? (unsigned)errno : reply.error);
        return 0;
    }
    struct stat st;
    must_not(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) != MAP_FAILED, "map the segment for writing");
    must_not(ftruncate(fds[0], 0) == 0, "truncate the segment");
    must_not(fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0, "punch a hole into the segment");
    must_not(ftruncate(fds[1], 0) == 0, "truncate the touch table");
    must_not(ftruncate(fds[2], 0) == 0, "truncate the ring");
    if (!noise) {
        char path[64];
        sprintf(path, "/proc/self/fd/%d", fds[0]);
        must_not(open(path, O_RDWR) >= 0, "open the segment anew for writing");
    }
    fstat(fds[1], &st);
    size_t touch_len = (size_t)st.st_size;
    unsigned char *touch = mmap(NULL, touch_len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
    fstat(fds[2], &st);
    size_t ring_len = (size_t)st.st_size;
    unsigned char *ring = mmap(NULL, ring_len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
    if (touch == MAP_FAILED || ring == MAP_FAILED)
        return 2;
    int file = open(argv[2], O_RDONLY);
    memset(&of, 0, sizeof of);
    int got = ask(s, &source, sizeof source, file, &of, more);
    if (got > 0 && !noise) {
        must_not(of.may_write, "become a donor of content without write permission");
        must_not(pwrite(more[0], "x", 1, 0) == 1, "write the source file");
    }
    fstat(file, &st);
    uint64_t pages = (uint64_t)st.st_size / PAGE, rounds = 0;
    struct fill *fills = (struct fill *)(ring + PAGE);
    while (time(NULL) < end) {
        rounds++;
        switch (next() % 8) {
        case 0: case 1: case 2: case 3: /* forged page fills */
            for (uint32_t i = 0; i < reply.ring_slots && !noise; i++) {
                volatile struct fill *d = &fills[i];
                memset(ring + (2 + (size_t)i) * PAGE, 0xee, PAGE);
                d->object = of.object, d->page = next() % (pages + 8);
                d->seen = next() % 3 ? UINT64_MAX : next() % 5;
                d->clock = next() & 1 ? UINT64_MAX : 0;
                d->len = next() % 5 ? PAGE : next();
                __atomic_store_n((uint64_t *)&d->state, READY, __ATOMIC_RELEASE);
            }
            (void)!send(s, &(struct request){RING, 1}, sizeof(struct request), MSG_NOSIGNAL);
            usleep(300);
            break;
        case 4: /* noise over the touch table, or all of it hot, or cold */
            if (next() & 1)
                memset(touch, (int)next(), touch_len);
            else
                for (int i = 0; i < 2000; i++)
                    touch[next() % touch_len] = (unsigned char)next();
            break;
        case 5: /* noise over descriptors and counters of the ring */
            for (int i = 0; i < 2000; i++)
                memcpy(ring + next() % (2 * PAGE - 8), &(uint64_t){next()}, 8);
            break;
        default: { /* garbage over a fresh socket, which is then dropped or kept waiting */
            int t = dial(argv[1]);
            if (t < 0)
                break;
            unsigned char bytes[256];
            for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (unsigned char)next();
            if (next() & 1)
                memcpy(bytes, &(struct request){(uint32_t)(next() % 7), 1}, 8);
            struct iovec iov = {bytes, next() & 1 ? 8 : next() % sizeof bytes};
            char control[CMSG_SPACE(8 * sizeof(int))] = {0};
            struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
            int some[8], many = (int)(next() % 9);
            for (int i = 0; i < many; i++)
                some[i] = (int)(next() % 4) == 0 ? s : file;
            if (many) {
                msg.msg_control = control, msg.msg_controllen = CMSG_SPACE((size_t)many * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
                c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN((size_t)many * sizeof(int));
                memcpy(CMSG_DATA(c), some, (size_t)many * sizeof(int));
            }
            sendmsg(t, &msg, MSG_NOSIGNAL);
            if (next() & 1)
                sendmsg(t, &msg, MSG_NOSIGNAL);
            close(t);
        }
        }
    }
    printf("%lu rounds, %s\n", (unsigned long)rounds, got > 0 ? "with the source" : "without the source");
    return 0;
}
