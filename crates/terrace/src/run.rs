//! `terrace run`: runs a command while terrace serves a directory at its own path.
//!
//! ```text
//! terrace run ──────────────────────┬── supervisor ── terraced     (own session: ^C does not reach them)
//!    waits, forwards TERM and HUP   └── CMD                    (our process group and terminal)
//! ```
//! Uses leases ([`lease`]) where possible: the command then uses the directory itself. Otherwise a mount, in
//! a private mount namespace for all of these processes.
//!
//! The supervisor holds a socket to `terrace run`. If that is killed, the supervisor ends together with the
//! command.

mod command;
mod except;
mod filter;
mod lease;
mod prefetch;
mod preload;
mod supervised;

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use terrace_api::control::{CommandError, Done, ErrorCode, Stop, Sync};
use terrace_api::stats::StatReport;

use crate::cgroup;
use crate::cli;
use crate::commands;
use crate::config::{Config, Passthrough};
use crate::data_loss;
use crate::error::{Failure, Result, reason};
use crate::instance::{self, Info, Instance, Kind};
use crate::mountpoint::Place;
use crate::mounts::{self, userns};
use crate::size::Part;
use crate::stage;
use crate::stat;
use crate::supervisor::{self, By, Task};
use crate::sweep::sweep;
use crate::sys;

pub(crate) use lease::gives_leases;
pub(crate) use preload::find as find_library;

use command::Outcome;
use except::Excepted;
use supervised::Supervisor;

/// Time for the daemon to end after the command.
const END_WITHIN: Duration = Duration::from_secs(60);

/// Time to retry a source that refuses data, before the data are given up.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// Runs the command and ends with its exit code or signal.
pub(crate) fn run(args: cli::Run) -> Result<ExitCode> {
    let mut config = Config::load(&args.tuning)?;
    let library = if args.no_preload { None } else { Some(preload::find()?) };
    let stats = args.stats.as_deref().map(stats_file).transpose()?;
    sweep();
    let mut place = Place::for_run(&args.on)?;
    let excepted = except::resolve(&place.src, &args.except)?;
    let staged = below(&place.src, &args.stage_in)?;
    for path in &args.stage_out {
        may_appear_below(&place.src, path)?;
    }
    let schedule = args.prefetch.as_deref().map(prefetch::read).transpose()?;
    config.look_up_device(&place.src)?;
    cgroup::tell_if_too_small(config.memory.fixed());
    let by = lease::choose(&args, &mut config, &place)?;
    if by == By::Mount {
        place.may_be_covered()?;
    }
    place.claim(by == By::Mount)?;
    let setting = match by {
        By::Leases => Setting { excepted: Excepted::default(), cwd: None },
        By::Mount => prepare_mount(&mut config, &place, &excepted, library.is_some())?,
    };
    let mut environment = lease::environment(by, &config, &place.src, &excepted);
    let dir = place.mnt.clone();
    let filter = library.as_ref().and_then(|_| filter::environment());
    let started = supervisor::start(Task {
        flags: mounts::of_mount(&place.src_fd),
        place,
        config,
        kind: Kind::Run,
        by,
        schedule,
        starter: None,
    })?;
    let (instance, info) = served_by(started.pid, &dir)?;
    let mut supervisor = Supervisor { line: started.line, done: false };

    environment.extend(library.iter().flat_map(|library| preload::environment(library, &instance, &dir)));
    environment.extend(filter);
    let daemon = (by == By::Leases).then_some(&instance);
    let root = |path: &PathBuf| stage::Root { path: dir.join(path), daemon: daemon.cloned() };
    let outcome =
        setting.excepted.attach().and_then(|()| stage_in(root, &staged)).and_then(|()| {
            command::run(&args.command, setting.cwd.as_deref(), &environment, &mut supervisor)
        });
    let staged_out = stage_out(root, &args.stage_out);
    setting.excepted.detach();
    let run = Served {
        by,
        instance: &instance,
        info: &info,
        stats: stats.as_deref(),
        follows: args.prefetch.is_some(),
    };
    let finished = run.finish(&mut supervisor);
    leave(outcome?, finished.and(staged_out))
}

/// Set-up that a mount over the directory needs.
struct Setting {
    excepted: Excepted,
    /// The command's working directory, if the mount covers it: it must be opened again.
    cwd: Option<PathBuf>,
}

