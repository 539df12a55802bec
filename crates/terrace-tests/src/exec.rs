//! The executor of operation scripts: it makes the system calls that a script names, through libc's functions (so that
//! an interposer sees them), and notes what each answered. The same script run in two directories must leave the same
//! notes: that is the whole of the model test.
//!
//! A script is a text of one operation a line (`pread 2 4096 100`). `@3` switches to sequence 3, which has a directory,
//! descriptor slots and mappings of its own: several sequences interleave in one process. Results hold nothing that may
//! rightly differ between two file systems (inode numbers, blocks, the clock), but they do hold descriptor numbers.

use crate::map::Map;
use crate::rng::{Rng, fill, hash};
use libc::{c_char, c_int, c_void, off_t};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;

unsafe extern "C" {
    fn closefrom(low: c_int);
}

/// Descriptor slots of a sequence.
pub const SLOTS: usize = 6;
/// Mappings that a sequence can hold at once.
pub const MAPS: usize = 2;
/// Pages of the file `big` beside the sequences' directories, which `press` reads to make the cache evict.
pub const BIG_PAGES: u64 = 10_240;
/// Times below this were set by `utimens`; all others come from the clock and are noted as `now`.
const TIME_SET_MAX: i64 = 1_500_000_000;
/// The longest transfer: a script cannot ask for more.
const LEN_MAX: usize = 4 << 20;

/// Writes the file that `press` checks: each page says where it belongs.
pub fn write_big(path: &std::path::Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let mut page = vec![0; 4096];
    for n in 0..BIG_PAGES {
        fill(&mut page, n);
        out.write_all(&page)?;
    }
    out.into_inner()?.sync_all()
}

/// A deliberate fault of the executor, to show that a comparison can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// No fault.
    None,
    /// The n-th read and all after it return one wrong byte.
    Read(u64),
    /// The n-th write and all after it store one wrong byte.
    Write(u64),
}

#[derive(Debug, Default)]
struct Sequence {
    slots: [Option<c_int>; SLOTS],
    maps: [Option<Map>; MAPS],
}

/// Runs scripts. See the module's text.
#[derive(Debug)]
pub struct Executor {
    root: String,
    sequences: BTreeMap<u64, Sequence>,
    current: u64,
    buf: Aligned,
    fault: Break,
    reads: u64,
    writes: u64,
}

#[derive(Debug)]
struct Aligned(*mut u8);

impl Aligned {
    fn new() -> Aligned {
        // SAFETY: a fresh anonymous mapping, checked below, owned by this value alone.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN_MAX,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(p, libc::MAP_FAILED, "memory for the executor's buffer");
        Aligned(p.cast())
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= LEN_MAX, "a transfer of {len} bytes");
        // SAFETY: the mapping is LEN_MAX bytes long, lives as long as self, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0, len) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length in new(); nothing borrows it any more.
        unsafe { libc::munmap(self.0.cast(), LEN_MAX) };
    }
}

type Args<'a> = &'a [&'a str];

fn number(text: &str) -> i64 {
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).expect("a hexadecimal number"),
        None => text.parse().unwrap_or_else(|_| panic!("not a number: {text}")),
    }
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL in a script")
}

fn lengths(text: &str) -> Vec<usize> {
    text.split(',').map(|l| number(l) as usize).collect()
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn outcome(value: i64) -> String {
    if value < 0 { format!("E{}", errno()) } else { value.to_string() }
}

fn fstat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: stat is plain data, valid when zeroed; the call fills it or fails.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: st is a valid buffer for the call.
    (unsafe { libc::fstat(fd, &raw mut st) } == 0).then_some(st)
}

