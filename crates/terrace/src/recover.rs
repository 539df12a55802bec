//! `terrace recover`: lists, writes or discards undestaged pages that a tier has after a power cut. Their
//! files have changed since.
//!
//! A start writes all other undestaged pages to their files (`daemon/replay.rs`). The rest stays on the tier
//! for this command.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use terrace_engine::{Decision, Replayed};
use terrace_tier::target::{self, Others, TargetRequest};
use terrace_tier::{Superblock, Undestaged, UndestagedMark};

use crate::cli;
use crate::commands;
use crate::config::{Config, Device, MemoryLimit};
use crate::daemon::replay as files;
use crate::engine;
use crate::error::{EXIT_NEGATIVE, Failure, Result, reason};
use crate::size::{MIB, PAGE, Size};
use crate::tier::{self, OpenTarget};

/// Memory for the engine of this command.
const MEMORY: Size = Size(64 * MIB);

pub(crate) fn recover(args: &cli::Recover) -> Result<ExitCode> {
    let path = &args.target;
    let look = target::look_unused(path).map_err(|err| tier::refused(&err))?;
    let superblock = target::tier_of(path, look.found.clone()).map_err(|err| tier::refused(&err))?;
    if superblock.undestaged != UndestagedMark::Perhaps {
        commands::print(&format!("{}: its source has all data of the tier\n", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let undestaged = look.scan(&superblock).map_err(|err| cannot(path, err))?.undestaged;
    let decision = match (args.write, args.discard) {
        (true, _) => Decision::Write,
        (_, true) => Decision::Discard,
        _ => return show(path, &superblock, &undestaged),
    };
    drop(look);
    decide(path, &superblock, &undestaged, decision)
}

fn cannot(path: &Path, err: std::io::Error) -> Failure {
    Failure::new(path.display(), reason(err), "check the device of the tier, then repeat")
}

/// Opens the source of the tier.
fn source(superblock: &Superblock) -> Result<std::fs::File> {
    let dir = &superblock.source.path;
    let open = std::fs::File::open(dir);
    open.map_err(|err| Failure::new(dir, reason(err), "restore the source: the pages belong to its files"))
}

fn show(path: &Path, superblock: &Superblock, undestaged: &Undestaged) -> Result<ExitCode> {
    let source = source(superblock)?;
    let wanted: HashSet<u64> = undestaged.files.keys().copied().collect();
    let mut found = files::find(source.as_fd(), &wanted).map_err(|err| cannot(path, err))?;
    let mut page = String::new();
    let mut files: Vec<_> = undestaged.files.iter().collect();
    files.sort_unstable_by_key(|(file, _)| **file);
    for (file, pages) in files {
        let (name, _) = found.take(*file);
        let bytes = pages.pages.len() as u64 * PAGE;
        let doubt = if pages.doubtful { ", perhaps in this file already" } else { "" };
        page += &format!("{:>12}  {name}{doubt}\n", Size(bytes).to_string());
    }
    if undestaged.hidden || undestaged.damaged > 0 {
        page += &format!(
            "keys of the tier and {} pages are damaged: more synced data may be lost\n",
            undestaged.damaged
        );
    }
    if undestaged.files.is_empty() {
        page += &format!("{}: its source has all data that can be read from the tier\n", path.display());
    }
    commands::print(&page)?;
    Ok(if undestaged.files.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_NEGATIVE) })
}

/// Replays the undestaged pages with an engine of its own, as a mount does.
fn decide(
    path: &Path,
    superblock: &Superblock,
    undestaged: &Undestaged,
    decision: Decision,
) -> Result<ExitCode> {
    let root = source(superblock)?;
    let request = TargetRequest {
        path: path.to_owned(),
        size: None,
        source: superblock.source.path.clone().into(),
        // Enough for any target: nothing is cached.
        memory_bytes: u64::MAX,
        format: false,
        others: Others::default(),
    };
    let target = target::open(&request).map_err(|err| tier::refused(&err))?;
    let device = Device { path: path.to_owned(), ..Device::default() };
    // Declared before the engine, so that the target's descriptor outlives it.
    let held =
        [OpenTarget { device, target, number: 0, first_region: 0, made: false, removed: false, table: None }];
    let config = Config { memory: MemoryLimit::Fixed(MEMORY), ..Config::default() };
    let engine = engine::alone(&config, &held).map_err(|err| cannot(path, err))?;
    engine.serve().map_err(|err| cannot(path, err))?;
    // Pages without a conflict go to their files first, as at a mount.
    let replay = |decision| files::replay(&engine, root.as_fd(), decision).map_err(|err| cannot(path, err));
    let is_kept =
        |done: &std::io::Result<Replayed>| !matches!(done, Ok(Replayed::Written(_) | Replayed::Dropped));
    let mut done = replay(Decision::Keep)?;
    done.retain(|(.., done)| !is_kept(done));
    done.extend(replay(decision)?);
    if done.len() < undestaged.files.len() {
        let why = "some data of the tier are unreadable";
        return Err(Failure::new(path.display(), why, "check the device of the tier, then repeat"));
    }
    let (mut page, mut kept) = (String::new(), false);
    for (name, undestaged, done) in done {
        kept |= is_kept(&done);
        let bytes = Size(undestaged.pages * PAGE).to_string();
        let what = match done {
            Ok(Replayed::Written(_)) => "written".to_owned(),
            Ok(Replayed::Dropped) => "given up".to_owned(),
            Ok(Replayed::Kept(why)) => format!("kept: {why}"),
            Err(err) => format!("kept: {}", reason(err)),
        };
        page += &format!("{bytes:>12}  {name}: {what}\n");
    }
    let printed = commands::print(&page);
    engine.shutdown().map_err(|err| cannot(path, err))?;
    drop((engine, held));
    printed?;
    Ok(if kept { ExitCode::from(EXIT_NEGATIVE) } else { ExitCode::SUCCESS })
}
