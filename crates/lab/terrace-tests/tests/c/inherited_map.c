// A descriptor that travels: a program of the preload path opens a file, and a child with an empty environment, hence without
// the library, maps it shared and stores. The parent must see the store at once, though nobody announced the mapping.
// Prints what the parent read before and after.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FD = 10, PAGE = 4096 };

// The child: maps FD, stores, says so, and keeps the mapping until its input ends.
static int store(void)
{
    char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, FD, 0);
    if (page == MAP_FAILED)
        err(1, "mmap");
    page[0] = 'B';
    char c = 's';
    if (write(1, &c, 1) != 1)
        err(1, "write");
    while (read(0, &c, 1) > 0)
        ;
    return 0;
}

static char look(int fd)
{
    char c = 0;
    if (pread(fd, &c, 1, 0) != 1)
        err(1, "pread");
    return c;
}

int main(int argc, char **argv)
{
    if (argc == 1)
        return store();
    int fd = open(argv[1], O_RDWR), own = open(argv[1], O_RDONLY);
    if (fd < 0 || own < 0)
        err(1, "%s", argv[1]);
    char before = 0;
    for (int i = 0; i < 1000; i++)
        before = look(own);
    int to[2], from[2];
    if (dup2(fd, FD) < 0 || pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC))
        err(1, "pipe");
    pid_t child = fork();
    if (child == 0) {
        char *name[] = {"store", 0}, *nothing[] = {0};
        dup2(to[0], 0);
        dup2(from[1], 1);
        execve("/proc/self/exe", name, nothing);
        err(1, "execve");
    }
    close(from[1]);
    char c;
    if (read(from[0], &c, 1) != 1)
        errx(1, "the child failed");
    char now = look(own), through = look(fd);
    close(to[1]);
    waitpid(child, 0, 0);
    printf("%c %c %c %c\n", before, now, through, look(own));
    return 0;
}
