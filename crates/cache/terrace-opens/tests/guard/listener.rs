//! Opens and closes as the listener reports them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use terrace_opens::guard::{FileId, Handler, Listener, Task, Unavailable};
use terrace_testkit::wait::wait_until;

use crate::processes::{Child, TestFile, close, fixture, is_possible, open, shared_word, spin_until};

/// Counts events. Calls `on_open` before an open goes on.
struct Recorder<F: Fn(FileId, Task) + Sync> {
    opens: AtomicU32,
    closes: AtomicU32,
    lost: AtomicU32,
    on_open: F,
}

impl<F: Fn(FileId, Task) + Sync> Recorder<F> {
    fn new(on_open: F) -> Self {
        Recorder { opens: 0.into(), closes: 0.into(), lost: 0.into(), on_open }
    }

    fn counts(&self) -> [u32; 3] {
        [&self.opens, &self.closes, &self.lost].map(|count| count.load(Ordering::SeqCst))
    }
}

impl<F: Fn(FileId, Task) + Sync> Handler for Recorder<F> {
    fn opened(&self, file: FileId, opener: Task) {
        self.opens.fetch_add(1, Ordering::SeqCst);
        (self.on_open)(file, opener);
    }
    fn closed(&self, _: FileId, _: bool, _: Task) {
        self.closes.fetch_add(1, Ordering::SeqCst);
    }
    fn lost(&self) {
        self.lost.fetch_add(1, Ordering::SeqCst);
    }
}

/// A listener of one file.
fn listener(file: &TestFile) -> Listener {
    let listener = Listener::new().unwrap();
    listener.watch(file.file.as_fd()).unwrap();
    listener
}

/// The same in a child, which must not panic, with its descriptor of the file.
fn listener_of_child(file: &TestFile) -> Option<(Listener, RawFd)> {
    let listener = Listener::new().ok()?;
    let fd = open(&file.name, libc::O_RDONLY);
    // SAFETY: a descriptor of the child, open until its end.
    listener.watch(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some((listener, fd))
}

/// Runs the listener on its thread meanwhile.
fn with_thread<T>(listener: &Listener, handler: &dyn Handler, work: impl FnOnce() -> T) -> T {
    /// Also after a panic, or the scope never ends.
    struct Stop<'a>(&'a Listener);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| listener.run(handler));
        let stop = Stop(listener);
        let result = work();
        drop(stop);
        thread.join().unwrap().unwrap();
        result
    })
}

/// A child that opens the file for writing, and sets the word to 1 afterwards.
fn opener(file: &TestFile, done: &'static AtomicU32) -> Child {
    Child::fork(|| {
        let fd = open(&file.name, libc::O_RDWR);
        done.fetch_add(1, Ordering::SeqCst);
        i32::from(fd < 0)
    })
}

/// Opens the file 500 times in each way: closed at once, after a dup, by a child, by exec. Each close comes
/// before the next open.
fn open_in_all_ways(file: &TestFile) -> i32 {
    let failed = std::cell::Cell::new(0);
    let opened = |flags| {
        let fd = open(&file.name, flags);
        failed.set(failed.get() + i32::from(fd < 0));
        fd
    };
    for _ in 0..500 {
        close(opened(libc::O_RDWR));
        let fd = opened(libc::O_RDONLY);
        // SAFETY: a descriptor of this child.
        let second = unsafe { libc::dup(fd) };
        close(fd);
        close(second);
        let fd = opened(libc::O_WRONLY);
        // SAFETY: the children make system calls and end.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            close(fd);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            let child = libc::fork();
            if child == 0 {
                open(&file.name, libc::O_RDWR | libc::O_CLOEXEC);
                libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), std::ptr::null::<libc::c_char>());
                libc::_exit(1);
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            failed.set(failed.get() + status);
        }
    }
    i32::from(failed.get() != 0)
}

#[test]
fn opens_and_last_closes_are_counted_exactly() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let id = FileId::of(&file.file).unwrap();
    let listener = listener(&file);
    let handler = Recorder::new(|opened, _| assert_eq!(opened, id));
    with_thread(&listener, &handler, || {
        assert_eq!(Child::fork(|| open_in_all_ways(&file)).wait(), 0);
        wait_until("the last close", || handler.counts()[1] >= 2000);
    });
    assert_eq!(handler.counts(), [2000, 2000, 0]);
}

#[test]
fn an_open_waits_for_the_handler() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let listener = listener(&file);
    let done = shared_word();
    let pid = AtomicU32::new(0);
    let handler = Recorder::new(|_, opener: Task| {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(done.load(Ordering::SeqCst), 0, "the open went on before the answer");
        let process = opener.process().unwrap();
        assert!(opener.is_of(process) && !opener.is_of(1));
        pid.store(process.cast_unsigned(), Ordering::SeqCst);
    });
    with_thread(&listener, &handler, || {
        let child = opener(&file, done);
        let its_pid = child.pid();
        assert_eq!(child.wait(), 0);
        assert_eq!(pid.load(Ordering::SeqCst), its_pid.cast_unsigned());
    });
    assert_eq!((handler.counts()[0], done.load(Ordering::SeqCst)), (1, 1));
}

