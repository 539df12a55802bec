//! Rings of programs that use liburing as a shared library: submissions are inspected before the kernel gets
//! them.
//!
//! A read of resident pages is answered at once. The library copies the content, and the entry becomes a NOP
//! with the number of bytes as result (IORING_NOP_INJECT_RESULT). Order, links, flags and the completion
//! itself stay the kernel's. All other reads use the mount path. A close is seen before it happens, so that a
//! reused number is not taken for the old file.

use crate::guarded::Range;
use crate::liburing::{Entry, Uring};
use crate::sys;
use crate::{connection, directory, helper, leased, read, ring_writes, table, writers};
use libc::iovec;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

const OP_NOP: u8 = 0;
const OP_READV: u8 = 1;
const OP_WRITEV: u8 = 2;
const OP_WRITE_FIXED: u8 = 5;
const OP_CLOSE: u8 = 19;
const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;
/// Operations that change no file and make no descriptor. Not sendmsg and recvmsg, which move descriptors.
const OP_HARMLESS: [u8; 22] =
    [OP_NOP, OP_READV, 3, 4, 6, 7, 8, 11, 12, 13, 14, 15, 16, OP_CLOSE, 21, OP_READ, 24, 25, 26, 27, 29, 34];
/// RWF_APPEND of a write.
const WRITE_APPENDS: u32 = libc::RWF_APPEND as u32;
const NOP_INJECT_RESULT: u32 = 1;
/// First long-term kernel that supports it.
const NOP_RESULTS_SINCE: (u32, u32) = (6, 12);

/// `fd` is a number in the ring's own table.
const ENTRY_FIXED_FILE: u8 = 1;
const ENTRY_DRAIN: u8 = 1 << 1;
/// A success leaves no completion.
const ENTRY_SKIPS: u8 = 1 << 6;
/// Links with the next entry: IO_LINK, IO_HARDLINK.
const ENTRY_LINKS: u8 = 1 << 2 | 1 << 3;
/// Flags with which a read can be answered: the links, ASYNC, CQE_SKIP_SUCCESS. (No registered file, no
/// selected buffer.)
const ENTRY_KNOWN: u8 = ENTRY_LINKS | 1 << 4 | 1 << 6;

const RING_SQE128: u32 = 1 << 10;
/// IOPOLL, with which a buffered read is an error, and R_DISABLED, which permits a list of restrictions.
const RING_LEAVE: u32 = 1 | 1 << 6;
/// Flags up to CQE_MIXED. Later ones may change the layout of entries.
const RING_KNOWN: u32 = (1 << 19) - 1;

/// The last version of liburing that was reviewed: a later one may have functions that submit unseen.
const VERSION_MAX: (c_int, c_int) = (2, 12);

/// Whether liburing has made a ring.
static MADE: AtomicBool = AtomicBool::new(false);
/// Whether the kernel supports IORING_NOP_INJECT_RESULT. An older kernel completes the NOP with 0, which
/// means the end of a file.
static NOP_HAS_RESULTS: AtomicBool = AtomicBool::new(false);
/// Whether a drain was submitted: entries then wait for others, which the library does not know.
static DRAINED: AtomicBool = AtomicBool::new(false);

/// A function of liburing that makes rings has returned `ret`. Enables inspection of submissions. Returns
/// false if they would not be understood.
///
/// # Safety
/// If `ret` is 0, `ring` is a ring of liburing.
pub(crate) unsafe fn made(ring: *const Uring, ret: c_int, version: (c_int, c_int)) -> bool {
    if ret < 0 {
        return true;
    }
    // SAFETY: the caller's promise.
    let understood = ret == 0 && version <= VERSION_MAX && unsafe { (*ring).flags } & !RING_KNOWN == 0;
    if understood {
        NOP_HAS_RESULTS.store(sys::kernel_version() >= NOP_RESULTS_SINCE, Ordering::Relaxed);
        MADE.store(true, Ordering::Relaxed);
    }
    understood
}

