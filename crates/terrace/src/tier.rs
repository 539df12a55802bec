//! Tiers on devices: opened at the start of an instance, changed while it serves, and the commands of
//! `terrace tier`.

mod change;
pub(crate) mod live;
pub(crate) mod record;
pub(crate) mod remote;
mod report;
mod table;
mod user;

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::process::Pid;
use terrace_api::tiers::{TargetState, TierKind, TierReport, TierRow};
use terrace_engine::REGIONS_MAX;
use terrace_tier::TargetTable;
use terrace_tier::target::{self, Fault, Others, Target, TargetError, TargetRequest};

use crate::cli::{self, Tuning};
use crate::commands;
use crate::config::{Config, Device, Durable, is_remote};
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::instance;

use user::user_of;

#[derive(Debug, Default)]
pub(crate) struct Tier {
    /// Usable targets, fastest first; locked while this is held.
    pub held: Vec<OpenTarget>,
    /// Reasons why targets cannot be used: one line each, with the cure.
    pub warnings: Vec<String>,
    off: Vec<Off>,
    /// The first unusable target on this machine: it may have undestaged pages.
    missing: Option<String>,
}

/// A target that cannot be used.
#[derive(Debug, Clone)]
struct Off {
    device: Device,
    why: String,
}

impl Off {
    fn row(&self) -> TierRow {
        let (name, state) = (self.device.name.clone(), format!("off: {}", self.why));
        TierRow { name, kind: TierKind::Device, state, ..TierRow::default() }
    }
}

#[derive(Debug)]
pub(crate) struct OpenTarget {
    pub device: Device,
    /// The open and locked target.
    pub target: Target,
    /// Unique number.
    pub number: usize,
    /// First region, in the numbering shared by all targets.
    pub first_region: u32,
    /// The instance created the file.
    pub made: bool,
    /// A removal is under way.
    pub removed: bool,
    /// Table for readers; none before the engine starts.
    pub table: Option<Arc<TargetTable>>,
}

impl OpenTarget {
    /// Region numbers: the first, and the count.
    pub(crate) fn regions(&self) -> (u32, u32) {
        (self.first_region, self.target.superblock.geometry.regions())
    }
}

/// Chooses region numbers in the middle of the largest free gap, so that every target can grow. Returns the
/// first number; none if no gap is large enough.
pub(crate) fn region_numbers(used: &[(u32, u32)], regions: u32) -> Option<u32> {
    let mut used: Vec<(u32, u32)> = used.iter().map(|(first, count)| (*first, first + count)).collect();
    used.sort_unstable();
    let ends = [0].into_iter().chain(used.iter().map(|(_, end)| *end));
    let starts = used.iter().map(|(first, _)| *first).chain([REGIONS_MAX]);
    let (from, room) =
        ends.zip(starts).map(|(end, start)| (end, start - end)).max_by_key(|(_, room)| *room)?;
    let spare = room.checked_sub(regions)?;
    Some(if from == 0 { 0 } else { from + spare / 2 })
}

/// Does the path still lead to the target?
fn is_at(target: &Target, path: &Path) -> bool {
    let same = |meta: std::fs::Metadata| {
        rustix::fs::fstat(&target.fd).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (meta.dev(), meta.ino()))
    };
    std::fs::symlink_metadata(path).is_ok_and(same)
}

/// Ends the use of a target: erases it, and deletes a file that the instance created. If the supervisor knows
/// the descriptor (`kept`), its number stays reserved and refers to /dev/null.
pub(crate) fn close(held: OpenTarget, kept: &[RawFd]) {
    let path = &held.device.path;
    let done = match held.made && is_at(&held.target, path) {
        true => std::fs::remove_file(path),
        false if is_remote(path) => remote::give_up(&held.target),
        false => target::give_up(&held.target),
    };
    if let Err(err) = done {
        tracing::warn!(
            "{}: the tier cannot be erased ({err}); its content is not used again",
            path.display()
        );
    }
    if let Some(table) = &held.table {
        table.release();
    }
    if !kept.contains(&held.target.fd.as_raw_fd()) {
        return;
    }
    let mut fd = held.target.fd;
    let null = std::fs::File::open("/dev/null").map_err(drop);
    if null.is_ok_and(|null| rustix::io::dup3(&null, &mut fd, rustix::io::DupFlags::CLOEXEC).is_err()) {
        tracing::warn!(
            "{}: the tier's file or device cannot be closed; it stays open until the instance ends",
            path.display()
        );
    }
    std::mem::forget(fd);
}

