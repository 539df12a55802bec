//! Writes of a file that the kernel writes in the source anyway (`--passthrough auto`): this process does them there itself.
//!
//! The truth of such a file is the source's page cache, for everybody, so there is nothing to keep coherent: a write by the mount and one by a
//! source descriptor end in the same pages under the same lock. What the mount adds is the way there, and a lock that an fsync holds to its end.
//! Writes that make the file longer go by the mount, for the kernel's idea of its size.
//!
//! As in [`crate::read`], `None` is "nothing was done: make the real call".

use crate::file::File;
use crate::sys::{self, Ret};
use crate::table::{self, Class};
use crate::{connection, grants, helper};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use terrace_shm::layout::FLAG_OUTSIDE;

/// So many writes by the mount come first: they make the kernel forget size and times that it took for lasting, and a program that writes less
/// is not worth a descriptor.
const WRITES_MIN: u8 = 4;
/// No descriptor is asked for after so many refusals.
const REFUSALS_MAX: u32 = 8;
/// A descriptor for which the answer was no.
const REFUSED: u8 = u8::MAX;

/// Writes by descriptor since it was opened.
static WRITES: [AtomicU8; table::FDS_MAX] = [const { AtomicU8::new(0) }; table::FDS_MAX];
static REFUSALS: AtomicU32 = AtomicU32::new(0);

/// A descriptor has just been opened.
pub fn opened(fd: c_int) {
    if let Some(writes) = WRITES.get(fd as u32 as usize) {
        writes.store(0, Ordering::Relaxed);
    }
}

/// The source, if this process may write it, and the write lies inside the file.
fn target(fd: c_int, class: Class, n: usize, offset: i64) -> Option<c_int> {
    let file = File::new(fd, class)?;
    if file.slot.flags.load(Ordering::Acquire) & FLAG_OUTSIDE == 0 {
        return None;
    }
    let end = u64::try_from(offset).ok()?.checked_add(n as u64)?;
    if n == 0 || end > file.slot.size.load(Ordering::Acquire) {
        return None;
    }
    match class.grant() {
        Some(grant) => grants::get(grant, fd),
        None => ask(fd, class),
    }
}

/// Counts writes, and asks the daemon when it is time.
#[cold]
fn ask(fd: c_int, class: Class) -> Option<c_int> {
    let writes = WRITES.get(fd as u32 as usize)?;
    let before = writes.load(Ordering::Relaxed);
    if before < WRITES_MIN {
        writes.store(before + 1, Ordering::Relaxed);
    }
    // Of a description that others have, too, they could be told failures that we know of.
    if before != WRITES_MIN || class.shared() || REFUSALS.load(Ordering::Relaxed) >= REFUSALS_MAX {
        return None;
    }
    let source = connection::grant(fd)?;
    let kept = source.and_then(helper::raise).and_then(|source| {
        let grant = grants::keep(fd, source);
        if grant.is_none() {
            helper::lower(source);
        }
        grant
    });
    let Some(grant) = kept else {
        writes.store(REFUSED, Ordering::Relaxed);
        REFUSALS.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    if !table::note_grant(fd, class, grant) {
        grants::take(grant).inspect(|&source| helper::lower(source));
        return None;
    }
    grants::get(grant, fd)
}

/// pwrite.
///
/// # Safety
/// `buf` is the program's and goes to the kernel as it is.
pub unsafe fn pwrite(fd: c_int, class: Class, buf: *const u8, n: usize, offset: i64) -> Option<Ret> {
    let source = target(fd, class, n, offset)?;
    // SAFETY: the kernel checks the buffer.
    done(unsafe { sys::raw(libc::SYS_pwrite64, [source as usize, buf as usize, n, offset as usize, 0, 0]) })
}

/// Somebody has closed our descriptor since it was looked at: the mount's is still there.
fn done(ret: Ret) -> Option<Ret> {
    (ret != -(libc::EBADF as isize)).then_some(ret)
}

/// fsync and fdatasync, as `call` says. The first one is the mount's, which tells what failed before there was a grant.
pub fn sync(fd: c_int, class: Class, call: libc::c_long) -> Option<Ret> {
    let grant = class.grant()?;
    File::new(fd, class)?;
    if !grants::is_synced(grant) {
        return None;
    }
    let source = grants::get(grant, fd)?;
    // SAFETY: touches no memory.
    done(unsafe { sys::raw(call, [source as usize, 0, 0, 0, 0, 0]) })
}

/// The mount's fsync of a descriptor was answered: the next ones are ours.
pub fn synced(fd: c_int) {
    if let Some(grant) = table::get(fd).and_then(Class::grant) {
        grants::note_synced(grant);
    }
}

/// sync_file_range.
pub fn sync_range(fd: c_int, class: Class, offset: i64, n: i64, flags: u32) -> Option<Ret> {
    File::new(fd, class)?;
    let source = grants::get(class.grant()?, fd)?;
    let args = [source as usize, offset as usize, n as usize, flags as usize, 0, 0];
    // SAFETY: touches no memory.
    done(unsafe { sys::raw(libc::SYS_sync_file_range, args) })
}
