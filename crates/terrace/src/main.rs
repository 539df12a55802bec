//! terrace: a tiered page cache for programs whose data does not fit in memory. The command.
//!
//! | commands | |
//! |---|---|
//! | [`mount`] | `mount`, and `mount.fuse.terrace`, `umount.fuse.terrace` for mount(8) and umount(8) |
//! | [`run`] | `run`: a command with a directory served at its own path |
//! | [`running`] | `umount`, `flush`, `drop`, `check`, `resize`: sent to a running instance |
//! | [`stat`], [`top`], [`lru`], [`trace`] | state of an instance, lists of its policy, accesses |
//! | [`generate`] | man page, completions |
//!
//! | parts | |
//! |---|---|
//! | [`cli`], [`config`], [`size`], [`error`] | command line, configuration, messages |
//! | [`place`], [`mounts`], [`holders`] | source, mount point and the kernel's mounts |
//! | [`keeper`], [`report`], [`lost`] | the process that outlives crashes, and reports of lost data |
//! | [`fuse`] | the kernel's requests, answered by the engine's namespace |
//! | [`daemon`], [`control`], [`instance`] | terraced, its commands, its directory |
//! | [`cgroup`] | memory limits of this process |
//! | [`sys`] | system calls without a safe crate |

mod cgroup;
mod cli;
mod config;
mod control;
mod daemon;
mod error;
mod fuse;
mod generate;
mod holders;
mod instance;
mod keeper;
mod lost;
mod lru;
mod mount;
mod mounts;
mod place;
mod prefault;
mod report;
mod run;
mod running;
mod size;
mod stat;
mod sys;
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
    done.unwrap_or_else(|failure| {
        eprintln!("{failure}");
        failure.exit_code()
    })
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => running::umount(&args),
        Command::Run(args) => run::run(args),
        Command::Stat(args) => stat::stat(&args),
        Command::Top(args) => top::top(&args),
        Command::Lru(args) => lru::lru(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Flush(args) => running::flush(&args.mnt),
        Command::Drop(args) => running::drop(&args.mnt),
        Command::Check(args) => running::check(&args.mnt),
        Command::Resize(args) => running::resize(&args.mnt, args.size),
        Command::Generate(args) => generate::generate(args.what),
    }
}

/// The command line, or the exit code of help, version or a usage error.
fn parse() -> std::result::Result<Command, ExitCode> {
    let args =
        mount::from_helper_arguments(std::env::args_os()).unwrap_or_else(|| std::env::args_os().collect());
    Cli::try_parse_from(args).map(|cli| cli.command).map_err(|err| {
        if !err.use_stderr() {
            let _ = err.print();
            return ExitCode::SUCCESS;
        }
        let text = err.render().to_string();
        let why = match err.kind() {
            // Of this kind clap shows the help.
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command is given",
            _ => text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "),
        };
        let failure = Failure::new("usage", why, "see `terrace --help`");
        eprintln!("{failure}");
        failure.exit_code()
    })
}
