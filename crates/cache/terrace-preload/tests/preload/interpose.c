/* Interposers as of an allocator or a tracer, which call syscall(2), as tcmalloc's mmap does. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset);
}
int close(int fd)
{
    return syscall(SYS_close, fd);
}
int dup2(int old, int new)
{
    return syscall(SYS_dup2, old, new);
}
int unshare(int flags)
{
    return syscall(SYS_unshare, flags);
}
