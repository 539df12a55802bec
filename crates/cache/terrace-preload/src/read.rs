//! A read of a descriptor that the preload path serves: hits here, misses in [`crate::miss`], others by the
//! mount path.
//!
//! Where writes are announced, bytes of a write in flight are read by the kernel. Its reads end with
//! [`source_read`], or in the hook: on x86-64 the processor orders loads.
//!
//! Every function here returns `None` if nothing was done and the real call must be made. Otherwise it
//! returns the call's result: bytes, or -errno.

use crate::file::File;
use crate::fill::FromTier;
use crate::source::DIRECT_ALIGN;
use crate::sys::{self, Ret};
use crate::table::{self, Class, Order, UNKNOWN};
use crate::{buffer, directory, miss};
use libc::iovec;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use terrace_shm::protocol::writes::source_read;
use terrace_shm::reader::{Outcome, Reader};

/// The kernel reads at most this much in one call (MAX_RW_COUNT).
const READ_MAX: usize = 0x7fff_f000;
/// End of the program's address space.
const ADDRESS_END: usize = 0x7fff_ffff_f000;
/// Sequential reads after which a miss belongs to a scan: then the daemon reads ahead, not the client.
const SCAN_STREAK: u32 = 2;
/// Maximum number of vectors in one call.
const VECTORS_MAX: c_int = 1024;

impl File<'_> {
    /// Reads the resident pages at `offset`, and returns how many of the `n` bytes the file has there. None:
    /// `buf` is not writable.
    #[inline]
    unsafe fn look_up(&self, buf: *mut u8, n: usize, offset: u64) -> Option<(Outcome, usize)> {
        if !self.is_served() {
            if directory::is_leased() && !self.has_slot() {
                table::demote(self.fd, self.class);
            }
            return Some((Outcome::MountPath { done: 0 }, n));
        }
        if self.class.is_direct() && !is_aligned(buf, n, offset) {
            return Some((Outcome::MountPath { done: 0 }, n));
        }
        let is_settled = self.is_settled(offset, n);
        let left = self.slot.size.load(Ordering::Acquire).saturating_sub(offset);
        // A write that moves the file's end may not have reached the slot's size.
        if !is_settled || directory::announces_writes() && left < n as u64 {
            return Some((Outcome::MountPath { done: 0 }, n));
        }
        let wanted = usize::try_from(left).unwrap_or(n).min(n);
        if wanted > 0 && !buffer::is_writable(self.local, buf, wanted) {
            return None;
        }
        // Reads no more than was checked, if the file grows meanwhile.
        // SAFETY: the program's buffer of n bytes; the descriptor is open, so the slot is the object's.
        let outcome = unsafe {
            Reader { seg: &self.world.segment, touches: &self.world.touches }.read(
                self.slot,
                offset,
                buf,
                wanted,
                &mut FromTier(self),
            )
        };
        // If the slot was reused meanwhile, the content is another file's.
        Some((if self.has_slot() { outcome } else { Outcome::MountPath { done: 0 } }, wanted))
    }

    /// Reads at `offset`, as far as the preload path can. None: nothing was read.
    #[inline]
    unsafe fn try_at(&self, buf: *mut u8, n: usize, offset: u64) -> Option<usize> {
        // Before the copy: instructions between two copies keep them from overlapping.
        let streak = self.local.streak(self.fd, offset, n);
        // SAFETY: the program's buffer of n bytes.
        let (outcome, wanted) = unsafe { self.look_up(buf, n, offset)? };
        match outcome {
            Outcome::Done(k) => {
                self.count_hit(offset, k);
                Some(k)
            }
            Outcome::Miss { done } => {
                self.count_hit(offset, done);
                let is_scan = match self.class.order() {
                    Order::Unknown => streak >= SCAN_STREAK,
                    order => order == Order::Sequential,
                };
                let done = match is_scan {
                    // SAFETY: as above; `done` bytes of it are filled.
                    false => unsafe { miss::go_on(self, buf, wanted, offset, done) },
                    true => miss::Progress::MountPath(done),
                };
                match done {
                    miss::Progress::Done(k) => Some(k),
                    // SAFETY: as above.
                    miss::Progress::MountPath(k) => unsafe { self.rest(buf, n, offset, k) },
                }
            }
            Outcome::MountPath { done } => {
                self.count_hit(offset, done);
                // SAFETY: as above.
                unsafe { self.rest(buf, n, offset, done) }
            }
        }
    }

    /// Reads at `offset` if all of it is resident; otherwise `buf` may have parts of it. Returns less than
    /// `n` at the file's end.
    unsafe fn resident(&self, buf: *mut u8, n: usize, offset: u64) -> Option<usize> {
        // SAFETY: the program's buffer of n bytes.
        let (Outcome::Done(k), _) = (unsafe { self.look_up(buf, n, offset)? }) else { return None };
        self.count_hit(offset, k);
        Some(k)
    }

    /// Finishes a read through the mount path.
    #[cold]
    unsafe fn rest(&self, buf: *mut u8, n: usize, offset: u64, done: usize) -> Option<usize> {
        self.count_fallback();
        if done == 0 {
            return None;
        }
        // SAFETY: done <= n, the program's buffer.
        let more = unsafe { sys::pread(self.fd, buf.add(done), n - done, offset + done as u64) };
        source_read();
        // An error after some bytes is returned by the next call, as usual for read.
        Some(done + usize::try_from(more).unwrap_or(0))
    }

    /// [`File::try_at`], finished through the mount path in any case.
    unsafe fn at(&self, buf: *mut u8, n: usize, offset: u64) -> Ret {
        // SAFETY: the caller's promise.
        unsafe {
            match self.try_at(buf, n, offset) {
                Some(k) => k as Ret,
                None => {
                    let got = sys::pread(self.fd, buf, n, offset);
                    source_read();
                    got
                }
            }
        }
    }
}

