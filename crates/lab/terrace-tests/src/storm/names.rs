//! The storm role `names`: each worker owns a directory, has an exact model of it, and compares every
//! result. Operations change names, attributes and data; several workers are in one process, so that their
//! requests overtake each other.

use super::model::{Answer, Content, Id, Kind, Model, describe};
use super::sys::{self, Mapping, errno};
use super::{Done, together};
use crate::rng::{Rng, fill};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

const NAMES: u64 = 9;
const DEPTH_MAX: usize = 3;
const SIZE_MAX: usize = 96 << 10;
const WRITE_MAX: usize = 20_000;
/// Maximum number of files that a worker keeps open, with or without a name.
const KEPT: usize = 4;
/// Operations printed after a violation.
const TOLD: usize = 40;

/// Works in `dir` for the time `lasts`, and writes to `expected` the content of each worker's directory, in
/// the format of [`tree`]. `direct`: sometimes uses O_DIRECT, which needs no alignment on a mount.
pub fn run(dir: &Path, expected: &Path, count: u64, lasts: Duration, seed: u64, direct: bool) -> Done {
    let worker = |id: u64| Worker::new(id, dir.join(format!("w{id}")), Rng::new(seed ^ (id << 48)), direct);
    let mut workers: Vec<Worker> = (0..count).map(worker).collect();
    for worker in &workers {
        sys::mkdir(&worker.dir).map_err(|why| format!("{}: errno {why}", worker.dir.display()))?;
    }
    together(&mut workers, lasts, Worker::work)?;
    let operations: u64 = workers.iter().map(|w| w.operations).sum();
    println!("{operations} operations, all as the model says");
    for worker in &workers {
        let told = fs::write(expected.join(format!("w{}", worker.id)), worker.model.tree());
        told.map_err(|why| format!("{}: {why}", expected.display()))?;
    }
    Ok(())
}

/// The tree of a real directory, a line a node, in the format of [`Model::tree`].
pub fn tree(dir: &Path) -> std::io::Result<String> {
    let mut out = String::new();
    walk(dir, "", &mut BTreeMap::new(), &mut out)?;
    Ok(out)
}

/// Times below this were set by this program; times of the clock are not compared.
const SET_MAX: i64 = 1_500_000_000;

fn walk(dir: &Path, at: &str, groups: &mut BTreeMap<u64, usize>, out: &mut String) -> std::io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    for name in names {
        let (full, path) = (dir.join(&name), if at.is_empty() { name } else { format!("{at}/{name}") });
        let meta = full.symlink_metadata()?;
        let new = groups.len();
        let group = *groups.entry(meta.ino()).or_insert(new);
        let line = if meta.is_dir() {
            format!("{path} directory")
        } else if meta.is_symlink() {
            format!("{path} link {} to {}, node {group}", meta.nlink(), fs::read_link(&full)?.display())
        } else {
            let mtime = Some(meta.mtime()).filter(|mtime| *mtime < SET_MAX);
            let read = |name: String| sys::getxattr(&full, &name).map(|value| (name, value));
            let names = sys::listxattr(&full).unwrap_or_default();
            let xattrs = names.into_iter().map(read).collect::<Answer<_>>();
            let xattrs = xattrs.map_err(std::io::Error::from_raw_os_error)?;
            let file = describe(meta.mode() & 0o7777, meta.nlink(), &fs::read(&full)?, mtime, &xattrs);
            format!("{path} {file}, node {group}")
        };
        writeln!(out, "{line}").expect("a string takes all");
        if meta.is_dir() {
            walk(&full, &path, groups, out)?;
        }
    }
    Ok(())
}

struct Worker {
    id: u64,
    dir: PathBuf,
    rng: Rng,
    direct: bool,
    model: Model,
    kept: [Option<(File, Id)>; KEPT],
    operations: u64,
    last: VecDeque<String>,
}

/// A file to work on: kept open, or opened for one operation.
enum Open {
    Kept(usize),
    Own(File),
}

impl Worker {
    fn new(id: u64, dir: PathBuf, rng: Rng, direct: bool) -> Worker {
        let last = VecDeque::with_capacity(TOLD);
        Worker {
            id,
            dir,
            rng,
            direct,
            model: Model::default(),
            kept: Default::default(),
            operations: 0,
            last,
        }
    }

