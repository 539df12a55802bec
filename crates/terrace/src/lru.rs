//! `terrace lru`: shows the eviction policy's lists, opens a generation (`--age`), evicts generations
//! (`--evict`).

mod table;

use std::path::Path;
use std::process::ExitCode;

use terrace_api::control::{Age, Command, CommandError, ErrorCode, Evict, Lru};
use terrace_api::lru::{Evicted, LruReport};

use crate::cli;
use crate::commands;
use crate::error::{Failure, Result};
use crate::instance::Instance;

/// Shows the lists, after the requested aging or eviction.
pub(crate) fn lru(args: &cli::Lru) -> Result<ExitCode> {
    let (instance, info) = commands::find(&args.mnt)?;
    let (opened, evicted) = act(args, &instance)?;
    let lru = *ask(&args.mnt, &instance, Lru {})?.lru;
    let report = LruReport { lru, mnt: info.mnt, opened, evicted };
    let text = match args.json {
        true => commands::json(&report),
        false => told(&report) + &table::of(&report.lru),
    };
    commands::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The generation that `--age` opened, or the result of `--evict`; none without either.
fn act(args: &cli::Lru, instance: &Instance) -> Result<(Option<u64>, Option<Evicted>)> {
    if args.age {
        return Ok((Some(ask(&args.mnt, instance, Age {})?.seq), None));
    }
    let Some(seq) = args.evict else { return Ok((None, None)) };
    Ok((None, Some(ask(&args.mnt, instance, Evict { seq, pages: args.pages })?)))
}

fn told(report: &LruReport) -> String {
    match (report.opened, report.evicted) {
        (Some(seq), _) => format!("generation {seq} opened\n"),
        (None, Some(Evicted { evicted, kept })) => {
            format!("{evicted} pages evicted; {kept} kept, because they are unwritten or were in use\n")
        }
        (None, None) => String::new(),
    }
}

fn ask<C: Command>(mnt: &Path, instance: &Instance, command: C) -> Result<C::Reply> {
    commands::ask(instance, command).map_err(|no| Failure::new(mnt.display(), &no, cure(&no, instance)))
}

fn cure(no: &CommandError, instance: &Instance) -> String {
    let refused = match no.code {
        ErrorCode::NoGenerations => "mount with a policy that has them: strata or mglru-fg",
        _ => "`terrace lru MNT` lists the generations; name an older one, or open more with --age",
    };
    commands::cure(instance, no, refused)
}
