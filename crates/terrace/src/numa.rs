//! `terrace numa`: each thread's reads by memory node, and proposed moves.

use std::fmt::Write;
use std::process::ExitCode;

use terrace_api::control;
use terrace_api::numa::{Numa, NumaMode, NumaMove, NumaReport, NumaThread};

use crate::cli;
use crate::commands;
use crate::error::Result;

const THREADS_SHOWN: usize = 30;

/// Shows nodes, threads and moves.
pub(crate) fn numa(args: &cli::NumaArgs) -> Result<ExitCode> {
    let (instance, info) = commands::find(&args.mnt)?;
    let numa = *commands::asked(&args.mnt, &instance, control::Numa {})?.numa;
    let text = match args.json {
        true => commands::json(&NumaReport { numa, mnt: info.mnt }),
        false => told(&numa),
    };
    commands::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn told(numa: &Numa) -> String {
    if numa.nodes.len() < 2 {
        return "this machine has one memory node: there is nothing to place\n".into();
    }
    let mut out = nodes(numa);
    if numa.stale {
        out.push_str("another recording is under way: the numbers are of an earlier second, or missing\n");
    }
    threads(numa, &mut out);
    for m in &numa.moves {
        let _ = writeln!(out, "{}", moved(m, numa));
    }
    if numa.frame_bytes_to_move > 0 {
        let mib = numa.frame_bytes_to_move >> 20;
        let _ = writeln!(out, "{mib} MiB of frames are to move to the nodes of their readers");
    }
    let state = match numa.mode {
        NumaMode::Off => "nothing is moved: `--numa auto` at the mount moves threads and frames",
        NumaMode::Show => "nothing is moved: the mount has `--numa show`",
        NumaMode::Auto if numa.moves.is_empty() => "no thread needs to move, or none may",
        NumaMode::Auto => "threads are moved each second",
    };
    let frames = numa.frame_bytes_moved >> 20;
    let _ = writeln!(out, "{state}; {} moves of threads and {frames} MiB of frames so far", numa.moved);
    out
}

fn nodes(numa: &Numa) -> String {
    let mut out = format!(
        "{:>5}{:>7}{:>7}{:>12}{:>12}{:>12}\n",
        "node", "cpus", "busy", "frames MiB", "load MB/s", "after"
    );
    for node in &numa.nodes {
        let _ = writeln!(
            out,
            "{:>5}{:>7}{:>7.1}{:>12}{:>12.1}{:>12.1}",
            node.node,
            node.cpus,
            node.cpus_busy,
            node.frame_bytes >> 20,
            node.load_bytes_s / 1e6,
            node.predicted_bytes_s / 1e6
        );
    }
    out
}

fn threads(numa: &Numa, out: &mut String) {
    if numa.threads.is_empty() {
        out.push_str("no thread used the cache\n");
        return;
    }
    let _ = write!(out, "\n{:>9} {:16}{:>5}{:>6}", "thread", "name", "node", "cpu");
    numa.nodes.iter().for_each(|node| {
        let _ = write!(out, "{:>12}", format!("read {}", node.node));
    });
    let _ = writeln!(out, "{:>12}{:>12}", "elsewhere", "write MB/s");
    numa.threads.iter().take(THREADS_SHOWN).for_each(|thread| row(thread, out));
    let more = numa.threads.len().saturating_sub(THREADS_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "and {more} more");
    }
    out.push('\n');
}

fn row(thread: &NumaThread, out: &mut String) {
    let NumaThread { tid, name, node, cpu, .. } = thread;
    let _ = write!(out, "{tid:>9} {name:16}{node:>5}{cpu:>6.2}");
    for bytes in &thread.reads_bytes_s {
        let _ = write!(out, "{:>12.1}", bytes / 1e6);
    }
    let bound = if thread.bound { "  bound" } else { "" };
    let (elsewhere, writes) = (thread.reads_elsewhere_bytes_s / 1e6, thread.writes_bytes_s / 1e6);
    let _ = writeln!(out, "{elsewhere:>12.1}{writes:>12.1}{bound}");
}

fn moved(m: &NumaMove, numa: &Numa) -> String {
    let why = match m.why.as_str() {
        "remote" => format!("it reads most from node {}", m.to),
        "sharing" => format!("it shares a file with threads of node {}", m.to),
        "memory" => format!("the memory of node {} is overloaded", m.from),
        _ => format!("the processors of node {} are busy", m.from),
    };
    let did = match (&m.refused, m.done) {
        (Some(refused), _) => format!("not moved: {refused}"),
        (None, true) => "moved".into(),
        (None, false) => "would move".into(),
    };
    let name = numa.threads.iter().find(|t| t.tid == m.tid).map_or("", |t| t.name.as_str());
    format!("thread {} {name}: node {} to {}, {why}: {did}", m.tid, m.from, m.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::numa::NumaNode;

    fn node(node: u32) -> NumaNode {
        NumaNode { node, cpus: 4, ..NumaNode::default() }
    }

    #[test]
    fn one_node_has_nothing_to_place() {
        let numa = Numa { nodes: vec![node(0)], ..Numa::default() };
        assert_eq!(told(&numa), "this machine has one memory node: there is nothing to place\n");
    }

    #[test]
    fn threads_and_moves_are_told() {
        let thread = NumaThread {
            tid: 77,
            name: "reader".into(),
            node: 0,
            reads_bytes_s: vec![0.0, 250e6],
            bound: true,
            ..NumaThread::default()
        };
        let m = NumaMove { tid: 77, from: 0, to: 1, why: "remote".into(), ..NumaMove::default() };
        let refused = NumaMove { refused: Some("it has ended".into()), why: "memory".into(), ..m.clone() };
        let nodes = vec![node(0), node(1)];
        let text = told(&Numa { nodes, threads: vec![thread], moves: vec![m, refused], ..Numa::default() });
        assert!(
            text.contains("thread 77 reader: node 0 to 1, it reads most from node 1: would move"),
            "{text}"
        );
        assert!(text.contains("the memory of node 0 is overloaded: not moved: it has ended"), "{text}");
        assert!(text.contains("250.0") && text.contains("bound"), "{text}");
    }
}
