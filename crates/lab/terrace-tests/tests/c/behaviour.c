/*
 * What programs do with descriptors, one case a name: `behaviour DIR CASE`. Each case checks every byte that it reads and
 * ends with status 0 when the program saw what POSIX promises, on any file system. DIR holds what `prepare` made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/seccomp.h>
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
#include <utmp.h>

extern char **environ;
static const char *self;
static char path_a[4096], path_b[4096], path_new[4096];

enum { PAGES = 64, PAGE = 4096 };

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
                   fprintf(stderr, " (errno %d %s)\n", errno, strerror(errno)), exit(1))
#define CHECK(what) do { if (!(what)) FAIL("not so: %s", #what); } while (0)

/* Byte `at` of file `which`. */
static unsigned char byte(int which, size_t at) { return (unsigned char)(at * 31 + at / 4096 * 7 + (size_t)which * 101 + 13); }

static void fill(unsigned char *buf, int which, size_t at, size_t len)
{
    for (size_t i = 0; i < len; i++)
        buf[i] = byte(which, at + i);
}

static int right(const unsigned char *buf, int which, size_t at, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (buf[i] != byte(which, at + i))
            return 0;
    return 1;
}

static int xopen(const char *path, int flags)
{
    int fd = open(path, flags, 0644);
    if (fd < 0)
        FAIL("open %s", path);
    return fd;
}

/* Reads some of the file by pread, so often that the second time is a hit. */
static void expect_file(int fd, int which)
{
    unsigned char buf[3 * PAGE];
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at + sizeof buf <= PAGES * PAGE; at += 5 * PAGE + 100) {
            ssize_t n = pread(fd, buf, sizeof buf, (off_t)at);
            if (n != (ssize_t)sizeof buf)
                FAIL("pread at %zu: %zd", at, n);
            if (!right(buf, which, at, sizeof buf))
                FAIL("file %d: wrong content at %zu", which, at);
        }
}

static void expect_child(pid_t child)
{
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        FAIL("the child ended with status %x", status);
}

static void prepare(void)
{
    unsigned char page[PAGE];
    const char *paths[] = {path_a, path_b};
    for (int which = 0; which < 2; which++) {
        int fd = xopen(paths[which], O_RDWR | O_CREAT | O_TRUNC);
        for (size_t at = 0; at < PAGES * PAGE; at += PAGE) {
            fill(page, which, at, PAGE);
            CHECK(write(fd, page, PAGE) == PAGE);
        }
        CHECK(close(fd) == 0);
    }
}

/* ---- duplicates ---- */

static void case_dup(void)
{
    int fd = xopen(path_a, O_RDONLY), other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    expect_file(other, 1);
    int copy = dup(fd);
    expect_file(copy, 0);
    /* The offset is one for all duplicates. */
    unsigned char buf[100];
    CHECK(lseek(fd, 1000, SEEK_SET) == 1000);
    CHECK(read(copy, buf, 100) == 100 && right(buf, 0, 1000, 100));
    CHECK(read(fd, buf, 100) == 100 && right(buf, 0, 1100, 100));
    CHECK(dup2(fd, other) == other);
    expect_file(other, 0);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "pipe", 4) == 4);
    CHECK(dup3(pipes[0], copy, O_CLOEXEC) == copy);
    CHECK(read(copy, buf, 100) == 4 && memcmp(buf, "pipe", 4) == 0);
    CHECK(dup2(fd, fd) == fd);
    expect_file(fd, 0);
    CHECK(fcntl(fd, F_DUPFD, 700) >= 700);
    CHECK(dup2(fd, 1000) == 1000);
    expect_file(1000, 0);
    CHECK(close(1000) == 0 && pread(1000, buf, 1, 0) == -1 && errno == EBADF);
}

static void case_dup2_over(void)
{
    /* Numbers go round: file, other file, pipe, file. */
    unsigned char buf[16];
    int fd = xopen(path_a, O_RDONLY);
    for (int round = 0; round < 50; round++) {
        int other = xopen(path_b, O_RDONLY);
        CHECK(dup2(other, fd) == fd);
        CHECK(close(other) == 0);
        CHECK(pread(fd, buf, 16, 4096) == 16 && right(buf, 1, 4096, 16));
        other = xopen(path_a, O_RDONLY);
        CHECK(dup2(other, fd) == fd);
        CHECK(close(other) == 0);
        CHECK(pread(fd, buf, 16, 4096) == 16 && right(buf, 0, 4096, 16));
    }
}

/* ---- closing ---- */