fn prepare_mount(
    config: &mut Config,
    place: &Place,
    excepted: &[PathBuf],
    has_library: bool,
) -> Result<Setting> {
    if config.fuse.passthrough == Passthrough::Run && has_library && userns::is_root_outside() {
        config.fuse.passthrough = Passthrough::Auto;
    }
    let cwd = std::env::current_dir().ok().filter(|cwd| cwd.starts_with(&place.mnt));
    userns::private_mounts()
        .map_err(|refused| Failure::new("private mount namespace", reason(refused.err), refused.cure))?;
    Ok(Setting { excepted: Excepted::copy(excepted.to_vec())?, cwd })
}

fn served_by(supervisor: rustix::process::Pid, dir: &Path) -> Result<(Instance, Info)> {
    let ours = |(_, info): &(Instance, Info)| {
        info.pid == supervisor.as_raw_pid() && instance::in_our_pid_namespace(info)
    };
    instance::living().into_iter().find(ours).ok_or_else(|| {
        Failure::new(
            dir.display(),
            "the supervisor of this run wrote no record",
            "make the runtime directory writable",
        )
    })
}

/// Paths of `--stage-in`, relative to the served directory.
fn below(src: &Path, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let relative = |path: &PathBuf| {
        let fail = |why: String| {
            Failure::new(path.display(), why, format!("name a file or directory below {}", src.display()))
        };
        let full = src.join(path).canonicalize().map_err(|err| fail(reason(err)))?;
        let below = full.strip_prefix(src).map(Path::to_owned);
        below.map_err(|_| fail("--stage-in: it does not lie in the served directory".to_owned()))
    };
    paths.iter().map(relative).collect()
}

/// Reads the given files into the cache; for unreadable files, the command itself will get the error.
fn stage_in(root: impl Fn(&PathBuf) -> stage::Root, staged: &[PathBuf]) -> Result<()> {
    if staged.is_empty() {
        return Ok(());
    }
    let roots: Vec<stage::Root> = staged.iter().map(root).collect();
    let staged = stage::files(&roots, stage::Way::In(Part::ALL, stage::Then::Stays), cli::STAGE_WORKERS)?;
    staged.failed.iter().for_each(|line| terrace_output::error_line!("--stage-in: {line}"));
    Ok(())
}

/// Checks a path of `--stage-out`, which may not exist yet.
fn may_appear_below(src: &Path, path: &Path) -> Result<()> {
    let is_below =
        src.join(path).starts_with(src) && path.components().all(|part| part != Component::ParentDir);
    if is_below {
        return Ok(());
    }
    let why = "--stage-out: it does not lie in the served directory";
    Err(Failure::new(path.display(), why, format!("name a file or directory below {}", src.display())))
}

/// Writes the command's output files to stable storage of the source.
fn stage_out(root: impl Fn(&PathBuf) -> stage::Root, paths: &[PathBuf]) -> Result<()> {
    let Some(first_path) = paths.first() else { return Ok(()) };
    let roots: Vec<stage::Root> = paths.iter().map(root).collect();
    let staged = stage::files(&roots, stage::Way::Out, cli::STAGE_WORKERS)?;
    match staged.failed.first() {
        None => Ok(()),
        Some(first) => {
            let why = format!("--stage-out: {} files could not be written, {first}", staged.failed.len());
            Err(Failure::new(
                first_path.display(),
                why,
                "check the source and its storage, then run the command again",
            ))
        }
    }
}

/// Checks before the run that the file for the statistics is writable.
fn stats_file(path: &Path) -> Result<PathBuf> {
    let fail = |err: std::io::Error| {
        Failure::new(path.display(), reason(err), "name a file in a directory of yours")
    };
    std::fs::File::options().create(true).append(true).open(path).map_err(fail)?;
    path.canonicalize().map_err(fail)
}

/// An instance that served a command.
struct Served<'a> {
    by: By,
    instance: &'a Instance,
    /// Its description at the start.
    info: &'a Info,
    stats: Option<&'a Path>,
    /// `--prefetch` was given.
    follows: bool,
}

