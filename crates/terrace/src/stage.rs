//! `terrace stage`: reads files into the cache before a program needs them, or writes their data back after
//! it.
//!
//! ```text
//!   paths ──► files ──► pieces of 64 MiB ──► N workers: 1 MiB at a time, by the daemon (in), fsync (out)
//! ```
//! Cached pages cost no read of the source, so an interrupted stage can simply be repeated. If the files are
//! larger than DRAM, the first pages move on to lower tiers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
use serde::Serialize;
use terrace_api::control::{self, CommandError, Staging};
use terrace_output::Progress;

use crate::cli;
use crate::commands;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Instance};
use crate::mountpoint;
use crate::size::{Part, human};
use crate::stat;

const PIECE: u64 = 64 << 20;

/// The operation on each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Reads the given part of the content into the cache.
    In(Part, Then),
    /// Writes unwritten data to the source.
    Out,
    /// Writes unwritten data to the source, then drops the content from memory.
    OutAndDrop,
}

/// Placement of the content after it was read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Normal eviction applies.
    Stays,
    /// Pinned in memory for this time.
    Pinned(Duration),
    /// Moved to the tier on devices of this level.
    Below(u8),
}

/// Sums of the staged files.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Staged {
    /// Files without an error.
    pub files: u64,
    /// Bytes read, or the sizes of files written back.
    pub bytes: u64,
    /// Bytes pinned in memory.
    pub pinned_bytes: u64,
    /// Bytes on tiers on devices, with `--to`.
    pub below_bytes: u64,
    /// Bytes dropped from memory.
    pub dropped_bytes: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// Failed files, a line each.
    pub failed: Vec<String>,
    /// Bytes that the cache (or the target tier) holds afterwards, if fewer than were staged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    way: &'static str,
    #[serde(flatten)]
    staged: &'a Staged,
}

/// `terrace stage in|out PATH...`: 1 if a file failed.
pub(crate) fn stage(args: &cli::Stage) -> Result<ExitCode> {
    let common = match args {
        cli::Stage::In(args) => &args.common,
        cli::Stage::Out(args) => &args.common,
    };
    let base = common.mount.as_deref().unwrap_or(Path::new(""));
    let served: Vec<Served> =
        common.paths.iter().map(|path| served(&base.join(path))).collect::<Result<_>>()?;
    let way = match args {
        cli::Stage::In(args) => Way::In(args.part.unwrap_or(Part::ALL), then(args, &served)?),
        cli::Stage::Out(args) if args.drop => Way::OutAndDrop,
        cli::Stage::Out(_) => Way::Out,
    };
    let args = common;
    let roots: Vec<Root> = served.iter().map(Served::root).collect();
    let mut staged = files(&roots, way, args.workers)?;
    if let Way::In(_, then) = way {
        staged.bound(kept(&served, then)?, then);
    }
    let text = match args.json {
        true => commands::json(&Report {
            schema: "terrace.stage.v1",
            way: if matches!(way, Way::In(..)) { "in" } else { "out" },
            staged: &staged,
        }),
        false => {
            staged.failed.iter().for_each(|line| terrace_output::error_line!("{line}"));
            told(&staged)
        }
    };
    commands::print(&text)?;
    Ok(ExitCode::from(u8::from(!staged.failed.is_empty())))
}

/// A served path, and its instance.
struct Served {
    path: PathBuf,
    instance: Instance,
    info: instance::Info,
}

impl Served {
    fn root(&self) -> Root {
        let daemon = self.info.device.is_none().then(|| self.instance.clone());
        Root { path: self.path.clone(), daemon }
    }
}

/// A file or directory to be staged.
pub(crate) struct Root {
    pub path: PathBuf,
    /// The instance, if it has no mount.
    pub daemon: Option<Instance>,
}

/// Placement, from the arguments.
fn then(args: &cli::StageIn, served: &[Served]) -> Result<Then> {
    if let Some(time) = args.pin {
        return Ok(Then::Pinned(time.0));
    }
    let Some(tier) = &args.to else { return Ok(Then::Stays) };
    let mut levels = served.iter().map(|served| level_of(tier, served));
    let first = levels.next().unwrap_or(Ok(0))?;
    for level in levels {
        if level? != first {
            return Err(Failure::new(
                tier,
                "it is not the same tier for all of these paths",
                "name paths below one served directory",
            ));
        }
    }
    Ok(Then::Below(first))
}