/// Opens the tiers of an instance that serves `src`, fastest first, before the mount.
///
/// An unusable target is removed from the configuration and logged: a smaller cache is better than none. See
/// [`Tier::or_refuse`] for targets that may have undestaged pages.
pub(crate) fn open(config: &mut Config, src: &Path) -> Tier {
    let (mut tier, mut others) = (Tier::default(), Others::default());
    let mut devices = std::mem::take(&mut config.tier.device);
    devices.sort_by_key(Device::read_time);
    for (number, device) in devices.into_iter().enumerate() {
        let made = !is_remote(&device.path) && !device.path.exists();
        match target(config, &device, src, others, rustix::process::getpid()) {
            Ok(target) => {
                others.add(target.superblock.geometry);
                config.tier.device.push(device.clone());
                tier.hold(number, device, target, made);
            }
            Err(failure) => tier.leave_out(device, &failure),
        }
    }
    tier
}

impl Tier {
    /// Rows of unusable targets for `terrace stat`; the engine has the rows of the others.
    pub(crate) fn off(&self) -> Vec<TierRow> {
        self.off.iter().map(Off::row).collect()
    }

    /// With `[dirty] durable = "tier"`, refuses service without a tier that may have undestaged pages:
    /// programs would see older data.
    ///
    /// # Errors
    /// A tier is missing, or no tier can answer an fsync.
    pub(crate) fn or_refuse(self, config: &Config) -> Result<Tier> {
        let is_here = |held: &OpenTarget| !is_remote(&held.device.path);
        let failure = match &self.missing {
            _ if config.dirty.durable == Durable::Source => return Ok(self),
            Some(line) => Failure::from_line(&format!(
                "{line}; the tier may have synced data that the source lacks: to serve without them, set [dirty] durable = \"source\""
            )),
            None if self.held.iter().any(is_here) => return Ok(self),
            None => Failure::new(
                "[dirty] durable = \"tier\"",
                "there is no tier on a device of this machine",
                "name one with --tier, or set it to \"source\"",
            ),
        };
        self.held.into_iter().filter(|held| held.made).for_each(|held| close(held, &[]));
        Err(failure)
    }

    fn hold(&mut self, number: usize, device: Device, target: Target, made: bool) {
        let used: Vec<(u32, u32)> = self.held.iter().map(OpenTarget::regions).collect();
        let first_region = region_numbers(&used, target.superblock.geometry.regions());
        // Opening the target has checked the total; gaps between few targets are large.
        let first_region = first_region
            .unwrap_or_else(|| used.iter().map(|(first, count)| first + count).max().unwrap_or(0));
        self.held.push(OpenTarget {
            device,
            target,
            number,
            first_region,
            made,
            removed: false,
            table: None,
        });
    }

    fn leave_out(&mut self, device: Device, failure: &Failure) {
        tracing::warn!("serving without the tier: {}", failure.line());
        if !is_remote(&device.path) {
            self.missing.get_or_insert_with(|| failure.line().to_owned());
        }
        self.off.push(Off { device, why: failure.line().to_owned() });
        self.warnings.push(format!("{failure}; terrace serves without this tier"));
    }
}

/// Opens a target for the process `holder`, which lives as long as the instance.
fn target(config: &Config, device: &Device, src: &Path, others: Others, holder: Pid) -> Result<Target> {
    let request = TargetRequest {
        path: device.path.clone(),
        size: device.size.map(|size| size.0),
        source: src.to_owned(),
        memory_bytes: config.memory.most().0,
        format: config.tier.format,
        others,
    };
    let opened = match is_remote(&device.path) {
        true => remote::open(&request, holder),
        false => target::open(&request),
    };
    opened.map_err(|err| refused(&err))
}

/// The message for an unusable target; if it is in use, names the mount where possible.
pub(crate) fn refused(err: &TargetError) -> Failure {
    let user = match err.fault {
        Fault::InUse(pid) => user_of(&err.path, pid),
        _ => None,
    };
    let Some(info) = user else { return Failure::from_line(&err.to_string()) };
    let mnt = info.mnt.display();
    let why = format!("the tier is in use by the {} of {mnt} (process {})", info.kind.name(), info.pid);
    let cure = match info.kind {
        instance::Kind::Mount => format!("end that mount with `terrace umount {mnt}`, or name another file"),
        instance::Kind::Kv => "end that server, or name another file".to_owned(),
        instance::Kind::Run => "wait for the end of its command, or name another file".to_owned(),
    };
    Failure::new(err.path.display(), why, cure)
}

