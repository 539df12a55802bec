//! In the virtual machine: its nodes, their persistent memory, terrace and the load.

use super::super::command::{output, wrong};
use super::super::pmem::{self, make_file};
use super::words::{REST, STOP, TIDS};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use terrace_api::numa::{Numa, NumaReport};
use terrace_system::{field, list, proc};
use terrace_testkit::wait::holds_within;

/// Pages of the large file: several times the cache.
pub(super) const LARGE_PAGES: u64 = 64 << 8;
/// Pages of a small file.
pub(super) const SMALL_PAGES: u64 = 1 << 8;
pub(super) const MEMORY: &str = "24MiB";
/// Mount point, separate from the source.
pub(super) const MOUNT: &str = "/mnt/served";
/// Nodes as slow as the emulated processors, for thresholds are parts of these. Without a codec, the
/// compressed tier does not hold all files, so there are misses.
const CONFIG: &str = "numa_read_mb_s = 200\nnuma_write_mb_s = 20\n[tier.compressed]\ncodec = \"none\"\n";
const CONFIG_PATH: &str = "/tmp/terrace.toml";

/// Setup common to all machines.
pub(super) fn prepare() -> io::Result<()> {
    fs::write(CONFIG_PATH, CONFIG)?;
    fs::create_dir_all(MOUNT)
}

#[derive(Debug)]
pub(super) struct Fixture {
    /// Processors of each node.
    pub nodes: Vec<Vec<usize>>,
}

impl Fixture {
    /// Makes a file system with files on each node's persistent memory, at `/mnt/NODE`.
    pub(super) fn new(nodes: usize) -> io::Result<Fixture> {
        output(Command::new("mount").args(["-t", "cgroup2", "none", "/sys/fs/cgroup"]))?;
        let cpus = |node: usize| fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
        let nodes: Vec<Vec<usize>> =
            (0..nodes).map(|node| cpus(node).map(|text| list(&text))).collect::<io::Result<_>>()?;
        let fixture = Fixture { nodes };
        fixture.make_file_systems()?;
        Ok(fixture)
    }

    fn make_file_systems(&self) -> io::Result<()> {
        for number in 0..self.nodes.len() {
            pmem::wait_for(number)?;
            let node = fs::read_to_string(format!("/sys/block/pmem{number}/device/numa_node"))?;
            let dir = format!("/mnt/{}", node.trim());
            pmem::make_file_system(number, &dir)?;
            make_file(&format!("{dir}/large"), LARGE_PAGES)?;
            (0..4).try_for_each(|n| make_file(&format!("{dir}/own.{n}"), LARGE_PAGES / 8))?;
            make_file(&format!("{dir}/small"), SMALL_PAGES)?;
        }
        Ok(())
    }

