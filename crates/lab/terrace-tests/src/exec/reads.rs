//! Script operations that read: pread and variants, sendfile, seeks, listings, and cache pressure (`press`).

use super::listing::{readdir, seekwalk};
use super::{
    Args, BIG_PAGES, Break, Executor, c, errno, is_direct, is_directory, lengths, number, outcome, unaligned,
    vectors,
};
use crate::rng::{Rng, fill, hash};
use libc::{c_int, c_void, off_t};
use std::fmt::Write as _;

impl Executor {
    pub(super) fn reads(&mut self, name: &str, a: Args) -> Option<String> {
        let off = |i: usize| number(a[i]);
        Some(match name {
            "read" | "pread" | "pread64" => {
                let (fd, len) = (self.fd(a[0]), off(1) as usize);
                let at = (name != "read").then(|| off(2));
                if unaligned(fd, at, len, false) {
                    return Some("unaligned".into());
                }
                let buf = self.buf.get(len).as_mut_ptr().cast::<c_void>();
                // SAFETY: buf has len bytes.
                let got = unsafe {
                    match name {
                        "read" => libc::read(fd, buf, len),
                        "pread" => libc::pread(fd, buf, len, off(2)),
                        _ => libc::pread64(fd, buf, len, off(2)),
                    }
                };
                self.got(got as i64)
            }
            "readv" => self.read_vector(a[0], a[1], None, 0),
            "preadv" => self.read_vector(a[0], a[2], Some(off(1)), 0),
            "preadv2" => self.read_vector(a[0], a[3], Some(off(1)), off(2) as c_int),
            // Directory positions are specific to the file system.
            "lseek" if is_directory(self.fd(a[0])) => "directory".into(),
            // SAFETY: plain integers.
            "lseek" => outcome(unsafe { libc::lseek(self.fd(a[0]), off(1), off(2) as c_int) }),
            "seekwalk" => seekwalk(self.fd(a[0]), a[1] == "strict"),
            "sendfile" => self.sendfile(a),
            "press" => self.press(a),
            "readdir" => readdir(a[0]),
            "readlink" => {
                let buf = self.buf.get(4096).as_mut_ptr();
                // SAFETY: buf has 4096 bytes.
                let got = unsafe { libc::readlink(c(a[0]).as_ptr(), buf.cast(), 4096) };
                self.got(got as i64)
            }
            _ => return None,
        })
    }

    /// Records the length read and a hash of the bytes.
    pub(super) fn got(&mut self, got: i64) -> String {
        if got < 0 {
            return outcome(got);
        }
        self.reads += u64::from(got > 0);
        if matches!(self.fault, Break::Read(n) if self.reads >= n) && got > 0 {
            self.buf.get(got as usize)[got as usize / 2] ^= 1;
        }
        format!("{got} {:x}", hash(self.buf.get(got as usize)))
    }

    fn read_vector(&mut self, slot: &str, lens: &str, at: Option<i64>, flags: c_int) -> String {
        let (fd, lens) = (self.fd(slot), lengths(lens));
        let total: usize = lens.iter().sum();
        let offset = at.filter(|o| *o >= 0);
        if unaligned(fd, offset, total, false) || (is_direct(fd) && lens.iter().any(|l| l % 4096 != 0)) {
            return "unaligned".into();
        }
        let vectors = vectors(self.buf.get(total), &lens);
        let (p, n) = (vectors.as_ptr(), vectors.len() as c_int);
        // RWF_NOWAIT may legitimately fail or read less: only the read without it is compared.
        if flags & libc::RWF_NOWAIT != 0 && at.is_some() {
            // SAFETY: the vectors lie in buf.
            let now = unsafe { libc::preadv2(fd, p, n, at.unwrap_or(0), flags) };
            if now > 0 && at == Some(-1) {
                // SAFETY: plain integers.
                unsafe { libc::lseek(fd, -(now as i64), libc::SEEK_CUR) };
            }
        }
        // SAFETY: the vectors lie in buf.
        let got = unsafe {
            match at {
                None => libc::readv(fd, p, n),
                Some(o) if flags == 0 && o >= 0 => libc::preadv(fd, p, n, o),
                Some(o) => libc::preadv2(fd, p, n, o, flags & !libc::RWF_NOWAIT),
            }
        };
        self.got(got as i64)
    }

    fn sendfile(&mut self, a: Args) -> String {
        let (fd, mut at, len) = (self.fd(a[0]), number(a[1]), number(a[2]) as usize);
        if is_direct(fd) {
            return "unaligned".into();
        }
        let buf = self.buf.get(len).as_mut_ptr();
        // SAFETY: the memfd is ours and closed below; buf has len bytes.
        unsafe {
            let memory = libc::memfd_create(c"sendfile".as_ptr(), 0);
            let mut sent = 0;
            while (sent as usize) < len {
                let n = libc::sendfile(memory, fd, &raw mut at, len - sent as usize);
                if n <= 0 {
                    if n < 0 && sent == 0 {
                        sent = -i64::from(errno());
                    }
                    break;
                }
                sent += n as i64;
            }
            let got = if sent < 0 { -1 } else { libc::pread(memory, buf.cast(), len, 0) as i64 };
            libc::close(memory);
            if got < 0 { format!("E{}", -sent) } else { self.got(got) }
        }
    }

    /// Reads random pieces of `../big` and checks them: cache pressure between the operations of a sequence.
    fn press(&mut self, a: Args) -> String {
        let mut rng = Rng::new(number(a[1]) as u64);
        // SAFETY: a NUL-terminated path; the descriptor is closed below; buf has 64 KiB.
        let fd = unsafe { libc::open(c"../big".as_ptr(), libc::O_RDONLY) };
        let mut wrong = String::new();
        for _ in 0..number(a[0]) {
            let (page, pages) = (rng.below(BIG_PAGES - 16), 1 + rng.below(16));
            let len = pages as usize * 4096;
            let buf = self.buf.get(len).as_mut_ptr();
            // SAFETY: buf has len bytes.
            let got = unsafe { libc::pread(fd, buf.cast(), len, (page * 4096) as off_t) };
            if got != len as isize {
                write!(wrong, " page {page}: {}", outcome(got as i64)).expect("a string takes all");
                continue;
            }
            let mut expected = vec![0; 4096];
            for i in 0..pages {
                fill(&mut expected, page + i);
                if self.buf.get(len)[i as usize * 4096..][..4096] != expected[..] {
                    write!(wrong, " page {} differs", page + i).expect("a string takes all");
                }
            }
        }
        // SAFETY: opened above.
        unsafe { libc::close(fd) };
        if wrong.is_empty() { "right".into() } else { format!("WRONG{wrong}") }
    }
}
