//! Reports of `terrace tier`: the contents of a file, a block device or a target in a store.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use terrace_api::tiers::{SourceState, TargetState, TierContent, TierFacts, TierReport};
use terrace_tier::target::{self, Fault, Inspection, TargetError};
use terrace_tier::{Found, Scanned, Superblock};

use super::remote;
use super::user::user_of;
use crate::config::is_remote;
use crate::size::PAGE;

/// Report of a tier, with its content unless it is in use.
pub(super) fn full(path: &Path) -> Result<TierReport, TargetError> {
    if is_remote(path) {
        return full_remote(path);
    }
    let look = target::look(path)?;
    let superblock = target::tier_of(path, look.found.clone())?;
    let content = match look.in_use {
        true => None,
        false => {
            let scanned = look.scan(&superblock).map_err(|err| TargetError::new(path, Fault::Io(err)))?;
            Some(content_of(&scanned))
        }
    };
    let mut report = of(path, look);
    report.tier = report.tier.map(|tier| TierFacts { content, ..tier });
    Ok(report)
}

/// Sums of a scan.
fn content_of(scanned: &Scanned) -> TierContent {
    let pages = scanned.files.values().map(|file| file.pages.len() as u64).sum();
    TierContent {
        files: scanned.files.len() as u64,
        pages,
        bytes: pages * PAGE,
        pages_damaged: scanned.pages_damaged,
    }
}

/// Report of a target in a store, without counting its content.
///
/// # Errors
/// The target cannot be read.
pub(super) fn of_remote(path: &Path) -> Result<TierReport, TargetError> {
    let (found, holder) = remote::look(path)?;
    let bytes = match &found {
        Found::Ours(superblock) => superblock.geometry.bytes(),
        _ => 0,
    };
    let report = of_found(path, found, bytes, holder.is_some(), holder.flatten());
    // In a store, an empty target does not exist.
    let state = if report.state == TargetState::Empty { TargetState::Missing } else { report.state };
    Ok(TierReport { state, ..report })
}

fn full_remote(path: &Path) -> Result<TierReport, TargetError> {
    let mut report = of_remote(path)?;
    let Some(facts) = &mut report.tier else { return Err(TargetError::new(path, Fault::NoTier)) };
    if !report.in_use {
        facts.content = Some(content_of(&remote::count(path)?));
    }
    Ok(report)
}

/// Report without counting the content. An unreadable target has only a state.
pub(super) fn brief(path: &Path) -> TierReport {
    let report = TierReport { path: path.to_owned(), ..TierReport::default() };
    if is_remote(path) {
        return of_remote(path).unwrap_or(TierReport { state: TargetState::Unreadable, ..report });
    }
    match target::look(path) {
        Ok(look) => of(path, look),
        Err(TargetError { fault: Fault::Io(err), .. }) if err.kind() == ErrorKind::NotFound => report,
        Err(_) => TierReport { state: TargetState::Unreadable, ..report },
    }
}

fn of(path: &Path, look: Inspection) -> TierReport {
    of_found(path, look.found, look.bytes, look.in_use, look.holder)
}

/// Report of a target of `bytes`, with its user.
fn of_found(path: &Path, found: Found, bytes: u64, in_use: bool, holder: Option<i32>) -> TierReport {
    let user = in_use.then(|| user_of(path, holder)).flatten();
    let state = match found {
        Found::Ours(_) => TargetState::Tier,
        Found::Layout(_) => TargetState::Layout,
        Found::Damaged => TargetState::Damaged,
        Found::Foreign => TargetState::Foreign,
        Found::Empty => TargetState::Empty,
    };
    TierReport {
        state,
        bytes,
        in_use,
        pid: user.as_ref().map(|info| info.pid).or(holder),
        mnt: user.map(|info| info.mnt),
        tier: match found {
            Found::Ours(superblock) => Some(facts(superblock, in_use)),
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
        // The instance in service holds its source open. The path may now lead to the mount over it, as under
        // `terrace run`.
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
