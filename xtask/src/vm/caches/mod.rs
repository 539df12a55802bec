//! `vm caches`: what bcache and dm-cache (smq) read from the source and write to the cache for recorded accesses, beside terrace's simulated
//! tier of the same size. Times are not compared.
//!
//! Both sides have the same memory above the device: the simulator its policy's frames, the kernel's caches an LRU of as many pages
//! ([`lru::misses`]), whose misses are read one after the other with O_DIRECT. All requests are reads, as in the simulator.

pub mod inside;
mod lru;
mod plan;
mod table;
mod trace;

use super::command::{output, wrong};
use super::image::Image;
use super::kernel::Kernel;
use super::machine::{Machine, directory, told};
use plan::{Counts, Plan, System};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use table::Row;
use trace::Trace;

/// A million reads take four minutes.
const LIMIT: Duration = Duration::from_secs(1800);

/// Replays the traces; without any, two small ones are made.
pub fn run(root: &Path, traces: &[PathBuf]) -> io::Result<()> {
    let dir = directory(root);
    let kernel = Kernel::get(&dir)?;
    let made = if traces.is_empty() { plan::make_traces(&dir)? } else { Vec::new() };
    let mut rows = Vec::new();
    for path in traces.iter().chain(&made) {
        let trace = Trace::load(path)?;
        rows.push(simulated(root, path, &trace)?);
        for system in System::ALL {
            println!("{} on {}: {} reads", trace.name, system.name(), trace.misses.len());
            rows.push(replayed(&dir, &kernel, &trace, system)?);
        }
    }
    print!("{}", table::markdown(&rows));
    Ok(())
}

/// What terrace's simulator says.
fn simulated(root: &Path, path: &Path, trace: &Trace) -> io::Result<Row> {
    let program = root.join("target/release/terrace-sim");
    if !program.exists() {
        return Err(wrong(format!("{} is missing; `make build` builds it", program.display())));
    }
    let mut command = Command::new(program);
    command.args(["sim", "--policy", "strata", "--json", "--trace"]).arg(path);
    command.args(["--size", &trace.memory.to_string(), "--device", &trace.device.to_string()]);
    let report: serde_json::Value = serde_json::from_str(&output(&mut command)?)?;
    let with_device = |cell: &&serde_json::Value| cell["device_pages"].as_u64() == Some(trace.device);
    let cells = report["cells"].as_array().into_iter().flatten();
    let cell = cells.into_iter().find(with_device).ok_or_else(|| wrong("terrace-sim tells no such cell"))?;
    let count = |key: &str| cell[key].as_u64().ok_or_else(|| wrong(format!("terrace-sim tells no {key}")));
    let misses = count("misses")?;
    let counts = Counts {
        source_reads: misses,
        source_read_bytes: misses * plan::PAGE,
        cache_written_bytes: count("bytes_written")?,
    };
    Ok(Row::new(trace, "terrace (simulated)", trace.requests - count("dram_hits")?, counts))
}

/// What a system in a virtual machine counts.
fn replayed(dir: &Path, kernel: &Kernel, trace: &Trace, system: System) -> io::Result<Row> {
    let image = Image::new(&dir.join("caches"), kernel, system.modules(), "caches")?;
    for program in system.programs() {
        image.add_program(program)?;
    }
    let plan = Plan { system, span_pages: trace.span, device_pages: trace.device };
    image.add_text(plan::PLAN, &serde_json::to_string(&plan)?)?;
    let misses: Vec<u8> = trace.misses.iter().flat_map(|page| page.to_le_bytes()).collect();
    image.add(plan::READS, &misses)?;
    let machine = Machine {
        kernel: kernel.image.clone(),
        initial: image.pack()?,
        hardware: ["-m", "2G", "-smp", "2"].map(str::to_owned).to_vec(),
        parameters: String::new(),
        limit: LIMIT,
    };
    let lines = machine.run()?;
    let counts = told(&lines, plan::RESULT);
    let counts = counts.first().ok_or_else(|| wrong("the virtual machine told no counters"))?;
    Ok(Row::new(trace, system.name(), trace.misses.len() as u64, serde_json::from_str(counts)?))
}
