//! Hooks of posix_fadvise and readahead: a program's advice about its reads goes to the daemon as hints.
//!
//! madvise is not hooked. Mappings use the kernel's page cache, which reads ahead for them through the mount.
//! Most calls of madvise are an allocator's, which must reach the kernel directly.

use super::guard::guard;
use crate::file::File;
use crate::table::{self, Class, Order};
use crate::{connection, directory, next, sys};
use libc::{c_int, off_t, size_t, ssize_t};
use terrace_shm::layout::LAYOUT_VERSION;
use terrace_shm::proto::{self, Hint};

/// Sends a hint to the daemon. 0 bytes: up to the end of the file.
fn tell(fd: c_int, class: Class, offset: off_t, len: u64, advice: u32) {
    let Some(file) = File::new(fd, class) else { return };
    // The kernel accepts any offset, and finds nothing there.
    let Ok(offset) = u64::try_from(offset) else { return };
    connection::hint(&Hint {
        op: proto::HINT,
        version: LAYOUT_VERSION,
        object: file.object,
        offset,
        len: if len == 0 { u64::MAX } else { len },
        advice,
        reserved: 0,
    });
}

/// True: the kernel need not be called. Its own readahead would fill its page cache in addition, and count as
/// a mapping of the file.
fn is_answered(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> bool {
    let order = match advice {
        libc::POSIX_FADV_SEQUENTIAL => Some(Order::Sequential),
        libc::POSIX_FADV_RANDOM => Some(Order::Random),
        libc::POSIX_FADV_NORMAL => Some(Order::Unknown),
        _ => None,
    };
    // Also for a file that is not served yet.
    if let Some(order) = order {
        table::note_order(fd, order);
    }
    let (Some(class), Ok(len)) = (table::get(fd), u64::try_from(len)) else { return false };
    match advice {
        libc::POSIX_FADV_DONTNEED => tell(fd, class, offset, len, proto::WONT_NEED),
        // The next reads come from the kernel's page cache.
        _ if directory::is_leased() => {}
        libc::POSIX_FADV_WILLNEED => {
            tell(fd, class, offset, len, proto::WILL_NEED);
            return true;
        }
        libc::POSIX_FADV_SEQUENTIAL => tell(fd, class, offset, len, proto::SEQUENTIAL),
        _ => {}
    }
    false
}

/// readahead fails for a descriptor that is not open for reading.
fn is_read_ahead(fd: c_int, offset: off_t, len: size_t) -> bool {
    let ours = len <= i64::MAX as usize && !directory::is_leased();
    let Some(class) = table::get(fd).filter(|_| ours) else { return false };
    let flags = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    let readable = flags >= 0 && flags & libc::O_ACCMODE != libc::O_WRONLY;
    if readable && len > 0 {
        tell(fd, class, offset, len as u64, proto::WILL_NEED);
    }
    readable
}

macro_rules! fadvise {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
            if guard(|| is_answered(fd, offset, len, advice)) {
                return 0;
            }
            // SAFETY: the program's own arguments.
            unsafe { next::$name(fd, offset, len, advice) }
        }
    };
}
fadvise!(posix_fadvise);
fadvise!(posix_fadvise64);

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn readahead(fd: c_int, offset: off_t, len: size_t) -> ssize_t {
    if guard(|| is_read_ahead(fd, offset, len)) {
        return 0;
    }
    // SAFETY: the program's own arguments.
    unsafe { next::readahead(fd, offset, len) }
}
