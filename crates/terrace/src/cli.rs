//! The command line of `terrace`: commands, options and help texts. Other modules carry the commands out.

mod tier;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::size::{Part, Span};
pub(crate) use tier::{Tier, TierAdd, TierDrop, TierList, TierRemove, TierResize, TierShow};

/// A tiered page cache for programs whose data does not fit in memory.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  terrace run --on ./data --memory 2GiB -- ./program    data is served by terrace while program runs
  terrace mount /data /mnt/data --memory 4GiB           the same for all programs, until umount
  terrace mount /data /mnt/data --tier /ssd/data.tier:64GiB     more than memory, warm at the next mount
  terrace stat /mnt/data --watch 1
  terrace stat /mnt/data --mrc                          hit ratios of other memory sizes

Exit codes: 0 done, 1 negative answer, 2 usage or error; of `run` the command's own.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory through terrace at another place
    Mount(Mount),
    /// Write everything back and end a mount
    Umount(Umount),
    /// Run a command for which a directory is served by terrace at its own path
    Run(Run),
    /// Serve keys and values to clients of Redis and memcached
    #[command(subcommand)]
    Serve(Serve),
    /// Show the cache's statistics
    Stat(Stat),
    /// Show a mount live in the terminal: hit ratio, tiers, misses, evictions
    Top(Top),
    /// Show the eviction policy's lists: generations, tiers, refaults
    Lru(Lru),
    /// Show which memory nodes each thread reads from, and which moves would help
    Numa(NumaArgs),
    /// Record which pages are accessed, for `terrace-sim sim`
    Trace(Trace),
    /// Write everything unwritten to stable storage of the source
    Sync(Place),
    /// Drop clean pages from the cache
    DropCaches(Place),
    /// Check that index, frames and policy agree
    Check(Place),
    /// Change the memory limit of a live mount
    Resize(Resize),
    /// Read files into the cache before a program needs them, or write their data back after it
    #[command(subcommand)]
    Stage(Stage),
    /// Check what terrace can use on this machine, the cost of what is missing, and the cure
    Doctor(Doctor),
    /// Show and empty tiers on devices
    #[command(subcommand)]
    Tier(Tier),
    /// Show, write or discard synced data that only a tier has, of files changed since a power cut
    Recover(Recover),
    /// Print the man page or shell completions
    Generate(Generate),
}

/// `terrace recover`.
#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// The file or block device of the tier, which no instance uses
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// List it: bytes and file (the default)
    #[arg(long, conflicts_with_all = ["write", "discard"])]
    pub show: bool,
    /// Write it over the files' present content
    #[arg(long, conflicts_with = "discard")]
    pub write: bool,
    /// Discard it: the files stay as they are
    #[arg(long)]
    pub discard: bool,
}

/// Settings of an instance; each overrides the environment and the file.
#[derive(Debug, Args, Clone, Default)]
pub(crate) struct Tuning {
    /// Limit on all memory of terrace, for example 512MiB or 1.5G; `auto` (the default): as much as other
    /// programs can spare and as saves time [environment: TERRACE_MEMORY]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Eviction policy; its help text comes from the policies' names.
    #[arg(long, value_name = "NAME", help = policy_help())]
    pub policy: Option<String>,
    /// Tier below DRAM: a file (made if it does not exist) or a block device on a local SSD, or a store
    /// (s3://BUCKET/PREFIX or fs:///DIRECTORY). Up to eight times: targets measured to be alike share the
    /// pages, slower ones get the pages that faster ones give up [environment: TERRACE_TIER]
    #[arg(long, value_name = "PATH[:SIZE]")]
    pub tier: Vec<OsString>,
    /// Erase what is on the tier, if it is not a tier of this source or has another size
    #[arg(long)]
    pub format_tier: bool,
    /// Threads on machines with several memory nodes: `auto` moves them to the node that holds the data they
    /// read, `show` decides and moves nothing, `off` [environment: TERRACE_NUMA]
    #[arg(long, value_name = "MODE")]
    pub numa: Option<String>,
    /// Files that programs write, or that programs read without the preload path: `auto` lets the kernel
    /// itself read and write them, at the speed of the source (root, Linux 6.9, no tier on a device), `off`;
    /// `run` (the default): auto under `terrace run --mount`. `auto` and `off` make `terrace run` mount
    /// [environment: TERRACE_PASSTHROUGH]
    #[arg(long, value_name = "MODE")]
    pub passthrough: Option<String>,
    /// Configuration file, instead of the ones searched for [environment: TERRACE_CONFIG]
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics; a port alone is one of 127.0.0.1
    /// [environment: TERRACE_METRICS]
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Let other machines read the metrics: they show paths and statistics
    #[arg(long)]
    pub metrics_public: bool,
}

