//! Tiers on devices: opened for an instance that starts, and `terrace tier`, which shows and empties them.

mod report;
mod table;
mod user;

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use terrace_api::tiers::{TargetState, TierKind, TierReport, TierRow};
use terrace_engine::device::target::{self, Fault, Others, Target, TargetError, TargetRequest};

use crate::cli::{self, Tuning};
use crate::commands;
use crate::config::{Config, Device};
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::instance;

use user::user_of;

/// The tiers of an instance.
#[derive(Debug, Default)]
pub struct Tier {
    /// Locked as long as this is held; those of the devices that the configuration has left, in the same order.
    targets: Vec<Target>,
    /// Why some cannot be used: a line each, with its cure, and the rows of `terrace stat`.
    pub warnings: Vec<String>,
    off: Vec<TierRow>,
}

impl Tier {
    /// The targets that can be used.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// The rows of those that cannot; of the others the engine has them.
    pub fn off(&self) -> &[TierRow] {
        &self.off
    }
}

/// Opens the tiers of an instance that is to serve `src`, the fastest first. Nothing is mounted yet.
///
/// A target that cannot be used is taken out of the configuration, and the log says why: a cache that is smaller than it was meant to be is worth
/// more than none.
pub fn open(config: &mut Config, src: &Path) -> Tier {
    let (mut tier, mut others) = (Tier::default(), Others::default());
    let mut devices = std::mem::take(&mut config.tier.device);
    devices.sort_by_key(Device::read_time);
    for device in devices {
        match target(config, &device, src, others) {
            Ok(target) => {
                others.add(target.superblock.geometry);
                tier.targets.push(target);
                config.tier.device.push(device);
            }
            Err(failure) => tier.leave_out(device, &failure),
        }
    }
    tier
}

impl Tier {
    fn leave_out(&mut self, device: Device, failure: &Failure) {
        tracing::warn!("serving without the tier: {}", failure.line());
        let state = format!("off: {}", failure.line());
        self.off.push(TierRow { name: device.name, kind: TierKind::Device, state, ..TierRow::default() });
        self.warnings.push(format!("{failure}; serving without it"));
    }
}

fn target(config: &Config, device: &Device, src: &Path, others: Others) -> Result<Target> {
    let request = TargetRequest {
        path: device.path.clone(),
        size: device.size.map(|size| size.0),
        source: src.to_owned(),
        memory_bytes: config.memory.most().0,
        format: config.tier.format,
        others,
    };
    target::open(&request).map_err(|err| refused(&err))
}

/// The line for a target that cannot be used. Of one that is in use the mount is named, if it is known.
fn refused(err: &TargetError) -> Failure {
    let user = match err.fault {
        Fault::InUse(pid) => user_of(&err.path, pid),
        _ => None,
    };
    let Some(info) = user else { return Failure::from_line(&err.to_string()) };
    let mnt = info.mnt.display();
    let why = format!("the tier is in use by the {} of {mnt} (process {})", info.kind.name(), info.pid);
    let cure = match info.kind {
        instance::Kind::Mount => format!("end that with `terrace umount {mnt}`, or name another file"),
        instance::Kind::Kv => "end that server, or name another file".to_owned(),
        instance::Kind::Run => "wait for the end of its command, or name another file".to_owned(),
    };
    Failure::new(err.path.display(), why, cure)
}

/// `terrace tier ...`
pub fn tier(args: &cli::Tier) -> Result<ExitCode> {
    match args {
        cli::Tier::List(args) => list(args),
        cli::Tier::Show(args) => show(args),
        cli::Tier::Drop(args) => empty(args),
    }
}

/// Those of the configuration and of running instances, and those that are named. Their content is not counted.
fn list(args: &cli::TierList) -> Result<ExitCode> {
    let config = Config::load(&Tuning { config: args.config.clone(), ..Tuning::default() })?;
    let mut found = BTreeMap::new();
    let mut add = |path: &Path| {
        let key = path.canonicalize().unwrap_or(path.to_owned());
        found.entry(key).or_insert_with(|| report::brief(path));
    };
    for path in &args.paths {
        targets(path)?.iter().for_each(|path| add(path));
    }
    config.tier.device.iter().for_each(|device| add(&device.path));
    let living = instance::living();
    living.iter().flat_map(|(_, info)| &info.tiers).for_each(|path| add(path));
    if found.is_empty() {
        let cure = "name files, or directories that hold them, or make one with `terrace mount --tier`";
        return Err(Failure::new("tier list", "no tiers are known", cure).with_code(EXIT_NEGATIVE));
    }
    let reports: Vec<TierReport> = found.into_values().collect();
    commands::print(&match args.json {
        true => reports.iter().map(commands::json).collect(),
        false => table::list(&reports),
    });
    Ok(ExitCode::SUCCESS)
}

/// A file or device itself; of a directory the tiers in it.
fn targets(path: &Path) -> Result<Vec<PathBuf>> {
    let fail = |err: std::io::Error| {
        Failure::new(path.display(), reason(err), "name a file, a block device or a directory")
    };
    if !path.metadata().map_err(fail)?.is_dir() {
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
    });
    Ok(ExitCode::SUCCESS)
}

/// `terrace tier drop`. At a terminal it asks first.
fn empty(args: &cli::TierDrop) -> Result<ExitCode> {
    let path = &args.path;
    let named = |err| refused(&err);
    let look = target::look(path).map_err(named)?;
    let source = target::tier_of(path, look.found).map_err(named)?.source.path;
    if look.in_use {
        return Err(refused(&TargetError::new(path, Fault::InUse(look.holder))));
    }
    if !args.yes && !agreed(&format!("Give up what is in the tier of {source}, {}?", path.display())) {
        println!("{}: nothing was changed", path.display());
        return Ok(ExitCode::from(EXIT_NEGATIVE));
    }
    target::empty(path).map_err(named)?;
    println!("{}: empty; it is the tier of {source} still", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Whether the user says yes. Where nobody can be asked, the command is meant.
fn agreed(question: &str) -> bool {
    let mut stdin = std::io::stdin().lock();
    if !(stdin.is_terminal() && std::io::stdout().is_terminal()) {
        return true;
    }
    print!("{question} [y/N] ");
    let _ = std::io::stdout().flush();
    let mut answer = String::new();
    let _ = stdin.read_line(&mut answer);
    ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str())
}
