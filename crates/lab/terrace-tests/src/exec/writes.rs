//! Script operations that write: pwrite and variants, truncate, fallocate, fsync, copies of ranges.

use super::{Args, Break, Executor, c, is_direct, lengths, number, outcome, unaligned, vectors};
use crate::rng::fill;
use libc::{c_int, c_void};

impl Executor {
    pub(super) fn writes(&mut self, name: &str, a: Args) -> Option<String> {
        let off = |i: usize| number(a[i]);
        Some(match name {
            "write" | "pwrite" | "pwrite64" => {
                let (fd, len) = (self.fd(a[0]), off(1) as usize);
                let at = (name != "write").then(|| off(3));
                if unaligned(fd, at, len, true) {
                    return Some("unaligned".into());
                }
                let buf = self.content(len, off(2) as u64).as_ptr().cast::<c_void>();
                // SAFETY: buf has len bytes.
                outcome(unsafe {
                    match name {
                        "write" => libc::write(fd, buf, len),
                        "pwrite" => libc::pwrite(fd, buf, len, off(3)),
                        _ => libc::pwrite64(fd, buf, len, off(3)),
                    }
                } as i64)
            }
            "writev" => self.write_vector(a[0], a[2], off(1) as u64, None, 0),
            "pwritev" => self.write_vector(a[0], a[3], off(1) as u64, Some(off(2)), 0),
            "pwritev2" => self.write_vector(a[0], a[4], off(1) as u64, Some(off(2)), off(3) as c_int),
            "truncate" | "ftruncate" | "fallocate" | "fsync" | "fdatasync" | "syncfs" => {
                let fd = if name == "truncate" { -1 } else { self.fd(a[0]) };
                // SAFETY: plain integers, and a NUL-terminated path that lives over the call.
                outcome(i64::from(unsafe {
                    match name {
                        "truncate" => libc::truncate(c(a[0]).as_ptr(), off(1)),
                        "ftruncate" => libc::ftruncate(fd, off(1)),
                        "fallocate" => libc::fallocate(fd, off(1) as c_int, off(2), off(3)),
                        "fsync" => libc::fsync(fd),
                        "fdatasync" => libc::fdatasync(fd),
                        _ => libc::syncfs(fd),
                    }
                }))
            }
            "copyrange" => self.copyrange(a),
            _ => return None,
        })
    }

    pub(super) fn content(&mut self, len: usize, pattern: u64) -> &mut [u8] {
        self.writes += 1;
        let broken = matches!(self.fault, Break::Write(n) if self.writes >= n);
        let buf = self.buf.get(len);
        fill(buf, pattern);
        if broken && len > 0 {
            buf[len / 2] ^= 1;
        }
        buf
    }

    fn write_vector(
        &mut self,
        slot: &str,
        lens: &str,
        pattern: u64,
        at: Option<i64>,
        flags: c_int,
    ) -> String {
        let (fd, lens) = (self.fd(slot), lengths(lens));
        let total: usize = lens.iter().sum();
        let append = flags & libc::RWF_APPEND != 0;
        if unaligned(fd, at.filter(|o| *o >= 0), total, true)
            || (is_direct(fd) && (append || lens.iter().any(|l| l % 4096 != 0)))
        {
            return "unaligned".into();
        }
        let vectors = vectors(self.content(total, pattern), &lens);
        let (p, n) = (vectors.as_ptr(), vectors.len() as c_int);
        // SAFETY: the vectors lie in buf.
        outcome(unsafe {
            match at {
                None => libc::writev(fd, p, n),
                Some(o) if flags == 0 && o >= 0 => libc::pwritev(fd, p, n, o),
                Some(o) => libc::pwritev2(fd, p, n, o, flags),
            }
        } as i64)
    }

    fn copyrange(&mut self, a: Args) -> String {
        let (from, to, len) = (self.fd(a[0]), self.fd(a[2]), number(a[4]) as usize);
        if is_direct(from) || is_direct(to) {
            return "unaligned".into();
        }
        let (mut x, mut y) = (number(a[1]), number(a[3]));
        let pointer = |o: &mut i64| if *o < 0 { std::ptr::null_mut() } else { std::ptr::from_mut(o) };
        let (x, y) = (pointer(&mut x), pointer(&mut y));
        let mut total = 0;
        while total < len {
            // SAFETY: x and y are null or point to this frame's offsets.
            let n = unsafe { libc::copy_file_range(from, x, to, y, len - total, 0) };
            if n < 0 && total == 0 {
                return outcome(n as i64);
            }
            if n <= 0 {
                break;
            }
            total += n as usize;
        }
        total.to_string()
    }
}