/* After `fd` was closed in some way, a pipe that gets its number must be a pipe. */
static void expect_reused(int fd)
{
    unsigned char buf[PAGE];
    CHECK(pread(fd, buf, 1, 0) == -1 && errno == EBADF);
    CHECK(read(fd, buf, 1) == -1 && errno == EBADF);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    CHECK(pipes[0] == fd);
    CHECK(write(pipes[1], "pipe", 4) == 4);
    CHECK(read(fd, buf, PAGE) == 4 && memcmp(buf, "pipe", 4) == 0);
    CHECK(pread(fd, buf, PAGE, 0) == -1 && errno == ESPIPE);
    close(pipes[0]);
    close(pipes[1]);
}

static void case_close(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(close(fd) == 0);
    expect_reused(fd);
}

static void case_fclose(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    FILE *file = fdopen(fd, "r");
    unsigned char buf[5000];
    CHECK(fread(buf, 1, sizeof buf, file) == sizeof buf && right(buf, 0, 0, sizeof buf));
    CHECK(fclose(file) == 0);
    expect_reused(fd);
    file = fopen(path_b, "r");
    CHECK(file != NULL);
    expect_file(fileno(file), 1);
    fd = fileno(file);
    CHECK(fclose(file) == 0);
    expect_reused(fd);
}

static void case_close_range(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(close_range((unsigned)fd, (unsigned)fd + 3, 0) == 0);
    expect_reused(fd);
    fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    /* Marked, not closed. */
    CHECK(close_range((unsigned)fd, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
    expect_file(fd, 0);
    CHECK(close_range((unsigned)fd, ~0u, 0) == 0);
    expect_reused(fd);
}

static void case_closefrom(void)
{
    int fd = xopen(path_a, O_RDONLY);
    int other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    expect_file(other, 1);
    closefrom(fd);
    expect_reused(fd);
    fd = xopen(path_b, O_RDONLY);
    expect_file(fd, 1);
}

static void case_freopen(void)
{
    /* stdio closes and replaces the descriptor inside libc. */
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    FILE *file = fdopen(fd, "r");
    CHECK(freopen(path_b, "r", file) == file);
    expect_file(fileno(file), 1);
    CHECK(freopen("/dev/null", "r", file) == file);
    unsigned char buf[16];
    CHECK(pread(fileno(file), buf, 16, 0) == 0);
    CHECK(read(fileno(file), buf, 16) == 0);
}

static void case_daemon(void)
{
    /* daemon() puts /dev/null on 0, 1 and 2 by dup2 inside libc. */
    pid_t child = fork();
    if (child == 0) {
        int report = dup(2);
        CHECK(close(0) == 0);
        CHECK(xopen(path_a, O_RDONLY) == 0);
        expect_file(0, 0);
        int pipes[2];
        CHECK(pipe(pipes) == 0);
        pid_t before = getpid();
        (void)before;
        /* The parent of daemon() ends; its child answers through the pipe of the grandparent's making. */
        pid_t middle = fork();
        if (middle == 0) {
            CHECK(daemon(1, 0) == 0);
            unsigned char buf[16];
            char answer = read(0, buf, 16) == 0 && pread(0, buf, 16, 0) == 0 ? 'y' : 'n';
            CHECK(write(pipes[1], &answer, 1) == 1);
            _exit(0);
        }
        char answer = '?';
        CHECK(read(pipes[0], &answer, 1) == 1);
        waitpid(middle, NULL, 0);
        if (answer != 'y')
            dprintf(report, "after daemon() descriptor 0 still reads as the old file\n");
        _exit(answer == 'y' ? 0 : 1);
    }
    expect_child(child);
}

static void case_login_tty(void)
{
    /* login_tty() puts a terminal on 0, 1 and 2 inside libc. */
    int master, slave;
    if (openpty(&master, &slave, NULL, NULL, NULL) < 0)
        return; /* no terminals here */
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(0) == 0);
        CHECK(xopen(path_a, O_RDONLY) == 0);
        expect_file(0, 0);
        if (login_tty(slave) < 0)
            _exit(0);
        unsigned char buf[16];
        _exit(pread(0, buf, 16, 0) == -1 && errno == ESPIPE ? 0 : 1);
    }
    close(slave);
    expect_child(child);
}

static void case_scm_rights(void)
{
    /* A descriptor received in a message takes the lowest free number, which was a file. */
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    int fd = xopen(path_a, O_RDONLY), other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    char control[CMSG_SPACE(sizeof(int))], data = 'x';
    struct iovec iov = {&data, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &other, sizeof other);
    CHECK(sendmsg(ends[0], &msg, 0) == 1);
    CHECK(close(fd) == 0);
    CHECK(recvmsg(ends[1], &msg, 0) == 1);
    int got;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof got);
    CHECK(got == fd);
    expect_file(got, 1);
}

/* ---- processes ---- */