    /// The node with the highest number; the load starts on node 0.
    pub(super) fn far(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Directory of its files.
    pub(super) fn far_dir(&self) -> String {
        format!("/mnt/{}", self.far())
    }

    pub(super) fn far_cpus(&self) -> &[usize] {
        &self.nodes[self.far()]
    }

    /// Takes the far node's memory offline block by block, as far as possible. Returns the offline blocks,
    /// and the number of others.
    pub(super) fn take_far_memory(&self) -> io::Result<(Vec<PathBuf>, usize)> {
        let (mut off, mut kept) = (Vec::new(), 0);
        for entry in fs::read_dir(format!("/sys/devices/system/node/node{}", self.far()))? {
            let state = entry?.path().join("state");
            if !fs::read_to_string(&state).is_ok_and(|now| now.trim() == "online") {
                continue;
            }
            // Blocks with kernel pages stay online.
            match fs::write(&state, "offline") {
                Ok(()) => off.push(state),
                Err(_) => kept += 1,
            }
        }
        Ok((off, kept))
    }

    /// Brings the blocks online again.
    pub(super) fn give_far_memory(&self, off: &[PathBuf]) -> io::Result<()> {
        off.iter().try_for_each(|state| fs::write(state, "online_movable"))
    }

    /// Size of a memory block.
    pub(super) fn block_mib(&self) -> io::Result<u64> {
        let text = fs::read_to_string("/sys/devices/system/memory/block_size_bytes")?;
        u64::from_str_radix(text.trim(), 16).map(|bytes| bytes >> 20).map_err(|_| wrong("no size of a block"))
    }

    pub(super) fn all_cpus(&self) -> Vec<usize> {
        self.nodes.concat()
    }

    /// The command of the load: `KIND COUNT FILE [OUT]`, started on node 0.
    pub(super) fn load(&self, kind: &str, count: usize, files: &[&str]) -> Vec<String> {
        let cpus: Vec<String> = self.nodes[0].iter().map(usize::to_string).collect();
        let words = ["/bin/xtask", "vm", "inside", "load", kind, &count.to_string(), &cpus.join(",")];
        words.iter().chain(files).map(|&word| word.to_owned()).collect()
    }

    /// Starts the load under `terrace run --numa auto` on the far node's files, optionally in the control
    /// group `group`.
    pub(super) fn run(&self, load: &[String], group: Option<&str>) -> io::Result<Load> {
        let mut command = match group {
            None => terrace(&["run"]),
            Some(group) => {
                let join = format!("echo $$ > {group}/cgroup.procs && exec terrace run \"$@\"");
                let mut command = Command::new("sh");
                command.args(["-c", &join, "sh"]).env("TERRACE_CONFIG", CONFIG_PATH);
                command
            }
        };
        // Its reads are direct: with leases the kernel alone would serve them.
        command.args(["--mount", "--passthrough", "off", "--numa", "auto", "--memory", MEMORY]);
        command.args(["--on", &self.far_dir(), "--"]).args(load);
        Load::begin(&mut command)
    }

    /// The far node's files, served at [`MOUNT`].
    pub(super) fn mount(&self) -> io::Result<()> {
        let mut command = terrace(&["mount", &self.far_dir(), MOUNT, "--numa", "auto", "--memory", MEMORY]);
        output(&mut command).map(|_| ())
    }
}

/// A running program with its threads.
#[derive(Debug)]
pub(super) struct Load {
    child: Child,
    pub tids: Vec<u32>,
}

impl Load {
    /// Starts it, and waits until its threads run.
    pub(super) fn begin(command: &mut Command) -> io::Result<Load> {
        for path in [STOP, REST, TIDS] {
            let _ = fs::remove_file(path);
        }
        let mut child = command.stdin(Stdio::null()).spawn()?;
        let began = holds_within(Duration::from_secs(30), || {
            Path::new(TIDS).exists() || child.try_wait().is_ok_and(|status| status.is_some())
        });
        let tids = fs::read_to_string(TIDS).unwrap_or_default();
        let tids: Vec<u32> = tids.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if !began || tids.is_empty() {
            let _ = child.kill();
            return Err(wrong("the load does not begin"));
        }
        Ok(Load { child, tids })
    }

    /// Ends it; an error of one of its threads is an error.
    pub(super) fn end(mut self) -> io::Result<()> {
        fs::write(STOP, "")?;
        let mut status = None;
        holds_within(Duration::from_secs(30), || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(wrong(format!("the load: {status}"))),
            None => Err(wrong("the load does not end")),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = fs::write(STOP, "");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `terrace ARGUMENTS...`.
pub(super) fn terrace(arguments: &[&str]) -> Command {
    let mut command = Command::new("terrace");
    command.args(arguments).env("TERRACE_CONFIG", CONFIG_PATH);
    command
}

/// The report of `terrace numa`.
pub(super) fn numa(mnt: &str) -> io::Result<Numa> {
    let text = output(&mut terrace(&["numa", mnt, "--json"]))?;
    Ok(serde_json::from_str::<NumaReport>(&text)?.numa)
}

/// Processors that a thread may use.
pub(super) fn mask(tid: u32) -> Vec<usize> {
    let status = proc::text(tid, "status").unwrap_or_default();
    field(&status, "Cpus_allowed_list").map(list).unwrap_or_default()
}

/// Process ids of terrace.
pub(super) fn processes() -> Vec<i32> {
    let is_ours = |pid: &i32| proc::text(pid, "comm").is_ok_and(|comm| comm.starts_with("terrace"));
    proc::pids().filter(is_ours).collect()
}
