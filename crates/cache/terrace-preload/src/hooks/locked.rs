//! Hook of mlockall: it locks and populates the program's memory without the library's mappings of the cache.
//!
//! All clients share those mappings, and only the daemon fills them. Populated holes would get memory that
//! `--memory` does not count. Later mappings of the library are never locked (terrace-shm's `part.rs`).

use super::guard::guard;
use crate::{connection, next, sys};
use libc::c_int;

/// Name of the library's mappings in /proc/self/maps.
const OURS: &[u8] = b"/memfd:terrace-";
/// Longest part of a line that is read: addresses, rights and the beginning of the name.
const LINE_MAX: usize = 128;
const MLOCK_ONFAULT: c_int = libc::MCL_ONFAULT;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the program's own argument.
    lock_all_by(flags, |flags| unsafe { next::mlockall(flags) })
}

/// An mlockall. First all mappings are locked without populating; then the library's are unlocked, and the
/// rest is populated.
pub(super) fn lock_all_by(flags: c_int, call: impl Fn(c_int) -> c_int) -> c_int {
    let has_ours = guard(|| connection::world().is_some());
    if !has_ours || flags & libc::MCL_CURRENT == 0 {
        return call(flags);
    }
    let is_locked = call(flags | MLOCK_ONFAULT) == 0;
    let fills = flags & MLOCK_ONFAULT == 0;
    // SAFETY: errno is this thread's.
    let refused = unsafe { *libc::__errno_location() };
    // A limit on locked memory may be too small only because of the library's mappings.
    if !is_locked && refused != libc::ENOMEM {
        return call(flags);
    }
    let all = guard(|| Some(each(&|at, len, ours| lock(at, len, ours, fills, is_locked))));
    match all {
        Some(Ok(())) if is_locked && (!fills || flags & libc::MCL_FUTURE == 0) => 0,
        // Sets the program's flags for future mappings.
        Some(Ok(())) if flags & libc::MCL_FUTURE != 0 => call(flags & !libc::MCL_CURRENT),
        Some(Ok(())) => 0,
        _ if is_locked => call(flags),
        _ => sys::libc_ret(-(refused as isize)) as c_int,
    }
}

/// Locks a mapping of the program, or unlocks one of the library. False: a limit prevents it.
fn lock(at: usize, len: usize, ours: bool, fills: bool, is_locked: bool) -> bool {
    let raw = |n, flags| {
        // SAFETY: locks change no content.
        unsafe { sys::raw(n, [at, len, flags, 0, 0, 0]) }
    };
    if ours {
        raw(libc::SYS_munlock, 0);
        return true;
    }
    let ret = match (fills, is_locked) {
        (true, _) => raw(libc::SYS_mlock, 0),
        (false, true) => 0,
        (false, false) => raw(libc::SYS_mlock2, libc::MLOCK_ONFAULT as usize),
    };
    // As for mlockall, a mapping that cannot be populated is no error.
    is_locked || ret == 0
}

/// Calls `f` for each usable mapping of this process: start, bytes, whether it is the library's. Fails if the
/// list cannot be read, or `f` returns false.
fn each(f: &dyn Fn(usize, usize, bool) -> bool) -> Result<(), ()> {
    let path = c"/proc/self/maps".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a path that ends.
    let fd = unsafe { sys::raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) };
    let fd = c_int::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or(())?;
    let (mut buffer, mut line, mut len, mut done) = ([0_u8; 1024], [0_u8; LINE_MAX], 0, Ok(()));
    loop {
        let args = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes into the buffer.
        let n = unsafe { sys::raw(libc::SYS_read, args) };
        let Some(got) = usize::try_from(n).ok().and_then(|n| buffer.get(..n)) else {
            done = Err(());
            break;
        };
        for &byte in got {
            if byte != b'\n' {
                if len < LINE_MAX {
                    line[len] = byte;
                    len += 1;
                }
                continue;
            }
            if let Some((at, bytes, ours)) = mapping(&line[..len])
                && !f(at, bytes, ours)
            {
                done = Err(());
            }
            len = 0;
        }
        if got.is_empty() || done.is_err() {
            break;
        }
    }
    sys::close(fd);
    done
}

/// A line of the list: `start-end rights offset device inode name`. None for an unusable mapping, or the
/// kernel's.
fn mapping(line: &[u8]) -> Option<(usize, usize, bool)> {
    let text = |part: &[u8]| usize::from_str_radix(std::str::from_utf8(part).ok()?, 16).ok();
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let mut ends = words.next()?.split(|&byte| byte == b'-');
    let (start, end) = (text(ends.next()?)?, text(ends.next()?)?);
    let rights = words.next()?;
    let name = words.nth(3).unwrap_or_default();
    let is_usable = !rights.starts_with(b"---") && !name.starts_with(b"[v");
    is_usable.then_some((start, end.checked_sub(start)?, name.starts_with(OURS)))
}

#[cfg(test)]
mod tests {
    use super::mapping;

    #[test]
    fn lines_of_the_list_are_understood() {
        let heap = b"55d0c8a5b000-55d0c8a7c000 rw-p 00000000 00:00 0                          [heap]";
        assert_eq!(mapping(heap), Some((0x55d0_c8a5_b000, 0x21000, false)));
        let ours =
            b"1234000-1235000 r--s 00001000 00:01 9876                    /memfd:terrace-segment (deleted)";
        assert_eq!(mapping(ours), Some((0x123_4000, 0x1000, true)));
        assert_eq!(mapping(b"7f00-7f01 rw-p 00000000 00:00 0 "), Some((0x7f00, 1, false)));
        for other in ["1-2 ---p 0 00:00 0", "7ffc0-7ffc1 r--p 0 00:00 0    [vvar]", "x", ""] {
            assert_eq!(mapping(other.as_bytes()), None, "{other}");
        }
    }
}