fn is_directory(fd: c_int) -> bool {
    fstat(fd).is_some_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

impl Executor {
    /// An executor that works below `root`, where it makes a directory for each sequence.
    pub fn new(root: &str, fault: Break) -> Executor {
        Executor {
            root: root.to_owned(),
            sequences: BTreeMap::new(),
            current: u64::MAX,
            buf: Aligned::new(),
            fault,
            reads: 0,
            writes: 0,
        }
    }

    /// Runs a whole script; `out` gets the notes after each few operations, so that a crash keeps those before it.
    pub fn run(&mut self, script: &str, mut out: impl FnMut(&str)) {
        let mut log = String::new();
        for line in script.lines().filter(|l| !l.is_empty()) {
            if let Some(n) = line.strip_prefix('@') {
                self.enter(number(n) as u64);
                continue;
            }
            let result = self.op(line);
            writeln!(log, "{} {line} => {result}", self.current).expect("a string takes all");
            if log.len() > 16 << 10 {
                out(&log);
                log.clear();
            }
        }
        self.end(&mut log);
        out(&log);
    }

    fn enter(&mut self, n: u64) {
        if n == self.current {
            return;
        }
        self.current = n;
        let dir = c(&format!("{}/s{n}", self.root));
        if let std::collections::btree_map::Entry::Vacant(new) = self.sequences.entry(n) {
            new.insert(Sequence::default());
            // SAFETY: a NUL-terminated path.
            let made = unsafe { libc::mkdir(dir.as_ptr(), 0o755) };
            assert!(made == 0, "mkdir {dir:?}: {}", std::io::Error::last_os_error());
        }
        // SAFETY: a NUL-terminated path.
        let done = unsafe { libc::chdir(dir.as_ptr()) };
        assert!(done == 0, "chdir {dir:?}: {}", std::io::Error::last_os_error());
    }

    /// Closes everything and notes the tree that each sequence left behind.
    fn end(&mut self, log: &mut String) {
        let numbers: Vec<u64> = self.sequences.keys().copied().collect();
        for n in &numbers {
            self.enter(*n);
            for m in 0..MAPS {
                self.unmap(m);
            }
            for s in 0..SLOTS {
                self.close(s);
            }
        }
        for n in &numbers {
            self.enter(*n);
            writeln!(log, "{n} tree").expect("a string takes all");
            tree(".", log, &format!("{n} "));
        }
        self.current = u64::MAX;
        self.sequences.clear();
    }

    fn sequence(&mut self) -> &mut Sequence {
        self.sequences.get_mut(&self.current).expect("a script begins with @")
    }

    fn fd(&mut self, slot: &str) -> c_int {
        self.sequence().slots[number(slot) as usize].unwrap_or(-1)
    }

    /// Puts a descriptor into a slot, in place of what was there, and notes its number: programs can see it.
    fn put(&mut self, slot: &str, fd: c_int) -> String {
        if fd < 0 {
            return format!("E{}", errno());
        }
        self.sequence().slots[number(slot) as usize] = Some(fd);
        format!("fd {fd}")
    }

    fn close(&mut self, slot: usize) -> String {
        match self.sequence().slots[slot].take() {
            // SAFETY: closing a number of ours; a stale one answers EBADF.
            Some(fd) => outcome(i64::from(unsafe { libc::close(fd) })),
            None => "empty".into(),
        }
    }

    fn unmap(&mut self, m: usize) -> String {
        match self.sequence().maps[m].take() {
            Some(map) => outcome(i64::from(map.unmap())),
            None => "empty".into(),
        }
    }

    fn op(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let (name, a) = (words[0], &words[1..]);
        match name {
            "fork" => return self.fork(&line[5..]),
            "exec" | "spawn" => return self.exec(name == "spawn", a),
            _ => {}
        }
        type Group = fn(&mut Executor, &str, Args) -> Option<String>;
        let groups: [Group; 6] =
            [Self::descriptors, Self::reads, Self::writes, Self::names, Self::attributes, Self::mappings];
        groups
            .iter()
            .find_map(|group| group(self, name, a))
            .unwrap_or_else(|| panic!("no such operation: {line}"))
    }

    // ---- descriptors ----

    fn descriptors(&mut self, name: &str, a: Args) -> Option<String> {
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
                // A file that is not of this file system, under a number that may have been one.
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
                // Onto the number of another slot: what was open there is gone, whoever remembers it.
                _ if to < 0 => "empty".into(),
                "dup2" => self.put(a[1], libc::dup2(from, to)),
                _ if from == to => "same".into(),
                _ => self.put(a[1], libc::dup3(from, to, 0)),
            }
        }
    }

    /// `fdopen`, reads a little through stdio, and closes by `fclose`, which closes the descriptor inside libc.
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
        // SAFETY: only descriptors of slots lie in the range: the executor itself keeps none above 2.
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

    // ---- reading ----

    fn reads(&mut self, name: &str, a: Args) -> Option<String> {
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
            // The positions of a directory are its file system's own matter.
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

    /// Notes how much was read and a hash of it.
    fn got(&mut self, got: i64) -> String {
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
        // RWF_NOWAIT may answer "not now" or less than is there, and rightly differ: the answer that counts is one without.
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

    /// Reads random pieces of `../big` and checks them: pressure on the cache between the operations of a sequence.
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

    // ---- writing ----

    fn writes(&mut self, name: &str, a: Args) -> Option<String> {
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

    fn content(&mut self, len: usize, pattern: u64) -> &mut [u8] {
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

    // ---- names ----

    fn names(&mut self, name: &str, a: Args) -> Option<String> {
        let p = |i: usize| c(a[i]);
        // SAFETY: NUL-terminated paths that live over each call.
        Some(outcome(i64::from(unsafe {
            match name {
                "rename" => libc::rename(p(0).as_ptr(), p(1).as_ptr()),
                "renameat2" => libc::renameat2(
                    libc::AT_FDCWD,
                    p(0).as_ptr(),
                    libc::AT_FDCWD,
                    p(1).as_ptr(),
                    number(a[2]) as u32,
                ),
                "link" => libc::link(p(0).as_ptr(), p(1).as_ptr()),
                "symlink" => libc::symlink(p(0).as_ptr(), p(1).as_ptr()),
                "unlink" => libc::unlink(p(0).as_ptr()),
                "mkdir" => libc::mkdir(p(0).as_ptr(), 0o755),
                "rmdir" => libc::rmdir(p(0).as_ptr()),
                "mkfifo" => libc::mkfifo(p(0).as_ptr(), 0o600),
                _ => return None,
            }
        })))
    }

    // ---- attributes ----

    fn attributes(&mut self, name: &str, a: Args) -> Option<String> {
        // SAFETY: NUL-terminated paths and plain integers; the buffers have the lengths given with them.
        Some(unsafe {
            match name {
                "stat" | "lstat" => {
                    let mut st: libc::stat = std::mem::zeroed();
                    let f = if name == "stat" { libc::stat } else { libc::lstat };
                    if f(c(a[0]).as_ptr(), &raw mut st) < 0 {
                        outcome(-1)
                    } else {
                        attributes(&st, a[1] == "mtime")
                    }
                }
                "fstat" => match fstat(self.fd(a[0])) {
                    Some(st) => attributes(&st, a[1] == "mtime"),
                    None => outcome(-1),
                },
                "statx" => {
                    let mut st: libc::statx = std::mem::zeroed();
                    let mask = libc::STATX_SIZE | libc::STATX_NLINK | libc::STATX_TYPE;
                    match libc::statx(libc::AT_FDCWD, c(a[0]).as_ptr(), 0, mask, &raw mut st) {
                        0 if st.stx_mode & 0o170_000 == 0o100_000 => {
                            format!("size {} nlink {}", st.stx_size, st.stx_nlink)
                        }
                        other => outcome(other.into()),
                    }
                }
                "chmod" => outcome(libc::chmod(c(a[0]).as_ptr(), number(a[1]) as u32).into()),
                "fchmod" => outcome(libc::fchmod(self.fd(a[0]), number(a[1]) as u32).into()),
                "chown" => {
                    outcome(libc::lchown(c(a[0]).as_ptr(), number(a[1]) as u32, number(a[2]) as u32).into())
                }
                "utimens" => {
                    let times = times(number(a[1]));
                    outcome(libc::utimensat(libc::AT_FDCWD, c(a[0]).as_ptr(), times.as_ptr(), 0).into())
                }
                "futimens" => outcome(libc::futimens(self.fd(a[0]), times(number(a[1])).as_ptr()).into()),
                "setxattr" => {
                    let (len, pattern, flags) =
                        (number(a[2]) as usize, number(a[3]) as u64, number(a[4]) as c_int);
                    let value = self.content(len, pattern).as_ptr().cast();
                    outcome(libc::setxattr(c(a[0]).as_ptr(), c(a[1]).as_ptr(), value, len, flags).into())
                }
                "getxattr" => {
                    let buf = self.buf.get(65536).as_mut_ptr();
                    let got = libc::getxattr(c(a[0]).as_ptr(), c(a[1]).as_ptr(), buf.cast(), 65536);
                    self.got(got as i64)
                }
                "removexattr" => outcome(libc::removexattr(c(a[0]).as_ptr(), c(a[1]).as_ptr()).into()),
                "listxattr" => {
                    let buf = self.buf.get(65536).as_mut_ptr();
                    let got = libc::listxattr(c(a[0]).as_ptr(), buf.cast(), 65536);
                    if got < 0 { outcome(-1) } else { sorted_names(self.buf.get(got as usize)) }
                }
                _ => return None,
            }
        })
    }

    // ---- mappings ----

    fn mappings(&mut self, name: &str, a: Args) -> Option<String> {
        let n = |i: usize| number(a[i]);
        Some(match name {
            // A private mapping, read and dropped.
            "mapread" => {
                let (fd, at, len) = (self.fd(a[0]), n(1), n(2) as usize);
                let start = at & !4095;
                let Some(map) =
                    Map::new(fd, start, len + (at - start) as usize, libc::PROT_READ, libc::MAP_PRIVATE)
                else {
                    return Some(outcome(-1));
                };
                let result = self.peek(&map, (at - start) as usize, len);
                map.unmap();
                result
            }
            "mapkeep" => {
                self.unmap(n(1) as usize);
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                match Map::new(self.fd(a[0]), n(2) & !4095, n(3) as usize, protection, libc::MAP_SHARED) {
                    Some(map) => {
                        self.sequence().maps[n(1) as usize] = Some(map);
                        "mapped".into()
                    }
                    None => outcome(-1),
                }
            }
            "unmap" => self.unmap(n(0) as usize),
            "mappeek" | "mappoke" | "msync" => {
                let Some(map) = self.sequence().maps[n(0) as usize].take() else {
                    return Some("empty".into());
                };
                let result = match name {
                    "mappeek" => self.peek(&map, n(1) as usize, n(2) as usize),
                    "mappoke" => self.poke(&map, n(1) as usize, n(2) as usize, n(3) as u64),
                    // SAFETY: the mapping is ours.
                    _ => outcome(unsafe { libc::msync(map.address, map.len, libc::MS_SYNC) }.into()),
                };
                self.sequence().maps[n(0) as usize] = Some(map);
                result
            }
            _ => return None,
        })
    }

    /// Reads a mapping through `process_vm_readv`: beyond the end of the file it answers EFAULT, not SIGBUS.
    fn peek(&mut self, map: &Map, at: usize, len: usize) -> String {
        let at = at.min(map.len);
        let len = len.min(map.len - at);
        let buf = self.buf.get(len).as_mut_ptr();
        let local = libc::iovec { iov_base: buf.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: map.address.wrapping_byte_add(at), iov_len: len };
        // SAFETY: both vectors lie in memory of this process; a missing page is answered by EFAULT.
        let got =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        self.got(got as i64)
    }

    /// Writes a mapping likewise, in the file: what is stored in the rest of its last page a local file system cuts off before the file
    /// grows, and the kernel's FUSE does not.
    fn poke(&mut self, map: &Map, at: usize, len: usize, pattern: u64) -> String {
        let in_file = map.in_file();
        let at = at.min(in_file);
        let len = len.min(in_file - at);
        let buf = self.content(len, pattern).as_mut_ptr();
        let local = libc::iovec { iov_base: buf.cast(), iov_len: len };
        let remote = libc::iovec { iov_base: map.address.wrapping_byte_add(at), iov_len: len };
        // SAFETY: as in peek().
        outcome(unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        } as i64)
    }

    // ---- processes ----

    /// The operation in a forked child, on inherited descriptors; offsets are shared, tables are copies.
    fn fork(&mut self, line: &str) -> String {
        let mut ends = [0; 2];
        // SAFETY: this process is single-threaded, so the child may go on with ordinary code; it ends by _exit.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "pipe");
            let child = libc::fork();
            if child == 0 {
                libc::close(ends[0]);
                let result = self.op(line);
                libc::write(ends[1], result.as_ptr().cast(), result.len());
                libc::_exit(0);
            }
            libc::close(ends[1]);
            let result = collect(ends[0]);
            libc::close(ends[0]);
            format!("{result} {}", reap(child))
        }
    }

    /// One read in a program started anew (fork + exec, or posix_spawn), which inherits the descriptor only.
    fn exec(&mut self, spawn: bool, a: Args) -> String {
        let fd = self.fd(a[0]).to_string();
        if is_direct(self.fd(a[0])) {
            return "unaligned".into();
        }
        let program = std::env::current_exe().expect("the path of this program");
        let program = c(program.to_str().expect("a UTF-8 path"));
        let words: Vec<CString> = ["opdriver", "--inherited", &fd, a[1], a[2]].iter().map(|w| c(w)).collect();
        let mut argv: Vec<*mut c_char> = words.iter().map(|w| w.as_ptr().cast_mut()).collect();
        argv.push(std::ptr::null_mut());
        let mut ends = [0; 2];
        // SAFETY: argv is NULL-terminated and its strings outlive the calls; after fork only async-signal-safe calls.
        unsafe {
            unsafe extern "C" {
                static environ: *const *mut c_char;
            }
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0, "pipe");
            let mut child = 0;
            if spawn {
                let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
                libc::posix_spawn_file_actions_init(&raw mut actions);
                libc::posix_spawn_file_actions_adddup2(&raw mut actions, ends[1], 1);
                let done = libc::posix_spawn(
                    &raw mut child,
                    program.as_ptr(),
                    &raw const actions,
                    std::ptr::null(),
                    argv.as_ptr(),
                    environ,
                );
                assert_eq!(done, 0, "posix_spawn");
                libc::posix_spawn_file_actions_destroy(&raw mut actions);
            } else {
                child = libc::fork();
                if child == 0 {
                    libc::dup2(ends[1], 1);
                    libc::execv(program.as_ptr(), argv.as_ptr().cast());
                    libc::_exit(127);
                }
            }
            libc::close(ends[1]);
            let result = collect(ends[0]);
            libc::close(ends[0]);
            format!("{} {}", result.trim(), reap(child))
        }
    }
}