static void case_fork(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    unsigned char buf[100];
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            /* The offset is shared with the parent; the numbers are not. */
            CHECK(read(fd, buf, 100) == 100 && right(buf, 0, (size_t)i * 200, 100));
            int other = xopen(path_b, O_RDONLY);
            expect_file(other, 1);
            CHECK(dup2(other, fd) == fd);
            expect_file(fd, 1);
            _exit(0);
        }
        expect_child(child);
        CHECK(read(fd, buf, 100) == 100 && right(buf, 0, (size_t)i * 200 + 100, 100));
    }
    expect_file(fd, 0);
}

static void case_fork_many(void)
{
    /* Children that read at the same time do not disturb one another. */
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    pid_t children[12];
    for (int i = 0; i < 12; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            for (int n = 0; n < 20; n++) {
                expect_file(fd, 0);
                int other = xopen(path_b, O_RDONLY);
                expect_file(other, 1);
                close(other);
            }
            _exit(0);
        }
    }
    for (int n = 0; n < 20; n++)
        expect_file(fd, 0);
    for (int i = 0; i < 12; i++)
        expect_child(children[i]);
}

static void case_vfork(void)
{
    int fd = xopen(path_a, O_RDONLY), other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    expect_file(other, 1);
    volatile int opened = -1;
    pid_t child = vfork();
    if (child == 0) {
        /* All this happens in the child's own descriptor table, but in the parent's memory. */
        dup2(other, fd);
        close(other);
        opened = open(path_a, O_RDONLY);
        int more = open(path_a, O_RDONLY);
        (void)more;
        _exit(opened >= 0 ? 0 : 1);
    }
    expect_child(child);
    expect_file(fd, 0);
    expect_file(other, 1);
    unsigned char buf[16];
    int pipes[2];
    CHECK(pread(opened, buf, 16, 0) == -1 || opened == other);
    CHECK(pipe(pipes) == 0 && write(pipes[1], "pipe", 4) == 4);
    CHECK(read(pipes[0], buf, 16) == 4 && memcmp(buf, "pipe", 4) == 0);
    CHECK(pread(pipes[1], buf, 16, 0) == -1 && (errno == ESPIPE || errno == EBADF));
}

static void case_vfork_exec(void)
{
    int fd = xopen(path_a, O_RDONLY), other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    char a[16], b[16];
    sprintf(a, "%d", fd), sprintf(b, "%d", other);
    for (int i = 0; i < 5; i++) {
        pid_t child = vfork();
        if (child == 0) {
            dup2(other, fd);
            execl(self, self, path_a, "child", a, "1", (char *)NULL);
            _exit(127);
        }
        expect_child(child);
        expect_file(fd, 0);
    }
}

static void case_posix_spawn(void)
{
    int fd = xopen(path_a, O_RDONLY), other = xopen(path_b, O_RDONLY);
    expect_file(fd, 0);
    char number[16];
    sprintf(number, "%d", fd);
    for (int i = 0; i < 5; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, other, fd);
        posix_spawn_file_actions_addclose(&actions, other);
        posix_spawn_file_actions_addopen(&actions, 90, path_a, O_RDONLY, 0);
        char *argv[] = {(char *)self, path_a, "child", number, "1", NULL};
        pid_t child;
        CHECK(posix_spawn(&child, self, &actions, NULL, argv, environ) == 0);
        posix_spawn_file_actions_destroy(&actions);
        expect_child(child);
        expect_file(fd, 0);
        expect_file(other, 1);
        unsigned char c;
        CHECK(pread(90, &c, 1, 0) == -1 && errno == EBADF);
    }
}

static void case_exec(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    /* A failed exec changes nothing. */
    char *none[] = {"none", NULL};
    CHECK(execv("/nonexistent", none) == -1 && errno == ENOENT);
    expect_file(fd, 0);
    int hidden = xopen(path_b, O_RDONLY | O_CLOEXEC);
    expect_file(hidden, 1);
    char number[16], closed[16];
    sprintf(number, "%d", fd), sprintf(closed, "%d", hidden);
    execl(self, self, path_a, "child", number, "0", closed, (char *)NULL);
    FAIL("exec");
}

static void case_system(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    char command[9000];
    snprintf(command, sizeof command, "cmp '%s' '%s' && ! cmp -s '%s' '%s'", path_a, path_a, path_a, path_b);
    CHECK(system(command) == 0);
    snprintf(command, sizeof command, "cat '%s' | wc -c", path_a);
    FILE *pipe = popen(command, "r");
    int bytes = 0;
    CHECK(fscanf(pipe, "%d", &bytes) == 1 && bytes == PAGES * PAGE);
    CHECK(pclose(pipe) == 0);
    expect_file(fd, 0);
}

