/* Starts a program by each exec function of libc, with more arguments than fit registers. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *argv_[] = {"p", "1", "2", "3", "4", "5", "6", "7", NULL};
#define LIST "p", "1", "2", "3", "4", "5", "6", "7", (char *)NULL

static void start(int way, char *path, char *name)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), status;
    pid_t pid;
    switch (way) {
    case 0: execve(path, argv_, environ); break;
    case 1: execv(path, argv_); break;
    case 2: execvp(name, argv_); break;
    case 3: execvpe(name, argv_, environ); break;
    case 4: execl(path, LIST); break;
    case 5: execlp(name, LIST); break;
    case 6: execle(path, LIST, environ); break;
    case 7: fexecve(fd, argv_, environ); break;
    case 8: execveat(AT_FDCWD, path, argv_, environ, 0); break;
    case 9: execveat(fd, "", argv_, environ, AT_EMPTY_PATH); break;
    case 10: syscall(SYS_execve, path, argv_, environ); break;
    case 11: syscall(SYS_execveat, fd, "", argv_, environ, AT_EMPTY_PATH); break;
    case 12: if (posix_spawn(&pid, path, NULL, NULL, argv_, environ) == 0) waitpid(pid, &status, 0), _exit(WEXITSTATUS(status)); break;
    case 13: if (posix_spawnp(&pid, name, NULL, NULL, argv_, environ) == 0) waitpid(pid, &status, 0), _exit(WEXITSTATUS(status)); break;
    case 14: if ((pid = vfork()) == 0) execv(path, argv_), _exit(99);
        waitpid(pid, &status, 0), _exit(WEXITSTATUS(status));
    }
    _exit(98);
}
#define WAYS 15

/* A filter that kills the process for calls which only the library makes. */
static int filter(unsigned flags)
{
    int calls[] = {SYS_statx, SYS_madvise, SYS_preadv, SYS_preadv2, SYS_sendto, 451, SYS_connect, SYS_faccessat};
    struct sock_filter f[40] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned n = 1;
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, f};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (flags)
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static int fd_, pages_;
static void *reads(void *seed)
{
    static _Thread_local char page[4096];
    for (unsigned x = (unsigned)(size_t)seed;; x = x * 1664525 + 1013904223)
        if (pread(fd_, page, sizeof page, x % pages_ * 4096L) != sizeof page)
            _exit(97);
}

/* all PATH NAME | filtered PATH NAME | threads FILE PAGES */
int main(int argc, char **argv)
{
    int status;
    if (argc < 4)
        return 2;
    if (!strcmp(argv[1], "threads")) {
        pthread_t t;
        for (int round = 0; round < 40; round++) {
            if (fork() == 0) {
                fd_ = open(argv[2], O_RDONLY), pages_ = atoi(argv[3]);
                for (long i = 0; i < 3; i++)
                    pthread_create(&t, NULL, reads, (void *)(i * 77 + round));
                usleep(500 + round * 300);
                if (filter(SECCOMP_FILTER_FLAG_TSYNC))
                    _exit(3);
                usleep(3000);
                _exit(0);
            }
            wait(&status);
            if (status)
                return printf("round %d: status %x\n", round, status), 1;
        }
        return 0;
    }
    if (!strcmp(argv[1], "filtered") && filter(0))
        return 3;
    for (int way = 0; way < WAYS; way++) {
        fflush(stdout);
        if (fork() == 0)
            start(way, argv[2], argv[3]);
        wait(&status);
        if (status)
            return printf("way %d: status %x\n", way, status), 1;
    }
    return 0;
}