/// Inspects entries before they are submitted.
///
/// # Safety
/// `ring` is a ring of liburing, and no other thread uses its submission queue, as for io_uring_submit.
pub(crate) unsafe fn look(ring: *const Uring) {
    if !MADE.load(Ordering::Relaxed) || connection::mount_dev().is_none() {
        return;
    }
    // SAFETY: the caller's promise.
    let ring = unsafe { &*ring };
    let answers = ring.flags & RING_LEAVE == 0 && NOP_HAS_RESULTS.load(Ordering::Relaxed);
    let shift = u32::from(ring.flags & RING_SQE128 != 0);
    let announces = directory::announces_writes();
    let seen = if announces { ring_writes::submitting(ring) } else { 0 };
    let mut linked = false;
    let mut at = ring.head;
    while at != ring.tail {
        // SAFETY: the entries between head and tail are the program's, and filled.
        let entry = unsafe { &mut *ring.entries.add(((at & *ring.mask) << shift) as usize) };
        if entry.flags & ENTRY_DRAIN != 0 {
            DRAINED.store(true, Ordering::Relaxed);
        }
        match entry.opcode {
            // The kernel may cancel the close: a writer's mark stays.
            OP_CLOSE if announces && table::writer(entry.fd).is_some() => table::dismiss(entry.fd),
            // For a descriptor of the library, the close returns EBADF.
            OP_CLOSE if entry.file_index == 0 && !helper::may_close(entry.fd) => entry.fd = -1,
            OP_READ | OP_READV if answers && !linked && !DRAINED.load(Ordering::Relaxed) => {
                // SAFETY: the program's buffers.
                if let Some(n) = unsafe { answer(entry) } {
                    entry.complete_with(n);
                }
            }
            _ => {}
        }
        linked = entry.flags & ENTRY_LINKS != 0;
        if announces && at.wrapping_sub(ring.head) >= seen {
            announce(ring, entry);
        }
        at = at.wrapping_add(1);
    }
}

/// Reads resident pages. None: the kernel must read.
unsafe fn answer(entry: &Entry) -> Option<u32> {
    if entry.flags & !ENTRY_KNOWN != 0 || entry.ioprio != 0 || entry.op_flags != 0 || entry.personality != 0 {
        return None;
    }
    let Some(class) = table::get(entry.fd) else {
        if table::is_candidate(entry.fd) && entry.offset != u64::MAX {
            leased::consider(entry.fd, Some(entry.offset), entry.len as usize);
        }
        return None;
    };
    let (offset, addr) = (i64::try_from(entry.offset).ok()?, entry.addr as usize);
    // SAFETY: the program's buffers.
    let n = unsafe {
        match entry.opcode {
            OP_READ => read::resident(entry.fd, class, addr as *mut u8, entry.len as usize, offset)?,
            _ => {
                let n = c_int::try_from(entry.len).ok()?;
                read::resident_vectors(entry.fd, class, addr as *const iovec, n, offset)?
            }
        }
    };
    u32::try_from(n).ok()
}

/// Announces the change that an entry makes.
fn announce(ring: &Uring, entry: &Entry) {
    match entry.opcode {
        OP_WRITE | OP_WRITEV | OP_WRITE_FIXED if entry.flags & ENTRY_FIXED_FILE == 0 => {
            let completes = entry.flags & ENTRY_SKIPS == 0;
            ring_writes::announce(ring, entry.fd, entry.written(), entry.user_data, completes);
        }
        operation => {
            if !OP_HARMLESS.contains(&operation) {
                writers::hold_all();
            }
            ring_writes::note_other(ring, entry.user_data);
        }
    }
}

impl Entry {
    /// The bytes that a write may change.
    fn written(&self) -> Range {
        let appends = self.op_flags & WRITE_APPENDS != 0;
        let len = match self.opcode {
            OP_WRITEV => self.vectors_len(),
            _ => Some(self.len as usize),
        };
        match (i64::try_from(self.offset), len) {
            (Ok(offset), Some(len)) if !appends => Range::At { offset, len },
            _ => Range::All,
        }
    }
    /// Bytes of the entry's vectors.
    fn vectors_len(&self) -> Option<usize> {
        // SAFETY: the program's vectors.
        let vectors = unsafe { read::vectors(self.addr as *const iovec, c_int::try_from(self.len).ok()?) };
        Some(vectors?.1)
    }
    /// Turns the entry into a NOP with this result. Its flags and user data stay.
    fn complete_with(&mut self, n: u32) {
        *self = Entry {
            opcode: OP_NOP,
            flags: self.flags,
            ioprio: 0,
            fd: -1,
            offset: 0,
            addr: 0,
            len: n,
            op_flags: NOP_INJECT_RESULT,
            user_data: self.user_data,
            buf: 0,
            personality: 0,
            file_index: 0,
            _rest: [0; 2],
        };
    }
}
