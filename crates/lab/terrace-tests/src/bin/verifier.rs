//! Reads and writes self-describing pages (see `terrace_tests::pages`) until stopped. Ends with status 1 and
//! one line at the first violation.
//!
//! `verifier ROLE dir=DIR versions=FILE files=F pages=P [id=I writers=W seed=S ops=N torn=ok flags=...]`
//! Roles: `write` (positional writes, buffered, direct and synchronous), `mapwrite` (stores through shared
//! mappings), `read` (pread, read, preadv), `mapread`, and `check require=acked|synced|nothing [killed=I]`
//! (each page once; pages that writer I was storing through a mapping when it was killed may be torn).

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use terrace_tests::pages::{Bad, PAGE, VersionTable, stamp, version};
use terrace_tests::rng::Rng;

/// Consecutive pages of one writer.
const CHUNK: u64 = 8;
/// Maximum transfer, pages.
const RUN_MAX: u64 = 16;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let role = args.first().expect("a role").clone();
    let options = args[1..].iter().map(|a| a.split_once('=').expect("key=value"));
    let mut verifier = Verifier::new(options.map(|(k, v)| (k.to_owned(), v.to_owned())).collect());
    let result = match role.as_str() {
        "write" => verifier.repeat(Verifier::write_some),
        "mapwrite" => verifier.repeat(Verifier::store_some),
        "read" => verifier.repeat(Verifier::read_some),
        "mapread" => verifier.repeat(Verifier::load_some),
        "check" => verifier.check(),
        other => panic!("no such role: {other}"),
    };
    if let Err(why) = result {
        println!("{role} {}: {why}", verifier.id);
        std::process::exit(1);
    }
}

struct Verifier {
    options: HashMap<String, String>,
    dir: PathBuf,
    versions: VersionTable,
    files: u64,
    pages: u64,
    id: u64,
    writers: u64,
    torn_ok: bool,
    rng: Rng,
    buf: *mut u8,
    open: HashMap<(u64, i32, bool), std::fs::File>,
    maps: HashMap<u64, *mut u8>,
}

type Done = Result<(), String>;

