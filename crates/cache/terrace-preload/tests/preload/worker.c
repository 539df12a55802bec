/* The program under test. "ops" prints the result of every call, so that two runs can be compared. The other commands
 * check their results and exit with 0. */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define DIE(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

static uint64_t rng_state;
static uint64_t rng(void)
{
    rng_state ^= rng_state << 13, rng_state ^= rng_state >> 7, rng_state ^= rng_state << 17;
    return rng_state;
}
static uint64_t below(uint64_t n) { return rng() % n; }

static uint64_t hash(const void *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (const unsigned char *c = p; n--; c++)
        h = (h ^ *c) * 0x100000001b3;
    return h;
}

/* ---- ops: random calls, their answers on stdout ------------------------------------------------------------------ */

enum { FDS = 12, MAX = 300000 };
static int fds[FDS];
static unsigned char buffer[MAX + PAGE] __attribute__((aligned(PAGE)));

static void said(const char *what, long ret, size_t content)
{
    printf("%s %ld %d %016lx\n", what, ret, ret < 0 ? errno : 0, ret > 0 ? hash(buffer, content) : 0);
    memset(buffer, 0x5a, sizeof buffer);
}

static size_t some_length(void)
{
    switch (below(6)) {
    case 0: return below(20);
    case 1: return PAGE;
    case 2: return below(3 * PAGE);
    case 3: return PAGE * below(20);
    case 4: return 65536;
    default: return below(MAX);
    }
}
static off_t some_offset(off_t size)
{
    switch (below(8)) {
    case 0: return size - (off_t)below(2 * PAGE);
    case 1: return size + below(PAGE);
    case 2: return below(size);
    case 3: return -(off_t)below(3);
    default: return below(size / PAGE) * PAGE;
    }
}
static int vectors(struct iovec *v, size_t *sum)
{
    int n = 1 + below(6);
    *sum = 0;
    for (int i = 0; i < n; i++) {
        size_t len = below(3) ? below(30000) : PAGE;
        v[i] = (struct iovec){buffer + *sum, len};
        *sum += len;
    }
    return n;
}
static void in_child(int fd, off_t offset)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        said("child pread", pread(fd, buffer, 9000, offset), 9000);
        said("child read", read(fd, buffer, 5000), 5000);
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}
/* A vfork child changes descriptor numbers: its parent must not be affected. */
static void in_vfork(int fd, const char *other)
{
    static volatile int there, got;
    static char first;
    pid_t pid = vfork();
    if (pid == 0) {
        close(fd);
        there = open(other, O_RDONLY);
        dup2(there, fds[0]);
        got = pread(there, &first, 1, 5);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    printf("vfork %d %d\n", got, first);
}

static ssize_t bad_read(int fd, off_t offset, off_t size)
{
    void *where = below(2) ? NULL : (void *)-8L;
    if (below(3) == 0)
        return preadv(fd, below(2) ? where : (void *)0x1000L, 2, offset);
    size_t n = 10 + below(PAGE);
    if (getenv("WORKER_VERBOSE"))
        printf("%p %zu at %ld of %ld ", where, n, (long)offset, (long)size);
    return pread(fd, where, n, offset);
}

static void one_op(char **files, int count)
{
    int i = below(FDS), j = below(FDS), fd = fds[i];
    struct stat st = {0};
    fstat(fd, &st);
    off_t size = st.st_size > PAGE ? st.st_size : PAGE, offset = some_offset(size);
    size_t n = some_length(), sum, shift = below(3) ? 0 : below(PAGE);
    struct iovec v[8];
    switch (below(22)) {
    case 0 ... 5: said("pread", pread(fd, buffer + shift, n, offset), n + shift); break;
    case 6 ... 9: said("read", read(fd, buffer + shift, n), n + shift); break;
    case 10: said("seek", lseek(fd, offset, below(3)), 0); break;
    case 11: { int k = vectors(v, &sum); said("preadv", preadv(fd, v, k, offset), sum); break; }
    case 12: { int k = vectors(v, &sum); said("readv", readv(fd, v, k), sum); break; }
    case 13: { int k = vectors(v, &sum); said("preadv2", preadv2(fd, v, k, below(4) ? offset : -1, 0), sum); break; }
    case 14: close(fd), fds[i] = open(files[below(count)], below(2) ? O_RDONLY : O_RDWR); break;
    case 15: said("dup2", dup2(fds[j], fd) == fd, 0); break;
    case 16: close(fd), fds[i] = below(2) ? dup(fds[j]) : fcntl(fds[j], F_DUPFD_CLOEXEC, 3); break;
    case 17: in_child(fd, offset); break;
    case 18: in_vfork(fd, files[below(count)]); break;
    case 19: said("bad", bad_read(fd, offset, size), 0); break;
    case 20: said("none", pread(fd, buffer, 0, offset), 0); break;
    case 21: syscall(SYS_close, fd), fds[i] = open(files[below(count)], O_RDONLY | (below(5) ? 0 : O_DIRECT)); break;
    }
}
static int ops(char **files, int count, int rounds)
{
    for (int i = 0; i < FDS; i++)
        fds[i] = open(files[i % count], O_RDONLY);
    while (rounds--)
        one_op(files, count);
    for (int i = 0; i < FDS; i++)
        said("position", lseek(fds[i], 0, SEEK_CUR), 0);
    return 0;
}

/* ---- storm: threads read pages that the daemon writes, evicts and fills ------------------------------------------- */

static const char *storm_file;
static int storm_pages;
static volatile int storm_over;
static volatile long torn, reads;

/* A page repeats its number and its version. The kernel's own reads may be torn between versions: these are counted. */
static uint64_t check_page(const uint64_t *p, uint64_t page)
{
    int changes = 0;
    uint64_t lowest = p[1];
    for (int i = 0; i < PAGE / 8; i += 2) {
        if (p[i] != page)
            DIE("page %lu holds page %lu at word %d", page, p[i], i);
        changes += p[i + 1] != p[1];
        lowest = p[i + 1] < lowest ? p[i + 1] : lowest;
    }
    torn += changes > 0;
    return lowest;
}
static void *storm_thread(void *arg)
{
    int fd = open(storm_file, O_RDONLY);
    uint64_t *versions = calloc(storm_pages, 8), x = (uintptr_t)arg * 0x9e3779b97f4a7c15 + 1;
    char *buf = aligned_alloc(PAGE, 16 * PAGE);
    while (!storm_over) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t page = x % storm_pages, n = 1 + (x >> 32) % 16;
        if (page + n > (uint64_t)storm_pages)
            n = storm_pages - page;
        if (pread(fd, buf, n * PAGE, page * PAGE) != (ssize_t)(n * PAGE))
            DIE("short read: %s", strerror(errno));
        for (uint64_t i = 0; i < n; i++) {
            uint64_t version = check_page((uint64_t *)(buf + i * PAGE), page + i);
            if (version < versions[page + i])
                DIE("page %lu went back from %lu to %lu", page + i, versions[page + i], version);
            versions[page + i] = version;
        }
        reads += n;
    }
    return NULL;
}
static int storm(const char *file, int pages, int threads, int ms)
{
    storm_file = file, storm_pages = pages;
    pthread_t t[16];
    for (int i = 0; i < threads; i++)
        pthread_create(&t[i], NULL, storm_thread, (void *)(uintptr_t)(i + 1));
    usleep(ms * 1000);
    storm_over = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("%ld %ld\n", reads, torn);
    return 0;
}

