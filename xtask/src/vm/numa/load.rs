//! In the virtual machine: a program with threads that read and write through terrace, started on a node without
//! their data.
//!
//! `load KIND COUNT CPUS FILE [OUT]`. COUNT threads start on CPUS and read FILE in random order. With OUT, a
//! write of 128 KiB follows each read of 64 KiB. Kinds: `sip` reads a page every 50 ms, `nip` 16 pages every
//! 10 ms; `run` and `mix` read without pauses. If `FILE` or `OUT` ends with a dot, the thread's number is
//! appended. The number in every page read is verified. All threads end when [`STOP`] exists. When [`REST`]
//! exists, they close FILE and wait for [`STOP`].

use super::super::command::wrong;
use super::words::{PAGE, REST, STOP, TIDS};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;
use terrace_system::list;
use terrace_testkit::rng::Rng;

/// Pages of one read.
const READ_PAGES: usize = 16;
/// Bytes of one write, and of the repeatedly overwritten file.
const WRITE_BYTES: usize = 128 << 10;
const OUT_BYTES: u64 = 2 << 20;

/// Parameters of a thread.
#[derive(Debug, Clone)]
struct Part {
    kind: String,
    number: usize,
    file: String,
    out: Option<String>,
}

/// Runs the threads to their end.
pub(crate) fn run(arguments: &[&str]) -> io::Result<()> {
    let [kind, count, cpus, file, out @ ..] = arguments else { return Err(wrong("load: too few arguments")) };
    let count: usize = count.parse().map_err(|_| wrong("load: COUNT is no number"))?;
    let own = |name: &str, number: usize| {
        if name.ends_with('.') { format!("{name}{number}") } else { name.to_owned() }
    };
    let (tids, begin) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Barrier::new(count + 1)));
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let part = Part {
                kind: (*kind).to_owned(),
                number,
                file: own(file, number),
                out: out.first().map(|out| own(out, number)),
            };
            let (tids, begin, cpus) = (tids.clone(), begin.clone(), list(cpus));
            let body = move || {
                tids.lock().expect("no thread panics").push(rustix::thread::gettid().as_raw_nonzero().get());
                begin.wait();
                start_on(&cpus)?;
                work(&part)
            };
            std::thread::Builder::new().stack_size(256 << 10).name(format!("load-{number}")).spawn(body)
        })
        .collect::<io::Result<_>>()?;
    begin.wait();
    let list: Vec<String> = tids.lock().expect("no thread panics").iter().map(i32::to_string).collect();
    fs::write("/tmp/tids.new", list.join(" "))?;
    fs::rename("/tmp/tids.new", TIDS)?;
    for thread in threads {
        thread.join().map_err(|_| wrong("load: a thread panicked"))??;
    }
    Ok(())
}

/// Moves this thread to these processors, then allows its former ones: the kernel leaves it there while they
/// are idle.
fn start_on(cpus: &[usize]) -> io::Result<()> {
    let own = rustix::thread::sched_getaffinity(None)?;
    let mut first = CpuSet::new();
    cpus.iter().filter(|&&cpu| own.is_set(cpu)).for_each(|&cpu| first.set(cpu));
    // Empty if the program is bound elsewhere.
    if first.count() > 0 {
        sched_setaffinity(None, &first)?;
        sched_setaffinity(None, &own)?;
    }
    Ok(())
}

fn work(part: &Part) -> io::Result<()> {
    let open = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&part.file);
    let mut file = Some(open().map_err(|err| wrong(format!("{}: {err}", part.file)))?);
    let out = part
        .out
        .as_ref()
        .map(|out| OpenOptions::new().create(true).truncate(false).write(true).open(out))
        .transpose()?;
    let mut buf = Aligned([0; READ_PAGES * PAGE]);
    let pages = file.as_ref().map_or(Ok(0), |file| file.metadata().map(|meta| meta.len()))? / PAGE as u64;
    // Random order: readahead would turn misses into hits.
    let mut rng = Rng::new(part.number as u64);
    let mut written = 0;
    while !Path::new(STOP).exists() {
        if Path::new(REST).exists() {
            file = None;
        }
        let Some(file) = &file else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let count = if part.kind == "sip" { 1 } else { READ_PAGES };
        let at = rng.below(pages / count as u64) * count as u64;
        read(file, at, &mut buf.0[..count * PAGE])?;
        if let Some(out) = &out {
            out.write_all_at(&vec![part.number as u8; WRITE_BYTES], written)?;
            written = (written + WRITE_BYTES as u64) % OUT_BYTES;
        }
        match part.kind.as_str() {
            "sip" => std::thread::sleep(Duration::from_millis(50)),
            "nip" => std::thread::sleep(Duration::from_millis(10)),
            _ => {}
        }
    }
    Ok(())
}

fn read(file: &File, page: u64, buf: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(buf, page * PAGE as u64)?;
    for (n, found) in buf.chunks(PAGE).enumerate() {
        let found = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        if found != page + n as u64 {
            return Err(wrong(format!("load: page {} holds {found}", page + n as u64)));
        }
    }
    Ok(())
}

#[repr(align(4096))]
struct Aligned([u8; READ_PAGES * PAGE]);