/// Finds a tier of a mount by name or level; returns its level.
fn level_of(tier: &str, served: &Served) -> Result<u8> {
    let rows = stat::read(&served.instance, &served.info)?.cache.tiers;
    let on_devices = || rows.iter().filter_map(|row| Some((row, row.level?)));
    let found = on_devices().find(|(row, level)| row.name == tier || level.to_string() == tier);
    if let Some(level) = found.and_then(|(_, level)| u8::try_from(level).ok()) {
        return Ok(level);
    }
    let names: Vec<&str> = on_devices().map(|(row, _)| row.name.as_str()).collect();
    let cure = match names[..] {
        [] => "mount it with --tier PATH:SIZE".to_owned(),
        _ => format!("name one of {}, or its level", names.join(", ")),
    };
    Err(Failure::new(tier, format!("{} has no such tier on a device", served.info.mnt.display()), cure))
}

/// Bytes in the caches of these mounts, or in their tiers of the target level.
fn kept(served: &[Served], then: Then) -> Result<u64> {
    let mut mounts: Vec<&Served> = served.iter().collect();
    mounts.sort_by_key(|served| &served.info.mnt);
    mounts.dedup_by_key(|served| &served.info.mnt);
    let mut pages = 0;
    for served in mounts {
        let rows = stat::read(&served.instance, &served.info)?.cache.tiers;
        let counts = |level: Option<u32>| match then {
            Then::Below(below) => level == Some(below.into()),
            _ => true,
        };
        pages += rows.iter().filter(|row| counts(row.level)).map(|row| row.pages).sum::<u64>();
    }
    Ok(pages * 4096)
}

impl Staged {
    /// Limits the result to the `kept` bytes that are really there.
    fn bound(&mut self, kept: u64, then: Then) {
        let below = matches!(then, Then::Below(_));
        let wanted = if below { self.below_bytes } else { self.bytes };
        self.kept_bytes = (kept < wanted).then_some(kept);
        if below {
            self.below_bytes = self.below_bytes.min(kept);
        }
    }
}

/// The instance that serves the path.
fn served(path: &Path) -> Result<Served> {
    let fail = |err: io::Error| Failure::new(path.display(), reason(err), "name a served file or directory");
    let absolute = mountpoint::absolute(path).map_err(fail)?;
    let on = |mnt: &Path| instance::serving(mnt).filter(|(_, info)| info.mnt == mnt);
    // With nested mounts, the deepest one.
    match absolute.ancestors().find_map(on) {
        Some((instance, info)) => Ok(Served { path: absolute, instance, info }),
        None => Err(Failure::new(
            path.display(),
            "terrace serves nothing here",
            "name files below a served directory; `terrace stat` lists them",
        )),
    }
}

fn told(staged: &Staged) -> String {
    let Staged { files, bytes, pinned_bytes, below_bytes, dropped_bytes, seconds, failed, kept_bytes } =
        staged;
    let speed = human((*bytes as f64 / seconds.max(1e-9)) as u64);
    let files = if *files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let failed = if failed.is_empty() { String::new() } else { format!(", {} failed", failed.len()) };
    let part =
        |bytes: u64, what| if bytes == 0 { String::new() } else { format!(", {} {what}", human(bytes)) };
    let more = [(pinned_bytes, "pinned"), (below_bytes, "on tiers"), (dropped_bytes, "dropped")];
    let more: String = more.map(|(bytes, what)| part(*bytes, what)).concat();
    let rest = match kept_bytes {
        Some(kept) => {
            format!(
                "at most {} of it stayed in the cache; stage less, or give the cache more room\n",
                human(*kept)
            )
        }
        None => String::new(),
    };
    format!("{files}, {} in {seconds:.1} s ({speed}/s){more}{failed}\n{rest}", human(*bytes))
}

/// A file to be staged.
struct Found<'a> {
    path: PathBuf,
    size: u64,
    /// See [`Root::daemon`].
    daemon: Option<&'a Instance>,
}

