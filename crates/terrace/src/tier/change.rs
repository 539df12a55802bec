//! `terrace tier add`, `remove` and `resize` send the change to the daemon, and print the result.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};

use terrace_api::control::{
    Command, CommandError, ErrorCode, Stat, TierAdd, TierChange, TierRemove, TierResize,
};
use terrace_api::tiers::{TierKind, TierRow};
use terrace_output::Progress;

use crate::cli;
use crate::commands;
use crate::config;
use crate::control::Client;
use crate::error::{Failure, Result, reason};
use crate::instance::Instance;
use crate::size::human;

/// `terrace tier add MNT PATH[:SIZE]`
pub(super) fn add(args: &cli::TierAdd) -> Result<ExitCode> {
    let (path, size) = config::split_target(&args.target);
    let path = absolute(&path)?;
    let command = TierAdd {
        path: path.clone(),
        bytes: size.map(|size| size.0),
        name: args.name.clone(),
        format: args.format,
    };
    let change = ask(&args.mnt, &path, command)?;
    let said = format!("{}: {} of {} are used", change.name, human(change.bytes), change.path.display());
    told(&change, args.json, &said)
}

/// `terrace tier remove MNT TARGET`
pub(super) fn remove(args: &cli::TierRemove) -> Result<ExitCode> {
    let target = named(&args.target)?;
    let was_off = is_off(&args.mnt, &target);
    let change = ask(&args.mnt, &target.clone(), TierRemove { target, force: args.force })?;
    let file = match change.file_removed {
        _ if was_off => "its file was not in use, and is unchanged",
        _ if config::is_remote(&change.path) => "the place in the store is empty",
        true => "the file is removed",
        false => "the file is empty, and can be removed",
    };
    let said = format!("{}: {}; {file}: {}", change.name, pages(&change), change.path.display());
    told(&change, args.json, &said)
}

/// Was a target unusable at the start?
fn is_off(mnt: &Path, target: &Path) -> bool {
    let stat = || Client::connect(&commands::find(mnt).ok()?.0.control_socket()).ok()?.ask(Stat {}).ok();
    let rows = stat().map(|reply| reply.stat.tiers).unwrap_or_default();
    let of_path = format!("off: {}: ", target.display());
    let mut off = rows.iter().filter(|row| row.kind == TierKind::Device && row.level.is_none());
    off.any(|row| target.to_str() == Some(&row.name) || row.state.starts_with(&of_path))
}

/// `terrace tier resize MNT TARGET SIZE`
pub(super) fn resize(args: &cli::TierResize) -> Result<ExitCode> {
    let size: crate::size::Size = args
        .size
        .parse()
        .map_err(|why| Failure::new("SIZE", why, "write a number and a unit, for example 64GiB"))?;
    let target = named(&args.target)?;
    let change = ask(&args.mnt, &target.clone(), TierResize { target, bytes: size.0 })?;
    let said = format!(
        "{}: {} of {} are used; {}",
        change.name,
        human(change.bytes),
        change.path.display(),
        pages(&change)
    );
    told(&change, args.json, &said)
}

fn pages(change: &TierChange) -> String {
    format!("{} pages went to other targets, {} left the cache", change.moved_pages, change.dropped_pages)
}

fn told(change: &TierChange, json: bool, said: &str) -> Result<ExitCode> {
    commands::print(&if json { commands::json(change) } else { format!("{said}\n") })?;
    Ok(ExitCode::SUCCESS)
}

/// Makes a path absolute: the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf> {
    if config::is_remote(path) {
        return Ok(path.to_owned());
    }
    std::path::absolute(path)
        .map_err(|err| Failure::new(path.display(), reason(err), "write an absolute path"))
}

/// Makes a path absolute; a name stays as it is.
fn named(target: &Path) -> Result<PathBuf> {
    match target.components().count() > 1 || target.exists() {
        true => absolute(target),
        false => Ok(target.to_owned()),
    }
}

/// Sends the command, and shows its progress until the answer.
fn ask<C>(mnt: &Path, target: &Path, command: C) -> Result<TierChange>
where
    C: Command<Reply = TierChange> + Send + 'static,
{
    let (instance, _) = commands::find(mnt)?;
    let fail = |why: CommandError| {
        let cure = match why.code {
            ErrorCode::Silent => format!("`terrace tier list {}` shows the present state", mnt.display()),
            _ => format!("see `terrace tier list {}`", mnt.display()),
        };
        // The daemon's message may begin with the target, too.
        let (named, why) = (format!("{}: ", target.display()), why.to_string());
        Failure::new(target.display(), why.strip_prefix(&named).unwrap_or(&why), cure)
    };
    let silent = |err| fail(CommandError::new(ErrorCode::Silent, err));
    // Not repeated if the daemon dies during it: the next daemon may have completed the change.
    let mut client = Client::connect(&instance.control_socket()).map_err(silent)?;
    let (answer, answered) = channel();
    std::thread::spawn(move || answer.send(client.ask(command)));
    let mut progress = Progress::default();
    let first = row(&instance, target);
    loop {
        match answered.recv_timeout(progress.pause()) {
            Ok(answer) => {
                progress.clear();
                return answer.map_err(fail);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some((row, first)) = row(&instance, target).zip(first.as_ref()) {
                    progress.tick(|| line(&row, first));
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(fail(CommandError::failed("the command ended")));
            }
        }
    }
}

/// The row of a target by its name, or else the row of the only target that is being removed.
fn row(instance: &Instance, target: &Path) -> Option<TierRow> {
    let stat = Client::connect(&instance.control_socket()).ok()?.ask(Stat {}).ok()?.stat;
    let mut rows: Vec<TierRow> = stat.tiers.into_iter().filter(|row| row.kind == TierKind::Device).collect();
    let at = rows.iter().position(|row| target.to_str() == Some(&row.name));
    match at {
        Some(at) => Some(rows.swap_remove(at)),
        None => rows.into_iter().find(|row| row.state == terrace_api::tiers::REMOVING),
    }
}

fn line(row: &TierRow, first: &TierRow) -> String {
    let moved = row.moved_down.saturating_sub(first.moved_down);
    format!("{}: {}, {} pages left, {moved} moved", row.name, row.state, row.pages)
}
