//! One measurement: fio at random offsets of a target's file, for a given time.

use super::target::{Target, Way, with_name};
use crate::fio::{self, Report};
use crate::signals::interrupted;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_api::device_profile::{Cell, Op};

const MIB: u64 = 1 << 20;
/// Bytes that are written and read back with checksums, to see that the storage keeps what it is given.
const CHECKED: u64 = 4 * MIB;

/// One measured load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Reads or writes.
    pub op: Op,
    /// Bytes of the data set: the beginning of the file.
    pub data: u64,
    /// Bytes of an operation.
    pub transfer: usize,
    /// Processes at it.
    pub processes: usize,
    /// Time measured; a tenth of it goes before.
    pub millis: u64,
}

/// Measures a load.
///
/// # Errors
/// fio is not there, or failed; a signal came.
pub fn measure(target: &Target, load: &Load) -> io::Result<Cell> {
    let (rw, direction) = match load.op {
        Op::Get => ("randread", "read"),
        Op::Put => ("randwrite", "write"),
    };
    let millis = load.millis;
    let mut options = vec![
        format!("--rw={rw}"),
        format!("--bs={}", load.transfer),
        format!("--size={}", load.data),
        format!("--numjobs={}", load.processes),
        format!("--runtime={millis}ms"),
        format!("--ramp_time={}ms", millis / 10),
        "--time_based=1".into(),
        "--norandommap=1".into(),
        "--randrepeat=0".into(),
        "--percentile_list=50:99".into(),
    ];
    if load.op == Op::Put && target.way != Way::Mapped {
        // A write counts when it is stable: inside of its time.
        options.push("--end_fsync=1".into());
    }
    let report = run(target, &options, direction)?;
    let us = |us: Option<f64>| (us.unwrap_or(f64::NAN) * 100.0).round() / 100.0;
    Ok(Cell {
        data_mib: load.data / MIB,
        op: load.op,
        transfer_kib: load.transfer as u64 >> 10,
        processes: load.processes,
        ops: report.ios as u64,
        latency_us: us(report.mean_us),
        latency_us_p50: us(report.percentile_us(50.0)),
        latency_us_p99: us(report.percentile_us(99.0)),
        mib_s: (report.bytes_per_s / MIB as f64 * 10.0).round() / 10.0,
    })
}

/// Fills the beginning of the file, for some time at the most; how many bytes of it there are then, whole MiB.
///
/// # Errors
/// No room, no fio.
pub fn lay_out(target: &Target, bytes: u64, at_most: Duration) -> io::Result<u64> {
    let seconds = format!("--runtime={}", at_most.as_secs());
    let size = format!("--size={bytes}");
    let options = ["--rw=write", "--bs=1m", "--end_fsync=1", &seconds, &size].map(String::from);
    let named = |e: io::Error| with_name(Path::new(&target.name), &e);
    // fio would lay out a shorter file itself, after unlinking it.
    target.set_len(bytes).map_err(named)?;
    let report = run(target, &options, "write").map_err(named)?;
    target.settle().map_err(named)?;
    Ok(report.bytes as u64 / MIB * MIB)
}

/// Writes blocks at random and reads them back with their checksums.
///
/// # Errors
/// As [`measure`]; storage that does not keep what it is given.
pub fn check(target: &Target, data: u64) -> io::Result<()> {
    let (size, io_size) = (format!("--size={data}"), format!("--io_size={}", CHECKED.min(data)));
    let options = [
        "--rw=randwrite",
        "--bs=4k",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        &size,
        &io_size,
    ];
    match run(target, &options.map(String::from), "write") {
        Err(e) if e.to_string().contains("error 84") => {
            Err(io::Error::other(format!("WRONG DATA: this storage does not keep what it is given ({e})")))
        }
        result => result.map(drop),
    }
}

fn run(target: &Target, options: &[String], direction: &str) -> io::Result<Report> {
    let mut command = Command::new("fio");
    command.args(["--name=probe", "--group_reporting=1", "--invalidate=0", "--output-format=json"]);
    command.arg(format!("--filename={}", target.path().display()));
    command.args(match target.way {
        Way::Direct => ["--ioengine=psync", "--direct=1"],
        Way::Cached => ["--ioengine=psync", "--direct=0"],
        Way::Mapped => ["--ioengine=mmap", "--direct=0"],
    });
    command.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: prctl with plain numbers is safe between fork and exec. fio ends with us, however we end.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let told = |e: io::Error| io::Error::new(e.kind(), format!("fio: {e} (install the package fio)"));
    let out = command.output().map_err(told)?;
    if interrupted() {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let why =
        |e: String| io::Error::other(format!("{e}: {}", said.lines().next().unwrap_or("no word of why")));
    fio::report(&String::from_utf8_lossy(&out.stdout), direction).map_err(why)
}
