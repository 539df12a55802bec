//! The contents of a file or block device, as `terrace tier` shows them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrace_api::tiers::{SourceState, TargetState, TierContent, TierFacts, TierReport};
use terrace_engine::device::target::{self, Fault, Look, TargetError};
use terrace_engine::device::{Found, Superblock};

use super::user::user_of;

const PAGE_BYTES: u64 = 4096;

/// A tier with what is in it, unless it is in use.
pub fn full(path: &Path) -> Result<TierReport, TargetError> {
    let look = target::look(path)?;
    let superblock = target::tier_of(path, look.found.clone())?;
    let content = match look.in_use {
        true => None,
        false => {
            let scanned = look.scan(&superblock).map_err(|err| TargetError::new(path, Fault::Io(err)))?;
            let pages = scanned.files.values().map(|file| file.pages.len() as u64).sum();
            Some(TierContent {
                files: scanned.files.len() as u64,
                pages,
                bytes: pages * PAGE_BYTES,
                pages_damaged: scanned.pages_damaged,
            })
        }
    };
    let mut report = of(path, look);
    report.tier = report.tier.map(|tier| TierFacts { content, ..tier });
    Ok(report)
}

/// Without counting what is in it. An unreadable target has only a state.
pub fn brief(path: &Path) -> TierReport {
    let report = TierReport { path: path.to_owned(), ..TierReport::default() };
    match target::look(path) {
        Ok(look) => of(path, look),
        Err(TargetError { fault: Fault::Io(err), .. }) if err.kind() == ErrorKind::NotFound => report,
        Err(_) => TierReport { state: TargetState::Unreadable, ..report },
    }
}

fn of(path: &Path, look: Look) -> TierReport {
    let user = look.in_use.then(|| user_of(path, look.holder)).flatten();
    let state = match look.found {
        Found::Ours(_) => TargetState::Tier,
        Found::Layout(_) => TargetState::Layout,
        Found::Damaged => TargetState::Damaged,
        Found::Foreign => TargetState::Foreign,
        Found::Empty => TargetState::Empty,
    };
    TierReport {
        state,
        bytes: look.bytes,
        in_use: look.in_use,
        pid: user.as_ref().map(|info| info.pid).or(look.holder),
        mnt: user.map(|info| info.mnt),
        tier: match look.found {
            Found::Ours(superblock) => Some(facts(superblock, look.in_use)),
            _ => None,
        },
        path: path.to_owned(),
        ..TierReport::default()
    }
}

fn facts(superblock: Superblock, in_use: bool) -> TierFacts {
    let geometry = superblock.geometry;
    let source = PathBuf::from(&superblock.source.path);
    let source_state = match target::source_of(&source) {
        // Its user holds it. The file at its path may be a mount over it, as under `terrace run`.
        _ if in_use => SourceState::There,
        Ok(now) if now.hash == superblock.source.hash => SourceState::There,
        Ok(_) => SourceState::Replaced,
        Err(_) => SourceState::Gone,
    };
    TierFacts {
        id: superblock.id.to_string(),
        source,
        source_state,
        created: superblock.created,
        used: superblock.used,
        clean: superblock.clean,
        capacity_bytes: u64::from(geometry.region_bytes()) * u64::from(geometry.regions()),
        region_bytes: geometry.region_bytes().into(),
        regions: geometry.regions(),
        content: None,
    }
}