impl Served<'_> {
    /// Ends the instance: writes everything back, unmounts, removes its directory.
    fn finish(&self, supervisor: &mut Supervisor) -> Result<()> {
        let finished = match self.instance.is_alive() {
            true => self.stop(supervisor),
            false => self.ended_before(supervisor),
        };
        if self.instance.has_ended() {
            self.instance.remove();
        }
        finished
    }

    /// The instance ended before its command: it was stopped in order, or it died. With leases terrace has
    /// nothing to write, and the command went on without it.
    fn ended_before(&self, supervisor: &mut Supervisor) -> Result<()> {
        match self.by {
            _ if supervisor.ends_in_order() => {}
            By::Mount => {
                let lost = data_loss::by(self.instance);
                let lost = lost.unwrap_or_else(|| "unwritten data are lost".to_owned());
                return Err(Failure::new(
                    self.info.src.display(),
                    format!("terrace's daemon died before the command ended: {lost}"),
                    "what fsync acknowledged is safe; find what killed it, and run the command again",
                ));
            }
            By::Leases => {
                terrace_output::error_line!(
                    "terrace: the daemon died before the command ended, which went on without it"
                );
            }
        }
        let without = |path: &Path| {
            let why = "no statistics: terrace ended before the command did";
            Failure::new(path.display(), why, "stop terrace after the command")
        };
        self.stats.map_or(Ok(()), |path| Err(without(path)))
    }

    /// Stops a living instance. Reads the statistics after the flush.
    fn stop(&self, supervisor: &mut Supervisor) -> Result<()> {
        let Served { by, instance, info, stats, follows } = *self;
        // With leases, all dirty pages are in the kernel's page cache, as without terrace.
        let flushed = match by {
            By::Mount => flush(instance),
            By::Leases => Ok(Done {}),
        };
        // The daemon may have been restarted since the start.
        let now = instance.info();
        let read = || stat::read(instance, now.as_ref().unwrap_or(info));
        let final_stats = stats.map(|path| (path, read()));
        if follows && let Ok(stat) = read() {
            prefetch::tell(&stat.cache.prefetch);
        }
        let stopped = commands::ask(instance, Stop { lazy: true, lose: true });
        // The instance may have died just before the request.
        if stopped.is_err() && commands::has_died(instance) {
            return match final_stats {
                // Only the answer is missing.
                Some((path, Ok(stat))) if supervisor.ends_in_order() => write_stats(path, &stat),
                _ => self.ended_before(supervisor),
            };
        }
        // If the mount is in use, the daemon stays until the last file is closed.
        let in_use = stopped.as_ref().is_ok_and(|stopped| stopped.in_use);
        if !in_use {
            commands::wait_for_end(instance, END_WITHIN);
        }
        if let Some((path, stat)) = final_stats {
            write_stats(path, &stat?)?;
        }
        let failed = |why: String| {
            let cure = "what fsync acknowledged is safe; check the source and its storage, then run the command again";
            Failure::new(info.src.display(), why, cure)
        };
        match (flushed, stopped) {
            (_, Ok(stopped)) => match stopped.lost {
                Some(lost) => {
                    Err(failed(format!("{}: lost, the source refused it", data_loss::described(&lost))))
                }
                // Data after the answer, for example the last writes of mappings, are still to come.
                _ if in_use => Ok(()),
                _ => {
                    let lost = data_loss::by(instance).map(|lost| format!("{lost}: lost"));
                    lost.or_else(|| data_loss::by_dying(instance)).map_or(Ok(()), |lost| Err(failed(lost)))
                }
            },
            (Err(no), Err(_)) | (Ok(_), Err(no)) => Err(failed(format!("terrace did not stop: {no}"))),
        }
    }
}

/// Retries for a while: a full disk may have room again, since the command has ended.
fn flush(instance: &Instance) -> std::result::Result<Done, CommandError> {
    let start = Instant::now();
    loop {
        match commands::ask(instance, Sync {}) {
            Err(no) if no.code == ErrorCode::Failed && start.elapsed() < FLUSH_WITHIN => {
                std::thread::sleep(Duration::from_millis(250));
            }
            done => return done,
        }
    }
}

fn write_stats(path: &Path, stat: &StatReport) -> Result<()> {
    let text = serde_json::to_string_pretty(stat).unwrap_or_default() + "\n";
    std::fs::write(path, text).map_err(|err| Failure::new(path.display(), reason(err), "name another file"))
}

/// Ends like the command. If data were lost, exit code 0 becomes a failure.
fn leave(outcome: Outcome, finished: Result<()>) -> Result<ExitCode> {
    match (outcome, finished) {
        (Outcome::Exited(0), Err(failure)) => Err(failure),
        (Outcome::Exited(code), finished) => {
            if let Err(failure) = finished {
                terrace_output::error_line!("{failure}");
            }
            Ok(ExitCode::from(code))
        }
        (Outcome::Killed(signal), finished) => {
            if let Err(failure) = finished {
                terrace_output::error_line!("{failure}");
            }
            sys::die_by(signal);
            Ok(ExitCode::from(128 + signal as u8))
        }
    }
}
