/* Stands for liburing: its function is found, and the library is told of the ring. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return 77;
}