impl Found<'_> {
    /// Stages a part by an ioctl on the mount, or by a request to the daemon. Returns the bytes.
    fn stage(&self, file: &File, offset: u64, bytes: u64, how: Staging) -> io::Result<u64> {
        if let Some(daemon) = self.daemon {
            let part = control::Stage { path: self.path.clone(), offset, bytes, how };
            let failed = |no: CommandError| match self.path.exists() {
                true => io::Error::other(no),
                false => io::ErrorKind::NotFound.into(),
            };
            return Ok(commands::ask(daemon, part).map_err(failed)?.bytes);
        }
        match how {
            Staging::Read => terrace_fs::stage(file.as_fd(), offset, bytes),
            Staging::Pin(ms) => terrace_fs::pin(file.as_fd(), offset, bytes, Duration::from_millis(ms)),
            Staging::Down(level) => terrace_fs::stage_down(file.as_fd(), offset, bytes, level),
            Staging::Drop => Ok(terrace_fs::drop_content(file.as_fd())? * 4096),
        }
    }
}

/// A unit of work: a range of a file.
struct Piece {
    file: usize,
    begin: u64,
    end: u64,
}

/// Stages all files at and below the paths.
///
/// # Errors
/// A path cannot be read. Files that fail are in the result.
pub(crate) fn files(roots: &[Root], way: Way, workers: usize) -> Result<Staged> {
    let start = Instant::now();
    let mut found = Vec::new();
    for Root { path, daemon } in roots {
        find(path, daemon.as_ref(), &mut found).map_err(|(path, err)| {
            Failure::new(path.display(), reason(err), "name files and directories that can be read")
        })?;
    }
    let sizes: Vec<u64> = found.iter().map(|found| found.size).collect();
    let pieces = pieces(&sizes, way);
    let (failed, done) = work(&found, &pieces, way, workers);
    let gone = done.gone.lock().expect("no worker panics").len();
    let files = (found.len() - failed.len()).saturating_sub(gone) as u64;
    Ok(Staged {
        files,
        bytes: done.bytes.into_inner(),
        pinned_bytes: done.pinned.into_inner(),
        below_bytes: done.below.into_inner(),
        dropped_bytes: done.dropped.into_inner(),
        seconds: start.elapsed().as_secs_f64(),
        failed,
        kept_bytes: None,
    })
}

/// Adds the regular files at and below `path`, with their sizes. Does not follow symbolic links below it.
/// Leaves out files that are removed meanwhile.
fn find<'a>(
    path: &Path,
    daemon: Option<&'a Instance>,
    found: &mut Vec<Found<'a>>,
) -> std::result::Result<(), (PathBuf, io::Error)> {
    let fail = |err| (path.to_owned(), err);
    let meta = fs::symlink_metadata(path).map_err(fail)?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(fail)? {
            match find(&entry.map_err(fail)?.path(), daemon, found) {
                Err((_, err)) if is_gone(&err) => {}
                done => done?,
            }
        }
    } else if meta.is_file() {
        found.push(Found { path: path.to_owned(), size: meta.size(), daemon });
    }
    Ok(())
}

/// Was the file removed after it was listed?
fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(libc::ESTALE)
}

fn pieces(sizes: &[u64], way: Way) -> Vec<Piece> {
    let Way::In(part, _) = way else {
        return sizes.iter().enumerate().map(|(file, &end)| Piece { file, begin: 0, end }).collect();
    };
    let of_file = |(file, &size): (usize, &u64)| {
        let end = part.end.min(size);
        let begins = (part.begin.min(end)..end).step_by(PIECE as usize);
        begins.map(move |begin| Piece { file, begin, end: end.min(begin + PIECE) })
    };
    sizes.iter().enumerate().flat_map(of_file).collect()
}

/// Progress, bytes.
#[derive(Default)]
struct Done {
    bytes: AtomicU64,
    pinned: AtomicU64,
    below: AtomicU64,
    dropped: AtomicU64,
    /// Files removed meanwhile.
    gone: Mutex<BTreeSet<usize>>,
}

