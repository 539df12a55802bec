//! Commands about a running instance: find it, send a request, print the answer.

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
use crate::mounts::{self, How, utab};

/// Times that a request is sent again after the daemon died during it.
const TRIES: usize = 16;
/// Time for a daemon to end after its unmount, and interval of the check for its other mounts.
const END_WITHIN: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(500);
/// Time for a killed instance to disappear.
const DIES_WITHIN: Duration = Duration::from_secs(2);

/// Retries for a busy mount with holders that are invisible or just starting, and the pause before each.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(30);

/// Cure where no other is known.
const SEE_STAT: &str = "`terrace stat` lists the instances";

pub(crate) fn sync(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    ask(&instance, Sync {}).map_err(|no| {
        let cure = match no.code {
            ErrorCode::Failed => "the data stay in memory, and terrace writes them again; free space in the source or check its storage".to_owned(),
            _ => cure(&instance, &no, SEE_STAT),
        };
        Failure::new(mnt.display(), no, cure)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn drop_caches(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    let dropped = asked(mnt, &instance, control::DropCaches {})?;
    print(&format!("{} clean pages dropped\n", dropped.pages))?;
    Ok(ExitCode::SUCCESS)
}

/// `terrace check MNT`: exit code 1 on a disagreement.
pub(crate) fn check(mnt: &Path) -> Result<ExitCode> {
    let (instance, _) = find(mnt)?;
    let found = asked(mnt, &instance, Check {})?.disagreements;
    if found.is_empty() {
        print("index, frames and policy agree\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&(found.join("\n") + "\n"))?;
    Ok(ExitCode::from(EXIT_NEGATIVE))
}

pub(crate) fn resize(mnt: &Path, size: String) -> Result<ExitCode> {
    let limit = config::parse_memory("SIZE", size)?;
    let (instance, _) = find(mnt)?;
    let bytes = limit.fixed().map_or(0, |size| size.0);
    ask(&instance, Resize { bytes, auto: limit == MemoryLimit::Auto }).map_err(|no| {
        let cure = cure(&instance, &no, "name a size that it takes, or start it again with another --memory");
        Failure::new(mnt.display(), no, cure)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `terrace umount MNT`: writes everything back, unmounts, and waits for the end of the daemon.
pub(crate) fn umount(args: &cli::Umount) -> Result<ExitCode> {
    let mnt = &args.mnt;
    if args.lazy || args.force {
        return detach(args);
    }
    let path = mountpoint::absolute(mnt).map_err(|err| missing(mnt, &err))?;
    if instance::is_dead_at(&path) {
        data_loss::clear(&path, &mut std::io::stderr())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (instance, info) = find(&path).map_err(|failure| unknown(&path, failure))?;
    let is_here = info.device.is_some() && info.device == mounts::device_at(&path);
    match is_here && (info.mnt != path || is_elsewhere(&info)) {
        true => unmount_copy(&path, &instance)?,
        false => stop(&path, &instance)?,
    }
    utab::forget(&path);
    Ok(ExitCode::SUCCESS)
}

/// Does the daemon run in another mount namespace? Then the mount that this process sees is a copy.
fn is_elsewhere(info: &Info) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let its = namespace(&info.terraced.to_string()).filter(|_| instance::in_our_pid_namespace(info));
    its.is_some() && its != namespace("self")
}

/// Unmounts a copy of a mount: a bind mount, or one in another mount namespace. The instance goes on while
/// other copies exist.
fn unmount_copy(path: &Path, instance: &Instance) -> Result<()> {
    let cure = "nothing was unmounted; free space in the source or check its storage, then repeat";
    ask(instance, Sync {}).map_err(|no| Failure::new(path.display(), no, cure))?;
    let dev = mounts::device_at(path);
    mounts::unmount(path, How::Unused).map_err(|err| not_ended(path, err))?;
    finish(path, instance, dev)
}

/// `umount -l` and `-f`, as in umount(8). Neither sends requests to the daemon nor waits for it: it may hang,
/// or programs may keep it alive.
fn detach(args: &cli::Umount) -> Result<ExitCode> {
    let path = mountpoint::absolute_unasked(&args.mnt).map_err(|err| missing(&args.mnt, &err))?;
    if mounts::at(&path).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return Err(not_served(&path));
    }
    match args.force {
        true => force(&path, args.lazy)?,
        false => mounts::unmount(&path, How::Lazy).map_err(|err| not_ended(&path, err))?,
    }
    utab::forget(&path);
    Ok(ExitCode::SUCCESS)
}

/// The end of a connection ends the daemon, and its supervisor then detaches the mount.
fn force(mnt: &Path, lazy: bool) -> Result<()> {
    // A detached mount shows its users no more.
    let users = users(mnt);
    match mounts::unmount_by_force(mnt, lazy) {
        Ok(()) => Ok(()),
        Err(no) if !no.is_aborted => Err(not_ended(mnt, no.err)),
        Err(_) if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE) => Ok(()),
        Err(_) => {
            let name = mnt.display();
            let why = format!("the connection to the daemon has ended, but the mount is in use by {users}");
            let cure = format!(
                "the supervisor detaches it after the daemon's last writes; `terrace umount -l {name}` detaches it at once"
            );
            Err(Failure::new(name, why, cure))
        }
    }
}

fn stop(mnt: &Path, instance: &Instance) -> Result<()> {
    let dev = mounts::at(mnt).filter(|entry| entry.fstype == mounts::FSTYPE).map(|entry| entry.dev);
    let mut tries = BUSY_TRIES;
    while let Err(no) = ask(instance, Stop { lazy: false, lose: false }) {
        tries -= 1;
        match no.code {
            // A process that is being forked or is exiting holds files for a moment.
            ErrorCode::Busy if tries > 0 && holders::of(mnt).iter().all(|holder| holder.starting) => {
                std::thread::sleep(BUSY_PAUSE);
            }
            ErrorCode::Busy => return Err(not_unmounted(mnt, "the mount is in use")),
            // Another command has stopped the instance.
            ErrorCode::Silent if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE) => break,
            _ => {
                let cure = "nothing was unmounted; remove this cause and repeat, or discard the unwritten data with `umount -f`";
                return Err(Failure::new(mnt.display(), no, cure));
            }
        }
    }
    let seen = || dev.map(holders::seeing).unwrap_or_default();
    unmount_under_runs(&seen(), dev);
    finish(mnt, instance, dev)
}

/// Waits for the end of an instance that is unmounted here. If it still serves other mounts, prints that.
fn finish(mnt: &Path, instance: &Instance, dev: Option<(u32, u32)>) -> Result<()> {
    let name = mnt.display();
    let start = Instant::now();
    while !wait_for_end(instance, SOON) {
        let seen = dev.map(holders::seeing).unwrap_or_default();
        if !seen.is_empty() {
            let ours = mounts::table().into_iter().filter(|entry| Some(entry.dev) == dev);
            let ours: Vec<String> =
                ours.map(|entry| format!("the mount {}", entry.point.display())).collect();
            let by = if ours.is_empty() { holders::told(&seen) } else { ours.join(", ") };
            terrace_output::error_line!(
                "terrace: {name}: unmounted here, and all data are written; its daemon still serves {by}"
            );
            return Ok(());
        }
        if start.elapsed() > END_WITHIN {
            let why = "it is unmounted, but its daemon still writes data to the source";
            return Err(Failure::new(name, why, instance.see_log()));
        }
    }
    // The instance's directory stays, so that the next `terrace mount` reports the loss as well.
    let lost = data_loss::by(instance).map(|lost| (lost, "check the source and its storage".to_owned()));
    let died = || Some((data_loss::by_dying(instance)?, instance.see_log()));
    lost.or_else(died).map_or(Ok(()), |(why, cure)| {
        let cure = format!("what fsync acknowledged is safe; {cure}");
        Err(Failure::new(name, format!("unmounted, but {why}"), cure))
    })
}

/// Unmounts unused copies in mount namespaces of `terrace run`: unrelated commands must not keep the daemon
/// alive.
fn unmount_under_runs(seen: &[holders::Holder], dev: Option<(u32, u32)>) {
    let Some(dev) = dev else { return };
    for copy in holders::under_runs(seen) {
        let _ = mounts::unmount_in(copy.pid, &copy.path, dev);
    }
}

/// Why a mount without a known instance was not unmounted.
fn unknown(mnt: &Path, not_found: Failure) -> Failure {
    let Some(entry) = mounts::at(mnt).filter(|entry| entry.fstype == mounts::FSTYPE) else {
        return not_found;
    };
    let own = rustix::process::geteuid().as_raw();
    match entry.user_id() {
        Some(owner) if own != 0 && owner != own => {
            let why = format!("it was mounted by another user (uid {owner})");
            Failure::new(mnt.display(), why, "unmount it as that user or as root; nothing was unmounted")
        }
        _ => {
            let why = "the record of its instance is missing: written data may not be in the source";
            let cure = "repeat it with the XDG_RUNTIME_DIR of its mount, or detach it, possibly with unwritten data, with `terrace umount -l`";
            Failure::new(mnt.display(), why, cure)
        }
    }
}

/// Why the system did not unmount a mount.
fn not_ended(mnt: &Path, err: std::io::Error) -> Failure {
    match err.raw_os_error() == Some(libc::EBUSY) {
        true => not_unmounted(mnt, "the mount is in use"),
        false => Failure::new(mnt.display(), reason(err), "nothing was unmounted; repeat as root"),
    }
}

fn not_unmounted(mnt: &Path, why: &str) -> Failure {
    let cure = "nothing was unmounted; end these processes or unmount these mounts, then repeat";
    Failure::new(mnt.display(), format!("{why} by {}", users(mnt)), cure)
}

/// The mounts below a mount; without any, the processes that use it.
fn users(mnt: &Path) -> String {
    let below: Vec<String> =
        mounts::below(mnt).iter().map(|e| format!("the mount {}", e.point.display())).collect();
    if below.is_empty() { holders::told(&holders::of(mnt)) } else { below.join(", ") }
}

/// Waits for the end of an instance; false after `within`.
pub(crate) fn wait_for_end(instance: &Instance, within: Duration) -> bool {
    let start = Instant::now();
    while !instance.has_ended() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Is an unresponsive instance dead or dying? The kernel closes its sockets before its processes are gone.
pub(crate) fn has_died(instance: &Instance) -> bool {
    let start = Instant::now();
    while instance.is_alive() && start.elapsed() < DIES_WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    !instance.is_alive()
}

/// The instance that serves `mnt`.
pub(crate) fn find(mnt: &Path) -> Result<(Instance, Info)> {
    let path = mountpoint::absolute(mnt).map_err(|err| missing(mnt, &err))?;
    let name = mnt.display();
    if instance::is_dead_at(&path) {
        let cure = format!("clear it with `terrace umount {name}` or mount again");
        return Err(Failure::new(name, "the daemon and the supervisor of this mount are dead", cure));
    }
    instance::serving(&path).ok_or_else(|| not_served(mnt))
}

fn not_served(mnt: &Path) -> Failure {
    let cure = "`terrace stat` lists what this user has mounted";
    Failure::new(mnt.display(), "terrace serves nothing here for this user", cure)
}

fn missing(mnt: &Path, err: &std::io::Error) -> Failure {
    let why = match (err.kind(), err.raw_os_error()) {
        (std::io::ErrorKind::NotFound, _) => "the directory does not exist".to_owned(),
        (_, Some(errno)) => reason(std::io::Error::from_raw_os_error(errno)),
        (kind, None) => kind.to_string(),
    };
    Failure::new(mnt.display(), why, "name the directory where terrace is mounted")
}

/// [`ask`] for a command that no instance refuses.
pub(crate) fn asked<C: Command>(mnt: &Path, instance: &Instance, command: C) -> Result<C::Reply> {
    ask(instance, command).map_err(|no| Failure::new(mnt.display(), &no, cure(instance, &no, SEE_STAT)))
}

/// The cure of a failed command. The log explains failures alone: an instance does not log what it refuses,
/// and `refused` is the cure of that.
pub(crate) fn cure(instance: &Instance, no: &CommandError, refused: &str) -> String {
    match no.code {
        ErrorCode::Failed | ErrorCode::Silent => instance.see_log(),
        ErrorCode::Usage => "use the version of terrace that started this instance".to_owned(),
        _ => refused.to_owned(),
    }
}

/// Sends a command, and repeats it if the daemon died during it: the supervisor starts another.
pub(crate) fn ask<C: Command>(
    instance: &Instance,
    command: C,
) -> std::result::Result<C::Reply, CommandError> {
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

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the paths were in JSON before") + "\n"
}

/// Prints to standard output. False: the reader has closed the pipe, which is no failure.
pub(crate) fn print(text: &str) -> Result<bool> {
    terrace_output::put(text).map_err(|err| {
        Failure::new("standard output", reason(err), "free space there, or direct the output to another file")
    })
}