static void case_setuid(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0)
            CHECK(setgid(65534) == 0 && setuid(65534) == 0);
        expect_file(fd, 0);
        _exit(0);
    }
    expect_child(child);
}

static void case_chroot(void)
{
    if (geteuid() != 0)
        return;
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        char *slash = strrchr(path_a, '/');
        *slash = 0;
        CHECK(chroot(path_a) == 0 && chdir("/") == 0);
        expect_file(fd, 0);
        expect_file(xopen("/b", O_RDONLY), 1);
        _exit(0);
    }
    expect_child(child);
}

static void case_unshare_files(void)
{
    /* A thread with a descriptor table of its own. */
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(unshare(CLONE_FILES) == 0);
    expect_file(fd, 0);
}

/* ---- signals, threads, early code ---- */

static volatile sig_atomic_t handled, handler_wrong;
static int handler_fd;
static struct itimerval next_alarm; /* set again by the handler; zero: no further alarm */

static void handler(int signal)
{
    static unsigned char buf[2 * PAGE];
    int before = errno;
    (void)signal;
    size_t at = (size_t)(handled % 50) * PAGE + 77;
    ssize_t n = pread(handler_fd, buf, sizeof buf, (off_t)at);
    if (n != (ssize_t)sizeof buf || !right(buf, 1, at, sizeof buf))
        handler_wrong = 1;
    int fd = open(path_a, O_RDONLY);
    if (fd < 0 || read(fd, buf, PAGE) != PAGE || !right(buf, 0, 0, PAGE) || close(fd) != 0)
        handler_wrong = 2;
    handled++;
    /* Not a periodic timer: where a handler takes longer than the period, nothing but handlers would ever run. */
    setitimer(ITIMER_REAL, &next_alarm, NULL);
    errno = before;
}

/* The long form of all tests. */
static int in_soak(void) { return getenv("TERRACE_SOAK") != NULL; }

static void case_signal(void)
{
    int rounds = in_soak() ? 300 : 60, alarms_least = in_soak() ? 200 : 40;
    handler_fd = xopen(path_b, O_RDONLY);
    int fd = xopen(path_a, O_RDONLY);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    next_alarm.it_value.tv_usec = 700;
    CHECK(setitimer(ITIMER_REAL, &next_alarm, NULL) == 0);
    for (int i = 0; i < rounds || handled < alarms_least; i++) {
        expect_file(fd, 0);
        int more = xopen(path_b, O_RDONLY);
        expect_file(more, 1);
        close(more);
        CHECK(handler_wrong == 0);
        if (i > 100000)
            break;
    }
    static const struct itimerval off;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
    next_alarm = off;
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    CHECK(sigprocmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    CHECK(handled > 10);
}

static void case_sigaltstack(void)
{
    /* Small stacks: a hit must not need much of one. */
    static char stack[16384];
    stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
    CHECK(sigaltstack(&alternative, NULL) == 0);
    handler_fd = xopen(path_b, O_RDONLY);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(raise(SIGUSR1) == 0 && handler_wrong == 0);
}

static unsigned char early[PAGE];
static ssize_t early_read = -2;

__attribute__((constructor)) static void before_main(void)
{
    const char *path = getenv("BEHAVIOUR_EARLY");
    if (path == NULL)
        return;
    int fd = open(path, O_RDONLY);
    early_read = pread(fd, early, PAGE, PAGE);
    if (early_read == PAGE)
        early_read = pread(fd, early, PAGE, PAGE);
    close(fd);
}

static void case_before_main(void)
{
    CHECK(early_read == PAGE);
    CHECK(right(early, 0, PAGE, PAGE));
}

static void at_exit(void)
{
    int fd = open(path_b, O_RDONLY);
    unsigned char buf[PAGE];
    if (pread(fd, buf, PAGE, PAGE) != PAGE || !right(buf, 1, PAGE, PAGE))
        _exit(9);
}

static void case_after_main(void)
{
    CHECK(atexit(at_exit) == 0);
    expect_file(xopen(path_a, O_RDONLY), 0);
}

static volatile int stop;

static void *reader(void *arg)
{
    unsigned char buf[PAGE];
    int which = (int)(intptr_t)arg;
    const char *path = which ? path_b : path_a;
    for (unsigned n = 0; !stop; n++) {
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            return "open";
        for (int i = 0; i < 20; i++) {
            size_t at = (n * 13 + (unsigned)i * 7) % (PAGES - 1) * PAGE + 55;
            if (pread(fd, buf, PAGE, (off_t)at) != PAGE || !right(buf, which, at, PAGE))
                return "content";
        }
        if (close(fd) != 0)
            return "close";
    }
    return NULL;
}

static void run_threads(void (*work)(void))
{
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, reader, (void *)(i & 1)) == 0);
    work();
    stop = 1;
    for (int i = 0; i < 4; i++) {
        void *why;
        CHECK(pthread_join(threads[i], &why) == 0);
        if (why)
            FAIL("a thread: wrong %s", (char *)why);
    }
}

