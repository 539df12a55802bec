//! Generator of operation scripts (see `exec` for their language). It tracks the open slots roughly, so that
//! most operations meet an open file, and leaves enough to chance that errors occur, too.

use crate::exec::{MAPS, SLOTS};
use crate::rng::Rng;

const NAMES: &[&str] = &["a", "b", "c", "d/a", "d/b", "d/e/a", "l", "long"];
const DIRS: &[&str] = &["d", "d/e", "f", "."];
const XATTRS: &[&str] = &["user.one", "user.two", "user.three"];
/// Maximum file size, except for sparse files.
const SIZE_MAX: u64 = 300 << 10;
const FAR: u64 = 4 << 30;

/// One operation sequence; each operation is one line of a script.
pub(crate) type Ops = Vec<String>;

#[derive(Debug)]
struct Gen {
    rng: Rng,
    /// Slots probably open: opened and not closed by the script.
    open: [bool; SLOTS],
    mapped: [bool; MAPS],
    /// After a store through a mapping, the kernel updates the mtime at an arbitrary time: mtime is no longer
    /// compared.
    poked: bool,
    /// With preallocated blocks, SEEK_DATA depends on the cached pages: only its soundness is compared.
    preallocated: bool,
    long_name: String,
}

/// A sequence of `len` operations for a seed.
pub fn sequence(seed: u64, len: usize) -> Ops {
    let mut g = Gen {
        rng: Rng::new(seed),
        open: [false; SLOTS],
        mapped: [false; MAPS],
        poked: false,
        preallocated: false,
        long_name: "n".repeat(255),
    };
    let mut ops = vec!["mkdir d".to_owned(), "mkdir d/e".to_owned()];
    ops.push(g.open());
    while ops.len() < len {
        let op = g.op();
        ops.push(op);
    }
    ops
}

/// Merges several sequences into one script, in turns of random length, as `@n` blocks.
pub(crate) fn interleave(sequences: &[Ops], rng: &mut Rng) -> String {
    let mut next = vec![0; sequences.len()];
    let mut left: Vec<usize> = (0..sequences.len()).collect();
    let mut script = String::new();
    while !left.is_empty() {
        let i = rng.below(left.len() as u64) as usize;
        let n = left[i];
        script.push_str(&format!("@{n}\n"));
        for _ in 0..1 + rng.below(20) {
            let Some(op) = sequences[n].get(next[n]) else {
                left.swap_remove(i);
                break;
            };
            script.push_str(op);
            script.push('\n');
            next[n] += 1;
        }
    }
    script
}

impl Gen {
    fn op(&mut self) -> String {
        match self.rng.below(100) {
            0..=11 => self.open(),
            12..=35 => self.read(),
            36..=57 => self.write(),
            58..=68 => self.names(),
            69..=76 => self.descriptors(),
            77..=84 => self.mappings(),
            85..=93 => self.attributes(),
            94..=95 => self.processes(),
            96..=97 => self.sync(),
            _ => format!("press {} {}", 1 + self.rng.below(24), self.rng.below(1 << 32)),
        }
    }

    fn name(&mut self) -> String {
        match *self.rng.pick(NAMES) {
            "long" => self.long_name.clone(),
            // The first few names are used most, so that operations share files.
            name => {
                if self.rng.chance(60) {
                    self.rng.pick(&["a", "b"]).to_string()
                } else {
                    name.to_owned()
                }
            }
        }
    }

    fn slot(&mut self) -> usize {
        for _ in 0..4 {
            let s = self.rng.below(SLOTS as u64) as usize;
            if self.open[s] {
                return s;
            }
        }
        self.rng.below(SLOTS as u64) as usize
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(20) {
            0 => FAR + self.rng.below(1 << 20),
            1..=6 => self.rng.below(SIZE_MAX / 4096) * 4096,
            7..=9 => self.rng.below(4) * 4096,
            10..=11 => (self.rng.below(SIZE_MAX / 4096) * 4096).saturating_sub(1 + self.rng.below(8)),
            12 => self.rng.below(20),
            _ => self.rng.below(SIZE_MAX),
        }
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(16) {
            0 => 0,
            1..=4 => 4096,
            5..=7 => 4096 * (1 + self.rng.below(16)),
            8..=9 => 1 + self.rng.below(64),
            10 => self.rng.below(200 << 10),
            _ => self.rng.below(12_000),
        }
    }

