//! A fanotify group (fanotify(7)) for served files that programs write: every open of a watched file waits
//! until the handler has returned.
//!
//! ```text
//!   opener: open(2) ─► waits ──────────────────────────────────────► goes on
//!   listener:          read ─► fstat ─► Handler::opened ─► FAN_ALLOW
//! ```
//!
//! A read takes one event. So a death leaves one event without an answer at most, and the table of descriptors
//! needs room for one. The kernel denies an open (EPERM) when that room is missing, so the listener keeps a
//! spare descriptor. The queue has no limit: an open would pass unseen when a limited queue is full.
//!
//! Closes of one thread that lie in the queue at the same time become one event. A failed open may have no
//! close. So the number of open descriptions is unknown: after a close, [`super::holders`] looks for others.
//!
//! Changes without an open cause no event: truncate(2) by a path, stores to existing mappings, programs that
//! use the file through another inode (overlayfs).

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{fanotify_event_metadata as Metadata, fanotify_response as Response};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::file_id::FileId;
use super::task::Task;

/// Events of a watched file. FAN_MODIFY would add 1 us to each write.
const EVENTS: u64 = libc::FAN_OPEN_PERM | libc::FAN_CLOSE;
/// Linux 6.13: the event of a file without a descriptor has the error in place of the descriptor.
const FAN_REPORT_FD_ERROR: libc::c_uint = 0x2000;
const METADATA_LEN: usize = size_of::<Metadata>();

/// Receiver of the events, on the thread of [`Listener::run`].
pub trait Handler: Sync {
    /// A thread of another process opens the file. The open waits until this call returns. The call must not
    /// wait for a program that may open a watched file.
    fn opened(&self, file: FileId, opener: Task);

    /// At least one open description of the file has ended, with its mappings. `wrote`: one of them was open
    /// for writing. The last user of a description, `closer`, need not be its opener. Closes of this process
    /// count too: it may have received the descriptor of another.
    fn closed(&self, file: FileId, wrote: bool, closer: Task);

    /// Events are lost: any watched file may have been opened or closed by any process.
    fn lost(&self);
}

/// Causes without a listener.
#[derive(Debug)]
pub enum Unavailable {
    /// The process lacks CAP_SYS_ADMIN in the first user namespace.
    NeedsAdmin,
    /// The kernel has no fanotify, or none that waits for answers (CONFIG_FANOTIFY_ACCESS_PERMISSIONS).
    NoKernelSupport(io::Error),
    /// Descriptors or memory are short, or /proc/sys/fs/fanotify/max_user_groups is reached.
    Failed(io::Error),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::NeedsAdmin => write!(f, "fanotify needs CAP_SYS_ADMIN in the first user namespace"),
            Unavailable::NoKernelSupport(err) => write!(f, "this kernel reports no opens by fanotify: {err}"),
            Unavailable::Failed(err) => write!(f, "cannot create a fanotify group: {err}"),
        }
    }
}

impl std::error::Error for Unavailable {}

impl From<io::Error> for Unavailable {
    fn from(err: io::Error) -> Unavailable {
        match err.raw_os_error() {
            Some(libc::EPERM) => Unavailable::NeedsAdmin,
            Some(libc::ENOSYS | libc::EINVAL) => Unavailable::NoKernelSupport(err),
            _ => Unavailable::Failed(err),
        }
    }
}

/// A fanotify group. When its last descriptor is closed, the kernel lets all waiting openers go on. So no
/// opener may hold one: a child that fork(2) made without exec closes it.
#[derive(Debug)]
pub struct Listener {
    group: OwnedFd,
    /// Readable at the end.
    wake: OwnedFd,
    stopping: AtomicBool,
}

/// What one read returned.
enum Event {
    Open(Pending, Task),
    Close { fd: OwnedFd, wrote: bool, closer: Task },
    Lost,
}

/// An open that waits: allowed when this value is dropped.
struct Pending {
    group: RawFd,
    fd: OwnedFd,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Err(err) = allow(self.group, self.fd.as_raw_fd()) {
            tracing::error!("fanotify: an open stays without an answer: {err}");
        }
    }
}