    fn work(&mut self, goes_on: &dyn Fn() -> bool) -> Done {
        while goes_on() {
            self.operations += 1;
            self.step().map_err(|why| self.tell(&why))?;
        }
        for n in 0..KEPT {
            self.keep_no_more(n).map_err(|why| self.tell(&why))?;
        }
        let (is, must) =
            (tree(&self.dir).map_err(|why| self.tell(&format!("the tree: {why}")))?, self.model.tree());
        let difference = is.lines().zip(must.lines()).find(|(is, must)| is != must);
        match difference {
            Some((is, must)) => Err(self.tell(&format!("in the end there is\n  {is}\ninstead of\n  {must}"))),
            None if is != must => Err(self.tell("in the end there are more or fewer files")),
            None => Ok(()),
        }
    }

    fn tell(&self, why: &str) -> String {
        let last: Vec<_> = self.last.iter().map(String::as_str).collect();
        format!(
            "{why}\nworker {}, operation {}; the last were:\n{}",
            self.id,
            self.operations,
            last.join("\n")
        )
    }

    /// Records the next operation.
    fn note(&mut self, what: String) {
        if self.last.len() == TOLD {
            self.last.pop_front();
        }
        self.last.push_back(what);
    }

    fn same<T: PartialEq + std::fmt::Debug>(&self, is: Answer<T>, must: Answer<T>) -> Done {
        if is == must {
            return Ok(());
        }
        let text = |answer: &Answer<T>| match answer {
            Ok(value) => format!("{value:?}").chars().take(500).collect(),
            Err(why) => std::io::Error::from_raw_os_error(*why).to_string(),
        };
        Err(format!("it answers {}, and must answer {}", text(&is), text(&must)))
    }

    fn step(&mut self) -> Done {
        match self.rng.below(64) {
            0..=4 => self.create(),
            5..=6 => self.mkdir(),
            7..=9 => self.unlink(),
            10 => self.rmdir(),
            11..=16 => self.rename(),
            17..=18 => self.link(),
            19..=20 => self.symlink(),
            21 => self.readdir(),
            22..=24 => self.stat(),
            25..=26 => self.chmod(),
            27..=28 => self.set_mtime(),
            29..=32 => self.xattr(),
            33..=34 => self.truncate(),
            35..=41 => self.write(),
            42..=44 => self.append(),
            45..=50 => self.read(),
            51..=52 => self.keep(),
            53..=55 => self.allocate(),
            56..=58 => self.map(),
            59 => self.lock(),
            60 => self.sync_dir(),
            61 => self.empty(),
            _ => self.copy_range(),
        }
    }

    // ---- names ----

    /// A path that may or may not exist.
    fn path(&mut self) -> String {
        let mut path = String::new();
        for depth in 0..=DEPTH_MAX {
            if depth > 0 {
                path.push('/');
            }
            path += &format!("n{}", self.rng.below(NAMES));
            let descend = match self.model.kind(&path) {
                Kind::Dir => 60,
                _ => 2,
            };
            if !self.rng.chance(descend) {
                break;
            }
        }
        path
    }

