//! `terrace trace`: records the page accesses of an instance into a file, for the simulator.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use terrace_api::capture::summary::Schema;
use terrace_api::capture::{Summary, SummaryReport};
use terrace_api::control::ErrorCode;

use crate::cli;
use crate::commands;
use crate::control::{Client, Frame, Frames};
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::mounts;
use crate::size::{Size, human};
use crate::sys::{self, SignalNumber};

const SIGNALS: &[SignalNumber] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Longest recording, seconds: a week.
const SECONDS_MAX: f64 = 604_800.0;
/// Time for the daemon to send the summary.
const CLOSE_WITHIN: Duration = Duration::from_secs(30);

struct Limits {
    time: Option<Duration>,
    /// Largest file, bytes.
    bytes: u64,
}

/// Records until the time is over, the file is full, or a signal ends it.
pub(crate) fn trace(args: &cli::Trace) -> Result<ExitCode> {
    let limits = limits(args)?;
    let (instance, info) = commands::find(&args.mnt)?;
    let mut out = Output::create(&args.output, &info.mnt)?;
    // Before the recording, so that no signal is lost.
    sys::block(SIGNALS);
    let signals = sys::signal_fd(SIGNALS)
        .map_err(|err| Failure::new("signals", reason(err), "raise the limit on open files"))?;
    let frames = Client::connect(&instance.control_socket())
        .map_err(|err| Failure::new(args.mnt.display(), reason(err), instance.see_log()))?
        .record();
    let mut frames = frames.map_err(|no| {
        let cure = match no.code {
            ErrorCode::Busy => "wait until it ends, or end the other `terrace trace`",
            _ => "name a mount, or a directory of `terrace run`",
        };
        let cure = commands::cure(&instance, &no, cure);
        Failure::new(args.mnt.display(), &no, cure).with_code(busy_is_no(no.code))
    })?;
    let summary = receive(&mut frames, &signals, &limits, &mut out)?;
    let text = match args.json {
        true => commands::json(&SummaryReport { schema: Schema::V1, file: args.output.clone(), summary }),
        false => told(&summary, &args.output),
    };
    commands::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn busy_is_no(code: ErrorCode) -> u8 {
    if code == ErrorCode::Busy { EXIT_NEGATIVE } else { crate::error::EXIT_FAILED }
}

fn limits(args: &cli::Trace) -> Result<Limits> {
    let time = args.seconds.map(|seconds| {
        let sane = (0.01..=SECONDS_MAX).contains(&seconds);
        sane.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| {
            let cure = "write 0.01 to 604800 seconds, or leave it out and press Ctrl-C";
            Failure::new("--seconds", format!("{seconds} s is outside of the range"), cure)
        })
    });
    let max: Size =
        args.max.parse().map_err(|why| Failure::new("--max", why, "see `terrace trace --help`"))?;
    if max.0 < 4096 {
        return Err(Failure::new("--max", format!("{max} holds no trace"), "give at least 4KiB"));
    }
    Ok(Limits { time: time.transpose()?, bytes: max.0 })
}

struct Output<'a> {
    path: &'a PathBuf,
    file: File,
    bytes: u64,
}

impl<'a> Output<'a> {
    fn create(path: &'a PathBuf, mnt: &Path) -> Result<Output<'a>> {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dev = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
        // Without a mount, or outside the namespace of `terrace run`, the path is the plain directory.
        let is_mount = mounts::at(mnt).is_some_and(|entry| entry.fstype == mounts::FSTYPE);
        if is_mount && dev(dir).is_some() && dev(dir) == dev(mnt) {
            let why = "it lies on the mount, and would record its own writes";
            return Err(Failure::new(path.display(), why, "name a file outside the mount"));
        }
        let file = File::create(path)
            .map_err(|err| Failure::new(path.display(), reason(err), "name a file that can be written"))?;
        Ok(Output { path, file, bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|err| {
            let cure = "free space, or name another file; the written part is readable";
            Failure::new(self.path.display(), reason(err), cure)
        })
    }
}

/// Writes the capture until the recording ends, and returns the summary.
fn receive(
    frames: &mut Frames,
    signals: &impl std::os::fd::AsFd,
    limits: &Limits,
    out: &mut Output<'_>,
) -> Result<Summary> {
    let begin = Instant::now();
    let mut ending: Option<Instant> = None;
    loop {
        let over = limits.time.is_some_and(|time| begin.elapsed() >= time) || out.bytes >= limits.bytes;
        let stop = over || sys::next_signal(signals).is_some();
        if stop && ending.is_none() {
            ending = Some(Instant::now() + CLOSE_WITHIN);
            let _ = frames.enough();
        }
        let end = ending.or_else(|| limits.time.map(|time| begin + time));
        if !frames.is_buffered() && !readable(frames, signals, end) {
            if ending.is_some_and(|end| Instant::now() >= end) {
                return Err(broken(out, "its daemon does not end the recording"));
            }
            continue;
        }
        match frames.next() {
            Ok(Frame::Capture(bytes)) => out.write(&bytes)?,
            Ok(Frame::End(summary)) => return Ok(summary),
            Err(err) => return Err(broken(out, &reason(err))),
        }
    }
}

fn broken(out: &Output<'_>, why: &str) -> Failure {
    let cure = format!("the first {} can be read; see `terrace stat`, and record again", human(out.bytes));
    Failure::new(out.path.display(), format!("the recording broke off: {why}"), cure)
}

/// Waits for a frame, a signal or `end`; true if there is a frame.
fn readable(frames: &Frames, signals: &impl std::os::fd::AsFd, end: Option<Instant>) -> bool {
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let timeout =
        left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut fds = [PollFd::new(frames, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    let _ = poll(&mut fds, timeout.as_ref());
    !fds[0].revents().is_empty()
}

fn told(summary: &Summary, file: &Path) -> String {
    let Summary { seconds, accesses, bytes, preload, fuse, lost } = summary;
    format!(
        "{accesses} page accesses in {seconds:.1} s written to {} ({})\n\
         \x20 preload path   {} hits, {} misses\n\
         \x20 mount path   {} hits, {} misses, {} written\n\
         \x20 lost        {} of the preload path, {} of the mount path, {} unclear\n",
        file.display(),
        human(*bytes),
        preload.hits,
        preload.misses,
        fuse.hits,
        fuse.misses,
        fuse.writes,
        lost.preload,
        lost.fuse,
        lost.unclear,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::capture::Lost;
    use terrace_api::capture::summary::{MountPath, PreloadPath};

    #[test]
    fn lost_records_are_reported() {
        let summary = Summary {
            seconds: 1.5,
            accesses: 7,
            bytes: 2048,
            preload: PreloadPath { hits: 5, misses: 2 },
            fuse: MountPath { writes: 1, ..MountPath::default() },
            lost: Lost { preload: 3, ..Lost::default() },
        };
        assert_eq!(
            told(&summary, Path::new("/tmp/t")),
            "7 page accesses in 1.5 s written to /tmp/t (2.00 KiB)\n  preload path   5 hits, 2 misses\n  mount path   0 hits, \
             0 misses, 1 written\n  lost        3 of the preload path, 0 of the mount path, 0 unclear\n"
        );
    }
}
