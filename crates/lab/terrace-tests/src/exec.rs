//! Executor of operation scripts: makes the system calls of a script through libc's functions (so that an
//! interposer sees them), and records each result. The model test runs the same script in two directories and
//! compares the records.
//!
//! A script has one operation a line (`pread 2 4096 100`). `@3` switches to sequence 3, which has its own
//! directory, descriptor slots and mappings: several sequences interleave in one process. Results exclude
//! everything that may legitimately differ between file systems (inode numbers, blocks, the clock), but
//! include descriptor numbers.

mod descriptors;
mod listing;
mod mappings;
mod names;
mod processes;
mod reads;
mod writes;

pub use listing::{content_hash, tree};
pub use processes::inherited;

use crate::map::Map;
use crate::rng::fill;
use libc::c_int;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;

unsafe extern "C" {
    fn closefrom(low: c_int);
}

/// Descriptor slots of a sequence.
pub(crate) const SLOTS: usize = 6;
/// Maximum mappings of a sequence at once.
pub(crate) const MAPS: usize = 2;
/// Pages of the file `big` beside the sequences' directories. `press` reads it to cause evictions.
pub const BIG_PAGES: u64 = 10_240;
/// Times below this were set by `utimens`; all others come from the clock and are recorded as `now`.
const TIME_SET_MAX: i64 = 1_500_000_000;
/// Maximum transfer of an operation.
const LEN_MAX: usize = 4 << 20;

/// Writes the file that `press` checks: each page depends on its position.
pub(crate) fn write_big(path: &std::path::Path) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let mut page = vec![0; 4096];
    for n in 0..BIG_PAGES {
        fill(&mut page, n);
        out.write_all(&page)?;
    }
    out.into_inner()?.sync_all()
}

/// A deliberate fault of the executor, to prove that a comparison can fail.
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

/// Runs scripts. See the module's description.
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
        // SAFETY: made by mmap with this length in new(); no borrow is left.
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
    /// An executor below `root`, with a directory for each sequence.
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

    /// Runs a whole script. `out` gets the records after every few operations, so that a crash keeps the
    /// earlier ones.
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

    /// Closes everything and records each sequence's tree.
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

    /// Puts a descriptor into a slot, replacing its content, and records its number, which programs can see.
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

/// Whether a direct transfer is unaligned. File systems may refuse or execute it, so the executor skips it.
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
