//! `terrace-bench demo`: one load, once through the kernel's page cache and once under `terrace run`, in the same memory; a small table.

use crate::steps::Step;
use crate::suites::fio::{SPARE_MIB, Scale, Study};
use crate::suites::{MIB, fio_sample};
use crate::system::{self, Places, Run, System};
use crate::trial::{Sample, number};
use clap::Args;
use std::io;
use std::path::PathBuf;

/// The demonstration's options.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// A directory with one file, `data`, twice as large as the memory.
    #[arg(long)]
    dir: PathBuf,
    /// Memory of either side in MiB.
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
    /// Seconds of warm-up.
    #[arg(long, default_value_t = 15)]
    warm: u64,
    /// Seconds measured.
    #[arg(long, default_value_t = 15)]
    measure: u64,
}

/// Runs both sides, prints the table; the exit code is 1 where contents differ.
pub fn run(options: &Demo) -> io::Result<i32> {
    system::catch_signals();
    let bench = std::env::current_exe()?;
    let scratch = options.dir.with_extension("scratch");
    std::fs::create_dir_all(&scratch)?;
    let dir = options.dir.canonicalize()?;
    let places = Places {
        data: dir,
        scratch: scratch.canonicalize()?,
        terrace: bench.with_file_name("terrace"),
        bench,
        terrace_args: Vec::new(),
        lenient: true,
        favour: false,
        throttle: None,
    };
    let result = compare(&places, options);
    let _ = std::fs::remove_dir_all(&scratch);
    result.map_err(io::Error::other)
}

fn compare(places: &Places, options: &Demo) -> Result<i32, String> {
    let (limit, spare) = (options.memory_mib * MIB, SPARE_MIB * MIB);
    let scale = Scale { limit, warm_s: options.warm, measure_s: options.measure, spare };
    let study = Study { scale, file: "data", distribution: "zipf:0.8:0.5", jobs: 2 };
    let limited =
        crate::cgroup::OwnedGroup::create(&format!("terrace-demo-{}", std::process::id()), Some(scale.limit))
            .is_ok_and(|g| g.limits_memory());
    if !limited {
        println!(
            "No right to make a memory cgroup: the kernel's side runs without a limit, so the table favours it. As root both get the same."
        );
    }
    let memory = if limited { study.largest_memory(places)? } else { limit };
    let limit = limited.then_some(limit);

    let mut columns = Vec::new();
    for system in [System::Kernel, System::Terrace { memory, fast_door: true }] {
        let seconds = options.warm + options.measure;
        println!(
            "fio on {}: {} s of warm-up, {} s measured ...",
            system.name(),
            options.warm,
            seconds - options.warm
        );
        let run = system::run(places, &system, limit, |_| {
            let mut steps = study.steps(11);
            steps.push(Step::new("sha256", ["sh", "-c", "sha256sum < {dir}/data"]));
            let bench = places.bench.display().to_string();
            steps.push(Step::new("digest", [bench.as_str(), "worker", "digest", "{dir}/data"]));
            steps
        })?;
        let sample = fio_sample(run.step("measure")?, "read")?;
        columns.push((system.name(), sample, contents(&run)?, run.step("measure")?.foreign_cpu()));
    }
    print_table(options, limited, &columns);
    Ok(i32::from(columns[0].2 != columns[1].2))
}

/// Both ways to read the file: coreutils stay inside libc (main door), pread is interposed (fast door).
fn contents(run: &Run) -> Result<[String; 2], String> {
    Ok([run.step("sha256")?.output.clone(), run.step("digest")?.output.clone()])
}

fn print_table(options: &Demo, limited: bool, columns: &[(&'static str, Sample, [String; 2], f64)]) {
    let title = if limited { "in" } else { "(no limit for the kernel), terrace" };
    println!(
        "\nfio, 2 jobs, random 4 KiB reads (zipf 0.8) of {} MiB of files {title} {} MiB of memory\n",
        options.memory_mib * 2,
        options.memory_mib
    );
    println!("{:30} {:>12} {:>12}", "", columns[0].0, columns[1].0);
    let rows: [(&str, &str, f64); 4] = [
        ("throughput, MiB/s", "mib_per_s", 1.0),
        ("p99 latency, us", "latency_us_p99", 1.0),
        ("misses, % of reads", "device_reads_per_op", 100.0),
        ("CPU a read, us (all processes)", "cpu_us_per_op", 1.0),
    ];
    for (label, metric, factor) in rows {
        let cell = |i: usize| columns[i].1.get(metric).map_or("-".to_string(), |v| number(v * factor));
        println!("{label:30} {:>12} {:>12}", cell(0), cell(1));
    }
    let same = columns[0].2 == columns[1].2;
    println!(
        "\nContents read through both doors of terrace and from the plain directory: {}.",
        if same { "equal (SHA-256 and a second digest)" } else { "DIFFERENT: please report this" }
    );
    if columns.iter().any(|c| c.3 > crate::trial::FOREIGN_CPU_MAX) {
        println!("Other programs used the processors meanwhile: the numbers are not to be trusted.");
    }
}
