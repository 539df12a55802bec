//! The storm role `acked`: workers write until the mount dies, then check all acknowledged data in the
//! source, beside the mount. Data are acknowledged by fsync, fdatasync, O_DSYNC, msync, by a rename and
//! fsync of the directory, and by close.

use super::sys::{Mapping, errno};
use super::{Done, together};
use crate::pages::{Bad, PAGE, stamp, version};
use crate::rng::{Rng, fill};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pages of each file written in place.
const PAGES: usize = 512;
/// The errors allowed after the whole instance is dead.
const DEATH: [i32; 5] = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENODEV, libc::EIO, libc::EFAULT];

/// Works below `dir` until the mount dies, at most for `lasts`, then checks `src`.
pub fn run(dir: &Path, src: &Path, count: u64, lasts: Duration, seed: u64) -> Done {
    let name = |id: u64| format!("k{id}");
    let worker = |id| Worker::new(id, dir.join(name(id)), src.join(name(id)), Rng::new(seed ^ (id << 48)));
    let mut workers: Vec<Worker> = (0..count).map(worker).collect();
    together(&mut workers, lasts, |worker, goes_on| worker.work(goes_on))?;
    if let Some(lives) = workers.iter().find(|worker| worker.end.is_none()) {
        return Err(format!("the mount lived on for {lasts:?}: worker {} met no error", lives.id));
    }
    let missing: Vec<String> = workers.iter().filter_map(|w| w.look().err()).collect();
    println!("{} writes", workers.iter().map(Worker::writes).sum::<u64>());
    if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) }
}

/// A file written in place: for each page the last written version, and the last acknowledged one.
struct InPlace {
    name: &'static str,
    number: u64,
    written: Vec<u64>,
    acked: Vec<u64>,
}

impl InPlace {
    fn new(name: &'static str, number: u64) -> InPlace {
        InPlace { name, number, written: vec![0; PAGES], acked: vec![0; PAGES] }
    }