/// The child's part of `exec`: one pread of an inherited descriptor, printed as any other read.
pub fn inherited(fd: c_int, len: usize, at: i64) -> String {
    let mut executor = Executor::new(".", Break::None);
    let buf = executor.buf.get(len).as_mut_ptr();
    // SAFETY: buf has len bytes.
    let got = unsafe {
        if at < 0 { libc::read(fd, buf.cast(), len) } else { libc::pread(fd, buf.cast(), len, at) }
    };
    executor.got(got as i64)
}

fn collect(fd: c_int) -> String {
    let mut all = Vec::new();
    let mut part = [0u8; 4096];
    loop {
        // SAFETY: part has the length given.
        match unsafe { libc::read(fd, part.as_mut_ptr().cast(), part.len()) } {
            n if n > 0 => all.extend_from_slice(&part[..n as usize]),
            _ => return String::from_utf8_lossy(&all).into_owned(),
        }
    }
}

fn reap(child: libc::pid_t) -> String {
    let mut status = 0;
    // SAFETY: status is valid for the call.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit {}", libc::WEXITSTATUS(status))
    }
}

fn vectors(buf: &mut [u8], lens: &[usize]) -> Vec<libc::iovec> {
    let mut rest = buf;
    let mut out = Vec::new();
    for len in lens {
        let (part, tail) = rest.split_at_mut(*len);
        out.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: *len });
        rest = tail;
    }
    out
}

