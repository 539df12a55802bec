/* Replaces liburing: its function is hooked, so the library detects the ring. */
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return 77;
}