#[test]
fn own_opens_do_not_wait() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let listener = listener(&file);
    let handler = Recorder::new(|_, _| {});
    with_thread(&listener, &handler, || {
        for _ in 0..100 {
            File::open(&file.path).unwrap();
        }
        wait_until("the closes", || handler.counts()[1] >= 100);
    });
    assert_eq!(handler.counts(), [0, 100, 0]);
}

/// The daemon dies with opens that it read, and with others in the queue: the kernel lets all go on.
#[test]
fn openers_go_on_after_the_death_of_the_listener() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let (state, done) = (shared_word(), shared_word());
    let daemon = Child::fork(|| {
        let handler = Recorder::new(|_, _| {
            state.store(2, Ordering::SeqCst);
            spin_until(state, 3);
        });
        let Some((listener, _)) = listener_of_child(&file) else { return 1 };
        state.store(1, Ordering::SeqCst);
        i32::from(listener.run(&handler).is_err())
    });
    wait_until("the daemon", || state.load(Ordering::SeqCst) == 1);
    let openers: Vec<Child> = (0..8).map(|_| opener(&file, done)).collect();
    wait_until("the first open", || state.load(Ordering::SeqCst) == 2);
    assert_eq!(done.load(Ordering::SeqCst), 0);
    drop(daemon);
    assert!(openers.into_iter().all(|opener| opener.wait() == 0));
}

/// The next daemon sees opens that its predecessor did not read. The one that it read waits until it is
/// answered by the number of the predecessor's descriptor.
#[test]
fn an_open_read_by_a_dead_daemon_is_answered_by_the_next() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let (read, done) = (shared_word(), shared_word());
    let group = listener(&file);
    let unanswered = Recorder::new(|_, _| {
        read.store(1, Ordering::SeqCst);
        spin_until(read, 2);
    });
    let daemon = Child::sharing_descriptors(|| {
        let _ = group.run(&unanswered);
    });
    let first_done = shared_word();
    let first = opener(&file, first_done);
    wait_until("the first open", || read.load(Ordering::SeqCst) == 1);
    let later = [opener(&file, done), opener(&file, done)];
    drop(daemon);

    let group: OwnedFd = group.as_fd().try_clone_to_owned().unwrap();
    let next = Listener::from_fd(group).unwrap();
    let handler = Recorder::new(|_, _| {});
    with_thread(&next, &handler, || {
        assert!(later.into_iter().all(|opener| opener.wait() == 0));
        assert_eq!((handler.counts()[0], first_done.load(Ordering::SeqCst)), (2, 0));
        assert_eq!(next.answer_orphans(open_descriptors(), &handler).unwrap(), 1);
        assert_eq!(first.wait(), 0);
        assert_eq!(next.answer_orphans(open_descriptors(), &handler).unwrap(), 0);
    });
    assert_eq!((handler.counts()[0], handler.counts()[2], first_done.load(Ordering::SeqCst)), (2, 2, 1));
}

fn open_descriptors() -> Vec<RawFd> {
    let names = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().parse().unwrap()).collect()
}

/// A full table would make the kernel deny an open. The listener has a spare descriptor for the event.
#[test]
fn a_full_table_of_descriptors_denies_no_open() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let (state, done) = (shared_word(), shared_word());
    let daemon = Child::fork(|| {
        let Some((listener, fd)) = listener_of_child(&file) else { return 1 };
        let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
        // SAFETY: a structure that the call reads, and descriptors without an owner.
        let last = unsafe {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            std::iter::from_fn(|| Some(libc::dup(fd)).filter(|new| *new >= 0)).last()
        };
        // Room for the listener's spare descriptor.
        close(last.unwrap_or(-1));
        let handler = Recorder::new(|_, _| {});
        state.store(1, Ordering::SeqCst);
        i32::from(listener.run(&handler).is_err())
    });
    wait_until("the daemon", || state.load(Ordering::SeqCst) == 1);
    for _ in 0..20 {
        assert_eq!(opener(&file, done).wait(), 0);
    }
    drop(daemon);
}

#[test]
fn files_are_watched_until_unwatched() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let other = file.another();
    let listener = listener(&file);
    let handler = Recorder::new(|_, _| {});
    with_thread(&listener, &handler, || {
        assert_eq!(opener(&other, shared_word()).wait(), 0);
        assert_eq!(opener(&file, shared_word()).wait(), 0);
        listener.unwatch(file.file.as_fd()).unwrap();
        listener.unwatch(file.file.as_fd()).unwrap();
        assert_eq!(opener(&file, shared_word()).wait(), 0);
    });
    assert_eq!(handler.counts()[0], 1);
    let proc = File::open("/proc/self/status").unwrap();
    assert!(listener.watch(proc.as_fd()).is_err());
    let no_group = Listener::from_fd(proc.into()).unwrap_err();
    assert_eq!(no_group.kind(), io::ErrorKind::InvalidInput);
    assert!(listener.as_fd().as_raw_fd() >= 0);
}

#[test]
fn a_listener_without_the_right_names_it() {
    if !is_possible() {
        return;
    }
    let child = Child::fork(|| {
        // SAFETY: plain numbers; the raw call concerns this thread, the only one.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        i32::from(!matches!(Listener::new(), Err(Unavailable::NeedsAdmin)))
    });
    assert_eq!(child.wait(), 0);
    assert!(Unavailable::NeedsAdmin.to_string().contains("CAP_SYS_ADMIN"));
}
