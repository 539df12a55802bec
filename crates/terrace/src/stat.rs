//! `terrace stat`: the cache's statistics, as text or JSON.

mod table;

use std::process::ExitCode;
use std::time::Duration;

use terrace_api::control::{Command, Mrc, Stat};
use terrace_api::stats::StatReport;

use crate::cli;
use crate::commands;
use crate::error::{EXIT_NEGATIVE, Failure, Result};
use crate::instance::{self, Info, Instance};
use crate::metrics;

/// Prints once, or repeatedly with `--watch`.
pub(crate) fn stat(args: &cli::Stat) -> Result<ExitCode> {
    let every = args.watch.map(interval).transpose()?;
    loop {
        let reports = match &args.mnt {
            Some(mnt) => vec![one(&commands::find(mnt)?, args)?],
            None => all(args)?,
        };
        let text = match args.prometheus {
            true => metrics::page(&reports),
            false if args.json => reports.iter().map(commands::json).collect(),
            false => reports.iter().map(table::of).collect(),
        };
        if !commands::print(&text)? {
            return Ok(ExitCode::SUCCESS);
        }
        match every {
            Some(every) => std::thread::sleep(every),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn interval(seconds: f64) -> Result<Duration> {
    let sane = (0.01..=86_400.0).contains(&seconds);
    sane.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| {
        Failure::new("--watch", format!("{seconds} is no interval"), "write 0.01 to 86400 seconds")
    })
}

fn all(args: &cli::Stat) -> Result<Vec<StatReport>> {
    // An instance that is just ending must not hide the others.
    let told: Vec<Result<StatReport>> = instance::living().iter().map(|found| one(found, args)).collect();
    if told.is_empty() {
        let cure = "start with `terrace mount SRC MNT` or `terrace run --on DIR -- CMD`";
        let failure = Failure::new("stat", "terrace serves nothing for this user", cure);
        return Err(failure.with_code(EXIT_NEGATIVE));
    }
    match told.iter().any(Result::is_ok) {
        true => Ok(told.into_iter().flatten().collect()),
        false => told.into_iter().collect(),
    }
}

fn one((instance, info): &(Instance, Info), args: &cli::Stat) -> Result<StatReport> {
    match args.mrc {
        true => read_with_mrc(instance, info),
        false => read(instance, info),
    }
}

/// Statistics together with their instance.
pub(crate) fn read(instance: &Instance, info: &Info) -> Result<StatReport> {
    Ok(metrics::report(info, ask(instance, info, Stat {})?))
}

/// [`read`], with estimates for other sizes of memory.
pub(crate) fn read_with_mrc(instance: &Instance, info: &Info) -> Result<StatReport> {
    Ok(StatReport { mrc: Some(ask(instance, info, Mrc {})?.mrc), ..read(instance, info)? })
}

fn ask<C: Command>(instance: &Instance, info: &Info, command: C) -> Result<C::Reply> {
    commands::asked(&info.mnt, instance, command)
}
