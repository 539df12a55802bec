//! Cells with a device tier (`sim --device`): hits by tier, bytes written and time, beside the same memory without one.

use std::path::PathBuf;
use std::{fs, io};

use serde::Serialize;
use terrace_api::device_profile::DeviceProfile;
use terrace_output::Progress;
use terrace_policy::device::admit::Admit;
use terrace_sim::cells::{Job, Size};
use terrace_sim::compressed_sim::{CompressedOutcome, Content, Prices, Setup};
use terrace_sim::device_sim::{DeviceOutcome, DeviceSetup};
use terrace_sim::trace::Trace;

use super::tiers;

pub(super) const COLUMNS: &str = "trace,policy,size_frac,cache_pages,ratio,device_pages,requests,dram_hits,compressed_hits,device_hits,misses,demoted,kept,\
refused,reinserted,dropped,bytes_written,write_amplification,request_us,time_ratio";

/// Options of the tier on a device.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Device {
    /// Tiers on a device below memory: pages, or shares of the trace's different pages.
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub(crate) device: Vec<Size>,
    /// Pages that are written to it: those used again in memory (`reused`), or `all`
    #[arg(long, value_name = "WHICH", requires = "device", default_value = "reused", value_parser = admit)]
    pub(crate) device_admit: Admit,
    /// Hits since its write from which on a page is written again when its region is reclaimed; 0: never
    #[arg(long, value_name = "HITS", requires = "device", default_value_t = 2)]
    pub(crate) reinsert: u8,
    /// Hits of a page on the device that bring it to DRAM
    #[arg(long, value_name = "HITS", requires = "device", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=3))]
    pub(crate) promote: u8,
    /// Hits since its write from which on a page is remembered when its region is reclaimed, so that its next
    /// eviction from memory writes it; 0: never
    #[arg(long, value_name = "HITS", requires = "device", default_value_t = 4)]
    pub(crate) remember: u8,
    /// A page on the device keeps the policy's shadow
    #[arg(long, requires = "device")]
    pub(crate) shadows: bool,
    /// Maximum GiB written a day, of the trace's time at these prices; default: no limit
    #[arg(long, value_name = "GIB", requires = "device", value_parser = amount)]
    pub(crate) write_budget: Option<f64>,
    /// Read time of a page of the source, us
    #[arg(long, value_name = "US", requires = "device", default_value_t = 500.0, value_parser = amount)]
    pub(crate) source_us: f64,
    /// Read time of a page of the device, us
    #[arg(long, value_name = "US", requires = "device", default_value_t = 90.0, value_parser = amount)]
    pub(crate) device_us: f64,
    /// Prices of `--profile-source` and `--profile-tier` from a file of device measurements (`bench/devices.py`)
    #[arg(long, value_name = "FILE", requires_all = ["profile_source", "profile_tier"], conflicts_with_all = ["source_us", "device_us"])]
    pub(crate) profile: Option<PathBuf>,
    /// The profile's directory of the source's device
    #[arg(long, value_name = "NAME", requires = "profile")]
    pub(crate) profile_source: Option<String>,
    /// The profile's directory of the tier's device
    #[arg(long, value_name = "NAME", requires = "profile")]
    pub(crate) profile_tier: Option<String>,
}

/// A nonnegative number.
pub(super) fn amount(text: &str) -> Result<f64, String> {
    let amount = text.parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "no amount; write a number from 0 on".to_owned())
}

/// Read and write times of source and device for a page, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DevicePrices {
    source_read: u64,
    read: u64,
    write: u64,
}

impl Device {
    /// From the options, or from the profile that they name.
    ///
    /// # Errors
    /// The profile cannot be read, or lacks one of the two.
    pub(super) fn prices(&self) -> io::Result<DevicePrices> {
        let (Some(file), Some(source), Some(tier)) =
            (&self.profile, &self.profile_source, &self.profile_tier)
        else {
            let write = DeviceSetup::new(1).write;
            return Ok(DevicePrices { source_read: ns(self.source_us), read: ns(self.device_us), write });
        };
        let refuse = |why: String| io::Error::other(format!("{}: {why}", file.display()));
        let text = fs::read_to_string(file).map_err(|err| refuse(err.to_string()))?;
        let profile = DeviceProfile::parse(&text)
            .map_err(|wrong| refuse(format!("line {}: {}", wrong.line, wrong.why)))?;
        let entry = |name: &String| {
            let known = || profile.device.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let found = profile.device.get(name);
            found.ok_or_else(|| refuse(format!("knows no device `{name}`; it has {}", known())))
        };
        let (source, tier) = (entry(source)?, entry(tier)?);
        // Pages are written in batches of 1 MiB.
        let write = ns(PAGE_MIB / tier.put_mib_s * 1e6);
        Ok(DevicePrices { source_read: ns(source.get_latency_us), read: ns(tier.get_latency_us), write })
    }
}