    /// Mostly the path of a file.
    fn file(&mut self) -> String {
        let files = self.model.files();
        if files.is_empty() || self.rng.chance(8) { self.path() } else { self.rng.pick(&files).clone() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.join(path)
    }

    fn create(&mut self) -> Done {
        let path = self.path();
        self.note(format!("create {path}"));
        let how = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(self.at(&path));
        let made = self.model.create(&path, 0o644);
        self.same(errno(how).map(|_| ()), made.map(|_| ()))
    }

    fn mkdir(&mut self) -> Done {
        let path = self.path();
        self.note(format!("mkdir {path}"));
        let must = self.model.mkdir(&path);
        self.same(sys::mkdir(&self.at(&path)), must)
    }

    fn unlink(&mut self) -> Done {
        let path = self.path();
        self.note(format!("unlink {path}"));
        let must = self.model.unlink(&path);
        self.same(errno(fs::remove_file(self.at(&path))), must)
    }

    fn rmdir(&mut self) -> Done {
        let path = self.path();
        self.note(format!("rmdir {path}"));
        let must = self.model.rmdir(&path);
        self.same(errno(fs::remove_dir(self.at(&path))), must)
    }

    fn rename(&mut self) -> Done {
        let flags = *self.rng.pick(&[0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
        let (old, new) = (self.path(), self.path());
        self.note(format!("rename {old} {new} {flags}"));
        let must = self.model.rename(&old, &new, flags);
        self.same(sys::rename(&self.at(&old), &self.at(&new), flags), must)
    }

    fn link(&mut self) -> Done {
        let (old, new) = (self.file(), self.path());
        self.note(format!("link {old} {new}"));
        let must = self.model.link(&old, &new);
        self.same(errno(fs::hard_link(self.at(&old), self.at(&new))), must)
    }

    fn symlink(&mut self) -> Done {
        let path = self.path();
        if self.rng.chance(50) {
            self.note(format!("readlink {path}"));
            let is = errno(fs::read_link(self.at(&path))).map(|p| p.to_string_lossy().into_owned());
            return self.same(is, self.model.readlink(&path));
        }
        let target = format!("nowhere-{}", self.rng.below(1 << 30));
        self.note(format!("symlink {target} {path}"));
        let must = self.model.symlink(&target, &path);
        self.same(errno(std::os::unix::fs::symlink(target, self.at(&path))), must)
    }

    fn readdir(&mut self) -> Done {
        let path = if self.rng.chance(30) { String::new() } else { self.path() };
        self.note(format!("readdir {path:?}"));
        let list = |dir: PathBuf| -> std::io::Result<Vec<(String, Kind)>> {
            let mut all = Vec::new();
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let kind = match entry.file_type()? {
                    t if t.is_dir() => Kind::Dir,
                    t if t.is_symlink() => Kind::Link,
                    t if t.is_fifo() || t.is_socket() => Kind::None,
                    _ => Kind::File,
                };
                all.push((entry.file_name().to_string_lossy().into_owned(), kind));
            }
            all.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(all)
        };
        self.same(errno(list(self.at(&path))), self.model.readdir(&path))
    }

    fn sync_dir(&mut self) -> Done {
        self.note("fsync of the directory".into());
        self.same(errno(File::open(&self.dir).and_then(|dir| dir.sync_all())), Ok(()))
    }

    // ---- attributes ----

    fn stat(&mut self) -> Done {
        let path = self.path();
        self.note(format!("lstat {path}"));
        let is = errno(self.at(&path).symlink_metadata());
        let kind = |m: &fs::Metadata| match m.file_type() {
            t if t.is_dir() => Kind::Dir,
            t if t.is_symlink() => Kind::Link,
            _ => Kind::File,
        };
        let must = match self.model.kind(&path) {
            Kind::None => self.model.followed(&path).map(|_| Kind::None),
            kind => Ok(kind),
        };
        self.same(is.as_ref().map(kind).map_err(|why| *why), must)?;
        let (Ok(meta), Ok(Kind::File)) = (is, must) else { return Ok(()) };
        let id = self.model.open(&path).expect("a file");
        self.compare_attributes(&meta, id)
    }

    fn compare_attributes(&self, meta: &fs::Metadata, id: Id) -> Done {
        let content = self.model.content(id).expect("a file");
        let is = (meta.len(), meta.nlink(), meta.mode() & 0o7777);
        self.same(Ok(is), Ok((content.data.len() as u64, self.model.links(id), content.mode)))?;
        match content.mtime {
            Some(set) => self.same(Ok((meta.mtime(), meta.mtime_nsec())), Ok((set, 0))),
            None if meta.mtime() < SET_MAX => Err(format!("mtime {} was set before a write", meta.mtime())),
            None => Ok(()),
        }
    }

    /// Changes a file's attributes by a call that follows links.
    fn change(
        &mut self,
        path: &str,
        real: impl FnOnce(&Path) -> Answer,
        model: impl FnOnce(&mut Content),
    ) -> Done {
        let must = self.model.followed(path);
        if must.is_ok_and(|id| self.model.content(id).is_none()) {
            return Ok(());
        }
        self.same(real(&self.at(path)), must.map(|_| ()))?;
        if let Some(content) = must.ok().and_then(|id| self.model.content_mut(id)) {
            model(content);
        }
        Ok(())
    }

    fn chmod(&mut self) -> Done {
        let (path, mode) = (self.file(), *self.rng.pick(&[0o600, 0o644, 0o666, 0o700, 0o755]));
        self.note(format!("chmod {path} {mode:o}"));
        let real = |at: &Path| errno(fs::set_permissions(at, fs::Permissions::from_mode(mode)));
        self.change(&path, real, |content| content.mode = mode)
    }

    fn set_mtime(&mut self) -> Done {
        let (path, time) = (self.file(), 1_000_000_000 + self.rng.below(400_000_000) as i64);
        self.note(format!("set mtime of {path} to {time}"));
        let mapped = |id| self.model.content(id).is_some_and(|content| content.mapped);
        if self.model.followed(&path).is_ok_and(mapped) {
            return Ok(());
        }
        self.change(&path, |at| sys::set_mtime(at, time), |content| content.mtime = Some(time))
    }

    fn xattr(&mut self) -> Done {
        let (path, name) = (self.file(), format!("user.x{}", self.rng.below(3)));
        let must = self.model.followed(&path);
        let Ok(id) = must else {
            self.note(format!("getxattr {path}"));
            return match self.model.kind(&path) {
                // A link itself cannot have user attributes.
                Kind::Link => Ok(()),
                _ => self.same(sys::getxattr(&self.at(&path), &name).map(|_| ()), must.map(|_| ())),
            };
        };
        let at = self.at(&path);
        let Some(content) = self.model.content(id) else { return Ok(()) };
        let (has, value) = (content.xattrs.get(&name).cloned(), content.xattrs.keys().cloned().collect());
        self.note(format!("extended attribute {name} of {path}"));
        match self.rng.below(5) {
            0 => self.same(sys::getxattr(&at, &name), has.ok_or(libc::ENODATA)),
            1 => self.same(sys::listxattr(&at), Ok(value)),
            2 => {
                let must = if has.is_some() { Ok(()) } else { Err(libc::ENODATA) };
                self.same(sys::removexattr(&at, &name), must)?;
                self.model.content_mut(id).expect("a file").xattrs.remove(&name);
                Ok(())
            }
            _ => self.set_xattr(&at, id, name, has.is_some()),
        }
    }

    fn set_xattr(&mut self, at: &Path, id: Id, name: String, has: bool) -> Done {
        let flags = *self.rng.pick(&[0, libc::XATTR_CREATE, libc::XATTR_REPLACE]);
        let mut value = vec![0; self.rng.below(200) as usize];
        fill(&mut value, self.rng.below(1 << 31));
        let must = match flags {
            libc::XATTR_CREATE if has => Err(libc::EEXIST),
            libc::XATTR_REPLACE if !has => Err(libc::ENODATA),
            _ => Ok(()),
        };
        self.same(sys::setxattr(at, &name, &value, flags), must)?;
        if must.is_ok() {
            self.model.content_mut(id).expect("a file").xattrs.insert(name, value);
        }
        Ok(())
    }

    // ---- data ----

    fn truncate(&mut self) -> Done {
        let (path, len) = (self.file(), self.rng.below(SIZE_MAX as u64) as usize);
        self.note(format!("truncate {path} {len}"));
        self.change(
            &path,
            |at| sys::truncate(at, len),
            |content| {
                content.data.resize(len, 0);
                content.mtime = None;
            },
        )
    }

    /// A kept file, or one opened by its name, sometimes with O_DIRECT or synchronously. None: the open
    /// failed as the model predicts.
    fn open(&mut self, flags: i32) -> Result<Option<(Open, Id)>, String> {
        let kept = self.rng.below(2 * KEPT as u64) as usize;
        if flags == 0
            && let Some(&Some((_, id))) = self.kept.get(kept)
        {
            self.note(format!("kept file {kept}:"));
            return Ok(Some((Open::Kept(kept), id)));
        }
        let path = self.file();
        let past = if self.direct { libc::O_DIRECT } else { 0 };
        let more = match self.rng.below(16) {
            0..=2 => past,
            3 => libc::O_SYNC,
            _ => 0,
        };
        let flags = flags | libc::O_NOFOLLOW | more;
        self.note(format!("open {path} {flags:#o}:"));
        let opened =
            errno(OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.at(&path)));
        let must = self.model.open(&path);
        self.same(opened.as_ref().map(|_| ()).map_err(|why| *why), must.map(|_| ()))?;
        Ok(opened.ok().map(|file| (Open::Own(file), must.expect("the same"))))
    }

    fn real<'a>(&'a self, open: &'a Open) -> &'a File {
        match open {
            Open::Kept(n) => &self.kept[*n].as_ref().expect("it is kept").0,
            Open::Own(file) => file,
        }
    }

    fn content(&self, id: Id) -> &Content {
        self.model.content(id).expect("an open file")
    }

    fn content_mut(&mut self, id: Id) -> &mut Content {
        self.model.content_mut(id).expect("an open file")
    }

    fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        let mut bytes = vec![0; 1 + self.rng.below(len_max as u64) as usize];
        fill(&mut bytes, self.rng.below(1 << 31));
        bytes
    }

