//! The look for processes that can write a file.

use std::ffi::CString;
use std::fs::File;
use std::ptr;
use std::sync::atomic::Ordering;

use terrace_opens::guard::{FileId, writers};

use crate::processes::{Child, close, fixture, is_possible, open, shared_word, spin_until};

/// A child that has prepared itself by `begin` and waits.
fn holder(name: &CString, begin: impl FnOnce(&CString) -> bool) -> Child {
    let ready = shared_word();
    let child = Child::fork(|| {
        ready.store(if begin(name) { 1 } else { 2 }, Ordering::SeqCst);
        spin_until(ready, 3);
        0
    });
    spin_until_set(ready);
    child
}

fn spin_until_set(ready: &std::sync::atomic::AtomicU32) {
    terrace_testkit::wait::wait_until("the child", || ready.load(Ordering::SeqCst) != 0);
    assert_eq!(ready.load(Ordering::SeqCst), 1, "a call of the child failed");
}

/// Maps the file, and closes the descriptor.
fn map(name: &CString, open_flags: i32, protection: i32, kind: i32) -> bool {
    let fd = open(name, open_flags);
    // SAFETY: a new mapping of a descriptor.
    let at = unsafe { libc::mmap(ptr::null_mut(), 8192, protection, kind, fd, 0) };
    close(fd);
    at != libc::MAP_FAILED
}

/// Writers by descriptors and mappings are found, readers and private mappings are not.
#[test]
fn writers_are_found_and_readers_are_not() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let id = FileId::of(&file.file).unwrap();
    let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    let mut can_write = [
        holder(&file.name, |name| open(name, libc::O_RDWR) >= 0),
        holder(&file.name, |name| open(name, libc::O_WRONLY | libc::O_APPEND) >= 0),
        holder(&file.name, |name| map(name, libc::O_RDWR, both, libc::MAP_SHARED)),
        // A later mprotect makes it writable.
        holder(&file.name, |name| map(name, libc::O_RDWR, read, libc::MAP_SHARED)),
    ]
    .map(Some);
    let _others = [
        holder(&file.name, |name| open(name, libc::O_RDONLY) >= 0),
        holder(&file.name, |name| open(name, libc::O_PATH) >= 0),
        holder(&file.name, |name| map(name, libc::O_RDONLY, read, libc::MAP_SHARED)),
        holder(&file.name, |name| map(name, libc::O_RDWR, both, libc::MAP_PRIVATE)),
        holder(&file.name, |_| open(&c"/dev/null".to_owned(), libc::O_RDWR) >= 0),
    ];
    let mut expected: Vec<i32> = can_write.iter().flatten().map(Child::pid).collect();
    expected.sort_unstable();
    let sorted = |except: &[i32]| {
        let mut found = writers([id], except).unwrap().remove(&id).unwrap().found;
        found.sort_unstable();
        found
    };
    assert_eq!(sorted(&[]), expected);
    assert_eq!(sorted(&expected[..1]), expected[1..]);
    for child in &mut can_write {
        *child = None;
    }
    assert!(sorted(&[]).is_empty());
}

/// A thread may have its own table of descriptors, and may outlive its process's first thread.
#[test]
fn writers_are_found_in_every_thread() {
    if !is_possible() {
        return;
    }
    let file = fixture();
    let id = FileId::of(&file.file).unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the new table has the same descriptors, and the thread closes none of them.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let writer = File::options().write(true).open(&file.path).unwrap();
            let found = writers([id], &[]).unwrap().remove(&id).unwrap().found;
            drop(writer);
            found
        });
        assert_eq!(thread.join().unwrap(), [own]);
    });
    assert!(writers([id], &[]).unwrap()[&id].found.is_empty());
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let ends = [
        holder_without_leader(&file.name, |name| open(name, libc::O_RDWR) >= 0),
        holder_without_leader(&file.name, |name| map(name, libc::O_RDWR, both, libc::MAP_SHARED)),
    ];
    let mut expected = ends.each_ref().map(Child::pid);
    expected.sort_unstable();
    let mut found = writers([id], &[]).unwrap().remove(&id).unwrap().found;
    found.sort_unstable();
    assert_eq!(found, expected);
}

/// A child with the file, which goes on in a second thread after the first has ended.
fn holder_without_leader(name: &CString, begin: impl FnOnce(&CString) -> bool) -> Child {
    extern "C" fn second(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
        ptr::null_mut()
    }
    let ready = shared_word();
    let child = Child::fork(|| {
        let mut thread = 0;
        // SAFETY: the function takes no data. Only this thread ends by the system call.
        unsafe {
            let begun = libc::pthread_create(&raw mut thread, ptr::null(), second, ptr::null_mut()) == 0;
            ready.store(if begun && begin(name) { 1 } else { 2 }, Ordering::SeqCst);
            libc::syscall(libc::SYS_exit, 0);
        }
        1
    });
    spin_until_set(ready);
    let stat = || terrace_system::proc::stat(child.pid()).map(|stat| stat.state);
    terrace_testkit::wait::wait_until("the end of the first thread", || stat() == Some('Z'));
    child
}