fn policy_help() -> String {
    format!("Eviction policy: {} [environment: TERRACE_POLICY]", terrace_policy::NAMES.join(", "))
}

/// `terrace mount`.
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// The directory to be cached
    #[arg(value_name = "SRC")]
    pub src: PathBuf,
    /// The directory where it is served
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Setup of the cache
    #[command(flatten)]
    pub tuning: Tuning,
    /// Stay in the foreground; end with SIGINT or SIGTERM
    #[arg(long)]
    pub foreground: bool,
    /// Mount options as mount(8) gives them: memory=, policy=, tier=, metrics=, config=, ro, noatime, ...
    #[arg(short = 'o', value_name = "OPTIONS", hide = true)]
    pub options: Option<String>,
    /// As in mount(8): ignore unknown options
    #[arg(short = 's', hide = true)]
    pub sloppy: bool,
    /// As in mount(8): do everything but the mount itself
    #[arg(short = 'f', hide = true)]
    pub fake: bool,
}

/// `terrace umount`.
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// As in umount(8): detach the mount now, and end it when the last open file is closed
    #[arg(short = 'l', hide = true)]
    pub lazy: bool,
    /// As in umount(8): fail the requests that wait for an answer
    #[arg(short = 'f', hide = true)]
    pub force: bool,
}

/// `terrace run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The directory that terrace serves to the command
    #[arg(long, value_name = "DIR")]
    pub on: PathBuf,
    /// Leave a directory below it as it is, for logs, build output or temporary files; may be given more than
    /// once
    #[arg(long, value_name = "DIR")]
    pub except: Vec<PathBuf>,
    /// Setup of the cache
    #[command(flatten)]
    pub tuning: Tuning,
    /// Read this file or directory below it into the cache before the command starts; may be given more than
    /// once
    #[arg(long, value_name = "PATH")]
    pub stage_in: Vec<PathBuf>,
    /// Write this file or directory below it to stable storage of the source before the run ends, and report
    /// failures; may be given more than once
    #[arg(long, value_name = "PATH")]
    pub stage_out: Vec<PathBuf>,
    /// Prefetch what the command will read, by a schedule that `terrace-bench schedule` made of a recording
    #[arg(long, value_name = "FILE.schedule")]
    pub prefetch: Option<PathBuf>,
    /// Serve by a mount over the directory, for all accesses of the command (--passthrough and `durable = "tier"`
    /// imply it). Without, programs use the directory itself, and large files are read from memory and tiers
    /// while no program has them open for writing
    #[arg(long)]
    pub mount: bool,
    /// State that only programs of this run write below the directory while it runs, as a database's lock file
    /// states it: files are then read from memory also while programs write them
    #[arg(long, conflicts_with_all = ["mount", "no_preload"])]
    pub exclusive: bool,
    /// Do not set the preload library: every access takes the mount path
    #[arg(long)]
    pub no_preload: bool,
    /// Write the final statistics here, as JSON
    #[arg(long, value_name = "FILE.json")]
    pub stats: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `terrace serve`.