/* ---- single questions ------------------------------------------------------------------------------------------- */

static int sum_up(const char *file, size_t step, int shift)
{
    int fd = open(file, O_RDONLY);
    uint64_t h = 0;
    ssize_t n;
    for (off_t at = 0; (n = pread(fd, buffer + shift, step, at)) > 0; at += n)
        h = h * 31 + hash(buffer + shift, n);
    printf("%016lx\n", h);
    return n < 0;
}
/* Reads backwards in pairs, which looks neither like a scan nor like a stride. */
static int backwards(const char *file, size_t step, int shift, int rounds)
{
    int fd = open(file, O_RDONLY);
    struct stat st;
    if (fstat(fd, &st))
        DIE("%s is %d: %s", file, fd, strerror(errno));
    while (rounds--) {
        uint64_t h = 0;
        off_t last = (st.st_size - 1) / (off_t)step;
        for (off_t i = last; i >= 0; i--) {
            off_t other = i ^ 1;
            ssize_t n = pread(fd, buffer + shift, step, (other > last ? i : other) * step);
            h = h * 31 + hash(buffer + shift, n);
        }
        printf("%016lx\n", h);
        fflush(stdout);
        usleep(20000);
    }
    close(fd);
    return 0;
}
static volatile sig_atomic_t handled;
static int handler_fd;
static void handler(int sig)
{
    (void)sig;
    char page[PAGE];
    int before = errno = 12345;
    if (pread(handler_fd, page, PAGE, (handled % 60) * PAGE) != PAGE || errno != before)
        abort();
    handled++;
}
static int signals(const char *file)
{
    handler_fd = open(file, O_RDONLY);
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, NULL);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, NULL);
    while (handled < 2000) {
        off_t page = handled % 63;
        if (pread(handler_fd, buffer, PAGE, page * PAGE) != PAGE)
            DIE("read: %s", strerror(errno));
        free(malloc(1000 + page));
    }
    return 0;
}
static void *cancelled(void *arg)
{
    char *page = arg;
    for (;;)
        if (pread(handler_fd, page, PAGE, 0) != PAGE)
            abort();
    return NULL;
}
/* A thread that only hits can be cancelled. */
static int cancel(const char *file)
{
    handler_fd = open(file, O_RDONLY);
    pthread_t t;
    void *ret;
    for (int i = 0; i < 20; i++) {
        pthread_create(&t, NULL, cancelled, buffer);
        usleep(1000);
        pthread_cancel(t);
        pthread_join(t, &ret);
        if (ret != PTHREAD_CANCELED)
            DIE("not cancelled");
    }
    return 0;
}
static int shared_map(const char *file)
{
    int fd = open(file, O_RDWR);
    char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char c;
    for (int i = 0; i < 100; i++) {
        p[7] = i;
        if (pread(fd, &c, 1, 7) != 1 || c != i)
            DIE("stored %d, read %d", i, c);
    }
    sync();
    return syncfs(fd);
}
/* Closes all descriptors that it did not open: the preload path must cope. */
static int close_all(const char *file)
{
    /* Descriptors that the test's parent left open. */
    close_range(3, ~0U, 0);
    int fd = open(file, O_RDONLY), refused = 0;
    backwards(file, 3 * PAGE, 0, 1);
    for (int i = 3; i < 70000; i++)
        if (i != fd && close(i) == 0)
            DIE("%d was open", i);
        else
            refused++;
    close_range(fd + 1, ~0U, 0);
    closefrom(fd + 1);
    for (int i = fd + 1; i < 70000; i++)
        syscall(SYS_close, i);
    return backwards(file, 3 * PAGE, 0, 2);
}
/* The library's descriptors are closed unseen, and their numbers belong to another file. */
static int raw_reuse(const char *file, const char *other)
{
    backwards(file, PAGE, 0, 1);
    int fd = open(other, O_RDWR);
    for (int i = 100; i < 70000; i++) {
        long ret;
        __asm__ volatile("syscall" : "=a"(ret) : "0"(SYS_dup3), "D"(fd), "S"(i), "d"(0) : "rcx", "r11", "memory");
    }
    return backwards(file, PAGE, 0, 2);
}

