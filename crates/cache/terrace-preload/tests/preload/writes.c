/* Changes a file in the way of its second argument. The test looks at the announcements. The file has 100 pages. */
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define CHECK(c) do { if (!(c)) fprintf(stderr, "%s: line %d: %m\n", way, __LINE__), exit(1); } while (0)
#define IS(name) !strcmp(way, name)

static char buffer[8 * PAGE];

static void send_descriptor(const char *way, int fd)
{
    int s[2];
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0 && sendmsg(s[0], &m, 0) == 1);
}

static int print_list(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = vdprintf(fd, format, list);
    va_end(list);
    return n;
}

/* Reads page 7 until it is served from memory. Returns its first byte. */
static int served(const char *way, int fd)
{
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (int i = 0; i < 20; i++)
        CHECK(pread(fd, buffer, PAGE, (i * 37 % 50) * PAGE) == PAGE);
    CHECK(pread(fd, buffer, PAGE, 7 * PAGE) == PAGE);
    return buffer[0];
}

int main(int argc, char **argv)
{
    const char *path = argv[1], *way = argv[2];
    struct iovec v[2] = {{buffer, 10}, {buffer, PAGE}};
    off_t at = 5 * PAGE;
    FILE *f;
    if (IS("nothing"))
        return 0;
    if (IS("truncate")) {
        CHECK(truncate(path, 10) == 0);
        return 0;
    }
    if (IS("empty") || IS("empty_reading")) {
        CHECK(open(path, O_TRUNC | (IS("empty") ? O_WRONLY : O_RDONLY)) >= 0);
        return 0;
    }
    if (IS("stream") || IS("open_stream")) {
        CHECK((f = fopen(path, "r+")) && fputs("text", f) >= 0 && (!IS("stream") || fclose(f) == 0));
        _exit(0);
    }
    if (IS("stream_duplicate")) {
        int to;
        CHECK((f = fopen(path, "r+")) && (to = dup(fileno(f))) >= 0 && fclose(f) == 0);
        CHECK(pwrite(to, buffer, 10, 2 * PAGE) == 10);
        _exit(0);
    }
    if (IS("reopened_output")) {
        CHECK(freopen(path, "r+", stdout) && puts("text") > 0 && fflush(stdout) == 0);
        int to = dup(1);
        CHECK(to >= 0 && fclose(stdout) == 0 && pwrite(to, buffer, 10, 2 * PAGE) == 10);
        _exit(0);
    }
    if (IS("open_call") || IS("openat2_call")) {
        struct open_how how = {.flags = O_RDWR | O_TRUNC};
        int to = IS("open_call") ? syscall(SYS_openat, AT_FDCWD, path, O_RDWR)
                                 : syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
        CHECK(to >= 0 && pwrite(to, buffer, 10, 2 * PAGE) == 10);
        return 0;
    }
    if (IS("spawn")) {
        posix_spawn_file_actions_t actions;
        char *arguments[] = {"writes", (char *)path, "nothing", NULL};
        pid_t pid;
        int status;
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_addopen(&actions, 5, path, O_WRONLY | O_TRUNC, 0) == 0);
        CHECK(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        return 0;
    }
    if (IS("inherited"))
        return write(atoi(argv[3]), buffer, 10) != 10;
    if (IS("standard_output"))
        return write(1, buffer, 10) != 10;
    if (IS("print") || IS("print_list")) {
        int to = open(path, O_WRONLY);
        CHECK(to >= 0 && (IS("print") ? dprintf(to, "%d %s %g %g %s %d %d %d", 1, "two", 3.5, 4.25, "five", 6, 7, 8)
            : print_list(to, "%d %s %g", 1, "two", 3.5)) > 0 && close(to) == 0);
        return 0;
    }
    if (IS("temporary")) {
        char name[4096];
        snprintf(name, sizeof name, "%s.XXXXXX", path);
        int to = mkstemp(name);
        CHECK(to >= 0 && write(to, buffer, 10) == 10 && rename(name, path) == 0);
        return 0;
    }
    int other = open("/proc/self/exe", O_RDONLY);
    int fd = open(path, O_RDWR | (strstr(way, "append") && !IS("late_append") ? O_APPEND : 0));
    CHECK(fd >= 0 && other >= 0);
    if (IS("reads")) {
        CHECK(served(way, fd) == 'F');
        CHECK(pread(fd, buffer, PAGE, 99 * PAGE + 1) == PAGE - 1 && buffer[0] == 'D');
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
        CHECK(served(way, fd) == 'D');
    } else if (IS("pwrite"))
        CHECK(pwrite(fd, buffer, 100, 2 * PAGE) == 100);
    else if (IS("pwrite_append"))
        CHECK(pwrite(fd, buffer, 100, 2 * PAGE) == 100);
    else if (IS("late_append"))
        CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && pwrite(fd, buffer, 100, 2 * PAGE) == 100);
    else if (IS("write"))
        CHECK(lseek(fd, 3 * PAGE + 10, SEEK_SET) > 0 && write(fd, buffer, PAGE) == PAGE);
    else if (IS("append"))
        CHECK(write(fd, buffer, 10) == 10);
    else if (IS("writev"))
        CHECK(writev(fd, v, 2) == PAGE + 10);
    else if (IS("pwritev"))
        CHECK(pwritev(fd, v, 2, PAGE) == PAGE + 10);
    else if (IS("pwritev2"))
        CHECK(pwritev2(fd, v, 2, -1, 0) == PAGE + 10 && pwritev2(fd, v, 1, 9 * PAGE, 0) == 10);
    else if (IS("shared"))
        CHECK(dup(fd) > 0 && write(fd, buffer, 10) == 10);
    else if (IS("dup"))
        CHECK(dup2(fd, 50) == 50 && close(fd) == 0 && pwrite(50, buffer, 10, PAGE) == 10);
    else if (IS("failed_dup"))
        CHECK(dup2(77, fd) < 0 && pwrite(fd, buffer, 10, PAGE) == 10);
    else if (IS("ftruncate"))
        CHECK(ftruncate(fd, 10) == 0);
    else if (IS("fallocate"))
        CHECK(posix_fallocate(fd, 0, PAGE) == 0);
    else if (IS("sendfile"))
        CHECK(sendfile(fd, other, NULL, 100) == 100);
    else if (IS("copy")) {
        int from = open(path, O_RDONLY);
        CHECK(copy_file_range(from, NULL, fd, &at, PAGE, 0) == PAGE);
    } else if (IS("clone")) {
        /* The file system may refuse it. */
        int from = open(path, O_RDONLY);
        ioctl(fd, FICLONE, from);
    } else if (IS("ioctl")) {
        int flags;
        ioctl(fd, FS_IOC_GETFLAGS, &flags);
        syscall(SYS_ioctl, fd, FS_IOC_GETFLAGS, &flags);
    } else if (IS("descriptor_of_process")) {
        int to = syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, getpid(), 0), fd, 0);
        CHECK(to >= 0 && pwrite(to, buffer, 10, 2 * PAGE) == 10);
    } else if (IS("syscall"))
        CHECK(syscall(SYS_pwrite64, fd, buffer, 10, 2 * PAGE) == 10 && syscall(SYS_write, fd, buffer, 10) == 10);
    else if (IS("aio")) {
        struct aiocb a = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 10};
        const struct aiocb *all[] = {&a};
        CHECK(aio_write(&a) == 0 && aio_suspend(all, 1, NULL) == 0);
    } else if (IS("aio_closed")) {
        struct aiocb a = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 10};
        const struct aiocb *all[] = {&a};
        CHECK(aio_write(&a) == 0 && aio_suspend(all, 1, NULL) == 0 && close(fd) == 0);
    } else if (IS("mapping"))
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    else if (IS("forked_mapping") || IS("fork")) {
        CHECK(IS("fork") || mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
        if (fork() == 0)
            _exit(IS("fork") && pwrite(fd, buffer, 10, PAGE) != 10);
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    } else if (IS("output")) {
        CHECK(dup2(fd, 1) == 1);
    } else if (IS("outputs")) {
        /* As a shell for its builtins. */
        int before = dup(1);
        for (int i = 0; i < 70; i++) {
            CHECK(dup2(fd, 1) == 1 && write(1, buffer, 10) == 10 && dup2(before, 1) == 1);
            /* The daemon frees records. */
            usleep(i % 8 ? 0 : 20000);
        }
        CHECK(dup2(fd, 1) == 1 && close(1) == 0);
    } else if (IS("mappings")) {
        for (int i = 0; i < 64; i++) {
            char name[4096];
            snprintf(name, sizeof name, "%s.%d", path, i);
            int to = open(name, O_RDWR | O_CREAT, 0600);
            CHECK(to >= 0 && mmap(NULL, PAGE, PROT_READ, MAP_SHARED, to, 0) != MAP_FAILED);
        }
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    } else if (IS("closed_fork")) {
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED && unshare(CLONE_FILES) == 0);
        if (fork() == 0)
            _exit(0);
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    } else if (IS("closed_path"))
        CHECK(unshare(CLONE_FILES) == 0);
    else if (IS("sent"))
        send_descriptor(way, fd);
    else if (IS("exec_inherited") || IS("exec_output")) {
        CHECK(!IS("exec_output") || dup2(fd, 1) == 1);
        char number[10];
        snprintf(number, sizeof number, "%d", fd);
        execl("/proc/self/exe", "writes", path, IS("exec_output") ? "standard_output" : "inherited", number, NULL);
        CHECK(0);
    } else if (IS("exec_without")) {
        char number[10], *arguments[] = {"writes", (char *)path, "inherited", number, NULL}, *none[] = {NULL};
        snprintf(number, sizeof number, "%d", fd);
        execve("/proc/self/exe", arguments, none);
        CHECK(0);
    } else if (IS("many")) {
        for (int i = 0; i < 1000; i++)
            CHECK(pwrite(fd, buffer, 10, i % 90 * PAGE) == 10);
    } else
        CHECK(!"known");
    return 0;
}