#[derive(Debug, Subcommand)]
pub(crate) enum Serve {
    /// Keys and values, with Redis' protocol and memcached's, until SIGTERM or Ctrl-C
    Kv(ServeKv),
}

/// `terrace serve kv`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_KV_HELP)]
pub(crate) struct ServeKv {
    /// Directory of the store; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Setup of the cache
    #[command(flatten)]
    pub tuning: Tuning,
    /// TCP port [default: 6379, unless --unix is given]
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Address of the port; one that other machines can reach needs a password [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Socket in the file system, for this user alone
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// TCP port for clients of memcached, at the same address, without a password [default: none]
    #[arg(long, value_name = "PORT", conflicts_with_all = ["password_file", "cluster"])]
    pub memcached: Option<u16>,
    /// When a write survives a power cut: from its reply on, after a second, or at some time
    #[arg(long, value_enum, value_name = "WHEN", default_value = "1s")]
    pub sync: Sync,
    /// File whose first line is the password that clients must give
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Map of several servers that share the keys
    #[arg(long, value_name = "NODES.toml")]
    pub cluster: Option<PathBuf>,
    /// Clients at one time [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub clients_max: Option<u32>,
    /// Threads that serve clients [default: one a processor, 8 at most; on two or three processors four,
    /// while no more than four clients are connected]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

const SERVE_KV_HELP: &str = "\
Acknowledged writes survive a crash or kill of the server: a second process holds the memory for the next server. --sync chooses
which writes survive the death of both processes, or a power cut. Without --memory, or with `auto`, the memory is 1 GiB.

  terrace serve kv --dir ./keys --memory 1GiB
  redis-cli set greeting hello
  terrace stat ./keys";

/// When writes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sync {
    /// Before the reply
    Always,
    /// A second later at the most
    #[value(name = "1s")]
    EverySecond,
    /// When room is needed, and at the end
    No,
}

/// A command about one mount.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
}

/// `terrace stat`.
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// The mount; without it, every mount of this user
    #[arg(value_name = "MNT")]
    pub mnt: Option<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Repeat every so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub watch: Option<f64>,
    /// Also print the estimated hit ratio of other memory sizes, from a sample of the accesses so far
    #[arg(long)]
    pub mrc: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub prometheus: bool,
}

/// `terrace top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The mount; without it, the only one of this user
    #[arg(value_name = "MNT")]
    pub mnt: Option<PathBuf>,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Serve a live page for a browser at http://ADDRESS/ instead; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Let other machines read the page
    #[arg(long, requires = "http")]
    pub http_public: bool,
}

/// `terrace doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct Doctor {
    /// The directory to be served
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_HELP: &str = "\
Changes nothing. Exit codes: 0 terrace can serve here (with less speed where something is missing), 1 it cannot.";

/// `terrace lru`.
#[derive(Debug, Args)]
#[command(after_help = LRU_HELP)]
pub(crate) struct Lru {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// First open a new generation: pages used since the last one was opened move to the youngest before it
    #[arg(long, conflicts_with = "evict")]
    pub age: bool,
    /// First evict the pages of this generation and of all older ones
    #[arg(long, value_name = "SEQ")]
    pub evict: Option<u64>,
    /// Evict so many pages at the most
    #[arg(long, value_name = "N", requires = "evict")]
    pub pages: Option<u64>,
}

const LRU_HELP: &str = "\
Working set: `--age` now and then; the generations younger than the one that was opened at some moment hold what was used
since then. Reclaim before need: `--evict` an old generation, whose pages were not used since it was the youngest.
The two youngest generations cannot be evicted; pages that are unwritten or in use stay.";