/* A system call that no hook sees. */
static long unseen(long n, long a, long b, long c)
{
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "0"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return ret;
}
#define CHECK(what) do { if (!(what)) DIE("line %d: not so: %s (%s)", __LINE__, #what, strerror(errno)); } while (0)

static int nothing(void *arg) { (void)arg; return 0; }
/* The preload path closes, then the program maps and syncs. */
static int closed_connection(const char *file, const char *how)
{
    char c, *stack = malloc(65536);
    int fd = open(file, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &c, 1, 0) == 1);
    if (!strcmp(how, "ring"))
        CHECK(syscall(SYS_io_uring_setup, 0, NULL) < 0);
    else if (!strcmp(how, "clone"))
        waitpid(clone(nothing, stack + 65536, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL), NULL, 0);
    else
        CHECK(unshare(CLONE_FILES) == 0);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
    sync();
    CHECK(syscall(SYS_sync) == 0);
    CHECK(syncfs(fd) == 0);
    free(stack);
    return 0;
}
static void *sync_it(void *arg) { return (void *)(intptr_t)syncfs((int)(intptr_t)arg); }
/* Two threads sync, one maps: they do not wait for each other. */
static int sync_and_map(const char *file)
{
    char c;
    int fd = open(file, O_RDWR);
    CHECK(pread(fd, &c, 1, 0) == 1);
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, sync_it, (void *)(intptr_t)fd);
    usleep(50000);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        void *ret;
        pthread_join(t[i], &ret);
        CHECK(ret == NULL);
    }
    return 0;
}
static int map_refused(const char *file)
{
    int fd = open(file, O_RDWR), reader = open(file, O_RDONLY);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
    CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) != MAP_FAILED);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, reader, 0) != MAP_FAILED);
    return 0;
}
/* A server's child without the rights that the preload server takes. */
static int dropped(const char *file)
{
    char c;
    int fd = open(file, O_RDWR), status;
    CHECK(pread(fd, &c, 1, 0) == 1);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(getuid() != 0 || setuid(65534) == 0);
        CHECK(pread(fd, &c, 1, 0) == 1);
        CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
static int locks(const char *file)
{
    char events[4096], c;
    int watch = inotify_init1(IN_NONBLOCK);
    CHECK(inotify_add_watch(watch, file, IN_CLOSE_WRITE) > 0);
    FILE *stream = fopen(file, "r+");
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fileno(stream), F_SETLK, &all) == 0);
    int fd = open(file, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &c, 1, 0) == 1);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(fcntl(fd, F_GETLK, &all) == 0);
        _exit(all.l_type == F_UNLCK);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
    CHECK(read(watch, events, sizeof events) < 0 && errno == EAGAIN);
    return 0;
}
static int create(const char *file)
{
    int fd = open(file, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    return 0;
}
static int touch(const char *file, const char *how, int times)
{
    int flags = !strcmp(how, "ro") ? O_RDONLY : !strcmp(how, "rw") ? O_RDWR : O_RDWR | O_CREAT | O_TRUNC;
    for (int i = 0; i < times; i++) {
        int fd = open(file, flags, 0600);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    return 0;
}
int io_uring_queue_init(unsigned, void *, unsigned) __attribute__((weak));
int __close(int);
int __dup2(int, int);
static void pass(int through[2], int fd)
{
    char control[CMSG_SPACE(sizeof fd)], byte = 0;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&m);
    *head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    CHECK(sendmsg(through[0], &m, 0) == 1);
    m.msg_controllen = sizeof control;
    CHECK(recvmsg(through[1], &m, 0) == 1);
}
/* A descriptor is closed and its number reused without libc's close: reads return the new file's content. */
static int numbers(const char *file, const char *how)
{
    char word[8] = {0};
    int fd, p[2] = {-1, -1}, q[2], through[2];
    CHECK(pipe(q) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, through) == 0);
    CHECK((fd = open(file, O_RDONLY)) >= 0 && pread(fd, buffer, PAGE, 0) == PAGE);
    if (!strcmp(how, "ring"))
        CHECK(io_uring_queue_init(8, NULL, 0) == 77);
    if (!strcmp(how, "__dup2")) {
        CHECK(__dup2(q[0], fd) == fd);
    } else if (!strcmp(how, "__close") || !strcmp(how, "ring")) {
        if (strcmp(how, "ring"))
            CHECK(__close(fd) == 0);
        CHECK(unseen(SYS_dup3, q[0], fd, 0) == fd);
    } else {
        unseen(SYS_close, fd, 0, 0);
    }
    if (!strcmp(how, "pipe")) CHECK(pipe(p) == 0);
    if (!strcmp(how, "pipe2")) CHECK(pipe2(p, O_CLOEXEC) == 0);
    if (!strcmp(how, "socketpair")) CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);
    if (!strcmp(how, "eventfd")) p[0] = p[1] = eventfd(0, 0);
    if (!strcmp(how, "recvmsg")) pass(through, q[0]), p[0] = fd;
    int to = p[1] < 0 ? q[1] : p[1];
    CHECK(p[0] < 0 || p[0] == fd);
    CHECK(write(to, "\1\0\0\0\0\0\0", 8) == 8);
    /* Pipes and sockets have no offsets; an eventfd takes any. */
    CHECK(!strcmp(how, "eventfd") || (pread(fd, word, 1, 0) == -1 && errno == ESPIPE));
    CHECK(read(fd, word, 8) == 8 && word[0] == 1 && word[1] == 0);
    return 0;
}
static int sandboxed(const char *file, const char *how)
{
    int fd = open(file, O_RDWR);
    CHECK(read(fd, buffer, PAGE) == PAGE && read(fd, buffer + PAGE, PAGE) == PAGE);
    if (!strcmp(how, "prctl"))
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    else if (!strcmp(how, "seccomp"))
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) == 0);
    else
        CHECK(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    int ok = read(fd, buffer + 8 * PAGE, PAGE) == PAGE;
    unseen(SYS_exit, !ok, 0, 0);
    return 1;
}
static int sockets(void)
{
    int count = 0;
    char name[64], to[64];
    for (int i = 3; i < 70000; i++) {
        sprintf(name, "/proc/self/fd/%d", i);
        ssize_t n = readlink(name, to, sizeof to - 1);
        count += n > 0 && !strncmp(to, "socket:", 7);
    }
    return count;
}
static int raw_fork(const char *file, const char *how)
{
    int before = sockets(), status;
    backwards(file, PAGE, 0, 1);
    CHECK(sockets() == before + 1);
    fflush(stdout);
    pid_t pid = !strcmp(how, "asm") ? unseen(SYS_fork, 0, 0, 0) : syscall(SYS_fork);
    if (pid == 0) {
        backwards(file, PAGE, 0, 1);
        CHECK(sockets() == before + 1);
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
static volatile sig_atomic_t forks, in_a_child;
static void fork_and_return(int sig)
{
    (void)sig;
    pid_t pid = fork();
    int status = 0;
    if (pid == 0)
        in_a_child = 1;
    else if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        DIE("child %d: status %x", pid, status);
    else
        forks++;
}
static int signal_forks(const char *file)
{
    int fd = open(file, O_RDONLY);
    struct sigaction sa = {.sa_handler = fork_and_return, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, NULL);
    for (int i = 0, armed = -1; forks < 100; i++) {
        struct itimerval once = {.it_value.tv_usec = 100 + i * 53 % 400};
        if (armed != forks)
            armed = forks, setitimer(ITIMER_REAL, &once, NULL);
        /* Not adjacent, and not aligned: through slots of the ring. */
        if (pread(fd, buffer + 9, 8 * PAGE, (i * 37 % 100) * PAGE) != 8 * PAGE)
            DIE("read: %s", strerror(errno));
        if (in_a_child)
            _exit(0);
    }
    return 0;
}
/* Mappings of rings, and the sum of their inodes. */
static unsigned long rings(int *mapped)
{
    char line[512];
    unsigned long sum = 0, inode;
    FILE *maps = fopen("/proc/self/maps", "r");
    for (*mapped = 0; fgets(line, sizeof line, maps);)
        if (strstr(line, "memfd:test-ring") && sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)
            sum += inode, ++*mapped;
    fclose(maps);
    return sum;
}
/* With each new file the daemon hangs up, and the process registers again. Threads miss meanwhile, and use the last one. */
static int daemons(const char *file, const char *files, int pages, int count)
{
    int mapped, met = 0;
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    pthread_t t[3];
    storm_file = file, storm_pages = pages;
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, storm_thread, (void *)(uintptr_t)(i + 1));
    for (int i = 0; met < count; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s%d", files, i);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            DIE("only %d daemons after %d files", met, i);
        unsigned long before = rings(&mapped);
        /* A thread with a full ring may have registered with the last one already. */
        for (int k = 1; k < 40 && rings(&mapped) == before; k++, usleep(100))
            if (pread(fd, buffer, PAGE, k * k * 5 % 17 * PAGE) != PAGE)
                DIE("%s: %s", path, strerror(errno));
        met += rings(&mapped) != before;
    }
    usleep(50000);
    storm_over = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    int status;
    if (fork() == 0)
        rings(&mapped), _exit(mapped);
    wait(&status);
    if (status)
        DIE("a child has memory of its parent's rings");
    rings(&mapped);
    printf("%d %ld\n", mapped, torn);
    return 0;
}
/* Maps a file, and duplicates and closes its descriptor; then closes the preload path. */
static int map_and_dup(const char *file)
{
    int fd = open(file, O_RDONLY);
    char *map = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    char byte = 0;
    CHECK(map != MAP_FAILED && pread(fd, &byte, 1, 0) == 1 && byte == map[0]);
    CHECK(dup2(fd, 200) == 200 && close(fd) == 0 && pread(200, &byte, 1, 1) == 1 && byte == map[1]);
    CHECK(syscall(SYS_close, 200) == 0 && close(200) < 0 && errno == EBADF);
    CHECK(unshare(CLONE_FILES) == 0);
    return 0;
}
/* Locked memory of the library's mappings of the cache, and that of all others, KiB. */
static long locked(long *others)
{
    char line[512];
    long ours = 0, kib;
    int is_ours = 0;
    FILE *maps = fopen("/proc/self/smaps", "r");
    for (*others = 0; fgets(line, sizeof line, maps);) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_ours = strstr(line, "/memfd:terrace-") != NULL;
        if (sscanf(line, "Locked: %ld kB", &kib) == 1)
            *(is_ours ? &ours : others) += kib;
    }
    fclose(maps);
    return ours;
}
/* Calls mlockall with flags as `how` states (b: before the file is read). The cache is never locked, other memory is. */
static int mlocks(const char *file, const char *how)
{
    long others = 0;
    int flags = atoi(how + 1), raw = how[0] == 's';
    CHECK(how[0] != 'b' || mlockall(flags) == 0);
    backwards(file, 3 * PAGE, 9, 2);
    CHECK(how[0] == 'b' || (raw ? syscall(SYS_mlockall, flags) : mlockall(flags)) == 0);
    backwards(file, 3 * PAGE, 9, 2);
    long ours = locked(&others);
    /* 16 MiB: the stack of a thread that ends meanwhile is less than half of it. */
    void *later = mmap(NULL, 4096 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long before = others;
    CHECK(later != MAP_FAILED && locked(&others) == 0);
    printf("%ld %d %d\n", ours, before > 0, others >= before + 8192);
    return 0;
}
/* As raw_reuse, but the numbers belong to an eventfd: all eventfds share one inode. */
static int raw_eventfd(const char *file)
{
    uint64_t count;
    backwards(file, 3 * PAGE, 9, 1);
    int fd = eventfd(0, EFD_NONBLOCK);
    for (int i = 100; i < 70000; i++)
        unseen(SYS_dup3, fd, i, 0);
    backwards(file, 3 * PAGE, 9, 2);
    CHECK(read(fd, &count, 8) < 0 && errno == EAGAIN);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[1] : "";
#define ARG(i) (argc > i ? atoi(argv[i]) : 0)
    if (!strcmp(what, "ops")) {
        rng_state = strtoull(argv[2], NULL, 10) * 2 + 1;
        return ops(argv + 4, argc - 4, ARG(3));
    }
    if (!strcmp(what, "storm"))
        return storm(argv[2], ARG(3), ARG(4), ARG(5));
    if (!strcmp(what, "daemons"))
        return daemons(argv[2], argv[3], ARG(4), ARG(5));
    if (!strcmp(what, "sum"))
        return sum_up(argv[2], ARG(3), ARG(4));
    if (!strcmp(what, "backwards"))
        return backwards(argv[2], ARG(3), ARG(4), ARG(5));
    if (!strcmp(what, "touch"))
        return touch(argv[2], argv[3], ARG(4));
    if (!strcmp(what, "signals"))
        return signals(argv[2]);
    if (!strcmp(what, "cancel"))
        return cancel(argv[2]);
    if (!strcmp(what, "shared_map"))
        return shared_map(argv[2]);
    if (!strcmp(what, "close_all"))
        return close_all(argv[2]);
    if (!strcmp(what, "raw_reuse"))
        return raw_reuse(argv[2], argv[3]);
#define TEST(name) if (!strcmp(what, #name)) return name(argv[2])
#define TEST2(name) if (!strcmp(what, #name)) return name(argv[2], argv[3])
    TEST2(closed_connection);
    TEST(sync_and_map);
    TEST(map_refused);
    TEST(dropped);
    TEST(locks);
    TEST(create);
    TEST2(numbers);
    TEST2(sandboxed);
    TEST(map_and_dup);
    TEST2(raw_fork);
    TEST2(mlocks);
    TEST(signal_forks);
    TEST(raw_eventfd);
    return 2;
}