/// Processes the pieces with `workers` threads. Returns failed files, a line each, and the progress.
fn work(files: &[Found<'_>], pieces: &[Piece], way: Way, workers: usize) -> (Vec<String>, Done) {
    let total: u64 = pieces.iter().map(|piece| piece.end - piece.begin).sum();
    let (next, done) = (AtomicUsize::new(0), Done::default());
    let failed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let worker = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let file = &files[piece.file];
                if let Err(err) = one(file, piece, way, &done) {
                    if is_gone(&err) {
                        done.gone.lock().expect("no worker panics").insert(piece.file);
                        continue;
                    }
                    let line = format!("{}: {}", file.path.display(), reason(err));
                    failed.lock().expect("no worker panics").entry(piece.file).or_insert(line);
                }
            }
        };
        let threads: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(worker)).collect();
        let mut progress = Progress::default();
        while !threads.iter().all(|thread| thread.is_finished()) {
            let bytes = done.bytes.load(Ordering::Relaxed);
            progress.tick(|| format!("{} of {}", human(bytes), human(total)));
            std::thread::sleep(progress.pause() / 20);
        }
    });
    (failed.into_inner().expect("no worker panics").into_values().collect(), done)
}

fn one(of: &Found<'_>, piece: &Piece, way: Way, done: &Done) -> io::Result<()> {
    let file = File::open(&of.path)?;
    let Way::In(_, then) = way else {
        file.sync_all()?;
        done.bytes.fetch_add(piece.end - piece.begin, Ordering::Relaxed);
        if way == Way::OutAndDrop {
            let dropped = of.stage(&file, 0, piece.end, Staging::Drop)?;
            if of.daemon.is_some() {
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            done.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        return Ok(());
    };
    let mut at = piece.begin;
    while let Some(data) = data(&file, at..piece.end)? {
        at = data.start;
        let staged = of.stage(&file, at, data.end - at, Staging::Read)?;
        // The file was truncated.
        if staged == 0 {
            break;
        }
        let add = |sum: &AtomicU64, bytes| {
            sum.fetch_add(bytes, Ordering::Relaxed);
        };
        match then {
            Then::Stays => {}
            Then::Pinned(time) => {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                add(&done.pinned, of.stage(&file, at, staged, Staging::Pin(ms))?);
            }
            Then::Below(level) => add(&done.below, of.stage(&file, at, staged, Staging::Down(level))?),
        }
        at += staged;
        add(&done.bytes, staged);
    }
    Ok(())
}

/// The next pages of a range that are not a hole; none: no more.
fn data(file: &File, of: Range<u64>) -> io::Result<Option<Range<u64>>> {
    const PAGE: u64 = 4096;
    if of.is_empty() {
        return Ok(None);
    }
    let begin = match rustix::fs::seek(file, SeekFrom::Data(of.start)) {
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(of)),
        begin => begin? / PAGE * PAGE,
    };
    let begin = begin.max(of.start);
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin.max(of.start)))?.next_multiple_of(PAGE);
    let data = begin..end.max(begin + PAGE).min(of.end);
    Ok(Some(data).filter(|data| !data.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_cut_into_pieces() {
        let sizes = [PIECE + 1, 0, 10];
        let shown = |way| -> Vec<_> {
            pieces(&sizes, way).iter().map(|piece| (piece.file, piece.begin, piece.end)).collect()
        };
        assert_eq!(
            shown(Way::In(Part::ALL, Then::Stays)),
            [(0, 0, PIECE), (0, PIECE, PIECE + 1), (2, 0, 10)]
        );
        assert_eq!(shown(Way::In(Part { begin: 5, end: 7 }, Then::Stays)), [(0, 5, 7), (2, 5, 7)]);
        assert_eq!(shown(Way::Out), [(0, 0, PIECE + 1), (1, 0, 0), (2, 0, 10)]);
    }

    #[test]
    fn holes_are_no_content() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(data(&file, 0..64 << 20).unwrap(), None);
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 5000], 32 << 20).unwrap();
        let found = data(&file, 0..64 << 20).unwrap().unwrap();
        assert!(found.start == 32 << 20 && (8192..1 << 20).contains(&(found.end - found.start)), "{found:?}");
        assert_eq!(data(&file, found.end..64 << 20).unwrap(), None);
    }

    #[test]
    fn no_more_is_reported_than_is_there() {
        let staged = |below_bytes| Staged { bytes: 300, below_bytes, ..Staged::default() };
        let mut to_tier = staged(300);
        to_tier.bound(64, Then::Below(0));
        assert_eq!((to_tier.below_bytes, to_tier.kept_bytes), (64, Some(64)));
        let mut fits = staged(0);
        fits.bound(300, Then::Stays);
        assert_eq!(fits.kept_bytes, None);
    }
}