/// A page, MiB.
const PAGE_MIB: f64 = 4.0 / 1024.0;

fn ns(us: f64) -> u64 {
    (us * 1000.0) as u64
}

fn admit(text: &str) -> Result<Admit, String> {
    match text {
        "reused" => Ok(Admit::Reused),
        "all" => Ok(Admit::All),
        _ => Err(format!("{text} is neither `reused` nor `all`")),
    }
}

/// Columns of a cell; requests by the tier that answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Columns {
    /// Pages that the device holds; 0: no device.
    device_pages: u64,
    requests: u64,
    dram_hits: u64,
    compressed_hits: u64,
    misses: u64,
    #[serde(flatten)]
    device: DeviceOutcome,
    bytes_written: u64,
    /// Bytes written for each byte evicted from memory.
    write_amplification: f64,
}

type Cell = tiers::Cell<Columns>;

fn compute(
    trace: &Trace,
    job: &Job,
    (ratio, share): (f64, u32),
    size: Option<Size>,
    options: &Device,
    of_device: DevicePrices,
) -> Cell {
    let mut prices = Prices::default();
    prices.costs.read = of_device.source_read;
    let device_pages = size.map_or(0, |size| size.pages(trace.pages).max(1) as u64);
    let device = size.map(|_| DeviceSetup {
        read: of_device.read,
        write: of_device.write,
        admit: options.device_admit,
        budget: options.write_budget.map(|gib| (gib * (1u64 << 30) as f64) as u64),
        reinsert_at: options.reinsert,
        promote_at: options.promote,
        remember_at: options.remember,
        shadows: options.shadows,
        ..DeviceSetup::new(device_pages)
    });
    let percent = if ratio > 1.0 { 0..=share } else { 0..=0 };
    let setup = |budget| Setup { budget, ratio, percent, prices, device };
    Cell::of(trace, job, setup, &|_| Content { file: 0, compresses: true }, |sim| {
        let CompressedOutcome { requests, misses, tier_hits, device, .. } = sim.outcome();
        Columns {
            device_pages,
            requests,
            dram_hits: requests - misses - tier_hits - device.hits,
            compressed_hits: tier_hits,
            misses,
            bytes_written: device.bytes_written(),
            write_amplification: device.write_amplification(),
            device,
        }
    })
}

/// Each policy at each size of memory without a device, and with each of `options`. The compressed tier has
/// the given ratio, and at most the given share of memory, per cent.
pub(super) fn compute_all(
    trace: &Trace,
    jobs: &[Job],
    compressed: (f64, u32),
    options: &Device,
    prices: DevicePrices,
    progress: &mut Progress,
) -> Vec<Cell> {
    let sizes: Vec<_> = [None].into_iter().chain(options.device.iter().copied().map(Some)).collect();
    let compute = |job: &Job, size| compute(trace, job, compressed, size, options, prices);
    tiers::compute_all(trace, jobs, &sizes, progress, compute)
}

/// Counts as shares of the requests.
pub(super) fn table(cells: &[Cell]) -> String {
    let words = "device,DRAM,compr.,device,source,demoted,again,MiB,ampl.,us,time";
    let head: Vec<_> = words.split(',').zip([10, 8, 8, 8, 8, 9, 8, 9, 7, 9, 8]).collect();
    tiers::table(cells, &head, |cell| {
        let c = &cell.more;
        format!(
            "{:>10}{:>8.4}{:>8.4}{:>8.4}{:>8.4}{:>9.4}{:>8.4}{:>9.1}{:>7.3}{:>9.2}{:>6.1} %",
            c.device_pages,
            cell.of_requests(c.dram_hits),
            cell.of_requests(c.compressed_hits),
            cell.of_requests(c.device.hits),
            cell.of_requests(c.misses),
            cell.of_requests(c.device.demoted),
            cell.of_requests(c.device.reinserted),
            c.bytes_written as f64 / (1 << 20) as f64,
            c.write_amplification,
            cell.request_us,
            cell.time_ratio * 100.0,
        )
    })
}
