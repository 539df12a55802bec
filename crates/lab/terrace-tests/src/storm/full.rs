//! The storm role `full`: more writes than the source has room for. Every successful write must be readable,
//! and be in the source after the mount's end. The only allowed error is ENOSPC.

use super::Done;
use crate::pages::{PAGE, stamp, version};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const FILES: u64 = 3;
const BLOCKS: u64 = 4000;

/// The generation of each block, by file and number.
type Blocks = BTreeMap<(u64, u64), u64>;

/// Works in `dir` for the time `lasts`, and writes the expected content to the file `expected`.
pub fn run(dir: &Path, expected: &Path, lasts: Duration, seed: u64) -> Done {
    let open = |n| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(name(dir, n));
    let files: Vec<File> =
        (0..FILES).map(open).collect::<Result<_, _>>().map_err(|why| format!("open: {why}"))?;
    let (mut rng, mut blocks, mut full) = (Rng::new(seed), Blocks::new(), 0u64);
    let end = Instant::now() + lasts;
    // Continues at least until the source was full.
    for generation in 1.. {
        if Instant::now() > end && (full > 0 || Instant::now() > end + 10 * lasts) {
            break;
        }
        full += step(&files, &mut rng, &mut blocks, generation)?;
    }
    verify(dir, &blocks)?;
    println!("{} blocks, refused for want of room {full} times", blocks.len());
    if full == 0 {
        return Err("there was room for everything".into());
    }
    let mut text = String::new();
    for ((file, block), generation) in &blocks {
        writeln!(text, "{file} {block} {generation}").expect("a string takes all");
    }
    fs::write(expected, text).map_err(|why| format!("{}: {why}", expected.display()))
}

fn name(dir: &Path, file: u64) -> std::path::PathBuf {
    dir.join(format!("full{file}"))
}

/// One write, and sometimes more. Returns the number of ENOSPC errors.
fn step(files: &[File], rng: &mut Rng, blocks: &mut Blocks, generation: u64) -> Result<u64, String> {
    let (file, block) = (rng.below(FILES), rng.below(BLOCKS));
    let real = &files[file as usize];
    let mut bytes = [0; PAGE];
    stamp(&mut bytes, file * BLOCKS + block, generation);
    let full = match real.write_at(&bytes, block * PAGE as u64) {
        Ok(PAGE) => {
            blocks.insert((file, block), generation);
            0
        }
        // A short write leaves the block in an unknown state.
        Ok(_) => u64::from(blocks.remove(&(file, block)).is_some()),
        Err(why) => refused("pwrite", &why)?,
    };
    if full > 0 && rng.chance(2) {
        let emptied = rng.below(FILES);
        files[emptied as usize].set_len(0).map_err(|why| format!("ftruncate: {why}"))?;
        blocks.retain(|(file, _), _| *file != emptied);
    }
    if rng.below(500) == 0
        && let Err(why) = real.sync_all()
    {
        refused("fsync", &why)?;
    }
    if rng.chance(5)
        && let Some((at, generation)) = blocks.range((file, block)..).next()
    {
        compare(&files[at.0 as usize], *at, *generation)?;
    }
    Ok(full)
}

/// ENOSPC, or an unexpected error.
fn refused(what: &str, why: &std::io::Error) -> Result<u64, String> {
    if why.raw_os_error() == Some(libc::ENOSPC) { Ok(1) } else { Err(format!("{what}: {why}")) }
}

fn compare(file: &File, (name, block): (u64, u64), generation: u64) -> Done {
    let mut bytes = [0; PAGE];
    let read = file.read_exact_at(&mut bytes, block * PAGE as u64);
    let is = version(&bytes, name * BLOCKS + block);
    if read.is_ok() && is == Ok(generation) {
        return Ok(());
    }
    Err(format!("file {name}, block {block}: {read:?}, {is:?}; generation {generation} was answered"))
}

fn verify(dir: &Path, blocks: &Blocks) -> Done {
    for n in 0..FILES {
        let file = File::open(name(dir, n)).map_err(|why| format!("file {n}: {why}"))?;
        for (at, generation) in blocks.range((n, 0)..(n + 1, 0)) {
            compare(&file, *at, *generation)?;
        }
    }
    Ok(())
}

/// Compares a directory with a file of expectations.
pub fn check(dir: &Path, expected: &Path) -> Done {
    let text = fs::read_to_string(expected).map_err(|why| format!("{}: {why}", expected.display()))?;
    let numbers =
        |line: &str| -> Vec<u64> { line.split(' ').map(|n| n.parse().expect("a number")).collect() };
    let blocks = text.lines().map(numbers).map(|n| ((n[0], n[1]), n[2])).collect();
    verify(dir, &blocks)
}
