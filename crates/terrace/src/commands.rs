//! Commands about a running instance: find it, send a request, print the answer.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_api::control::{self, Check, Command, CommandError, ErrorCode, Resize, Stop, Sync};

use crate::cli;
use crate::config::{self, MemoryLimit};
use crate::control::Client;
use crate::data_loss;
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::holders;
use crate::instance::{self, Info, Instance};
use crate::mountpoint;
use crate::mounts::{self, How};

/// How often a request is sent again when the daemon died over it.
const TRIES: usize = 16;
/// How long a daemon may take to end after its unmount, and after which part of that processes that keep it
/// are looked for.
const END_WITHIN: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(2);
/// How long one may take to be gone that was killed.
const DIES_WITHIN: Duration = Duration::from_secs(2);

/// How often, and after which pause, a mount is tried again that is busy without visible holders, or with some that are
/// only just being started.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(30);

/// `terrace sync MNT`
pub fn sync(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    let cure = "make room in the source or see to its device; the data stays in memory and is tried again";
    ask(&instance, Sync {}).map_err(|no| Failure::new(mnt.display(), no, cure))?;
    Ok(ExitCode::SUCCESS)
}

/// `terrace drop-caches MNT`
pub fn drop_caches(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    let dropped = asked(mnt, &instance, control::DropCaches {})?;
    println!("{} clean pages dropped", dropped.pages);
    Ok(ExitCode::SUCCESS)
}

/// `terrace check MNT`: 1 when something does not agree.
pub fn check(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    let found = asked(mnt, &instance, Check {})?.disagreements;
    if found.is_empty() {
        println!("index, frames and policy agree");
        return Ok(ExitCode::SUCCESS);
    }
    for line in &found {
        println!("{line}");
    }
    Ok(ExitCode::from(EXIT_NEGATIVE))
}

/// `terrace resize MNT SIZE`
pub fn resize(mnt: &Path, size: String) -> Result<ExitCode> {
    let limit = config::parse_memory("SIZE", size)?;
    let (instance, _) = find(mnt)?;
    let bytes = limit.fixed().map_or(0, |size| size.0);
    asked(mnt, &instance, Resize { bytes, auto: limit == MemoryLimit::Auto })?;
    Ok(ExitCode::SUCCESS)
}

/// `terrace umount MNT`: everything written back, the mount gone, the daemon ended.
pub fn umount(args: &cli::Umount) -> Result<ExitCode> {
    let mnt = &args.mnt;
    if args.lazy || args.force {
        return detach(args);
    }
    let path = mountpoint::absolute(mnt).map_err(|err| missing(mnt, &err))?;
    if instance::is_dead_at(&path) {
        data_loss::clear(&path, &mut std::io::stderr())?;
        return Ok(ExitCode::SUCCESS);
    }
    match find(&path) {
        Ok((instance, _)) => stop(&path, &instance)?,
        // Another user's: root may still take it away, and its daemon writes back as it ends.
        Err(failure) if mounts::at(&path).is_none_or(|entry| entry.fstype != mounts::FSTYPE) => {
            return Err(failure);
        }
        Err(_) => mounts::unmount(&path, How::Unused).map_err(|err| not_ours(&path, err))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// As umount(8) has `-l` and `-f`. Sends no request to the daemon and does not wait for it: programs may keep
/// it, or it may not answer.
fn detach(args: &cli::Umount) -> Result<ExitCode> {
    let path = mountpoint::absolute_unasked(&args.mnt).map_err(|err| missing(&args.mnt, &err))?;
    if mounts::at(&path).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return Err(not_served(&path));
    }
    let how = if args.force { How::Forced { lazy: args.lazy } } else { How::Lazy };
    mounts::unmount(&path, how).map_err(|err| not_unmounted(&path, &reason(err)))?;
    Ok(ExitCode::SUCCESS)
}

fn stop(mnt: &Path, instance: &Instance) -> Result<()> {
    let dev = mounts::at(mnt).filter(|entry| entry.fstype == mounts::FSTYPE).map(|entry| entry.dev);
    let mut tries = BUSY_TRIES;
    while let Err(no) = ask(instance, Stop { lazy: false, lose: false }) {
        tries -= 1;
        match no.code {
            // A process that is just being forked or is just ending holds files for a moment.
            ErrorCode::Busy if tries > 0 && holders::of(mnt).iter().all(|holder| holder.starting) => {
                std::thread::sleep(BUSY_PAUSE);
            }
            ErrorCode::Busy => return Err(not_unmounted(mnt, "the mount is in use")),
            // Another command has stopped it.
            ErrorCode::Silent if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE) => break,
            _ => {
                return Err(Failure::new(mnt.display(), no, "nothing was unmounted; see to that and repeat"));
            }
        }
    }
    let seen = || dev.map(holders::seeing).filter(|seen| !seen.is_empty());
    unmount_under_runs(&seen().unwrap_or_default(), dev);
    if !wait_for_end(instance, SOON)
        && let Some(seen) = seen()
    {
        if holders::under_runs(&seen).len() == seen.len() && holders::of(mnt).is_empty() {
            let who = holders::told(&seen);
            eprintln!(
                "terrace: {}: unmounted here, and all is written; its daemon ends with the `terrace run` of {who}",
                mnt.display()
            );
            return Ok(());
        }
        let who = holders::told(&seen);
        eprintln!("terrace: {}: unmounted here; waiting for {who}, which still sees it", mnt.display());
    }
    if wait_for_end(instance, END_WITHIN) {
        // Its directory stays, so that the next `terrace mount` reports it as well.
        let lost = data_loss::by(instance).map(|lost| (lost, "see to the source".to_owned()));
        let died = || Some((data_loss::by_dying(instance)?, format!("see {}", instance.log().display())));
        return lost.or_else(died).map_or(Ok(()), |(why, cure)| {
            let cure = format!("what fsync acknowledged is safe; {cure}");
            Err(Failure::new(mnt.display(), format!("unmounted, but {why}"), cure))
        });
    }
    let (why, cure) = match seen() {
        Some(seen) => (
            format!("it is unmounted here, but still seen by {}", holders::told(&seen)),
            "its daemon serves them, and ends when they have".to_owned(),
        ),
        None => (
            "it is unmounted, but its daemon still writes back".to_owned(),
            format!("see {}", instance.log().display()),
        ),
    };
    Err(Failure::new(mnt.display(), why, cure))
}