static void wait_some(void) { usleep(in_soak() ? 1000000 : 200000); }

static void case_threads(void) { run_threads(wait_some); }

static void fork_some(void)
{
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (child == 0) {
            int fd = open(path_a, O_RDONLY);
            unsigned char buf[PAGE];
            _exit(pread(fd, buf, PAGE, 0) == PAGE && right(buf, 0, 0, PAGE) ? 0 : 1);
        }
        expect_child(child);
    }
}

static void case_threads_fork(void) { run_threads(fork_some); }

static void *cancelled(void *arg)
{
    int fd = *(int *)arg;
    unsigned char buf[PAGE];
    for (;;)
        if (read(fd, buf, PAGE) <= 0)
            lseek(fd, 0, SEEK_SET);
    return NULL;
}

static void case_cancel(void)
{
    int fd = xopen(path_a, O_RDONLY);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, cancelled, &fd) == 0);
        usleep(500);
        CHECK(pthread_cancel(thread) == 0);
        void *result;
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    expect_file(fd, 0);
}

/* ---- the calls themselves ---- */

static void case_calls(void)
{
    static unsigned char buf[PAGES * PAGE + 1000];
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    errno = 4242;
    CHECK(pread(fd, buf, 5000, 3000) == 5000 && right(buf, 0, 3000, 5000) && errno == 4242);
    CHECK(pread64(fd, buf, 5000, 3000) == 5000 && right(buf, 0, 3000, 5000));
    /* Short at the end, nothing behind it. */
    CHECK(pread(fd, buf, sizeof buf, 1000) == PAGES * PAGE - 1000 && right(buf, 0, 1000, PAGES * PAGE - 1000));
    CHECK(pread(fd, buf, 10, PAGES * PAGE) == 0 && pread(fd, buf, 10, 1LL << 40) == 0);
    CHECK(pread(fd, buf, 0, 0) == 0);
    CHECK(pread(fd, buf, 10, -1) == -1 && errno == EINVAL);
    struct iovec two[3] = {{buf, 100}, {buf + 100, 0}, {buf + 100, 9000}};
    CHECK(preadv(fd, two, 3, 50) == 9100 && right(buf, 0, 50, 9100));
    CHECK(preadv64(fd, two, 3, 50) == 9100 && right(buf, 0, 50, 9100));
    CHECK(preadv2(fd, two, 3, 4000, 0) == 9100 && right(buf, 0, 4000, 9100));
    CHECK(lseek(fd, 12345, SEEK_SET) == 12345);
    CHECK(preadv2(fd, two, 3, -1, 0) == 9100 && right(buf, 0, 12345, 9100));
    CHECK(lseek(fd, 0, SEEK_CUR) == 12345 + 9100);
    CHECK(readv(fd, two, 3) == 9100 && right(buf, 0, 12345 + 9100, 9100));
    CHECK(lseek(fd, 0, SEEK_CUR) == 12345 + 18200);
    CHECK(preadv2(fd, two, 3, 0, 0x40000000) == -1 && errno == EOPNOTSUPP);
    CHECK(preadv(fd, two, -1, 0) == -1 && errno == EINVAL);
    CHECK(readv(fd, two, 0) == 0);
    CHECK(lseek(fd, -100, SEEK_END) == PAGES * PAGE - 100);
    CHECK(read(fd, buf, 1000) == 100 && read(fd, buf, 1000) == 0);
    CHECK(write(fd, buf, 1) == -1 && errno == EBADF);
    int out = xopen(path_a, O_WRONLY);
    CHECK(read(out, buf, 1) == -1 && errno == EBADF);
    CHECK(pread(out, buf, 1, 0) == -1 && errno == EBADF);
    int where = xopen(path_a, O_PATH);
    CHECK(read(where, buf, 1) == -1 && errno == EBADF);
    char dir[4096];
    strcpy(dir, path_a), *strrchr(dir, '/') = 0;
    CHECK(read(xopen(dir, O_RDONLY | O_DIRECTORY), buf, 1) == -1 && errno == EISDIR);
}

