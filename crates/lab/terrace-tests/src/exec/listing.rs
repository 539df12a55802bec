//! The visible state of a file or a directory as text: attributes, names, data regions, content.

use super::{TIME_SET_MAX, c, errno, fstat, is_direct, outcome};
use crate::rng::hash;
use libc::c_int;
use std::fmt::Write as _;

pub(super) fn attributes(st: &libc::stat, mtime: bool) -> String {
    let mut out = format!("mode {:o} nlink {} uid {} gid {}", st.st_mode, st.st_nlink, st.st_uid, st.st_gid);
    if st.st_mode & libc::S_IFMT != libc::S_IFDIR {
        write!(out, " size {}", st.st_size).expect("a string takes all");
    }
    if mtime {
        match st.st_mtime {
            set if set < TIME_SET_MAX => write!(out, " mtime {set}.{:09}", st.st_mtime_nsec),
            _ => write!(out, " mtime now"),
        }
        .expect("a string takes all");
    }
    out
}

pub(super) fn sorted_names(list: &[u8]) -> String {
    let mut names: Vec<_> =
        list.split(|b| *b == 0).filter(|n| !n.is_empty()).map(String::from_utf8_lossy).collect();
    // Security modules set these attributes, not the file system.
    names.retain(|n| !n.starts_with("security."));
    names.sort();
    names.join(",")
}

pub(super) fn readdir(path: &str) -> String {
    let mut names = Vec::new();
    // SAFETY: dir and the entries it gives are used only here, before closedir.
    unsafe {
        let dir = libc::opendir(c(path).as_ptr());
        if dir.is_null() {
            return outcome(-1);
        }
        loop {
            let entry = libc::readdir(dir);
            if entry.is_null() {
                break;
            }
            let name = std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_string_lossy().into_owned();
            names.push(format!("{name}:{}", (*entry).d_type));
        }
        libc::closedir(dir);
    }
    names.sort();
    names.join(",")
}

/// Data regions of an open file, from SEEK_DATA and SEEK_HOLE.
pub(super) fn regions(fd: c_int, size: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < size {
        // SAFETY: plain integers.
        let (data, hole) = unsafe {
            let data = libc::lseek(fd, at, libc::SEEK_DATA);
            if data < 0 {
                return if errno() == libc::ENXIO { Ok(out) } else { Err(outcome(-1)) };
            }
            (data, libc::lseek(fd, data, libc::SEEK_HOLE))
        };
        if data < at || hole <= data || hole > size {
            return Err(format!("from {at}: data {data} hole {hole} size {size}"));
        }
        out.push((data, hole));
        at = hole;
    }
    Ok(out)
}

/// Walks data and holes. `strict` records them all; otherwise only whether every hole reads as zeros: with
/// preallocated blocks, the data regions depend on the cached pages.
pub(super) fn seekwalk(fd: c_int, strict: bool) -> String {
    let Some(st) = fstat(fd) else { return outcome(-1) };
    if st.st_mode & libc::S_IFMT != libc::S_IFREG || is_direct(fd) {
        return "skipped".into();
    }
    // SAFETY: plain integers; the position is restored at the end.
    let before = unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    let walked = regions(fd, st.st_size);
    // SAFETY: as above.
    unsafe { libc::lseek(fd, before, libc::SEEK_SET) };
    let regions = match walked {
        Ok(regions) => regions,
        Err(why) => return why,
    };
    if strict {
        return format!("{regions:?}");
    }
    let mut at = 0;
    for (data, hole) in regions.into_iter().chain([(st.st_size, st.st_size)]) {
        if !reads_as_zeros(fd, at, data.min(at + (1 << 20))) {
            return format!("the hole at {at}..{data} is none");
        }
        at = hole;
    }
    "sound".into()
}

pub(super) fn reads_as_zeros(fd: c_int, mut at: i64, end: i64) -> bool {
    let mut buf = vec![0u8; 65536];
    while at < end {
        let len = ((end - at) as usize).min(buf.len());
        // SAFETY: buf has at least len bytes.
        let got = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), len, at) };
        // A descriptor without read permission gives no content.
        if got <= 0 {
            return got < 0;
        }
        if buf[..got as usize].iter().any(|b| *b != 0) {
            return false;
        }
        at += got as i64;
    }
    true
}

