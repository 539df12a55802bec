//! Worker threads of the preload server for slow operations: syncs, and the close of descriptors on foreign
//! file systems.

use crate::burst::fsync;
use crate::context::Context;
use crate::preload_server::connection::{Connection, SHOWN_MAX, send};
use crate::preload_server::credentials::shown_inode;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use terrace_shm::proto::Reply;

const WAITING_MAX: usize = 256;
/// Maximum number of descriptors on foreign file systems queued for closing.
const FOREIGN_MAX: usize = 64;

pub(super) struct Workers {
    pub(crate) wakeup: Arc<OwnedFd>,
    /// FLUSHes, each with the flag of its connection.
    syncs: Sender<(Arc<OwnedFd>, Arc<AtomicBool>)>,
    syncs_waiting: Arc<AtomicUsize>,
    /// Descriptors with a close that may hang.
    foreign: SyncSender<OwnedFd>,
    foreign_waiting: Arc<AtomicUsize>,
}

impl Workers {
    pub(super) fn start(cx: &Arc<Context>, wakeup: Arc<OwnedFd>) -> io::Result<Workers> {
        let (syncs, sync_queue) = channel();
        let (foreign, foreign_queue) = sync_channel::<OwnedFd>(FOREIGN_MAX);
        let (syncs_waiting, foreign_waiting) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Both threads end with their queues, perhaps late. Nothing waits for them.
        let (sync_cx, waiting) = (cx.clone(), syncs_waiting.clone());
        std::thread::Builder::new()
            .name("syncfs".into())
            .spawn(move || sync_loop(&sync_cx, &sync_queue, &waiting))?;
        let waiting = foreign_waiting.clone();
        std::thread::Builder::new().name("close".into()).spawn(move || {
            for fd in foreign_queue {
                drop(fd);
                waiting.fetch_sub(1, Ordering::AcqRel);
            }
        })?;
        Ok(Workers { wakeup, syncs, syncs_waiting, foreign, foreign_waiting })
    }

    /// Whether the queue has room for the descriptors of one more message.
    pub(super) fn has_room(&self) -> bool {
        self.foreign_waiting.load(Ordering::Acquire) + SHOWN_MAX <= FOREIGN_MAX
    }
    /// Closes a client's descriptors. A close on a foreign file system may hang for ever.
    pub(super) fn close(&self, cx: &Context, fds: Vec<OwnedFd>) {
        for fd in fds {
            if shown_inode(cx, &fd).is_ok() {
                drop(fd);
            } else {
                self.foreign_waiting.fetch_add(1, Ordering::AcqRel);
                // There is room: messages are received with descriptors only if there is.
                let _ = self.foreign.try_send(fd);
            }
        }
    }

    pub(super) fn flush(&self, c: &Connection) -> Result<(), Errno> {
        if c.flushing.swap(true, Ordering::AcqRel) {
            return Err(Errno::ALREADY);
        }
        if self.syncs_waiting.load(Ordering::Acquire) >= WAITING_MAX {
            return Err(Errno::AGAIN);
        }
        self.syncs_waiting.fetch_add(1, Ordering::AcqRel);
        self.syncs.send((c.socket.clone(), c.flushing.clone())).map_err(|_| Errno::PIPE)
    }
}

/// syncfs takes as long as the device needs. One sync answers all requests received before it began.
fn sync_loop(cx: &Context, queue: &Receiver<(Arc<OwnedFd>, Arc<AtomicBool>)>, waiting: &AtomicUsize) {
    while let Ok(first) = queue.recv() {
        let all: Vec<_> = std::iter::once(first).chain(queue.try_iter()).collect();
        if cx.is_stopping() {
            return;
        }
        let errno = fsync::flush_all(cx, true).map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        for (socket, flushing) in all {
            flushing.store(false, Ordering::Release);
            waiting.fetch_sub(1, Ordering::AcqRel);
            let _ = send(&socket, &Reply { errno: errno as u32, ..Reply::default() }, &[]);
        }
    }
}
