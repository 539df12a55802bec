//! The mount path: FUSE requests of the kernel, answered by the namespace.
//!
//! This folder decides nothing. [`adapter`] turns each request into one call of [`Namespace`] and its result
//! into the reply. [`convert`] converts types. [`handshake`] starts a session on a fresh connection, or on
//! that of an earlier daemon. [`late`] delays the answer of a write until the kernel has dropped older pages.
//! [`readahead`] sets the mount's readahead to the source's. [`refuse`] answers with errors when no daemon
//! will serve the mount. [`waiting`] runs requests that wait for descriptors on threads of their own.

mod adapter;
mod convert;
mod handshake;
mod late;
mod readahead;
pub mod refuse;
mod waiting;

#[cfg(test)]
pub(crate) use waiting::Movable;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::{Namespace, PageCache};

/// Threads that answer requests, at most. Each may leave one journal slot behind when it is killed.
pub(crate) const THREADS_MAX: usize = 64;

/// A connection of this daemon's own to the mount behind `fuse`. Requests read from a dead daemon's
/// descriptor stay unanswered until the kernel resends them or that descriptor is closed.
///
/// With `recovering` the kernel resends the requests that an earlier daemon left unanswered. The resend
/// precedes the first read here, or it would repeat requests read here. It also precedes the close of the
/// earlier daemon's descriptor.
pub fn connect<C: PageCache>(
    namespace: &Namespace<C>,
    fuse: BorrowedFd<'_>,
    recovering: bool,
) -> io::Result<OwnedFd> {
    let own = handshake::own_connection(fuse)?;
    if recovering {
        if !handshake::request_resend(own.as_fd())? {
            tracing::warn!(
                "unanswered requests fail after the crash: this kernel cannot resend them (Linux 6.9 can)"
            );
        }
        namespace.note_resend_requested();
    }
    Ok(own)
}

/// Answers the requests on `fuse_fd` with `n_threads` threads until the mount is gone.
///
/// With `recovering` an earlier daemon initialised the connection: there is no handshake. `mount_dev` is the
/// device number of the mount, if it is known. `begun` is called when all descriptors that serving needs are
/// open.
pub fn serve<C: PageCache>(
    namespace: Arc<Namespace<C>>,
    fuse_fd: OwnedFd,
    mount_dev: Option<u64>,
    n_threads: usize,
    recovering: bool,
    begun: impl FnOnce(),
) -> io::Result<()> {
    if !(1..=THREADS_MAX).contains(&n_threads) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("fuse.threads = {n_threads} is out of bounds; write 1 to {THREADS_MAX}"),
        ));
    }
    let waiting = Arc::new(waiting::Waiting::default());
    let adapter = adapter::Adapter::new(namespace.clone(), waiting.clone());
    let session = if recovering && namespace.is_initialised() {
        handshake::resume(adapter, fuse_fd, n_threads)?
    } else {
        handshake::start(adapter, fuse_fd, n_threads)?
    };
    let device = session.as_fd().try_clone_to_owned()?;
    namespace.set_kernel(Box::new(convert::KernelCaches::new(session.notifier(), device)));
    if let Some(dev) = mount_dev
        && let Err(err) = namespace.with_root(|root| readahead::follow_source(dev, root))
    {
        tracing::debug!("readahead of the mount left as it is: {err}");
    }
    namespace.set_threads(n_threads);
    begun();
    std::thread::scope(|scope| {
        scope.spawn(|| namespace.shrink_loop());
        scope.spawn(|| namespace.forget_names_loop());
        scope.spawn(|| namespace.recheck_loop());
        scope.spawn(|| namespace.watch_loop());
        for _ in 0..waiting::THREADS {
            scope.spawn(|| waiting.work(Namespace::<C>::may_wait));
        }
        let ended = session.run();
        namespace.end_shrinking();
        namespace.end_rechecks();
        namespace.end_watching();
        waiting.end();
        ended.or_else(unless_aborted)
    })
}

/// Treats the connection's end as the end of the mount. The session handles ENODEV itself. A thread that was
/// reading a request gets ECONNABORTED (Linux: fs/fuse/dev.c, `fuse_dev_do_read`). All threads have ended.
fn unless_aborted(err: io::Error) -> io::Result<()> {
    match err.kind() {
        io::ErrorKind::ConnectionAborted => Ok(()),
        _ => Err(err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_connection_is_no_failure() {
        let ended = |errno| unless_aborted(io::Error::from_raw_os_error(errno)).is_ok();
        assert!(ended(libc::ECONNABORTED));
        assert!(!ended(libc::EIO));
    }
}