fn flags(fd: c_int) -> c_int {
    // SAFETY: plain integers.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

fn is_direct(fd: c_int) -> bool {
    let flags = flags(fd);
    flags >= 0 && flags & libc::O_DIRECT != 0
}

/// Direct transfers at odd places are refused by some file systems and made by others: both are right, so none is made.
fn unaligned(fd: c_int, at: Option<i64>, len: usize, write: bool) -> bool {
    if !is_direct(fd) {
        return false;
    }
    let position = match at {
        _ if write && flags(fd) & libc::O_APPEND != 0 => fstat(fd).map_or(0, |st| st.st_size),
        Some(at) => at,
        // SAFETY: plain integers.
        None => unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) },
    };
    position % 4096 != 0 || !len.is_multiple_of(4096)
}

fn times(seconds: i64) -> [libc::timespec; 2] {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    [time, time]
}

fn attributes(st: &libc::stat, mtime: bool) -> String {
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

fn sorted_names(list: &[u8]) -> String {
    let mut names: Vec<_> =
        list.split(|b| *b == 0).filter(|n| !n.is_empty()).map(String::from_utf8_lossy).collect();
    // What a security module of the machine adds is not the file system's answer.
    names.retain(|n| !n.starts_with("security."));
    names.sort();
    names.join(",")
}

fn readdir(path: &str) -> String {
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

/// Data regions of an open file as the file system tells them.
fn regions(fd: c_int, size: i64) -> Result<Vec<(i64, i64)>, String> {
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

/// Walks data and holes. `strict` notes them all; otherwise only whether every hole really reads as zeros: where blocks
/// were preallocated, what counts as data depends on what happens to be cached.
fn seekwalk(fd: c_int, strict: bool) -> String {
    let Some(st) = fstat(fd) else { return outcome(-1) };
    if st.st_mode & libc::S_IFMT != libc::S_IFREG || is_direct(fd) {
        return "skipped".into();
    }
    // SAFETY: plain integers; the position is put back at the end.
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

fn reads_as_zeros(fd: c_int, mut at: i64, end: i64) -> bool {
    let mut buf = vec![0u8; 65536];
    while at < end {
        let len = ((end - at) as usize).min(buf.len());
        // SAFETY: buf has at least len bytes.
        let got = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), len, at) };
        // A descriptor without read permission can tell nothing.
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

/// A hash of a file's size and of all its pages that are not zero: it does not depend on where holes are told to be.
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

fn hash_regions(fd: c_int, regions: &[(i64, i64)]) -> String {
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
                    // Zeros behind the end of a short page do not count: a hole may end there.
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

/// Notes everything below a directory: names, kinds, modes, links, sizes, contents, extended attributes.
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

fn xattrs(path: &str) -> String {
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