/// Unmounts the copies in the namespaces of commands of `terrace run` that do not use them, so that an
/// unrelated command does not keep the daemon. For copies that cannot be unmounted, `umount` waits, or
/// reports them.
fn unmount_under_runs(seen: &[holders::Holder], dev: Option<(u32, u32)>) {
    let Some(dev) = dev else { return };
    for copy in holders::under_runs(seen) {
        let _ = mounts::unmount_in(copy.pid, &copy.path, dev);
    }
}

/// Why a mount of another user stays.
fn not_ours(mnt: &Path, err: std::io::Error) -> Failure {
    if err.raw_os_error() == Some(libc::EBUSY) {
        return not_unmounted(mnt, "the mount is in use");
    }
    let owner = mounts::at(mnt).and_then(|entry| entry.user_id());
    match owner.filter(|owner| *owner != rustix::process::geteuid().as_raw()) {
        Some(owner) => {
            let why = format!("it was mounted by another user (uid {owner})");
            Failure::new(mnt.display(), why, "unmount it as that user or as root; nothing was unmounted")
        }
        None => Failure::new(mnt.display(), reason(err), "unmount it as root; nothing was unmounted"),
    }
}

fn not_unmounted(mnt: &Path, why: &str) -> Failure {
    let mounted: Vec<String> =
        mounts::below(mnt).iter().map(|e| format!("the mount {}", e.point.display())).collect();
    let who = if mounted.is_empty() { holders::told(&holders::of(mnt)) } else { mounted.join(", ") };
    Failure::new(mnt.display(), format!("{why} by {who}"), "end these and repeat; nothing was unmounted")
}

/// Whether the instance ended in time.
pub fn wait_for_end(instance: &Instance, within: Duration) -> bool {
    let start = Instant::now();
    while !instance.has_ended() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Whether an instance that did not answer is dead, or dying: its sockets are closed before its processes are gone.
pub fn has_died(instance: &Instance) -> bool {
    let start = Instant::now();
    while instance.is_alive() && start.elapsed() < DIES_WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    !instance.is_alive()
}

/// The instance that serves `mnt`.
pub fn find(mnt: &Path) -> Result<(Instance, Info)> {
    let path = mountpoint::absolute(mnt).map_err(|err| missing(mnt, &err))?;
    let name = mnt.display();
    if instance::is_dead_at(&path) {
        let cure = format!("clear it with `terrace umount {name}` or mount again");
        return Err(Failure::new(name, "its daemon died, with its supervisor", cure));
    }
    // The newest: a private mount of `run` may serve the same path as another.
    let found =
        instance::living().into_iter().filter(|(_, info)| info.mnt == path).max_by_key(|(_, info)| info.pid);
    found.ok_or_else(|| not_served(mnt))
}

fn not_served(mnt: &Path) -> Failure {
    let cure = "`terrace stat` lists what this user has mounted";
    Failure::new(mnt.display(), "terrace serves nothing here for this user", cure)
}

fn missing(mnt: &Path, err: &std::io::Error) -> Failure {
    let err = std::io::Error::from(err.kind());
    Failure::new(mnt.display(), reason(err), "name the directory where terrace is mounted")
}

fn asked<C: Command>(mnt: &Path, instance: &Instance, command: C) -> Result<C::Reply> {
    ask(instance, command).map_err(|no| Failure::new(mnt.display(), no, "see `terrace stat` and the log"))
}

/// Sends a command; again when the daemon died over it, since its supervisor starts another.
pub fn ask<C: Command>(instance: &Instance, command: C) -> std::result::Result<C::Reply, CommandError> {
    let mut tried = 1;
    loop {
        let answer = match Client::connect(&instance.control_socket()) {
            Ok(mut client) => client.ask(command.clone()),
            Err(err) => Err(CommandError::new(ErrorCode::Silent, err)),
        };
        match answer {
            Err(no) if no.code == ErrorCode::Silent && tried < TRIES && instance.is_alive() => tried += 1,
            done => return done,
        }
    }
}

/// A line of JSON.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("its paths stood in JSON before") + "\n"
}

/// Prints to standard output; ignores that the reader has gone.
pub fn print(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}