    fn write(&mut self) -> Done {
        let Some((open, id)) = self.open(0)? else { return Ok(()) };
        let (at, bytes) = (self.rng.below((SIZE_MAX - WRITE_MAX) as u64) as usize, self.bytes(WRITE_MAX));
        self.note(format!("  pwrite {} at {at}", bytes.len()));
        self.same(errno(self.real(&open).write_at(&bytes, at as u64)), Ok(bytes.len()))?;
        Model::write(self.content_mut(id), at, &bytes);
        match self.rng.below(16) {
            0 => self.same(errno(self.real(&open).sync_all()), Ok(())),
            1 => self.same(errno(self.real(&open).sync_data()), Ok(())),
            _ => Ok(()),
        }
    }

    fn append(&mut self) -> Done {
        let Some((open, id)) = self.open(libc::O_APPEND)? else { return Ok(()) };
        let (len, bytes) = (self.content(id).data.len(), self.bytes(3000));
        if len + bytes.len() > SIZE_MAX {
            return Ok(());
        }
        self.note(format!("  append {} to {len}", bytes.len()));
        let mut file = self.real(&open);
        self.same(errno(std::io::Write::write(&mut file, &bytes)), Ok(bytes.len()))?;
        Model::write(self.content_mut(id), len, &bytes);
        Ok(())
    }