impl Verifier {
    fn new(options: HashMap<String, String>) -> Verifier {
        let number = |key: &str, or: u64| options.get(key).map_or(or, |v| v.parse().expect("a number"));
        let (files, pages) = (number("files", 1), number("pages", 1024));
        let versions = VersionTable::open(options["versions"].as_ref(), files * pages);
        // SAFETY: a fresh anonymous mapping, page-aligned for direct transfers.
        let buf = unsafe {
            let (rw, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), RUN_MAX as usize * PAGE, rw, private, -1, 0)
        };
        assert_ne!(buf, libc::MAP_FAILED, "memory");
        let id = number("id", 0);
        Verifier {
            dir: options["dir"].clone().into(),
            versions,
            files,
            pages,
            id,
            writers: number("writers", 1),
            torn_ok: options.get("torn").is_some_and(|t| t == "ok"),
            rng: Rng::new(number("seed", 0) ^ (id << 32)),
            buf: buf.cast(),
            open: HashMap::new(),
            maps: HashMap::new(),
            options,
        }
    }

    fn repeat(&mut self, step: fn(&mut Verifier) -> Done) -> Done {
        let ops: u64 = self.options.get("ops").map_or(u64::MAX, |v| v.parse().expect("a number"));
        for _ in 0..ops {
            if self.versions.stop().load(SeqCst) != 0 {
                break;
            }
            step(self)?;
        }
        Ok(())
    }

    fn buf(&mut self, pages: u64) -> &mut [u8] {
        assert!(pages <= RUN_MAX, "a transfer of {pages} pages");
        // SAFETY: the mapping is RUN_MAX pages long and borrowed with self.
        unsafe { std::slice::from_raw_parts_mut(self.buf, pages as usize * PAGE) }
    }

    /// The descriptor of a file with these flags: kept open, and reopened now and then.
    fn file(&mut self, file: u64, flags: i32, write: bool) -> Result<i32, String> {
        if self.rng.chance(1) {
            self.open.remove(&(file, flags, write));
        }
        if let Some(open) = self.open.get(&(file, flags, write)) {
            return Ok(open.as_raw_fd());
        }
        let path = self.dir.join(format!("f{file}"));
        let opened =
            std::fs::File::options().read(true).write(write).create(write).custom_flags(flags).open(&path);
        let opened = opened.map_err(|why| format!("open {}: {why}", path.display()))?;
        let fd = opened.as_raw_fd();
        self.open.insert((file, flags, write), opened);
        Ok(fd)
    }

    /// A page, half of the time among the first eighth, so that some pages are hot.
    fn page(&mut self) -> u64 {
        let all = self.files * self.pages;
        if self.rng.chance(50) { self.rng.below((all / 8).max(1)) } else { self.rng.below(all) }
    }

    /// Whether a page belongs to this writer.
    fn is_of(&self, page: u64, writer: u64) -> bool {
        (page / CHUNK) % self.writers == writer % self.writers
    }

    /// A run of pages of this writer.
    fn own_run(&mut self) -> (u64, u64) {
        loop {
            let page = self.page();
            if self.is_of(page, self.id) {
                let left = CHUNK - page % CHUNK;
                let len = if self.rng.chance(60) { 1 } else { 1 + self.rng.below(left) };
                return (page, len.min(self.pages - page % self.pages));
            }
        }
    }

    fn begin(&mut self, first: u64, len: u64) -> u64 {
        let newest =
            (first..first + len).map(|p| self.versions.started(p).load(SeqCst)).max().expect("a page");
        let next = newest + 1;
        for i in 0..len {
            stamp(&mut self.buf(len)[i as usize * PAGE..][..PAGE], first + i, next);
            self.versions.started(first + i).store(next, SeqCst);
        }
        next
    }

    fn write_some(&mut self) -> Done {
        let (first, len) = self.own_run();
        let flags = match self.rng.below(20) {
            0..=1 => libc::O_DIRECT,
            2 if self.options.contains_key("sync") => libc::O_SYNC,
            _ => 0,
        };
        let file = first / self.pages;
        let fd = self.file(file, flags, true)?;
        let next = self.begin(first, len);
        let at = (first % self.pages) as i64 * PAGE as i64;
        let buf = self.buf(len);
        let mut done = 0;
        while done < buf.len() {
            // SAFETY: the length is that of the buffer's rest.
            let n =
                unsafe { libc::pwrite(fd, buf[done..].as_ptr().cast(), buf.len() - done, at + done as i64) };
            if n <= 0 {
                return Err(format!("pwrite page {first}+{len}: {n} {}", std::io::Error::last_os_error()));
            }
            done += n as usize;
        }
        for page in first..first + len {
            self.versions.acked(page).store(next, SeqCst);
            if flags & libc::O_SYNC != 0 {
                self.versions.synced(page).fetch_max(next, SeqCst);
            }
        }
        self.versions.writes().fetch_add(len, SeqCst);
        match self.rng.below(400) {
            0..=1 => self.sync(file, fd),
            2..=60 => self
                .verify(first, len, 0, false)
                .map_err(|why| format!("{why}; written just before with open flags {flags:#o}")),
            _ => Ok(()),
        }
    }

    /// Fsyncs a file and records the covered versions of this writer's pages.
    fn sync(&mut self, file: u64, fd: i32) -> Done {
        let mine = |p: &u64| self.is_of(*p, self.id);
        let pages = file * self.pages..(file + 1) * self.pages;
        let covered: Vec<(u64, u64)> =
            pages.filter(mine).map(|p| (p, self.versions.acked(p).load(SeqCst))).collect();
        let data_only = self.rng.chance(50);
        // SAFETY: plain integers.
        let done = unsafe { if data_only { libc::fdatasync(fd) } else { libc::fsync(fd) } };
        if done != 0 {
            return Err(format!("fsync of file {file}: {}", std::io::Error::last_os_error()));
        }
        for (page, version) in covered {
            self.versions.synced(page).fetch_max(version, SeqCst);
        }
        self.versions.syncs().fetch_add(1, SeqCst);
        Ok(())
    }

    fn read_some(&mut self) -> Done {
        let first = self.page();
        let len = if self.rng.chance(70) { 1 } else { 1 + self.rng.below(RUN_MAX) };
        let flags = if self.rng.chance(3) { libc::O_DIRECT } else { 0 };
        self.verify(first, len.min(self.pages - first % self.pages), flags, true)
    }

    fn verify(&mut self, first: u64, len: u64, flags: i32, count: bool) -> Done {
        let fd = self.file(first / self.pages, flags, false)?;
        let at = (first % self.pages) as i64 * PAGE as i64;
        let way = self.rng.below(4);
        self.check_pages(first, len, |buf| {
            buf.fill(0);
            // SAFETY: the buffer has the length given. A file may still be short: bytes beyond its end count
            // as 0.
            let n = unsafe {
                match way {
                    0 => {
                        libc::lseek(fd, at, libc::SEEK_SET);
                        libc::read(fd, buf.as_mut_ptr().cast(), buf.len())
                    }
                    1 => {
                        let (a, b) = buf.split_at_mut(buf.len() / PAGE / 2 * PAGE);
                        let parts =
                            [a, b].map(|p| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() });
                        libc::preadv(fd, parts.as_ptr(), 2, at)
                    }
                    _ => libc::pread(fd, buf.as_mut_ptr().cast(), buf.len(), at),
                }
            };
            if n < 0 {
                Err(format!("read page {first}+{len}: {}", std::io::Error::last_os_error()))
            } else {
                Ok(())
            }
        })?;
        if count {
            self.versions.reads().fetch_add(len, SeqCst);
        }
        Ok(())
    }

    /// Reads by `read` and compares every page with the version table.
    fn check_pages(&mut self, first: u64, len: u64, mut read: impl FnMut(&mut [u8]) -> Done) -> Done {
        for attempt in 0.. {
            let low: Vec<u64> = (first..first + len).map(|p| self.versions.acked(p).load(SeqCst)).collect();
            read(self.buf(len))?;
            let mut again = false;
            for (i, low) in low.into_iter().enumerate() {
                let page = first + i as u64;
                let high = self.versions.started(page).load(SeqCst);
                let seen = match version(&self.buf(len)[i * PAGE..][..PAGE], page) {
                    Ok(seen) => vec![seen],
                    Err(Bad::Torn(seen)) if self.torn_ok && attempt < 1000 => {
                        again = true;
                        seen
                    }
                    // The copy raced with a store, as with the kernel's own page cache: that must not repeat
                    // for ever.
                    Err(Bad::Garbage(_)) if self.torn_ok && attempt < 1000 => {
                        again = true;
                        continue;
                    }
                    // The page stays torn: its writer was killed during its stores, which were never
                    // acknowledged.
                    Err(_) if self.torn_ok && high > self.versions.acked(page).load(SeqCst) => continue,
                    Err(bad) => return Err(format!("page {page}: {bad:?} (acked {low}, started {high})")),
                };
                if let Some(wrong) = seen.iter().find(|v| **v < low || **v > high) {
                    let now = self.other_answers(page);
                    return Err(format!(
                        "page {page} (of {first}+{len}): version {wrong}, but {low} was acknowledged and {high} begun; {now}"
                    ));
                }
            }
            if !again {
                break;
            }
            self.versions.torn().fetch_add(1, SeqCst);
        }
        Ok(())
    }

    /// Reads a page in several ways, to find the path of the wrong answer.
    fn other_answers(&mut self, page: u64) -> String {
        let ways = [("again", 0), ("O_DIRECT", libc::O_DIRECT)].map(|(name, flags)| {
            let fd = self.file(page / self.pages, flags, false);
            let at = (page % self.pages) as i64 * PAGE as i64;
            let buf = self.buf(1);
            let seen = fd.map(|fd| {
                // SAFETY: the buffer is a page long.
                let n = unsafe { libc::pread(fd, buf.as_mut_ptr().cast(), PAGE, at) };
                (n, version(buf, page))
            });
            format!("{name}: {seen:?}")
        });
        ways.join(", ")
    }

    fn map(&mut self, file: u64, write: bool) -> Result<*mut u8, String> {
        if let Some(map) = self.maps.get(&file) {
            return Ok(*map);
        }
        let fd = self.file(file, 0, write)?;
        let len = self.pages as usize * PAGE;
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping of a file that the test made this long.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if map == libc::MAP_FAILED {
            return Err(format!("mmap of file {file}: {}", std::io::Error::last_os_error()));
        }
        self.maps.insert(file, map.cast());
        Ok(map.cast())
    }

    /// Stores through a shared mapping, which every reader must see at once.
    fn store_some(&mut self) -> Done {
        let (first, len) = self.own_run();
        let map = self.map(first / self.pages, true)?;
        let next = self.begin(first, len);
        let offset = (first % self.pages) as usize * PAGE;
        let bytes = len as usize * PAGE;
        // SAFETY: source and target have this length and do not overlap; this process alone writes these pages.
        unsafe { std::ptr::copy_nonoverlapping(self.buf, map.add(offset), bytes) };
        for page in first..first + len {
            self.versions.acked(page).store(next, SeqCst);
        }
        self.versions.writes().fetch_add(len, SeqCst);
        if self.rng.chance(1) {
            let covered: Vec<(u64, u64)> =
                (first..first + len).map(|p| (p, self.versions.acked(p).load(SeqCst))).collect();
            // SAFETY: a range within the mapping.
            if unsafe { libc::msync(map.add(offset).cast(), bytes, libc::MS_SYNC) } != 0 {
                return Err(format!("msync: {}", std::io::Error::last_os_error()));
            }
            covered.into_iter().for_each(|(page, version)| {
                self.versions.synced(page).fetch_max(version, SeqCst);
            });
            self.versions.syncs().fetch_add(1, SeqCst);
        }
        Ok(())
    }

    fn load_some(&mut self) -> Done {
        let first = self.page();
        let map = self.map(first / self.pages, false)?;
        let offset = (first % self.pages) as usize * PAGE;
        self.check_pages(first, 1, |buf| {
            // SAFETY: within the mapping of a file of constant length. The memory may change during the copy:
            // checksums judge the copied bytes before any other use.
            unsafe { std::ptr::copy_nonoverlapping(map.add(offset), buf.as_mut_ptr(), buf.len()) };
            Ok(())
        })?;
        self.versions.reads().fetch_add(1, SeqCst);
        Ok(())
    }

    /// Reads every page once: it must be whole, not older than required, and not newer than the last started
    /// version.
    fn check(&mut self) -> Done {
        let require = self.options.get("require").cloned().unwrap_or_else(|| "acked".into());
        let killed: Option<u64> =
            self.options.get("killed").map(|id| id.parse().expect("the number of a writer"));
        let mut wrong = Vec::new();
        for page in 0..self.files * self.pages {
            let path = self.dir.join(format!("f{}", page / self.pages));
            let at = (page % self.pages) * PAGE as u64;
            let mut buf = vec![0; PAGE];
            if let Err(why) = read_page(&path, at, &mut buf, &mut self.open, page / self.pages) {
                return Err(format!("{}: {why}", path.display()));
            }
            let high = self.versions.started(page).load(SeqCst);
            let low = match require.as_str() {
                "acked" => self.versions.acked(page).load(SeqCst),
                "synced" => self.versions.synced(page).load(SeqCst),
                _ => 0,
            };
            let torn_ok = killed.is_some_and(|id| self.is_of(page, id));
            match version(&buf, page) {
                Ok(seen) if (low..=high).contains(&seen) => {}
                // Its writer was killed between two stores, which were never acknowledged.
                Err(Bad::Torn(seen)) if torn_ok && seen.iter().all(|v| (low..=high).contains(v)) => {}
                Err(Bad::Garbage(_)) if torn_ok && high > self.versions.acked(page).load(SeqCst) => {}
                other => wrong.push(format!("page {page}: {other:?}, must be {low}..={high}")),
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(format!("{} pages wrong: {}", wrong.len(), wrong[..wrong.len().min(20)].join("; ")))
        }
    }
}

fn read_page(
    path: &std::path::Path,
    at: u64,
    buf: &mut [u8],
    open: &mut HashMap<(u64, i32, bool), std::fs::File>,
    file: u64,
) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = match open.entry((file, 0, false)) {
        std::collections::hash_map::Entry::Occupied(open) => open.into_mut(),
        std::collections::hash_map::Entry::Vacant(new) => match std::fs::File::open(path) {
            Ok(file) => new.insert(file),
            // Never written: all zeros.
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(why) => return Err(why),
        },
    };
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(())
}
