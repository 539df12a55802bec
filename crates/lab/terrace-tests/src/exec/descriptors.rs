//! Script operations on descriptors: open, duplicate, close, lock.

use super::{Args, Executor, c, closefrom, errno, is_direct, number, outcome};
use crate::rng::hash;
use libc::c_int;

impl Executor {
    pub(super) fn descriptors(&mut self, name: &str, a: Args) -> Option<String> {
        Some(match name {
            "open" | "creat" | "openat" | "openat2" | "memory" => self.open(name, a),
            "close" => self.close(number(a[0]) as usize),
            "dup" | "dup2" | "dup3" | "dupfd" => self.dup(name, a),
            "fdopen" => self.fdopen(a),
            "closerange" | "closefrom" => self.closerange(name, a),
            "lock" => self.lock(a),
            "flock" => {
                let (fd, how) = (self.fd(a[0]), number(a[1]) as c_int | libc::LOCK_NB);
                // SAFETY: plain integers.
                outcome(unsafe { libc::flock(fd, how) }.into())
            }
            _ => return None,
        })
    }

    fn open(&mut self, name: &str, a: Args) -> String {
        self.close(number(a[0]) as usize);
        let at = |i: usize| number(a[i]) as c_int;
        // SAFETY: NUL-terminated paths that live over the calls; open_how is filled whole.
        let fd = unsafe {
            match name {
                "open" => libc::open(c(a[1]).as_ptr(), at(2), at(3)),
                "creat" => libc::creat(c(a[1]).as_ptr(), at(2) as libc::mode_t),
                // A file of another file system, with a descriptor number that may have belonged to this one.
                "memory" => {
                    let fd = libc::memfd_create(c"memory".as_ptr(), 0);
                    libc::write(fd, [7u8; 9000].as_ptr().cast(), 9000);
                    fd
                }
                "openat" => {
                    let dir = libc::open(c(a[1]).as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
                    let fd = if dir < 0 { -1 } else { libc::openat(dir, c(a[2]).as_ptr(), at(3), at(4)) };
                    let why = errno();
                    if dir >= 0 {
                        libc::close(dir);
                    }
                    *libc::__errno_location() = why;
                    fd
                }
                _ => {
                    let flags = number(a[2]) as u64;
                    let mode = if at(2) & libc::O_CREAT != 0 { number(a[3]) as u64 } else { 0 };
                    let how = [flags, mode, 0u64];
                    libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, c(a[1]).as_ptr(), how.as_ptr(), 24usize)
                        as c_int
                }
            }
        };
        self.put(a[0], fd)
    }

    fn dup(&mut self, name: &str, a: Args) -> String {
        let (from, to) = (self.fd(a[0]), self.fd(a[1]));
        // SAFETY: plain integers.
        unsafe {
            match name {
                "dup" | "dupfd" => {
                    self.close(number(a[1]) as usize);
                    let fd =
                        if name == "dup" { libc::dup(from) } else { libc::fcntl(from, libc::F_DUPFD, 20) };
                    self.put(a[1], fd)
                }
                // Onto the number of another slot, which closes its file.
                _ if to < 0 => "empty".into(),
                "dup2" => self.put(a[1], libc::dup2(from, to)),
                _ if from == to => "same".into(),
                _ => self.put(a[1], libc::dup3(from, to, 0)),
            }
        }
    }

    /// `fdopen`, a short read through stdio, and `fclose`, which closes the descriptor inside libc.
    fn fdopen(&mut self, a: Args) -> String {
        if is_direct(self.fd(a[0])) {
            // The buffers of stdio are not aligned.
            return self.close(number(a[0]) as usize);
        }
        let Some(fd) = self.sequence().slots[number(a[0]) as usize].take() else { return "empty".into() };
        let len = number(a[1]) as usize;
        let buf = self.buf.get(len).as_mut_ptr();
        // SAFETY: buf has len bytes; the FILE is used only here.
        unsafe {
            let file = libc::fdopen(fd, c"r".as_ptr());
            if file.is_null() {
                let why = errno();
                libc::close(fd);
                return format!("E{why}");
            }
            let got = libc::fread(buf.cast(), 1, len, file);
            let closed = libc::fclose(file);
            format!("{got} {:x} fclose {closed}", hash(std::slice::from_raw_parts(buf, got)))
        }
    }

    fn closerange(&mut self, name: &str, a: Args) -> String {
        let fd = self.fd(a[0]);
        if fd < 3 {
            return "empty".into();
        }
        let last = match name {
            "closefrom" => c_int::MAX,
            _ => fd + number(a[1]) as c_int,
        };
        for sequence in self.sequences.values_mut() {
            for slot in &mut sequence.slots {
                *slot = slot.filter(|open| *open < fd || *open > last);
            }
        }
        // SAFETY: only descriptors of slots are in the range: the executor itself keeps none above 2.
        unsafe {
            if name == "closefrom" {
                closefrom(fd);
                return "done".into();
            }
            outcome(libc::close_range(fd as u32, last as u32, 0).into())
        }
    }

    fn lock(&mut self, a: Args) -> String {
        // SAFETY: flock is plain data, valid when zeroed.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = number(a[1]) as i16;
        lock.l_start = number(a[2]);
        lock.l_len = number(a[3]);
        // SAFETY: lock is a valid struct flock.
        outcome(unsafe { libc::fcntl(self.fd(a[0]), libc::F_SETLK, &raw const lock) }.into())
    }
}