/// True if the kernel would not refuse or shorten this read because of its arguments.
#[inline]
fn plausible(buf: *const u8, n: usize) -> bool {
    n > 0 && n <= READ_MAX && (buf as usize).checked_add(n).is_some_and(|end| end <= ADDRESS_END)
}

/// True if the kernel may accept this read of a descriptor with O_DIRECT.
fn is_aligned(buf: *const u8, n: usize, offset: u64) -> bool {
    (buf as usize | n | offset as usize).is_multiple_of(DIRECT_ALIGN)
}

/// The sum of the vectors' lengths, if all are plausible.
///
/// # Safety
/// `v` is the program's array of `n` vectors.
pub(crate) unsafe fn vectors<'a>(v: *const iovec, n: c_int) -> Option<(&'a [iovec], usize)> {
    if n <= 0 || n > VECTORS_MAX {
        return None;
    }
    let bytes = n as usize * size_of::<iovec>();
    if !plausible(v.cast(), bytes) || !buffer::is_readable(v.cast(), bytes) {
        return None;
    }
    // SAFETY: the caller's promise.
    let v = unsafe { std::slice::from_raw_parts(v, n as usize) };
    let mut sum = 0_usize;
    for piece in v {
        if piece.iov_len > 0 && !plausible(piece.iov_base.cast(), piece.iov_len) {
            return None;
        }
        sum = sum.checked_add(piece.iov_len)?;
    }
    (sum > 0 && sum <= READ_MAX).then_some((v, sum))
}

/// pread.
///
/// # Safety
/// The program's buffer.
#[inline]
pub(crate) unsafe fn pread(fd: c_int, class: Class, buf: *mut u8, n: usize, offset: i64) -> Option<Ret> {
    let offset = u64::try_from(offset).ok()?;
    if !plausible(buf, n) {
        return None;
    }
    let file = File::new(fd, class)?;
    // SAFETY: the program's buffer.
    unsafe { file.try_at(buf, n, offset).map(|k| k as Ret) }
}

/// pread of resident pages only, for a caller that must not wait.
///
/// # Safety
/// The program's buffer.
pub(crate) unsafe fn resident(fd: c_int, class: Class, buf: *mut u8, n: usize, offset: i64) -> Option<usize> {
    let offset = u64::try_from(offset).ok()?;
    if !plausible(buf, n) {
        return None;
    }
    // SAFETY: the program's buffer.
    unsafe { File::new(fd, class)?.resident(buf, n, offset) }
}

/// preadv, likewise.
///
/// # Safety
/// The program's vectors and buffers.
pub(crate) unsafe fn resident_vectors(
    fd: c_int,
    class: Class,
    v: *const iovec,
    n: c_int,
    offset: i64,
) -> Option<usize> {
    let offset = u64::try_from(offset).ok()?;
    // SAFETY: the program's vectors.
    let (v, _) = unsafe { vectors(v, n)? };
    let file = File::new(fd, class).filter(|_| may_scatter(class, v))?;
    // SAFETY: the program's buffers.
    scatter(v, offset, |buf, n, at| unsafe { file.resident(buf, n, at) })
}

