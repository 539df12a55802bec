// What a program has that the library must leave alone: guest CASE FILE. The file is of zeroes, and larger than the memory of the cache.
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(ok) ((ok) ? (void)0 : errx(1, "line %d: %s (%s)", __LINE__, #ok, strerror(errno)))

static const char *path;
static off_t pages;
static int fd;

static off_t anywhere(unsigned *seed) { return (off_t)(rand_r(seed) % (pages - 4)) * 4096; }

// Reads whole pages and parts of them, at places that jump.
static void read_some(unsigned *seed, char *buffer, int count)
{
    for (int i = 0; i < count; i++) {
        off_t at = anywhere(seed);
        CHECK(pread(fd, buffer + rand_r(seed) % 100, 4096, at) == 4096);
        CHECK(pread(fd, buffer, 100, at + 50) == 100);
        struct iovec v[2] = {{buffer, 1000}, {buffer + 2000, 9000}};
        CHECK(preadv(fd, v, 2, anywhere(seed) + 3000) == 10000);
    }
}

static void open_for_reading(void)
{
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) == 0);
}

static char buffer[16384];

// The deepest byte of an alternate stack that a handler with reads, opens and closes has written.
static void handler(int signal)
{
    static unsigned seed = 1;
    (void)signal;
    read_some(&seed, buffer, 10);
    int other = open(path, O_RDONLY);
    CHECK(other >= 0 && lseek(other, 4096, SEEK_SET) == 4096 && read(other, buffer, 5000) == 5000);
    CHECK(close(other) == 0);
    CHECK(truncate("no/such/file", 0) == -1);
}

static void stack(void)
{
    enum { SIZE = 1 << 18 };
    unsigned char *area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(area, 0x5a, SIZE);
    CHECK(sigaltstack(&(stack_t){.ss_sp = area, .ss_size = SIZE}, NULL) == 0);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handler, .sa_flags = SA_ONSTACK}, NULL);
    for (int i = 0; i < 400; i++)
        CHECK(raise(SIGUSR1) == 0);
    int unused = 0;
    while (area[unused] == 0x5a)
        unused++;
    printf("%d\n", SIZE - unused);
}

static int links(const char *begin, int numbers[], int max)
{
    DIR *d = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char to[4096] = "";
        if (atoi(e->d_name) != dirfd(d) && readlinkat(dirfd(d), e->d_name, to, sizeof to - 1) > 0 && !strncmp(to, begin, strlen(begin)) && count < max)
            numbers[count++] = atoi(e->d_name);
    }
    closedir(d);
    return count;
}

static long raw_dup2(long from, long to)
{
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(33), "D"(from), "S"(to) : "rcx", "r11", "memory");
    return ret;
}

// The file's descriptors are the program's alone; a number of another descriptor of the library's is the program's once it takes it.
static void descriptors(void)
{
    int numbers[100];
    unsigned seed = 1;
    for (int round = 0; round < 20; round++) {
        read_some(&seed, buffer, 100);
        CHECK(links(path, numbers, 100) == 1);
    }
    int file = memfd_create("taken", 0), count = links("socket:", numbers, 100);
    for (int i = 0; i < count; i++)
        CHECK(raw_dup2(file, numbers[i]) == numbers[i]);
    read_some(&seed, buffer, 100);
    CHECK(close(fd) == 0);
    for (int i = 0; i < count; i++)
        CHECK(write(numbers[i], "word", 4) == 4 && close(numbers[i]) == 0 && fcntl(numbers[i], F_GETFD) == -1);
    puts("ok");
}

__attribute__((noreturn)) static void *reads_for_ever(void *given)
{
    unsigned seed = (size_t)given;
    char *mine = malloc(16384);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;)
        read_some(&seed, mine, 10);
}

static void cancelled(void)
{
    unsigned seed = 1;
    read_some(&seed, buffer, 100);
    for (int round = 0; round < 100; round++) {
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++)
            CHECK(pthread_create(&threads[i], NULL, reads_for_ever, (void *)(i + 1)) == 0);
        usleep(1000 + round * 10);
        for (int i = 0; i < 4; i++)
            CHECK(pthread_cancel(threads[i]) == 0 && pthread_join(threads[i], NULL) == 0);
    }
    read_some(&seed, buffer, 100);
    puts("ok");
}

static void nothing(int signal) { (void)signal; }

// Calls that wait for the file to be given back, while a timer interrupts without SA_RESTART.
static void interrupted(void)
{
    pid_t reader = fork();
    if (reader == 0)
        for (unsigned seed = 1;;) {
            open_for_reading();
            read_some(&seed, buffer, 50);
            close(fd);
        }
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 100}, {0, 100}}, NULL);
    off_t size = pages * 4096;
    for (int i = 0; i < 60; i++) {
        struct timespec begin, now;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do
            clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 130);
        int other;
        FILE *stream;
        switch (i % 4) {
        case 0:
            CHECK((other = open(path, O_WRONLY | (i % 8 == 4 ? O_NONBLOCK : 0))) >= 0 && close(other) == 0);
            break;
        case 1:
            CHECK((stream = fopen(path, "r+")) && fclose(stream) == 0);
            break;
        case 2:
            CHECK(truncate(path, size) == 0);
            break;
        default:
            CHECK((stream = freopen(path, "r+e", fopen("/dev/null", "r"))) && fclose(stream) == 0);
        }
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    kill(reader, SIGKILL);
    CHECK(waitpid(reader, NULL, 0) == reader);
    puts("ok");
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    path = realpath(arguments[2], NULL);
    struct stat about;
    CHECK(path && stat(path, &about) == 0);
    pages = about.st_size / 4096;
    open_for_reading();
    const char *what = arguments[1];
    if (!strcmp(what, "stack"))
        stack();
    else if (!strcmp(what, "descriptors"))
        descriptors();
    else if (!strcmp(what, "cancelled"))
        cancelled();
    else if (!strcmp(what, "interrupted"))
        interrupted();
    else
        return 2;
    return 0;
}
