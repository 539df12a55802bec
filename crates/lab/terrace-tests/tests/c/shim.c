/* Another interposer, as profilers and sandboxes bring: it wraps read, pread, open and close, counts, and passes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

static unsigned long calls;

ssize_t read(int fd, void *buf, size_t len)
{
    static ssize_t (*next)(int, void *, size_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "read");
    calls++;
    return next(fd, buf, len);
}

ssize_t pread(int fd, void *buf, size_t len, off_t at)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "pread");
    calls++;
    return next(fd, buf, len, at);
}

int open(const char *path, int flags, ...)
{
    static int (*next)(const char *, int, ...);
    if (!next)
        next = dlsym(RTLD_NEXT, "open");
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    calls++;
    return next(path, flags, mode);
}

int close(int fd)
{
    static int (*next)(int);
    if (!next)
        next = dlsym(RTLD_NEXT, "close");
    calls++;
    return next(fd);
}
