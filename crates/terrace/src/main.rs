//! The command `terrace`: a tiered page cache for programs with more data than memory.
//!
//! | commands | |
//! |---|---|
//! | [`mount`] | `mount`, and `mount.fuse.terrace`, `umount.fuse.terrace` for mount(8) and umount(8) |
//! | [`run`] | `run`: a command with a directory served at its own path |
//! | [`commands`] | `umount`, `sync`, `drop-caches`, `check`, `resize`: sent to a running instance |
//! | [`stat`], [`top`], [`lru`], [`trace`], [`numa`] | state of an instance, lists of its policy, accesses, memory nodes |
//! | [`stage`] | files read into the cache before a program, and written back after it |
//! | [`tier`] | tiers on devices: opened for an instance, shown, emptied |
//! | [`recover`] | undestaged pages, which only a tier has after a power cut |
//! | [`doctor`] | checks of the machine |
//! | [`serve`] | `serve kv`: keys over a store |
//! | [`generate`] | man page, completions |
//!
//! | parts | |
//! |---|---|
//! | [`cli`], [`config`], [`size`], [`error`] | command line, configuration, messages |
//! | [`http`], [`metrics`] | a small HTTP server, and metrics for Prometheus |
//! | [`mountpoint`], [`claim`], [`mounts`], [`holders`] | source, mount point and the kernel's mounts |
//! | [`supervisor`], [`data_loss`] | the process that outlives crashes, and reports of lost data |
//! | [`daemon`], [`engine`], [`control`], [`instance`] | terraced, its cache, its commands, its directory |
//! | [`handover`] | resources that terraced inherits, and messages between it and the supervisor |
//! | [`cgroup`] | memory limits of this process |
//! | [`sys`] | system calls without a safe crate |

// Printing may fail (full disk, closed pipe): `commands::print` and `terrace_output::error_line` handle that.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod cgroup;
mod claim;
mod cli;
mod commands;
mod config;
mod control;
mod daemon;
mod data_loss;
mod doctor;
mod engine;
mod error;
mod generate;
mod handover;
mod holders;
mod http;
mod instance;
mod limits;
mod lru;
mod metrics;
mod mount;
mod mountpoint;
mod mounts;
mod numa;
mod prefault;
mod recover;
mod run;
mod serve;
mod size;
mod stage;
mod stat;
mod supervisor;
mod sweep;
mod sys;
mod tier;
mod top;
mod trace;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command};
use error::{Failure, Result};

#[global_allocator]
static ALLOCATOR: prefault::Prefault = prefault::Prefault;

fn main() -> ExitCode {
    let done = match parse() {
        Ok(command) => execute(command),
        Err(code) => return code,
    };
    done.unwrap_or_else(failed)
}

fn failed(failure: Failure) -> ExitCode {
    terrace_output::error_line!("{failure}");
    mount::exit_code(&failure)
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => commands::umount(&args),
        Command::Run(args) => run::run(args),
        Command::Serve(what) => serve::serve(what),
        Command::Stat(args) => stat::stat(&args),
        Command::Top(args) => top::top(&args),
        Command::Lru(args) => lru::lru(&args),
        Command::Numa(args) => numa::numa(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Sync(args) => commands::sync(&args.mnt),
        Command::DropCaches(args) => commands::drop_caches(&args.mnt),
        Command::Check(args) => commands::check(&args.mnt),
        Command::Resize(args) => commands::resize(&args.mnt, args.size),
        Command::Stage(args) => stage::stage(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Tier(args) => tier::tier(&args),
        Command::Recover(args) => recover::recover(&args),
        Command::Generate(args) => generate::generate(args.what),
    }
}

/// The command line, or the exit code of help, version or a usage error.
fn parse() -> std::result::Result<Command, ExitCode> {
    let args =
        mount::from_helper_arguments(std::env::args_os()).unwrap_or_else(|| std::env::args_os().collect());
    Cli::try_parse_from(args).map(|cli| cli.command).map_err(|err| {
        if !err.use_stderr() {
            let help = err.render();
            let printed = commands::print(&terrace_output::styled(&help, help.ansi()));
            return printed.map_or_else(failed, |_| ExitCode::SUCCESS);
        }
        let text = err.render().to_string();
        let why = match err.kind() {
            // For this kind, clap's text is the whole help.
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command is given",
            _ => text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "),
        };
        failed(Failure::new("usage", why, "see `terrace --help`"))
    })
}