static void case_bad_buffer(void)
{
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(pread(fd, NULL, 100, 0) == -1 && errno == EFAULT);
    char *hole = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(hole, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(pread(fd, hole + PAGE, 100, 0) == -1 && errno == EFAULT);
    ssize_t n = pread(fd, hole + PAGE - 50, 100, 0);
    CHECK((n == -1 && errno == EFAULT) || n == 50);
    expect_file(fd, 0);
}

static void case_big_iov(void)
{
    static unsigned char buf[1024 * 60];
    static struct iovec iov[1024];
    for (int i = 0; i < 1024; i++)
        iov[i] = (struct iovec){buf + i * 60, 60};
    int fd = xopen(path_a, O_RDONLY);
    for (int round = 0; round < 3; round++)
        CHECK(preadv(fd, iov, 1024, 33) == 61440 && right(buf, 0, 33, 61440));
    CHECK(preadv(fd, iov, 1025, 33) == -1 && errno == EINVAL);
}

static void case_open_forms(void)
{
    char dir[4096];
    strcpy(dir, path_a), *strrchr(dir, '/') = 0;
    int at = xopen(dir, O_RDONLY | O_DIRECTORY);
    expect_file(open64(path_a, O_RDONLY), 0);
    expect_file(openat(at, "b", O_RDONLY), 1);
    expect_file(openat64(at, "b", O_RDONLY), 1);
    int made = creat(path_new, 0644);
    CHECK(made >= 0 && write(made, "x", 1) == 1);
    made = creat64(path_new, 0600);
    CHECK(made >= 0 && lseek(made, 0, SEEK_END) == 0);
    /* Flags that the compiler does not know are checked at run time in fortified programs. */
    volatile int flags = O_RDONLY;
    expect_file(open(path_a, flags), 0);
    expect_file(openat(at, "b", flags), 1);
    CHECK(open(path_new, O_RDWR | O_CREAT | O_EXCL, 0644) == -1 && errno == EEXIST);
    CHECK(unlink(path_new) == 0);
    CHECK(open(path_new, O_RDONLY) == -1 && errno == ENOENT);
    mode_t mask = umask(027);
    made = open(path_new, O_RDWR | O_CREAT, 0666);
    struct stat st;
    CHECK(fstat(made, &st) == 0 && (st.st_mode & 0777) == 0640);
    umask(mask);
    CHECK(unlink(path_new) == 0);
}

static void case_write_then_read(void)
{
    unsigned char buf[3 * PAGE], back[3 * PAGE];
    int fd = xopen(path_new, O_RDWR | O_CREAT | O_TRUNC), reader = xopen(path_new, O_RDONLY);
    for (unsigned n = 0; n < 500; n++) {
        size_t at = (n * 977) % (20 * PAGE), len = 1 + (n * 131) % sizeof buf;
        fill(buf, (int)n, at, len);
        CHECK(pwrite(fd, buf, len, (off_t)at) == (ssize_t)len);
        CHECK(pread(reader, back, len, (off_t)at) == (ssize_t)len && memcmp(buf, back, len) == 0);
        CHECK(pread(fd, back, len, (off_t)at) == (ssize_t)len && memcmp(buf, back, len) == 0);
        if (n % 50 == 49) {
            CHECK(ftruncate(fd, (off_t)at) == 0);
            CHECK(pread(reader, back, 100, (off_t)at) == 0);
            CHECK(ftruncate(fd, (off_t)(at + 5000)) == 0);
            CHECK(pread(reader, back, 100, (off_t)at + 10) == 100);
            for (int i = 0; i < 100; i++)
                CHECK(back[i] == 0);
        }
    }
    CHECK(unlink(path_new) == 0);
    CHECK(pread(reader, back, 100, 0) == 100);
}

static void case_append(void)
{
    int a = xopen(path_new, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND), b = xopen(path_new, O_WRONLY | O_APPEND);
    int reader = xopen(path_new, O_RDONLY);
    unsigned char buf[200];
    for (int i = 0; i < 300; i++) {
        fill(buf, 5, (size_t)i * 100, 100);
        CHECK(write(i & 1 ? a : b, buf, 100) == 100);
        CHECK(read(reader, buf, 200) == 100 && right(buf, 5, (size_t)i * 100, 100));
    }
    CHECK(unlink(path_new) == 0);
}

static void case_posix_locks(void)
{
    /* Closing any descriptor of a file drops the process's locks on it; nothing else may. */
    int fd = xopen(path_a, O_RDWR);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    expect_file(fd, 0);
    pid_t child = fork();
    if (child == 0) {
        int mine = xopen(path_a, O_RDWR);
        expect_file(mine, 0);
        CHECK(fcntl(mine, F_SETLK, &lock) == -1 && (errno == EAGAIN || errno == EACCES));
        _exit(0);
    }
    expect_child(child);
    CHECK(close(xopen(path_a, O_RDONLY)) == 0);
    child = fork();
    if (child == 0) {
        int mine = xopen(path_a, O_RDWR);
        CHECK(fcntl(mine, F_SETLK, &lock) == 0);
        _exit(0);
    }
    expect_child(child);
}

static void case_few_descriptors(void)
{
    struct rlimit limit = {24, 24};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int opened = 0, fds[64];
    while (opened < 64 && (fds[opened] = open(opened & 1 ? path_b : path_a, O_RDONLY)) >= 0) {
        expect_file(fds[opened], opened & 1);
        opened++;
    }
    CHECK(errno == EMFILE);
    /* A library may need a few for itself, but not the program's. */
    CHECK(opened >= 12);
    for (int i = 0; i < opened; i++)
        CHECK(close(fds[i]) == 0);
    expect_file(xopen(path_a, O_RDONLY), 0);
}

static void case_lowest_number(void)
{
    /* open() gives the lowest free number: shells and daemons build on it. */
    int first = xopen("/dev/null", O_RDONLY);
    CHECK(close(first) == 0);
    for (int round = 0; round < 3; round++) {
        int fd = xopen(path_a, O_RDONLY);
        CHECK(fd == first);
        expect_file(fd, 0);
        int next = xopen("/dev/null", O_RDONLY);
        CHECK(next == first + 1);
        close(next);
        CHECK(close(fd) == 0);
    }
    CHECK(close(0) == 0);
    CHECK(xopen(path_a, O_RDONLY) == 0);
    expect_file(0, 0);
}

static void case_unlinked(void)
{
    unsigned char buf[PAGE];
    int fd = xopen(path_new, O_RDWR | O_CREAT | O_TRUNC);
    fill(buf, 3, 0, PAGE);
    CHECK(write(fd, buf, PAGE) == PAGE);
    CHECK(unlink(path_new) == 0);
    int again = xopen(path_new, O_RDWR | O_CREAT | O_EXCL);
    CHECK(pread(again, buf, PAGE, 0) == 0);
    CHECK(pread(fd, buf, PAGE, 0) == PAGE && right(buf, 3, 0, PAGE));
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_nlink == 0 && st.st_size == PAGE);
    CHECK(unlink(path_new) == 0);
}