    fn pattern(&mut self) -> u64 {
        self.rng.below(1 << 31)
    }

    fn vector(&mut self) -> String {
        let parts: Vec<String> =
            (0..1 + self.rng.below(5)).map(|_| self.len().min(40_000).to_string()).collect();
        parts.join(",")
    }

    fn open(&mut self) -> String {
        let s = self.rng.below(SLOTS as u64) as usize;
        self.open[s] = true;
        let mut flags =
            *self.rng.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY]);
        let may = [
            (70, libc::O_CREAT),
            (8, libc::O_TRUNC),
            (6, libc::O_EXCL | libc::O_CREAT),
            (10, libc::O_APPEND),
            (10, libc::O_DIRECT),
            (3, libc::O_NOFOLLOW),
            (2, libc::O_DIRECTORY),
            (2, libc::O_PATH),
            (4, libc::O_SYNC),
            (3, libc::O_DSYNC),
            (6, libc::O_CLOEXEC),
            (3, libc::O_NONBLOCK),
        ];
        for (percent, flag) in may {
            if self.rng.chance(percent) {
                flags |= flag;
            }
        }
        // The error of O_CREAT on a directory differs between kernel file systems; no program depends on it.
        if flags & libc::O_DIRECTORY != 0 {
            flags &= !libc::O_CREAT;
        }
        let name = if self.rng.chance(3) { self.rng.pick(DIRS).to_string() } else { self.name() };
        match self.rng.below(20) {
            0 => format!("creat {s} {name} 0x180"),
            1 => format!(
                "openat {s} {} {} 0x{flags:x} 0x1a4",
                self.rng.pick(DIRS),
                self.rng.pick(&["a", "b", "e"])
            ),
            2 => format!("openat2 {s} {name} 0x{:x} 0x1a4", flags & !libc::O_PATH),
            3 if self.rng.chance(30) => format!("memory {s}"),
            _ => format!("open {s} {name} 0x{flags:x} 0x1a4"),
        }
    }

    fn read(&mut self) -> String {
        let (s, len, off) = (self.slot(), self.len(), self.offset());
        match self.rng.below(24) {
            0..=4 => format!("read {s} {len}"),
            5..=11 => format!("pread {s} {len} {off}"),
            12..=14 => format!("pread64 {s} {len} {off}"),
            15 => format!("readv {s} {}", self.vector()),
            16 => format!("preadv {s} {off} {}", self.vector()),
            17 => {
                let flags = *self.rng.pick(&[0, 0, libc::RWF_NOWAIT, libc::RWF_HIPRI, 0x4000_0000]);
                let off = if self.rng.chance(30) { -1 } else { off as i64 };
                format!("preadv2 {s} {off} {flags} {}", self.vector())
            }
            18..=19 => {
                let whence = self.rng.below(3);
                let off = if whence == 0 { off as i64 } else { self.rng.below(9000) as i64 - 4500 };
                format!("lseek {s} {off} {whence}")
            }
            // SEEK_DATA shows a store through a mapping at once, or after the kernel's writeback.
            20 if self.poked => format!("pread {s} {len} {off}"),
            20 if self.preallocated => format!("seekwalk {s} loose"),
            20 => format!("seekwalk {s} strict"),
            21 => format!("sendfile {s} {off} {len}"),
            22 => format!("pread {s} {len} {}", *self.rng.pick(&[-1i64, -4096, i64::MIN])),
            _ => format!("read {s} 4096"),
        }
    }

    fn write(&mut self) -> String {
        let (s, len, off, pattern) = (self.slot(), self.len(), self.offset(), self.pattern());
        let to = self.slot();
        match self.rng.below(24) {
            0..=3 => format!("write {s} {len} {pattern}"),
            4..=10 => format!("pwrite {s} {len} {pattern} {off}"),
            11 => format!("pwrite64 {s} {len} {pattern} {off}"),
            12 => format!("writev {s} {pattern} {}", self.vector()),
            13 => format!("pwritev {s} {pattern} {off} {}", self.vector()),
            14 => {
                let flags = *self.rng.pick(&[0, libc::RWF_APPEND, libc::RWF_DSYNC, libc::RWF_SYNC]);
                let off = if self.rng.chance(30) { -1 } else { off as i64 };
                format!("pwritev2 {s} {pattern} {off} {flags} {}", self.vector())
            }
            15 => format!("truncate {} {off}", self.name()),
            16..=18 => format!("ftruncate {s} {off}"),
            19..=20 => self.fallocate(s, off, len),
            21..=22 => {
                let at = |g: &mut Gen| if g.rng.chance(40) { -1 } else { g.offset() as i64 };
                let (x, y) = (at(self), at(self));
                self.preallocated = true;
                format!("copyrange {s} {x} {to} {y} {}", self.rng.below(100_000))
            }
            _ => format!("write {s} 4096 {pattern}"),
        }
    }

    fn fallocate(&mut self, s: usize, off: u64, len: u64) -> String {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let mode = *self.rng.pick(&[
            0,
            keep,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_ZERO_RANGE,
            keep | libc::FALLOC_FL_ZERO_RANGE,
        ]);
        if mode & libc::FALLOC_FL_PUNCH_HOLE == 0 {
            self.preallocated = true;
        }
        format!("fallocate {s} {mode} {off} {len}")
    }

    fn names(&mut self) -> String {
        let (a, b) = (self.name(), self.name());
        let dir = *self.rng.pick(DIRS);
        match self.rng.below(22) {
            0..=3 => format!("rename {a} {b}"),
            4..=5 => format!(
                "renameat2 {a} {b} {}",
                *self.rng.pick(&[0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE])
            ),
            6 => format!("rename {dir} {}", self.rng.pick(DIRS)),
            7..=8 => format!("link {a} {b}"),
            9..=13 => format!("unlink {a}"),
            14 => format!("symlink {} l", *self.rng.pick(&["a", "d", "d/a", "nowhere", "l"])),
            15 => "readlink l".into(),
            16 => format!("mkdir {dir}"),
            17 => format!("rmdir {dir}"),
            18..=20 => format!("readdir {dir}"),
            _ => format!("unlink {dir}"),
        }
    }

    fn descriptors(&mut self) -> String {
        let (s, t) = (self.slot(), self.rng.below(SLOTS as u64) as usize);
        let mut to = |op: &str| {
            self.open[t] = true;
            format!("{op} {s} {t}")
        };
        match t as u64 + 6 * (s as u64 % 3) {
            0..=1 => to("dup"),
            2..=4 => to("dup2"),
            5 => to("dup3"),
            6 => to("dupfd"),
            _ => match self.rng.below(12) {
                0..=5 => {
                    self.open[s] = false;
                    format!("close {s}")
                }
                6..=7 => {
                    self.open[s] = false;
                    format!("fdopen {s} {}", self.rng.below(9000))
                }
                8 => {
                    self.open[s] = false;
                    format!("closerange {s} {}", self.rng.below(3))
                }
                9 if self.rng.chance(30) => {
                    self.open = [false; SLOTS];
                    format!("closefrom {s}")
                }
                10 => format!("flock {s} {}", *self.rng.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN])),
                _ => {
                    let kind = *self.rng.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]);
                    format!("lock {s} {kind} {} {}", self.rng.below(100), self.rng.below(100))
                }
            },
        }
    }

    fn mappings(&mut self) -> String {
        let (s, m) = (self.slot(), self.rng.below(MAPS as u64) as usize);
        let (at, len) = (self.rng.below(40_000), self.rng.below(20_000));
        match self.rng.below(10) {
            0..=2 => format!("mapread {s} {} {}", self.offset(), 1 + len),
            3 => {
                self.mapped[m] = true;
                format!("mapkeep {s} {m} {} {}", self.rng.below(20) * 4096, 4096 * (1 + self.rng.below(12)))
            }
            4..=5 => format!("mappeek {m} {at} {len}"),
            6..=7 if self.mapped[m] => {
                self.poked = true;
                // A store turns its whole page into data, even in a hole.
                format!("mappoke {m} {at} {len} {}", self.pattern())
            }
            8 => format!("msync {m}"),
            9 => {
                self.mapped[m] = false;
                format!("unmap {m}")
            }
            _ => format!("mapread {s} 0 {}", 1 + len),
        }
    }

    fn mtime(&self) -> &'static str {
        if self.poked { "-" } else { "mtime" }
    }

    fn attributes(&mut self) -> String {
        let (s, name, mtime) = (self.slot(), self.name(), self.mtime());
        let seconds = 1_000_000_000 + self.rng.below(1000);
        let xattr = *self.rng.pick(XATTRS);
        match self.rng.below(20) {
            0..=3 => format!("fstat {s} {mtime}"),
            4..=6 => format!("stat {name} {mtime}"),
            7 => format!("lstat {name} -"),
            8 => format!("statx {name}"),
            9 => format!("chmod {name} 0x{:x}", *self.rng.pick(&[0o600, 0o644, 0o755, 0o400])),
            10 => format!("fchmod {s} 0x{:x}", *self.rng.pick(&[0o600, 0o644, 0o640])),
            11 => format!("chown {name} {} {}", self.rng.below(3), self.rng.below(3)),
            12..=13 => format!("utimens {name} {seconds}"),
            14 => format!("futimens {s} {seconds}"),
            15..=16 => {
                let flags = *self.rng.pick(&[0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
                format!("setxattr {name} {xattr} {} {} {flags}", self.rng.below(200), self.pattern())
            }
            17 => format!("getxattr {name} {xattr}"),
            18 => format!("listxattr {name}"),
            _ => format!("removexattr {name} {xattr}"),
        }
    }

    fn processes(&mut self) -> String {
        match self.rng.below(12) {
            0 => format!("exec {} {} {}", self.slot(), self.len(), self.offset()),
            1 => format!("spawn {} {} -1", self.slot(), self.len()),
            2..=4 => format!("fork {}", self.write()),
            5..=8 => format!("fork {}", self.read()),
            9 => {
                // A child's opens and closes do not affect the parent's descriptors.
                let open = self.open;
                let op = self.descriptors();
                self.open = open;
                format!("fork {op}")
            }
            _ => {
                let open = self.open;
                let op = self.open();
                self.open = open;
                format!("fork {op}")
            }
        }
    }

    fn sync(&mut self) -> String {
        let s = self.slot();
        match self.rng.below(6) {
            0..=2 => format!("fsync {s}"),
            3..=4 => format!("fdatasync {s}"),
            _ => format!("syncfs {s}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_sequence() {
        assert_eq!(sequence(11, 200), sequence(11, 200));
        assert_ne!(sequence(11, 200), sequence(12, 200));
    }

    #[test]
    fn interleaving_keeps_each_sequence_whole() {
        let all: Vec<Ops> = (0..5).map(|n| sequence(n, 40)).collect();
        let script = interleave(&all, &mut Rng::new(3));
        let mut seen: Vec<Ops> = vec![Vec::new(); 5];
        let mut now = 0;
        for line in script.lines() {
            match line.strip_prefix('@') {
                Some(n) => now = n.parse().unwrap(),
                None => seen[now].push(line.to_owned()),
            }
        }
        assert_eq!(seen, all);
    }
}
