//! A simulation that writes its state now and then, as burst-buffer jobs do: the Gray-Scott reaction of two substances, on a periodic cube by a
//! 7-point stencil (J. E. Pearson, Complex Patterns in a Simple System, Science 261, 1993; ADIOS2's example `gray-scott` has the same parameters).
//!
//! An output is two files of `size`³ numbers of 8 bytes, little-endian, x fastest: `step-NNNNNN.u` and `.v`. In the end all outputs are read again and
//! compared with the checksums of what was written. The state depends on the options alone, not on the number of threads: `bench/hpc/gray_scott.py` does the
//! same operations in the same order and gets the same bits.

mod solver;

use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use solver::{Field, Reaction, Solver};

/// Bytes of one write or read.
const PIECE_BYTES: usize = 1 << 20;

/// Options of `terrace-bench gray-scott`.
#[derive(Debug, Args)]
pub struct Options {
    /// Directory of the outputs; made if it is not there.
    #[arg(long)]
    dir: PathBuf,
    /// Cells along each edge of the cube.
    #[arg(long, default_value_t = 128)]
    size: usize,
    #[arg(long, default_value_t = 3200)]
    steps: u64,
    /// Steps between two outputs.
    #[arg(long, default_value_t = 16)]
    plotgap: u64,
    #[command(flatten)]
    reaction: Reaction,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Make each output durable before the simulation goes on.
    #[arg(long)]
    fsync: bool,
    /// JSON instead of a line.
    #[arg(long)]
    json: bool,
}

/// What was done, and how long it took.
#[derive(Debug, Serialize)]
struct Summary {
    steps: u64,
    outputs: usize,
    bytes: u64,
    /// Of the last output: checksums (CRC-32) of u and v.
    crc32: [String; 2],
    compute_s: f64,
    output_s: f64,
    reread_s: f64,
}

/// A file and the checksum of what was written to it.
struct Written {
    path: PathBuf,
    crc32: u32,
}

/// Simulates, writes, reads again. Exit code 1: an output is not what was written.
pub fn run(options: &Options) -> io::Result<i32> {
    if options.size < 8 || options.plotgap == 0 || options.threads == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "--size is at least 8, --plotgap and --threads at least 1",
        ));
    }
    std::fs::create_dir_all(&options.dir)?;
    let mut solver = Solver::new(options.size, options.reaction);
    let (mut compute, mut output) = (Duration::ZERO, Duration::ZERO);
    let mut written = Vec::new();
    for step in 1..=options.steps {
        let begun = Instant::now();
        solver.step(options.threads);
        compute += begun.elapsed();
        if step % options.plotgap == 0 {
            let begun = Instant::now();
            for (name, field) in [("u", solver.u()), ("v", solver.v())] {
                written.push(write(options, step, name, field)?);
            }
            output += begun.elapsed();
        }
    }
    let begun = Instant::now();
    let wrong = written.iter().find_map(|file| reread(file).transpose()).transpose()?;
    if let Some(path) = wrong {
        eprintln!("terrace-bench: {}: not what was written", path.display());
        return Ok(1);
    }
    let last =
        |nth: usize| written.iter().rev().nth(nth).map_or_else(String::new, |w| format!("{:08x}", w.crc32));
    let summary = Summary {
        steps: options.steps,
        outputs: written.len() / 2,
        bytes: written.len() as u64 * (options.size as u64).pow(3) * 8,
        crc32: [last(1), last(0)],
        compute_s: compute.as_secs_f64(),
        output_s: output.as_secs_f64(),
        reread_s: begun.elapsed().as_secs_f64(),
    };
    tell(&summary, options.json)?;
    Ok(0)
}

fn tell(summary: &Summary, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        return writeln!(out, "{}", serde_json::to_string(summary)?);
    }
    let [u, v] = &summary.crc32;
    writeln!(
        out,
        "{} steps, {} outputs, {} bytes, the last is {u} {v}",
        summary.steps, summary.outputs, summary.bytes
    )?;
    eprintln!(
        "computed in {:.2} s, written in {:.2} s, read again in {:.2} s",
        summary.compute_s, summary.output_s, summary.reread_s
    );
    Ok(())
}

fn write(options: &Options, step: u64, name: &str, field: &Field) -> io::Result<Written> {
    let path = options.dir.join(format!("step-{step:06}.{name}"));
    let named = |err: io::Error| io::Error::new(err.kind(), format!("{}: {err}", path.display()));
    let mut file = File::create(&path).map_err(named)?;
    let (mut crc, mut piece) = (crc32fast::Hasher::new(), Vec::with_capacity(PIECE_BYTES));
    for cells in field.chunks(PIECE_BYTES / 8) {
        piece.clear();
        piece.extend(cells.iter().flat_map(|cell| cell.to_le_bytes()));
        crc.update(&piece);
        file.write_all(&piece).map_err(named)?;
    }
    if options.fsync {
        file.sync_all().map_err(named)?;
    }
    Ok(Written { path: path.clone(), crc32: crc.finalize() })
}

/// The path of a file that is not what was written.
fn reread(written: &Written) -> io::Result<Option<&Path>> {
    let (mut file, mut crc) = (File::open(&written.path)?, crc32fast::Hasher::new());
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            n => crc.update(&piece[..n]),
        }
    }
    Ok((crc.finalize() != written.crc32).then_some(written.path.as_path()))
}