    /// The next version of a page.
    fn next(&mut self, page: usize) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        self.written[page] += 1;
        stamp(&mut bytes, self.number + page as u64, self.written[page]);
        bytes
    }

    fn look(&self, src: &Path) -> Done {
        let file = open(&src.join(self.name))?;
        for page in (0..PAGES).filter(|page| self.acked[*page] > 0) {
            let (mut bytes, must) = ([0; PAGE], self.acked[page]);
            let whole = file.read_exact_at(&mut bytes, (page * PAGE) as u64);
            let found = match (whole, version(&bytes, self.number + page as u64)) {
                (Err(why), _) => Err(why.to_string()),
                (_, Ok(version)) if (must..=self.written[page]).contains(&version) => Ok(()),
                // Torn by the next write, which was under way.
                (_, Err(Bad::Torn(all))) if all.iter().all(|v| (must..=self.written[page]).contains(v)) => {
                    Ok(())
                }
                (_, other) => Err(format!("{other:?}")),
            };
            found
                .map_err(|is| format!("{}, page {page}: {is}; version {must} was acknowledged", self.name))?;
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<File, String> {
    File::open(path).map_err(|why| format!("{}: {why}", path.display()))
}

struct Worker {
    id: u64,
    dir: PathBuf,
    src: PathBuf,
    rng: Rng,
    /// Written by pwrite and fsync, by O_DSYNC, and by a mapping and msync.
    synced: InPlace,
    at_once: InPlace,
    mapped: InPlace,
    appended: (usize, usize),
    /// Versions of the replaced file: tried, acknowledged.
    replaced: (u64, u64),
    closed: u64,
    end: Option<i32>,
}

/// Open files of a worker.
struct Files {
    synced: File,
    at_once: File,
    mapped: File,
    appended: File,
    dir: File,
}

impl Worker {
    fn new(id: u64, dir: PathBuf, src: PathBuf, rng: Rng) -> Worker {
        let file = |name, n: u64| InPlace::new(name, (id * 4 + n) * PAGES as u64);
        Worker {
            id,
            dir,
            src,
            rng,
            synced: file("synced", 0),
            at_once: file("at-once", 1),
            mapped: file("mapped", 2),
            appended: (0, 0),
            replaced: (0, 0),
            closed: 0,
            end: None,
        }
    }

    fn writes(&self) -> u64 {
        let in_place = [&self.synced, &self.at_once, &self.mapped].map(|f| f.written.iter().sum::<u64>());
        in_place.iter().sum::<u64>() + self.closed + self.replaced.1
    }

    fn work(&mut self, goes_on: &dyn Fn() -> bool) -> Done {
        let mut files = match self.begin() {
            Ok(files) => files,
            Err(why) => return self.ended(why),
        };
        while goes_on() {
            if let Err(why) = self.step(&mut files) {
                return self.ended(why);
            }
        }
        Ok(())
    }

    fn ended(&mut self, why: std::io::Error) -> Done {
        self.end = why.raw_os_error().filter(|errno| DEATH.contains(errno));
        match self.end {
            Some(_) => Ok(()),
            None => Err(format!("worker {}: {why}", self.id)),
        }
    }

    fn begin(&self) -> std::io::Result<Files> {
        fs::create_dir(&self.dir)?;
        let open = |name: &str, flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .custom_flags(flags)
                .open(self.dir.join(name))
        };
        let files = Files {
            synced: open("synced", 0)?,
            at_once: open("at-once", libc::O_DSYNC)?,
            mapped: open("mapped", 0)?,
            appended: open("appended", libc::O_APPEND)?,
            dir: File::open(&self.dir)?,
        };
        files.mapped.set_len((PAGES * PAGE) as u64)?;
        files.mapped.sync_all()?;
        files.dir.sync_all()?;
        Ok(files)
    }

    fn step(&mut self, files: &mut Files) -> std::io::Result<()> {
        let page = self.rng.below(PAGES as u64) as usize;
        let at = (page * PAGE) as u64;
        match self.rng.below(16) {
            0..=5 => files.synced.write_all_at(&self.synced.next(page), at),
            6 => {
                files.synced.sync_all()?;
                self.synced.acked.clone_from(&self.synced.written);
                Ok(())
            }
            7 => {
                files.at_once.write_all_at(&self.at_once.next(page), at)?;
                self.at_once.acked[page] = self.at_once.written[page];
                Ok(())
            }
            8..=9 => self.append(files),
            10 => self.replace(files),
            11..=12 => self.close_one(),
            13..=14 => self.store(files, page),
            _ => self.read(files, page),
        }
    }

    fn append(&mut self, files: &mut Files) -> std::io::Result<()> {
        let bytes = text(self.id, self.appended.0, 1 + self.rng.below(5000) as usize);
        files.appended.write_all(&bytes)?;
        self.appended.0 += bytes.len();
        if self.rng.chance(25) {
            files.appended.sync_data()?;
            self.appended.1 = self.appended.0;
        }
        Ok(())
    }

    fn replace(&mut self, files: &Files) -> std::io::Result<()> {
        self.replaced.0 += 1;
        let bytes = replacement(self.id, self.replaced.0);
        let new = self.dir.join("replaced.new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(new, self.dir.join("replaced"))?;
        files.dir.sync_all()?;
        self.replaced.1 = self.replaced.0;
        Ok(())
    }

    fn close_one(&mut self) -> std::io::Result<()> {
        let mut file = File::create_new(self.dir.join(format!("closed{}", self.closed)))?;
        file.write_all(&closed(self.closed))?;
        // SAFETY: the descriptor belongs to this function alone after into_raw_fd.
        let done = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) };
        if done < 0 {
            return Err(std::io::Error::last_os_error());
        }
        self.closed += 1;
        Ok(())
    }

    fn store(&mut self, files: &Files, page: usize) -> std::io::Result<()> {
        let raw = std::io::Error::from_raw_os_error;
        let mut mapping = Mapping::new(&files.mapped, PAGES * PAGE).map_err(raw)?;
        mapping.store(page * PAGE, &self.mapped.next(page)).map_err(raw)?;
        mapping.sync().map_err(raw)?;
        self.mapped.acked[page] = self.mapped.written[page];
        Ok(())
    }

    /// While the mount lives, a read returns the last written version.
    fn read(&self, files: &Files, page: usize) -> std::io::Result<()> {
        let (mut bytes, must) = ([0; PAGE], self.synced.written[page]);
        if must == 0 {
            return Ok(());
        }
        files.synced.read_exact_at(&mut bytes, (page * PAGE) as u64)?;
        let is = version(&bytes, self.synced.number + page as u64);
        if is == Ok(must) {
            return Ok(());
        }
        Err(std::io::Error::other(format!(
            "page {page} is {is:?} while the mount lives, version {must} was written"
        )))
    }

    fn look(&self) -> Done {
        let files = [&self.synced, &self.at_once, &self.mapped];
        let mut bad: Vec<String> = files.iter().filter_map(|file| file.look(&self.src).err()).collect();
        bad.extend(self.look_at_appended().err());
        bad.extend(self.look_at_replaced().err());
        bad.extend((0..self.closed).filter_map(|n| {
            let name = format!("closed{n}");
            let is = fs::read(self.src.join(&name));
            (!is.as_ref().is_ok_and(|is| *is == closed(n)))
                .then(|| format!("{name} of {} is {:?} bytes", self.closed, errno(is).map(|is| is.len())))
        }));
        if bad.is_empty() {
            Ok(())
        } else {
            Err(format!("worker {}: missing in the source: {}", self.id, bad.join("\n")))
        }
    }

    fn look_at_appended(&self) -> Done {
        let is = fs::read(self.src.join("appended")).map_err(|why| format!("appended: {why}"))?;
        let acked = self.appended.1;
        if is.len() < acked || is[..acked] != text(self.id, 0, acked) {
            return Err(format!("appended: {} bytes, or others than the {acked} acknowledged", is.len()));
        }
        Ok(())
    }

    fn look_at_replaced(&self) -> Done {
        let (tried, acked) = self.replaced;
        if acked == 0 {
            return Ok(());
        }
        let is = fs::read(self.src.join("replaced")).map_err(|why| format!("replaced: {why}"))?;
        if (acked..=tried).any(|version| is == replacement(self.id, version)) {
            return Ok(());
        }
        Err(format!("replaced: {} bytes that are no version from {acked} to {tried}", is.len()))
    }
}

/// The bytes from `at` of an append-only file.
fn text(id: u64, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|n| (n * 31 + (n >> 8) * 7 + (n >> 16) + id as usize) as u8).collect()
}

fn replacement(id: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE * (1 + version as usize % 7)];
    fill(&mut bytes, (id << 32) | version);
    bytes
}

fn closed(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 + (n as usize * 7919) % 30_000];
    fill(&mut bytes, n);
    bytes
}
