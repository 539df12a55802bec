//! `terrace-sim placement`: time of a batch on targets of given room and bandwidth, by placement engine.

use std::fmt::Write;
use std::io;

use clap::Args;
use serde::Serialize;
use terrace_output::print;
use terrace_policy::placement::{NAMES, Share, Target, build};

use super::options::json;

const GB: f64 = 1e9;

/// Options of `placement`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: RAM, NVMe and SSD, with a batch of 40 GB
  terrace-sim placement --target ram:20:6 --target nvme:150:0.39 --target ssd:400:0.51 --write 40")]
pub(crate) struct Placement {
    /// A target: its name, GB of room, GB/s of writes; may be given more than once, the upper tiers first
    #[arg(long = "target", value_name = "NAME:GB:GB/S", value_parser = target,
        default_values = ["ram:20:6", "nvme:150:0.39", "ssd:400:0.51"])]
    targets: Vec<Named>,
    /// GB written; default: 0.5, 1 and 2 times the room of all targets but the last
    #[arg(long, value_name = "GB", value_delimiter = ',')]
    write: Vec<f64>,
    /// MiB of a piece; `round-robin` and `random` do not cut pieces
    #[arg(long, value_name = "MIB", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    piece: u64,
    /// Seed of `random`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Results as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
struct Named {
    name: String,
    target: Target,
}

fn target(text: &str) -> Result<Named, String> {
    let fail = || format!("`{text}` is not NAME:GB:GB/S, for example nvme:150:0.39");
    let parts: Vec<&str> = text.split(':').collect();
    let [name, room, write] = parts[..] else { return Err(fail()) };
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n < 1e9).ok_or_else(fail);
    let target = Target { free: (number(room)? * GB) as u64, queued: 0, write: number(write)? * GB };
    Ok(Named { name: name.to_owned(), target })
}

/// One result.
#[derive(Debug, Serialize)]
struct Cell {
    engine: &'static str,
    /// Size of the batch.
    write_gb: f64,
    /// Time until the slowest target is ready: the program's waiting time.
    seconds: f64,
    /// Sum over all targets.
    seconds_sum: f64,
    /// Bandwidth relative to round-robin.
    to_round_robin: f64,
    /// Data that fit into no target, GB.
    left_gb: f64,
    /// Placed data by target, GB.
    placed_gb: Vec<f64>,
}

/// Places the batches, and prints the result.
pub(crate) fn run(options: &Placement) -> io::Result<()> {
    let targets: Vec<Target> = options.targets.iter().map(|named| named.target).collect();
    let sizes = sizes(options, &targets)?;
    let cells: Vec<Cell> = sizes.iter().flat_map(|size| of_size(options, &targets, *size)).collect();
    match options.json {
        true => {
            let names: Vec<&str> = options.targets.iter().map(|named| named.name.as_str()).collect();
            print(&json(
                &serde_json::json!({ "schema": "terrace.placement.v1", "targets": names, "cells": cells }),
            )?)
        }
        false => print(&table(options, &cells)),
    }
}

fn sizes(options: &Placement, targets: &[Target]) -> io::Result<Vec<f64>> {
    let upper: u64 = targets[..targets.len() - 1].iter().map(|target| target.free).sum();
    let sizes = match options.write.is_empty() {
        true => [0.5, 1.0, 2.0].map(|times| times * upper as f64 / GB).to_vec(),
        false => options.write.clone(),
    };
    match sizes.iter().find(|size| !(**size > 0.0 && **size <= 1e6)) {
        Some(bad) => Err(io::Error::other(format!(
            "cannot write {bad} GB: give --write of 1e6 GB at the most, or two targets"
        ))),
        None => Ok(sizes),
    }
}

fn of_size(options: &Placement, targets: &[Target], gb: f64) -> Vec<Cell> {
    let piece = options.piece << 20;
    let bytes = (gb * GB) as u64;
    let mut pieces = vec![piece; (bytes / piece) as usize];
    pieces.extend(Some(bytes % piece).filter(|rest| *rest > 0));
    let mut cells: Vec<Cell> =
        NAMES.iter().map(|engine| cell(engine, options.seed, &pieces, targets)).collect();
    let usual = cells.iter().find(|cell| cell.engine == "round-robin").expect("an engine of NAMES").seconds;
    for cell in &mut cells {
        cell.to_round_robin = usual / cell.seconds;
    }
    cells
}

fn cell(engine: &'static str, seed: u64, pieces: &[u64], targets: &[Target]) -> Cell {
    let mut shares: Vec<Share> = Vec::new();
    build(engine, seed).expect("an engine of NAMES").place(pieces, targets, &mut shares);
    let mut placed = vec![0; targets.len()];
    for share in shares {
        placed[share.target] += share.bytes;
    }
    let bytes: u64 = pieces.iter().sum();
    let times = || placed.iter().zip(targets).map(|(bytes, target)| target.seconds(*bytes));
    Cell {
        engine,
        write_gb: bytes as f64 / GB,
        seconds: times().fold(0.0, f64::max),
        seconds_sum: times().sum(),
        to_round_robin: 1.0,
        left_gb: (bytes - placed.iter().sum::<u64>()) as f64 / GB,
        placed_gb: placed.iter().map(|bytes| *bytes as f64 / GB).collect(),
    }
}

fn table(options: &Placement, cells: &[Cell]) -> String {
    let mut out =
        format!("{:>9}  {:<12} {:>9} {:>9} {:>8}", "write GB", "engine", "slowest s", "sum s", "speed");
    for named in &options.targets {
        let _ = write!(out, " {:>10}", named.name);
    }
    out.push_str("     left\n");
    for cell in cells {
        let Cell { engine, write_gb, seconds, seconds_sum, to_round_robin, left_gb, .. } = cell;
        let _ = write!(
            out,
            "{write_gb:>9.1}  {engine:<12} {seconds:>9.1} {seconds_sum:>9.1} {to_round_robin:>8.2}"
        );
        for gb in &cell.placed_gb {
            let _ = write!(out, " {gb:>10.1}");
        }
        let _ = writeln!(out, " {left_gb:>8.1}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_odd_ones_refused() {
        let nvme = target("nvme:150:0.5").unwrap();
        assert_eq!((nvme.name.as_str(), nvme.target.free, nvme.target.write), ("nvme", 150_000_000_000, 5e8));
        for odd in ["nvme", "nvme:1", "nvme:1:0", "nvme:-1:1", "nvme:1:x", "a:1:1:1", "a:inf:1", "a:nan:1"] {
            assert!(target(odd).unwrap_err().contains("NAME:GB:GB/S"), "{odd}");
        }
    }

    #[test]
    fn default_beats_round_robin_and_random_on_published_devices() {
        let targets = [(20, 6.0), (150, 0.39), (400, 0.51)];
        let targets =
            targets.map(|(gb, write)| Target { free: gb * 1_000_000_000, queued: 0, write: write * GB });
        let pieces = vec![1 << 20; 38_147];
        let seconds = |engine| cell(engine, 1, &pieces, &targets).seconds;
        let (ours, usual) = (seconds("min-io-time"), seconds("round-robin"));
        assert!((ours - 22.2).abs() < 0.1 && (usual - 34.2).abs() < 0.1, "{ours} {usual}");
        assert!(seconds("random") > 1.34 * ours && seconds("min-io-sum") > 1.7 * ours);
    }
}