static void case_raw_close(void)
{
    /* syscall() is libc's too. */
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(syscall(SYS_close, fd) == 0);
    expect_reused(fd);
}

static void case_unclassifiable_maps(void)
{
    /* A program whose descriptors cannot be followed any more maps and stores; another one sees it. */
    unsigned char buf[PAGE] = {0};
    int fd = xopen(path_new, O_RDWR | O_CREAT | O_TRUNC), to[2], from[2];
    CHECK(write(fd, buf, PAGE) == PAGE && close(fd) == 0);
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_t reader = fork();
    if (reader == 0) {
        fd = xopen(path_new, O_RDONLY);
        for (int round = 1; round <= 20; round++) {
            CHECK(read(to[0], buf, 1) == 1);
            CHECK(pread(fd, buf, PAGE, 0) == PAGE && buf[100] == round - 1);
            CHECK(pread(fd, buf, PAGE, 0) == PAGE && buf[100] == round - 1);
            CHECK(write(from[1], buf, 1) == 1);
        }
        _exit(0);
    }
    fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    CHECK(syscall(SYS_io_uring_setup, 0, NULL) < 0);
    fd = xopen(path_new, O_RDWR);
    CHECK(write(to[1], buf, 1) == 1 && read(from[0], buf, 1) == 1);
    volatile unsigned char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int round = 2; round <= 20; round++) {
        map[100] = (unsigned char)(round - 1);
        CHECK(write(to[1], buf, 1) == 1 && read(from[0], buf, 1) == 1);
    }
    expect_child(reader);
    /* Its daemon hears of a syncfs all the same; where nobody can be told, it does not claim to have synced. */
    CHECK(syncfs(fd) == 0 || (errno == EIO && getenv("BEHAVIOUR_DEAD_CONNECTION")));
    CHECK(unlink(path_new) == 0);
}

static void case_seccomp(void)
{
    unsigned char buf[PAGE], fresh[2 * PAGE];
    int fd = xopen(path_a, O_RDONLY);
    expect_file(fd, 0);
    pid_t pid = fork();
    if (pid == 0) {
        int mine = xopen(path_b, O_RDONLY);
        expect_file(mine, 1);
        CHECK(read(mine, buf, PAGE) == PAGE && right(buf, 1, 0, PAGE));
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        int ok = read(mine, fresh, sizeof fresh) == sizeof fresh && right(fresh, 1, PAGE, sizeof fresh);
        syscall(SYS_exit, !ok);
    }
    expect_child(pid);
    expect_file(fd, 0);
}

