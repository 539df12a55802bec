//! System calls that the standard library lacks, with their errno.

use super::model::Answer;
use std::ffi::CString;
use std::os::fd::AsRawFd as _;
use std::path::Path;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL in a path")
}

fn text(name: &str) -> CString {
    CString::new(name).expect("no NUL in a name")
}

fn answer(value: i64) -> Answer<i64> {
    if value < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(value) }
}

/// Converts a result of the standard library to its errno.
pub(super) fn errno<T>(result: std::io::Result<T>) -> Answer<T> {
    result.map_err(|why| why.raw_os_error().unwrap_or(0))
}

pub(super) fn rename(old: &Path, new: &Path, flags: u32) -> Answer {
    let (old, new, here) = (c(old), c(new), libc::AT_FDCWD);
    // SAFETY: two NUL-terminated paths that live over the call.
    answer(unsafe { libc::renameat2(here, old.as_ptr(), here, new.as_ptr(), flags) }.into()).map(|_| ())
}

pub(super) fn mkdir(path: &Path) -> Answer {
    // SAFETY: a NUL-terminated path.
    answer(unsafe { libc::mkdir(c(path).as_ptr(), 0o755) }.into()).map(|_| ())
}

pub(super) fn truncate(path: &Path, len: usize) -> Answer {
    // SAFETY: a NUL-terminated path.
    answer(unsafe { libc::truncate(c(path).as_ptr(), len as i64) }.into()).map(|_| ())
}

pub(super) fn set_mtime(path: &Path, seconds: i64) -> Answer {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    // SAFETY: a NUL-terminated path and two times.
    let done = unsafe { libc::utimensat(libc::AT_FDCWD, c(path).as_ptr(), [time, time].as_ptr(), 0) };
    answer(done.into()).map(|_| ())
}

pub(super) fn setxattr(path: &Path, name: &str, value: &[u8], flags: i32) -> Answer {
    let (path, name) = (c(path), text(name));
    // SAFETY: NUL-terminated strings, and a buffer with its length.
    let done =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    answer(done.into()).map(|_| ())
}

pub(super) fn getxattr(path: &Path, name: &str) -> Answer<Vec<u8>> {
    let (path, name, mut value) = (c(path), text(name), vec![0u8; 4096]);
    // SAFETY: NUL-terminated strings, and a buffer with its length.
    let got =
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(answer(got as i64)? as usize);
    Ok(value)
}

pub(super) fn removexattr(path: &Path, name: &str) -> Answer {
    let (path, name) = (c(path), text(name));
    // SAFETY: NUL-terminated strings.
    answer(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) }.into()).map(|_| ())
}

/// The names of the user attributes.
pub(super) fn listxattr(path: &Path) -> Answer<Vec<String>> {
    let (path, mut list) = (c(path), vec![0u8; 65536]);
    // SAFETY: a NUL-terminated path, and a buffer with its length.
    let got =
        answer(unsafe { libc::llistxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) } as i64)?;
    let names = list[..got as usize].split(|b| *b == 0).map(String::from_utf8_lossy);
    let mut names: Vec<String> = names.filter(|n| n.starts_with("user.")).map(Into::into).collect();
    names.sort();
    Ok(names)
}

pub(super) fn fallocate(file: &std::fs::File, mode: i32, at: usize, len: usize) -> Answer {
    // SAFETY: plain integers.
    answer(unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) }.into()).map(|_| ())
}

/// Copies the whole range, in several calls if needed.
pub(super) fn copy_range(
    from: &std::fs::File,
    at: usize,
    to: &std::fs::File,
    there: usize,
    len: usize,
) -> Answer {
    let (mut at, mut there, mut left) = (at as i64, there as i64, len);
    while left > 0 {
        // SAFETY: plain integers, and two offsets that live over the call.
        let done = answer(unsafe {
            libc::copy_file_range(from.as_raw_fd(), &raw mut at, to.as_raw_fd(), &raw mut there, left, 0)
        } as i64)?;
        if done == 0 {
            return Err(0);
        }
        left -= done as usize;
    }
    Ok(())
}

/// An exclusive lock of each kind, released at close.
pub(super) fn lock(file: &std::fs::File) -> Answer {
    // SAFETY: flock is plain data, and all zeros is one.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as i16;
    range.l_len = 10;
    // SAFETY: plain integers, and a description of a lock that lives over the call.
    answer(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) }.into())?;
    // SAFETY: plain integers.
    answer(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }.into()).map(|_| ())
}

/// A shared mapping of a whole file. Loads and stores go through the kernel (a pipe): after the mount's end
/// they fail with EFAULT instead of a signal.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    len: usize,
    pipe: (std::io::PipeReader, std::io::PipeWriter),
}

impl Mapping {
    pub(super) fn new(file: &std::fs::File, len: usize) -> Answer<Mapping> {
        let pipe = errno(std::io::pipe())?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return answer(-1).map(|_| unreachable!("-1 is an error"));
        }
        Ok(Mapping { base: base.cast(), len, pipe })
    }

    /// Loads `len` bytes; at most a page, the capacity of one pipe write.
    pub(super) fn load(&mut self, at: usize, len: usize) -> Answer<Vec<u8>> {
        assert!(at + len <= self.len && len <= 4096, "within the mapping, and within a pipe");
        let mut bytes = vec![0; len];
        // SAFETY: the kernel reads within the mapping (asserted), and writes to a local buffer of that
        // length.
        unsafe {
            answer(libc::write(self.pipe.1.as_raw_fd(), self.base.add(at).cast(), len) as i64)?;
            answer(libc::read(self.pipe.0.as_raw_fd(), bytes.as_mut_ptr().cast(), len) as i64)?;
        }
        Ok(bytes)
    }

    /// Stores at most a page.
    pub(super) fn store(&mut self, at: usize, bytes: &[u8]) -> Answer {
        assert!(at + bytes.len() <= self.len && bytes.len() <= 4096, "within the mapping, and within a pipe");
        // SAFETY: the kernel reads a local buffer, and writes within the mapping (asserted), to which there
        // are no references.
        unsafe {
            answer(libc::write(self.pipe.1.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) as i64)?;
            answer(libc::read(self.pipe.0.as_raw_fd(), self.base.add(at).cast(), bytes.len()) as i64)?;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Answer {
        // SAFETY: the whole mapping.
        answer(unsafe { libc::msync(self.base.cast(), self.len, libc::MS_SYNC) }.into()).map(|_| ())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length; no borrow is left.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