    fn read(&mut self) -> Done {
        let Some((open, id)) = self.open(0)? else { return Ok(()) };
        let (at, len) =
            (self.rng.below(SIZE_MAX as u64) as usize, 1 + self.rng.below(SIZE_MAX as u64) as usize);
        self.note(format!("  pread {len} at {at}"));
        self.compare(&open, id, at, len)?;
        let meta = errno(self.real(&open).metadata()).map_err(|why| format!("fstat: errno {why}"))?;
        self.compare_attributes(&meta, id)
    }

    fn compare(&self, open: &Open, id: Id, at: usize, len: usize) -> Done {
        let mut bytes = vec![0; len];
        let got = errno(self.real(open).read_at(&mut bytes, at as u64));
        let data = &self.content(id).data;
        let must = &data[at.min(data.len())..(at + len).min(data.len())];
        self.same(got, Ok(must.len()))?;
        match bytes.iter().zip(must).position(|(is, must)| is != must) {
            Some(n) => Err(format!("byte {} is {:#x} and must be {:#x}", at + n, bytes[n], must[n])),
            None => Ok(()),
        }
    }

    /// Opens a file for longer, or closes one, which may have lost its name meanwhile.
    fn keep(&mut self) -> Done {
        let n = self.rng.below(KEPT as u64) as usize;
        if self.kept[n].is_some() {
            return self.keep_no_more(n);
        }
        let path = self.file();
        self.note(format!("keep {path} as {n}"));
        let how =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(self.at(&path));
        let (opened, must) = (errno(how), self.model.open(&path));
        self.same(opened.as_ref().map(|_| ()).map_err(|why| *why), must.map(|_| ()))?;
        if let (Ok(file), Ok(id)) = (opened, must) {
            self.model.hold(id);
            self.kept[n] = Some((file, id));
        }
        Ok(())
    }