pub(crate) fn tier(args: &cli::Tier) -> Result<ExitCode> {
    match args {
        cli::Tier::List(args) => list(args),
        cli::Tier::Show(args) => show(args),
        cli::Tier::Drop(args) => empty(args),
        cli::Tier::Add(args) => change::add(args),
        cli::Tier::Remove(args) => change::remove(args),
        cli::Tier::Resize(args) => change::resize(args),
    }
}

/// Lists the tiers of the configuration, of running instances and of the given paths, without counting their
/// content.
fn list(args: &cli::TierList) -> Result<ExitCode> {
    let config = Config::load(&Tuning { config: args.config.clone(), ..Tuning::default() })?;
    let mut found = BTreeMap::new();
    let mut add = |path: &Path| {
        let key = path.canonicalize().unwrap_or(path.to_owned());
        found.entry(key).or_insert_with(|| report::brief(path));
    };
    let mut are_mounts = !args.paths.is_empty();
    for path in &args.paths {
        let of_mount = tiers_at(path);
        are_mounts &= of_mount.is_some();
        let paths = of_mount.map_or_else(|| targets(path), Ok)?;
        paths.iter().for_each(|path| add(path));
    }
    // For mounts, only their own tiers.
    if !are_mounts {
        config.tier.device.iter().for_each(|device| add(&device.path));
        let living = instance::living();
        living.iter().flat_map(|(_, info)| &info.tiers).for_each(|path| add(path));
    }
    if found.is_empty() {
        let cure = "name tier files, or directories with tiers, or make a tier with `terrace mount --tier`";
        return Err(Failure::new("tier list", "no tiers are known", cure).with_code(EXIT_NEGATIVE));
    }
    let reports: Vec<TierReport> = found.into_values().collect();
    commands::print(&match args.json {
        true => reports.iter().map(commands::json).collect(),
        false => table::list(&reports),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The tiers of the instance that serves this directory; none if there is no instance.
fn tiers_at(path: &Path) -> Option<Vec<PathBuf>> {
    let mnt = std::path::absolute(path).ok()?;
    instance::serving(&mnt).map(|(_, info)| info.tiers)
}

/// The tiers at a path: a file or device, or those in a directory.
fn targets(path: &Path) -> Result<Vec<PathBuf>> {
    let fail = |err: std::io::Error| {
        Failure::new(
            path.display(),
            reason(err),
            "name a tier's file or block device, or a directory with tiers",
        )
    };
    if is_remote(path) || !path.metadata().map_err(fail)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files = std::fs::read_dir(path).map_err(fail)?.flatten();
    let files = files.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let is_tier = |path: &PathBuf| {
        [TargetState::Tier, TargetState::Damaged, TargetState::Layout].contains(&report::brief(path).state)
    };
    Ok(files.map(|entry| entry.path()).filter(is_tier).collect())
}

fn show(args: &cli::TierShow) -> Result<ExitCode> {
    let report = report::full(&args.path).map_err(|err| refused(&err))?;
    commands::print(&match args.json {
        true => commands::json(&report),
        false => table::show(&report),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `terrace tier drop`, with a confirmation at a terminal.
fn empty(args: &cli::TierDrop) -> Result<ExitCode> {
    let path = &args.path;
    let named = |err| refused(&err);
    let source = if is_remote(path) {
        let tier = report::of_remote(path).map_err(named)?.tier;
        tier.ok_or_else(|| refused(&TargetError::new(path, Fault::NoTier)))?.source.display().to_string()
    } else {
        let look = target::look_unused(path).map_err(named)?;
        target::tier_of(path, look.found).map_err(named)?.source.path
    };
    if !args.yes && !agreed(&format!("Erase the tier of {source}, {}?", path.display())) {
        commands::print(&format!("{}: nothing was changed\n", path.display()))?;
        return Ok(ExitCode::from(EXIT_NEGATIVE));
    }
    let empty = if is_remote(path) { remote::empty } else { target::empty };
    empty(path).map_err(named)?;
    commands::print(&format!("{}: the tier is empty, and still belongs to {source}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Requests confirmation; without a terminal, returns true.
fn agreed(question: &str) -> bool {
    let mut stdin = std::io::stdin().lock();
    if !(stdin.is_terminal() && std::io::stdout().is_terminal()) {
        return true;
    }
    let _ = commands::print(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let _ = stdin.read_line(&mut answer);
    ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
}
