//! `vm numa`: `--numa auto` on machines of two and four memory nodes with persistent memory on each, and on a kernel without nodes.

mod checks;
mod fixture;
pub(super) mod inside;
pub(super) mod load;
mod words;

use super::image::Image;
use super::kernel::Kernel;
use super::machine::{Machine, directory, told};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of one machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Memory of all nodes.
const MEMORY_MIB: u32 = 2048;
/// Persistent memory of each node; the next constant is the reserve behind it: the firmware uses the last
/// pages of memory.
const PMEM_MIB: u32 = 128;
const BEHIND_MIB: u32 = 128;
const PROCESSORS: u32 = 4;

#[derive(Debug, Clone, Copy)]
struct Kind {
    nodes: u32,
    /// The kernel ignores nodes.
    unaware: bool,
}

/// Boots the machines one after the other; `nodes` selects by number of nodes.
pub(super) fn run(root: &Path, nodes: Option<u32>) -> io::Result<()> {
    let dir = directory(root);
    let kernel = Kernel::get(&dir)?;
    let kinds = [(2, false), (4, false), (2, true)].map(|(nodes, unaware)| Kind { nodes, unaware });
    for kind in kinds.into_iter().filter(|kind| nodes.is_none_or(|nodes| nodes == kind.nodes)) {
        let (begun, unaware) = (Instant::now(), if kind.unaware { ", a kernel without NUMA" } else { "" });
        terrace_output::print_line!("{} nodes{unaware}", kind.nodes)?;
        let lines = boot(root, &dir, &kernel, kind)?;
        let passed = told(&lines, "ok").len();
        let seconds = begun.elapsed().as_secs_f64();
        terrace_output::print_line!("{} nodes{unaware}: {passed} checks passed, {seconds:.0} s", kind.nodes)?;
    }
    Ok(())
}

fn boot(root: &Path, dir: &Path, kernel: &Kernel, kind: Kind) -> io::Result<Vec<String>> {
    let modules = ["fuse", "nd_pmem", "nd_e820"];
    let image = Image::new(
        &dir.join("numa"),
        kernel,
        &modules,
        &format!("numa {}", if kind.unaware { 1 } else { kind.nodes }),
    )?;
    image.add_terrace(root)?;
    image.add_program("mkfs.ext4")?;
    let machine = Machine {
        kernel: kernel.image.clone(),
        initial: image.pack()?,
        hardware: hardware(kind.nodes),
        parameters: parameters(kind),
        limit: LIMIT,
    };
    machine.run()
}

fn hardware(nodes: u32) -> Vec<String> {
    let (memory, processors) = (MEMORY_MIB / nodes, PROCESSORS / nodes);
    let mut options =
        vec![format!("-m {MEMORY_MIB}M"), format!("-smp {PROCESSORS},sockets={nodes},cores={processors}")];
    for node in 0..nodes {
        let (first, last) = (node * processors, node * processors + processors - 1);
        options.push(format!("-object memory-backend-ram,id=m{node},size={memory}M"));
        options.push(format!("-numa node,nodeid={node},cpus={first}-{last},memdev=m{node}"));
    }
    for (from, to) in
        (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))).filter(|(from, to)| from != to)
    {
        options.push(format!("-numa dist,src={from},dst={to},val=21"));
    }
    options.iter().flat_map(|option| option.split(' ')).map(str::to_owned).collect()
}

/// Memory for movable pages, divided among the nodes: the kernel does not use it itself, so it can go
/// offline.
const MOVABLE_MIB: u32 = 1024;

/// The memory of QEMU's machine starts at address 0, node after node, without a hole below 2 GiB.
fn parameters(kind: Kind) -> String {
    let each = MEMORY_MIB / kind.nodes;
    let mut parameters = format!("movablecore={MOVABLE_MIB}M ");
    for node in 0..kind.nodes {
        let at = u64::from(each * (node + 1) - BEHIND_MIB - PMEM_MIB) << 20;
        parameters += &format!("memmap={PMEM_MIB}M!{at:#x} ");
    }
    parameters + if kind.unaware { "numa=off" } else { "" }
}