    fn keep_no_more(&mut self, n: usize) -> Done {
        let Some((file, id)) = self.kept[n].take() else { return Ok(()) };
        self.note(format!("close {n}"));
        self.model.release(id);
        // SAFETY: the descriptor belongs to this function alone after into_raw_fd.
        let closed = unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) };
        self.same(if closed == 0 { Ok(()) } else { errno(Err(std::io::Error::last_os_error())) }, Ok(()))
    }

    fn allocate(&mut self) -> Done {
        let Some((open, id)) = self.open(0)? else { return Ok(()) };
        let size = self.content(id).data.len();
        let (at, len) =
            (self.rng.below((SIZE_MAX - 30_000) as u64) as usize, 1 + self.rng.below(30_000) as usize);
        match self.rng.below(3) {
            0 => {
                self.note(format!("  punch {len} at {at}"));
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.same(sys::fallocate(self.real(&open), mode, at, len), Ok(()))?;
                let end = (at + len).min(size);
                self.content_mut(id).data[at.min(size)..end.max(at.min(size))].fill(0);
            }
            1 => {
                self.note(format!("  fallocate {len} at {at}"));
                self.same(sys::fallocate(self.real(&open), 0, at, len), Ok(()))?;
                self.content_mut(id).data.resize(size.max(at + len), 0);
            }
            _ if size > 8192 => {
                let at = self.rng.below(size as u64 / 4096 - 1) as usize * 4096;
                self.note(format!("  collapse a page at {at}"));
                match sys::fallocate(self.real(&open), libc::FALLOC_FL_COLLAPSE_RANGE, at, 4096) {
                    Err(libc::EOPNOTSUPP | libc::EINVAL) => return Ok(()),
                    done => self.same(done, Ok(()))?,
                }
                self.content_mut(id).data.drain(at..at + 4096);
            }
            _ => return Ok(()),
        }
        self.content_mut(id).mtime = None;
        Ok(())
    }

    fn map(&mut self) -> Done {
        let Some((open, id)) = self.open(0)? else { return Ok(()) };
        let size = self.content(id).data.len();
        if size == 0 {
            return Ok(());
        }
        let at = self.rng.below(size as u64) as usize;
        let len = (size - at).min(1 + self.rng.below(4096) as usize);
        self.note(format!("  map {size}, load and store {len} at {at}"));
        let mut mapping = Mapping::new(self.real(&open), size).map_err(|why| format!("mmap: errno {why}"))?;
        self.same(mapping.load(at, len), Ok(self.content(id).data[at..at + len].to_vec()))?;
        if self.content(id).mtime.is_none() && self.rng.chance(70) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, self.rng.below(1 << 31));
            self.content_mut(id).mapped = true;
            self.same(mapping.store(at, &bytes), Ok(()))?;
            Model::write(self.content_mut(id), at, &bytes);
            if self.rng.chance(50) {
                self.same(mapping.sync(), Ok(()))?;
            }
        }
        drop(mapping);
        self.compare(&open, id, at, len)
    }

    fn lock(&mut self) -> Done {
        let path = self.file();
        self.note(format!("lock {path}"));
        let how =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(self.at(&path));
        let done = errno(how).and_then(|file| sys::lock(&file));
        self.same(done, self.model.open(&path).map(|_| ()))
    }

    fn empty(&mut self) -> Done {
        let Some((_, id)) = self.open(libc::O_TRUNC)? else { return Ok(()) };
        let content = self.content_mut(id);
        content.data.clear();
        content.mtime = None;
        Ok(())
    }

    fn copy_range(&mut self) -> Done {
        let Some((from, a)) = self.open(0)? else { return Ok(()) };
        let Some((to, b)) = self.open(0)? else { return Ok(()) };
        let size = self.content(a).data.len();
        if a == b || size == 0 {
            return Ok(());
        }
        let at = self.rng.below(size as u64) as usize;
        let len = (size - at).min(1 + self.rng.below(10_000) as usize);
        let there = self.rng.below((SIZE_MAX - 10_000) as u64) as usize;
        self.note(format!("  copy {len} from {at} to {there}"));
        self.same(sys::copy_range(self.real(&from), at, self.real(&to), there, len), Ok(()))?;
        let bytes = self.content(a).data[at..at + len].to_vec();
        Model::write(self.content_mut(b), there, &bytes);
        Ok(())
    }
}
