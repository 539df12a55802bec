//! In the virtual machine: the checks of `vm dax`. Programs read a tier on persistent memory, with and
//! without the library, across a kill of terraced and a new mount.

use super::super::command::{output, wrong};
use super::super::image::PRELOAD;
use super::super::pmem;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;
use terrace_api::stats::StatReport;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::holds_within;

const PMEM: &str = "/mnt/pmem";
const SOURCE: &str = "/mnt/pmem/src";
const MOUNT: &str = "/mnt/served";
/// Pages of the file: three times the memory, and less than the tier.
const PAGES: u64 = 48 << 8;
const TIER: &str = "/mnt/pmem/tier:96MiB";
/// Without a codec, so that the compressed tier does not hold the whole file.
const CONFIG: &str = "[tier.compressed]\ncodec = \"none\"\n";
const CONFIG_PATH: &str = "/tmp/terrace.toml";

/// All checks; each needs the state of the earlier ones.
pub(crate) fn run() -> io::Result<()> {
    pmem::make_file_system(0, PMEM)?;
    fs::create_dir_all(SOURCE)?;
    fs::create_dir_all(MOUNT)?;
    fs::write(CONFIG_PATH, CONFIG)?;
    pmem::make_file(&format!("{SOURCE}/large"), PAGES)?;
    mount()?;
    lies_on_dax()?;
    output(Command::new("terrace").args(["stage", "in", MOUNT, "--to", "0"]))?;
    let read = hits_of(client)?;
    passed("clients read the tier", read > PAGES / 2, format!("{read} of {PAGES} pages"))?;
    let by_clients = report()?.cache.preload.hits;
    passed("by themselves", by_clients > PAGES / 2, format!("{by_clients} hits of the preload path"))?;
    kill_terraced()?;
    let read = hits_of(client)?;
    passed("and when terraced was killed", read > PAGES / 2, format!("{read} of {PAGES} pages"))?;
    output(Command::new("terrace").args(["umount", MOUNT]))?;
    mount()?;
    let read = hits_of(client)?;
    passed("and in the next mount", read > PAGES / 2, format!("{read} of {PAGES} pages"))?;
    let read = hits_of(plain)?;
    passed("and programs without the library", read > PAGES / 2, format!("{read} of {PAGES} pages"))?;
    output(Command::new("terrace").args(["umount", MOUNT])).map(drop)
}

/// Reads all pages in random order, and checks each.
pub(crate) fn reader(path: &str, seed: &str) -> io::Result<()> {
    let file = File::open(path)?;
    let mut pages: Vec<u64> = (0..PAGES).collect();
    let mut rng = Rng::new(seed.parse().map_err(|_| wrong("the seed is no number"))?);
    (1..pages.len()).rev().for_each(|i| pages.swap(i, rng.below(i as u64 + 1) as usize));
    let mut page = [0; 4096];
    for number in pages {
        file.read_exact_at(&mut page, number * 4096)?;
        let is = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
        if is != number || page[8..].iter().any(|byte| *byte != 0) {
            return Err(wrong(format!("page {number} of {path} is that of {is}")));
        }
    }
    Ok(())
}

fn mount() -> io::Result<()> {
    let mut command = Command::new("terrace");
    // Source and tier are on one kind of memory here, so neither is faster.
    command.env("TERRACE_TEST_TIER_ALWAYS_FASTER", "1").env("TERRACE_CONFIG", CONFIG_PATH);
    output(command.args(["mount", SOURCE, MOUNT, "--memory", "16MiB", "--tier", TIER])).map(drop)
}

fn lies_on_dax() -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    /// STATX_ATTR_DAX of statx(2).
    const DAX: u64 = 0x0020_0000;
    let tier = TIER.split(':').next().expect("a path");
    let attributes = statx(CWD, tier, AtFlags::empty(), StatxFlags::BASIC_STATS)?.stx_attributes;
    passed("the tier is on DAX", attributes.bits() & DAX != 0, format!("attributes {attributes:?}"))
}

fn client() -> io::Result<Command> {
    let instance = fs::read_dir("/run/terrace")?.next().ok_or_else(|| wrong("no instance runs"))??;
    let mut command = plain()?;
    command.env("LD_PRELOAD", format!("/bin/{PRELOAD}"));
    command.env("TERRACE_SOCKET", instance.path().join("preload.sock"));
    command.env("TERRACE_DEV", fs::metadata(MOUNT)?.dev().to_string());
    Ok(command)
}

/// Drops the kernel's cache of the mount.
fn plain() -> io::Result<Command> {
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let mut command = Command::new("xtask");
    command.args(["vm", "inside", "dax-reader", &format!("{MOUNT}/large"), "7"]);
    Ok(command)
}

/// Pages that the tier serves to this program.
fn hits_of(reader: fn() -> io::Result<Command>) -> io::Result<u64> {
    let before = hits()?;
    output(&mut reader()?)?;
    Ok(hits()? - before)
}

fn hits() -> io::Result<u64> {
    let tiers = report()?.cache.tiers;
    let row = tiers.iter().find(|row| row.level == Some(0)).ok_or_else(|| wrong("no tier is in use"))?;
    Ok(row.hits)
}

fn report() -> io::Result<StatReport> {
    Ok(serde_json::from_str(&output(Command::new("terrace").args(["stat", MOUNT, "--json"]))?)?)
}

fn kill_terraced() -> io::Result<()> {
    let before = report()?.instance.terraced;
    output(Command::new("kill").args(["-9", &before.to_string()]))?;
    let again = || report().is_ok_and(|report| report.instance.terraced != before);
    match holds_within(Duration::from_secs(60), again) {
        true => Ok(()),
        false => Err(wrong("no new terraced serves")),
    }
}

fn passed(what: &str, is_so: bool, seen: String) -> io::Result<()> {
    match is_so {
        true => terrace_output::print_line!("ok {what}: {seen}"),
        false => {
            let stat = output(Command::new("terrace").args(["stat", MOUNT])).unwrap_or_default();
            Err(wrong(format!("{what}: {seen}\n{stat}")))
        }
    }
}