impl Listener {
    /// Creates a group without watched files.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn new() -> Result<Listener, Unavailable> {
        let flags = libc::FAN_CLASS_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_TID
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        let group = match init(flags | FAN_REPORT_FD_ERROR) {
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => init(flags),
            created => created,
        }?;
        Ok(Listener::with(group)?)
    }

    /// The group of a dead daemon, with its watched files. Opens of those wait until [`Listener::run`], also
    /// opens by this process.
    ///
    /// # Errors
    /// The descriptor is no fanotify group ([`io::ErrorKind::InvalidInput`]), or descriptors are short.
    pub fn from_fd(group: OwnedFd) -> io::Result<Listener> {
        let is_group = std::fs::read_link(format!("/proc/self/fd/{}", group.as_raw_fd()))?;
        if is_group.as_os_str() != "anon_inode:[fanotify]" {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Listener::with(group)
    }

    fn with(group: OwnedFd) -> io::Result<Listener> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Listener { group, wake, stopping: AtomicBool::new(false) })
    }

    /// Answers the opens that a dead daemon read and did not answer. The kernel reports them to no other
    /// reader, and finds them by the number of the dead daemon's descriptor alone. `orphans`: open descriptors
    /// of the table shared with the dead daemon. They stay open. Returns the number of answered opens.
    ///
    /// Calls [`Handler::lost`] first: the dead daemon may have lost events.
    ///
    /// # Errors
    /// The group takes no answers.
    pub fn answer_orphans(
        &self,
        orphans: impl IntoIterator<Item = RawFd>,
        handler: &dyn Handler,
    ) -> io::Result<usize> {
        handler.lost();
        let mut answered = 0;
        for fd in orphans {
            answered += usize::from(allow(self.group.as_raw_fd(), fd)?);
        }
        Ok(answered)
    }

    /// Lets all opens go on that wait now, without a handler: the daemon is stopped or dead. `pending`: numbers of
    /// descriptors that the daemon may have from events without an answer. `before` runs before the first answer.
    /// Returns the number of opens and closes.
    ///
    /// # Errors
    /// The group takes no answers, or its events have an unknown form.
    pub fn allow_all(
        &self,
        pending: impl IntoIterator<Item = RawFd>,
        before: impl Fn(),
    ) -> io::Result<usize> {
        let mut count = 0;
        for fd in pending {
            count += usize::from(allow(self.group.as_raw_fd(), fd)?);
        }
        while let Some(event) = self.next()? {
            before();
            drop(event);
            count += 1;
        }
        Ok(count)
    }

    /// Reports opens and closes of the file from now on. A second call has no effect. Without
    /// [`Listener::run`] opens of the file wait, also opens by this process.
    ///
    /// # Errors
    /// Those of fanotify_mark(2): a file system without such events (/proc), a descriptor with O_PATH.
    pub fn watch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.mark(libc::FAN_MARK_ADD, file)
    }

    /// Reports the file no longer. Opens that wait already are reported. A file that is not watched is no
    /// error.
    ///
    /// # Errors
    /// Those of fanotify_mark(2).
    pub fn unwatch(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        match self.mark(libc::FAN_MARK_REMOVE, file) {
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Reports no file any longer. Opens that wait already are reported.
    ///
    /// # Errors
    /// Those of fanotify_mark(2).
    pub fn unwatch_all(&self) -> io::Result<()> {
        // SAFETY: an open descriptor; a flush takes no file.
        let ret = unsafe {
            libc::fanotify_mark(self.group.as_raw_fd(), libc::FAN_MARK_FLUSH, 0, libc::AT_FDCWD, ptr::null())
        };
        if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn mark(&self, action: libc::c_uint, file: BorrowedFd<'_>) -> io::Result<()> {
        let (group, file) = (self.group.as_raw_fd(), file.as_raw_fd());
        // SAFETY: open descriptors; without a path the call concerns the file of the descriptor.
        let ret = unsafe { libc::fanotify_mark(group, action, EVENTS, file, ptr::null()) };
        if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Passes events to the handler until [`Listener::stop`]. One thread at a time may call it. Opens of this
    /// process are allowed without the handler, which may open watched files itself on other threads only.
    ///
    /// After the return, opens of watched files wait for the next call, or for the close of the group.
    ///
    /// # Errors
    /// The kernel's events have an unknown form ([`io::ErrorKind::InvalidData`]), or the group is unusable.
    pub fn run(&self, handler: &dyn Handler) -> io::Result<()> {
        let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let mut spare = self.wake.try_clone().ok();
        while self.wait()? {
            // The event takes the number of the spare descriptor, and gives it back.
            drop(spare.take());
            let event = self.next()?;
            if let Some(event) = event {
                deliver(event, own, handler);
            }
            spare = self.wake.try_clone().ok();
        }
        Ok(())
    }

    /// Ends [`Listener::run`] once the queue is empty, now and later. Callable from any thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits for an event. False: the end.
    fn wait(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.group, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        loop {
            let stopping = self.stopping.load(Ordering::Acquire);
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            match poll(&mut fds, stopping.then_some(&now)) {
                Ok(_) if !fds[0].revents().is_empty() => return Ok(true),
                Ok(_) if stopping => return Ok(false),
                Ok(_) | Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// The next event. None: the opener was killed meanwhile.
    fn next(&self) -> io::Result<Option<Event>> {
        let mut metadata = MaybeUninit::<Metadata>::uninit();
        // SAFETY: the kernel writes at most METADATA_LEN bytes into the structure.
        let n = unsafe { libc::read(self.group.as_raw_fd(), metadata.as_mut_ptr().cast(), METADATA_LEN) };
        let Ok(n) = usize::try_from(n) else {
            let err = io::Error::last_os_error();
            return match err.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                Some(libc::EBADF | libc::EFAULT | libc::EINVAL) => Err(err),
                // Linux before 6.13: the event is gone, because its file could not be opened here.
                _ => Ok(Some(lost(&err))),
            };
        };
        if n != METADATA_LEN {
            return Err(malformed(format!("an event of {n} bytes")));
        }
        // SAFETY: the kernel has written all bytes.
        let metadata = unsafe { metadata.assume_init() };
        check(&metadata)?;
        if metadata.mask & libc::FAN_Q_OVERFLOW != 0 {
            return Ok(Some(lost(&io::Error::other("the queue is full"))));
        }
        if metadata.fd < 0 {
            return Ok(Some(lost(&io::Error::from_raw_os_error(-metadata.fd))));
        }
        // SAFETY: the kernel opened this descriptor for the event, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(metadata.fd) };
        let task = Task(metadata.pid);
        Ok(Some(match metadata.mask & libc::FAN_OPEN_PERM != 0 {
            true => Event::Open(Pending { group: self.group.as_raw_fd(), fd }, task),
            false => Event::Close { fd, wrote: metadata.mask & libc::FAN_CLOSE_WRITE != 0, closer: task },
        }))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

fn init(flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint) };
    // SAFETY: a new descriptor that nothing else owns.
    if fd >= 0 { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) } else { Err(io::Error::last_os_error()) }
}

fn deliver(event: Event, own: i32, handler: &dyn Handler) {
    match event {
        Event::Open(_, opener) if opener.is_of(own) => {}
        Event::Open(open, opener) => match FileId::of(&open.fd) {
            Ok(file) => handler.opened(file, opener),
            Err(_) => handler.lost(),
        },
        Event::Close { fd, wrote, closer } => match FileId::of(&fd) {
            Ok(file) => handler.closed(file, wrote, closer),
            Err(_) => handler.lost(),
        },
        Event::Lost => handler.lost(),
    }
}

/// Lets an open go on. False: no open waits for an answer under this number.
fn allow(group: RawFd, fd: RawFd) -> io::Result<bool> {
    let response = Response { fd, response: libc::FAN_ALLOW };
    // SAFETY: the kernel reads the structure.
    let ret = unsafe { libc::write(group, (&raw const response).cast(), size_of::<Response>()) };
    match io::Error::last_os_error() {
        _ if ret >= 0 => Ok(true),
        err if err.kind() == io::ErrorKind::NotFound => Ok(false),
        err => Err(err),
    }
}

fn lost(err: &io::Error) -> Event {
    tracing::error!("fanotify: an event is lost ({err}); if it was an open, the kernel has denied it");
    Event::Lost
}

fn malformed(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("fanotify: {what}"))
}

/// Checks the form of an event.
fn check(metadata: &Metadata) -> io::Result<()> {
    let (length, head) = (metadata.event_len as usize, usize::from(metadata.metadata_len));
    if metadata.vers != libc::FANOTIFY_METADATA_VERSION {
        return Err(malformed(format!("events of version {}", metadata.vers)));
    }
    if length != METADATA_LEN || head != METADATA_LEN {
        return Err(malformed(format!("an event of {length} bytes with a head of {head}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_another_form_are_errors() {
        let event = Metadata {
            event_len: 24,
            vers: libc::FANOTIFY_METADATA_VERSION,
            reserved: 0,
            metadata_len: 24,
            mask: libc::FAN_OPEN_PERM,
            fd: -1,
            pid: 1,
        };
        assert!(check(&event).is_ok());
        for bad in [
            Metadata { vers: 2, ..event },
            Metadata { event_len: 23, ..event },
            Metadata { event_len: 48, ..event },
            Metadata { metadata_len: 16, ..event },
        ] {
            assert_eq!(check(&bad).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