/* What a program says of its reads: taken or refused as on a plain directory, and never changes what it reads. */
static void case_advice(void)
{
    static const int all[] = {POSIX_FADV_NORMAL, POSIX_FADV_RANDOM, POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED,
                              POSIX_FADV_DONTNEED, POSIX_FADV_NOREUSE};
    unsigned char page[PAGE];
    int fd = xopen(path_a, O_RDONLY), out = xopen(path_new, O_WRONLY | O_CREAT), pipes[2];
    CHECK(pipe(pipes) == 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        errno = 0;
        CHECK(posix_fadvise(fd, 0, 0, all[i]) == 0 && posix_fadvise64(fd, 3 * PAGE + 1, 5 * PAGE, all[i]) == 0);
        CHECK(posix_fadvise(fd, PAGES * PAGE * 9, PAGE, all[i]) == 0 && posix_fadvise(out, 0, 0, all[i]) == 0);
        CHECK(posix_fadvise(fd, 0, -1, all[i]) == EINVAL && posix_fadvise(-1, 0, 0, all[i]) == EBADF);
        CHECK(posix_fadvise(pipes[0], 0, 0, all[i]) == ESPIPE);
        CHECK(errno == 0);
        expect_file(fd, 0);
    }
    CHECK(posix_fadvise(fd, 0, 0, 77) == EINVAL);
    CHECK(readahead(fd, 0, 9 * PAGE) == 0 && readahead(fd, PAGES * PAGE * 9, PAGE) == 0 && readahead(fd, 5, 0) == 0);
    CHECK(readahead(out, 0, PAGE) == -1 && errno == EBADF);
    CHECK(readahead(pipes[0], 0, PAGE) == -1 && errno == EINVAL);
    expect_file(fd, 0);
    /* What is not written back yet is not lost. */
    int both = xopen(path_new, O_RDWR);
    for (int i = 0; i < 40; i++) {
        fill(page, i, 0, PAGE);
        CHECK(pwrite(both, page, PAGE, i % 7 * PAGE) == PAGE);
        CHECK(posix_fadvise(both, 0, 0, i % 2 ? POSIX_FADV_DONTNEED : POSIX_FADV_WILLNEED) == 0);
        CHECK(pread(both, page, PAGE, i % 7 * PAGE) == PAGE && right(page, i, 0, PAGE));
    }
    unsigned char *map = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(madvise(map, PAGES * PAGE, MADV_WILLNEED) == 0 && madvise(map, PAGES * PAGE, MADV_RANDOM) == 0);
    CHECK(right(map, 0, 0, PAGES * PAGE));
    CHECK(madvise(map, PAGES * PAGE, MADV_DONTNEED) == 0 && madvise(map, PAGES * PAGE, MADV_SEQUENTIAL) == 0);
    CHECK(right(map, 0, 0, PAGES * PAGE));
}

static void child(int argc, char **argv)
{
    /* A program started anew: behaviour A child FD WHICH [CLOSED] */
    expect_file(atoi(argv[3]), atoi(argv[4]));
    unsigned char c;
    if (argc > 5)
        CHECK(pread(atoi(argv[5]), &c, 1, 0) == -1 && errno == EBADF);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
#define CASE(name) {#name, case_##name}
    CASE(dup), CASE(dup2_over), CASE(close), CASE(fclose), CASE(close_range), CASE(closefrom), CASE(freopen),
    CASE(daemon), CASE(login_tty), CASE(scm_rights), CASE(fork), CASE(fork_many), CASE(vfork), CASE(vfork_exec),
    CASE(posix_spawn), CASE(exec), CASE(system), CASE(setuid), CASE(chroot), CASE(unshare_files), CASE(signal),
    CASE(sigaltstack), CASE(before_main), CASE(after_main), CASE(threads), CASE(threads_fork), CASE(cancel),
    CASE(calls), CASE(bad_buffer), CASE(big_iov), CASE(open_forms), CASE(write_then_read), CASE(append),
    CASE(posix_locks), CASE(few_descriptors), CASE(lowest_number), CASE(unlinked), CASE(raw_close),
    CASE(unclassifiable_maps), CASE(seccomp), CASE(advice),
};

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    self = argv[0];
    if (strcmp(argv[2], "child") == 0) {
        child(argc, argv);
        return 0;
    }
    snprintf(path_a, sizeof path_a, "%s/a", argv[1]);
    snprintf(path_b, sizeof path_b, "%s/b", argv[1]);
    snprintf(path_new, sizeof path_new, "%s/new-%s", argv[1], argv[2]);
    if (strcmp(argv[2], "prepare") == 0) {
        prepare();
        return 0;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[2], "list") == 0)
            puts(cases[i].name);
        else if (strcmp(argv[2], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return strcmp(argv[2], "list") == 0 ? 0 : 2;
}
