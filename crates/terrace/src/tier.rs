//! Tiers on devices: opened for an instance that starts, and `terrace tier`, which shows and empties them.

mod report;
mod table;
mod user;

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use terrace_api::tiers::{TargetState, TierKind, TierReport, TierRow};
use terrace_engine::device::target::{self, Fault, Target, TargetError, TargetRequest};

use crate::cli::{self, Tuning};
use crate::commands;
use crate::config::Config;
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::instance;

use user::user_of;

/// The tier of an instance.
#[derive(Debug, Default)]
pub struct Tier {
    /// Locked as long as this is held.
    target: Option<Target>,
    /// Why there is none although one was asked for: a line with its cure, and the row of `terrace stat`.
    pub warning: Option<String>,
    row: Option<TierRow>,
}

impl Tier {
    /// The target, if there is one that can be used.
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// The row of a tier that cannot be used; of one that can the engine has it.
    pub fn off(&self) -> Option<&TierRow> {
        self.row.as_ref()
    }
}

/// Opens the tier of an instance that is to serve `src`, if it is to have one. Nothing is mounted yet.
///
/// A tier that cannot be used is taken out of the configuration, and the log says why: a cache that is smaller than it was meant to be is worth
/// more than none.
pub fn open(config: &mut Config, src: &Path) -> Tier {
    let failure = match target(config, src) {
        Ok(target) => return Tier { target, ..Tier::default() },
        Err(failure) => failure,
    };
    let name = config.tier.device.drain(..).next().map(|device| device.name).unwrap_or_default();
    tracing::warn!("serving without the tier: {}", failure.line());
    let state = format!("off: {}", failure.line());
    let row = TierRow { name, kind: TierKind::Device, state, ..TierRow::default() };
    Tier { target: None, warning: Some(format!("{failure}; serving without it")), row: Some(row) }
}

fn target(config: &Config, src: &Path) -> Result<Option<Target>> {
    let Some(device) = config.tier.device.first() else { return Ok(None) };
    let request = TargetRequest {
        path: device.path.clone(),
        size: device.size.map(|size| size.0),
        source: src.to_owned(),
        memory_bytes: config.memory.most().0,
        format: config.tier.format,
    };
    target::open(&request).map(Some).map_err(|err| refused(&err))
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
    instance::living().iter().filter_map(|(_, info)| info.tier.as_deref()).for_each(&mut add);
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