/// A hash of a file's size and of all its nonzero pages, independent of reported holes.
pub fn content_hash(path: &str) -> String {
    // SAFETY: a NUL-terminated path; the descriptor is closed below.
    let fd = unsafe { libc::open(c(path).as_ptr(), libc::O_RDONLY | libc::O_NOFOLLOW) };
    if fd < 0 {
        return outcome(-1);
    }
    let size = fstat(fd).map_or(0, |st| st.st_size);
    let result = match regions(fd, size) {
        Ok(regions) => hash_regions(fd, &regions),
        Err(why) => why,
    };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    result
}

pub(super) fn hash_regions(fd: c_int, regions: &[(i64, i64)]) -> String {
    let mut buf = vec![0u8; 65536];
    let mut sum = 0u64;
    for (data, hole) in regions {
        let mut at = *data & !4095;
        while at < *hole {
            let len = ((*hole - at) as usize).min(buf.len());
            // SAFETY: buf has at least len bytes.
            let got = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), len, at) };
            if got <= 0 {
                return format!("read at {at}: {}", outcome(got as i64));
            }
            for (i, page) in buf[..got as usize].chunks(4096).enumerate() {
                if page.iter().any(|b| *b != 0) {
                    // Zeros at the end of a page do not count: a hole may begin there.
                    let used = page.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
                    sum =
                        crate::rng::mix(sum ^ hash(&page[..used])).wrapping_add(at as u64 / 4096 + i as u64);
                }
            }
            at += got as i64;
        }
    }
    format!("{sum:x}")
}

/// Records everything below a directory: names, kinds, modes, links, sizes, contents, extended attributes.
pub fn tree(path: &str, out: &mut String, prefix: &str) {
    let mut names: Vec<String> = match std::fs::read_dir(path) {
        Ok(list) => list
            .map(|e| e.map_or_else(|e| e.to_string(), |e| e.file_name().to_string_lossy().into_owned()))
            .collect(),
        Err(why) => {
            writeln!(out, "{prefix}{path}: {why}").expect("a string takes all");
            return;
        }
    };
    names.sort();
    for name in names {
        let path = format!("{path}/{name}");
        // SAFETY: stat is plain data; the path is NUL-terminated.
        let st = unsafe {
            let mut st: libc::stat = std::mem::zeroed();
            if libc::lstat(c(&path).as_ptr(), &raw mut st) < 0 {
                writeln!(out, "{prefix}{path}: {}", outcome(-1)).expect("a string takes all");
                continue;
            }
            st
        };
        write!(out, "{prefix}{path} {}", attributes(&st, false)).expect("a string takes all");
        match st.st_mode & libc::S_IFMT {
            libc::S_IFREG => write!(out, " content {} xattr {}", content_hash(&path), xattrs(&path)),
            libc::S_IFLNK => write!(out, " -> {:?}", std::fs::read_link(&path).ok()),
            libc::S_IFDIR => write!(out, " xattr {}", xattrs(&path)),
            _ => Ok(()),
        }
        .expect("a string takes all");
        out.push('\n');
        if st.st_mode & libc::S_IFMT == libc::S_IFDIR {
            tree(&path, out, prefix);
        }
    }
}

pub(super) fn xattrs(path: &str) -> String {
    let mut list = vec![0u8; 65536];
    // SAFETY: the buffers have the lengths given.
    let got = unsafe { libc::llistxattr(c(path).as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    if got < 0 {
        return outcome(-1);
    }
    let mut out = String::new();
    for name in sorted_names(&list[..got as usize]).split(',').filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 65536];
        // SAFETY: as above.
        let got = unsafe {
            libc::lgetxattr(c(path).as_ptr(), c(name).as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        write!(out, "{name}={:x},", hash(&value[..got.max(0) as usize])).expect("a string takes all");
    }
    out
}