/// `terrace numa`.
#[derive(Debug, Args)]
#[command(after_help = NUMA_HELP)]
pub(crate) struct NumaArgs {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const NUMA_HELP: &str = "\
Under `run --numa show` or `auto` this is the last second; without, accesses are watched for half a second. Bytes are estimated from a
sample. Reads that the kernel's own page cache serves are not counted.";

/// `terrace trace`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_HELP)]
pub(crate) struct Trace {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Write the trace here; a file that exists is replaced
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: PathBuf,
    /// End after so many seconds; without it, with Ctrl-C
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// End when the file is about this large
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub max: String,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

const TRACE_HELP: &str = "\
The trace has each page of the reads and writes that reach terrace: by the mount, or by the preload path, whose clients record their
hits in shared memory. Reads that the kernel's own page cache serves are missing. No program waits for the recorder: under load
accesses are lost; the file and the summary count them. Accesses of different threads are in order of time, to about a millisecond.

  terrace trace /mnt/data -o data.trace --seconds 60
  terrace-bench schedule data.trace -o program.schedule     for `terrace run --prefetch`
  terrace-sim sim --trace data.trace --policy strata,lru --size 1%,10%";

/// `terrace resize`.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// The new limit, for example 2GiB, or auto
    #[arg(value_name = "SIZE")]
    pub size: String,
}

/// `terrace stage`.
#[derive(Debug, Subcommand)]
pub(crate) enum Stage {
    /// Read files into the cache; cached pages are not read again
    In(StageIn),
    /// Write the unwritten data of files to stable storage of the source
    Out(StageOut),
}

/// `terrace stage in`.
#[derive(Debug, Args)]
pub(crate) struct StageIn {
    /// Which files, and how
    #[command(flatten)]
    pub common: StageFiles,
    /// Only this part of each file, for example 0-4GiB
    #[arg(long, value_name = "FROM-TO")]
    pub part: Option<Part>,
    /// Pin it in memory for this time, for example 2h: other pages are evicted first. At most half of the
    /// memory can be pinned
    #[arg(long, value_name = "TIME")]
    pub pin: Option<Span>,
    /// Keep it in this tier instead of memory: the name or level of a tier on devices, as `terrace stat`
    /// shows them. Pages that programs used again stay in memory
    #[arg(long, value_name = "TIER", conflicts_with = "pin")]
    pub to: Option<String>,
}

/// `terrace stage out`.
#[derive(Debug, Args)]
pub(crate) struct StageOut {
    /// Which files, and how
    #[command(flatten)]
    pub common: StageFiles,
    /// Then drop them from memory; copies in tiers on devices stay
    #[arg(long)]
    pub drop: bool,
}

/// Files to be staged.
#[derive(Debug, Args)]
pub(crate) struct StageFiles {
    /// Served files, and directories with all files below them
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Resolve relative paths in this mount instead of the working directory
    #[arg(long, value_name = "MNT")]
    pub mount: Option<PathBuf>,
    /// Files, or pieces of them, staged at once
    #[arg(long, value_name = "N", default_value_t = STAGE_WORKERS, value_parser = workers)]
    pub workers: usize,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Default and maximum number of workers of `terrace stage`.
pub(crate) const STAGE_WORKERS: usize = 4;
const WORKERS_MAX: usize = 64;

fn workers(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=WORKERS_MAX).contains(n));
    number.ok_or_else(|| format!("write a number from 1 to {WORKERS_MAX}"))
}

/// `terrace generate`.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// What to print
    #[arg(value_enum, value_name = "WHAT")]
    pub what: What,
}

/// Outputs of `terrace generate`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum What {
    /// The man page, terrace(1)
    Man,
    /// Completions for bash
    CompleteBash,
    /// Completions for zsh
    CompleteZsh,
    /// Completions for fish
    CompleteFish,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_dashes_is_the_command() {
        let args = ["terrace", "run", "--on", "d", "--", "ls", "-l", "--memory", "x"];
        let Command::Run(run) = Cli::try_parse_from(args).unwrap().command else { panic!("not run") };
        assert_eq!(run.command, ["ls", "-l", "--memory", "x"]);
        assert!(run.tuning.memory.is_none());
    }
}