/// preadv.
///
/// # Safety
/// The program's vectors and buffers.
pub(crate) unsafe fn preadv(fd: c_int, class: Class, v: *const iovec, n: c_int, offset: i64) -> Option<Ret> {
    let offset = u64::try_from(offset).ok()?;
    // SAFETY: the program's vectors.
    unsafe {
        let (v, _) = vectors(v, n)?;
        let file = File::new(fd, class)?;
        read_vectors(&file, v, offset)
    }
}

/// False if the kernel refuses the vectors of a direct read.
fn may_scatter(class: Class, v: &[iovec]) -> bool {
    !class.is_direct() || v.iter().all(|piece| is_aligned(piece.iov_base.cast(), piece.iov_len, 0))
}

/// Fills vector after vector by `read` (buffer, length, offset) until one stays short.
fn scatter(v: &[iovec], offset: u64, read: impl Fn(*mut u8, usize, u64) -> Option<usize>) -> Option<usize> {
    let mut done = 0;
    for piece in v.iter().filter(|p| p.iov_len > 0) {
        let got = read(piece.iov_base.cast(), piece.iov_len, offset + done as u64)?;
        done += got;
        if got < piece.iov_len {
            break;
        }
    }
    Some(done)
}

/// Reads the vectors by the preload path and finishes through the mount path. None: nothing of the first
/// vector was read.
unsafe fn read_vectors(file: &File, v: &[iovec], offset: u64) -> Option<Ret> {
    if !may_scatter(file.class, v) {
        return None;
    }
    let read = |buf, n, at| {
        // SAFETY: the program's buffers.
        unsafe {
            match at == offset {
                true => file.try_at(buf, n, at),
                // An error after some bytes is returned by the next call.
                false => Some(usize::try_from(file.at(buf, n, at)).unwrap_or(0)),
            }
        }
    };
    scatter(v, offset, read).map(|done| done as Ret)
}

/// read: the kernel keeps the position.
///
/// # Safety
/// The program's buffer.
pub(crate) unsafe fn read(fd: c_int, class: Class, buf: *mut u8, n: usize) -> Option<Ret> {
    if !plausible(buf, n) {
        return None;
    }
    let file = File::new(fd, class)?;
    let start = advance(&file, n)?;
    // SAFETY: the program's buffer.
    let got = unsafe { file.at(buf, n, start) };
    Some(retreat(&file, n, got))
}

/// readv.
///
/// # Safety
/// The program's vectors and buffers.
pub(crate) unsafe fn readv(fd: c_int, class: Class, v: *const iovec, n: c_int) -> Option<Ret> {
    // SAFETY: the program's vectors.
    unsafe {
        let (v, sum) = vectors(v, n)?;
        let file = File::new(fd, class)?;
        let start = advance(&file, sum)?;
        let got = match read_vectors(&file, v, start) {
            Some(got) => got,
            None => {
                sys::raw(libc::SYS_preadv, [fd as usize, v.as_ptr() as usize, v.len(), start as usize, 0, 0])
            }
        };
        Some(retreat(&file, sum, got))
    }
}

/// Moves the position forward by `n`, as a full read would, and returns the old one. The move is atomic in
/// the kernel, so two readers of one position never get the same bytes. Near the end of the file the real
/// call decides.
fn advance(file: &File, n: usize) -> Option<u64> {
    if directory::is_leased() && (!file.is_served() || file.slot.flags.load(Ordering::Relaxed) != 0) {
        // The kernel reads, and moves the position.
        table::position(file.fd).store(UNKNOWN, Ordering::Relaxed);
        file.count_fallback();
        return None;
    }
    if file.class.shared() {
        // Another process may move the position between the check of the size and the move.
        file.count_fallback();
        return None;
    }
    let hint = table::position(file.fd);
    let mut at = hint.load(Ordering::Relaxed);
    if at == UNKNOWN {
        at = u64::try_from(sys::lseek_cur(file.fd, 0)).ok()?;
    }
    if at + n as u64 > file.slot.size.load(Ordering::Acquire) {
        // The real read moves the position.
        hint.store(UNKNOWN, Ordering::Relaxed);
        file.count_fallback();
        return None;
    }
    let end = u64::try_from(sys::lseek_cur(file.fd, n as i64)).ok()?;
    hint.store(end, Ordering::Relaxed);
    // None: the number belongs to another file, and that file's position does not move.
    end.checked_sub(n as u64)
}

/// Corrects the position after a short read. Relative, so that concurrent moves of other threads stay.
fn retreat(file: &File, n: usize, got: Ret) -> Ret {
    let short = n as i64 - got.max(0) as i64;
    if short > 0 {
        sys::lseek_cur(file.fd, -short);
        table::position(file.fd).store(UNKNOWN, Ordering::Relaxed);
    }
    got
}
