//! Checks the configuration: each number has bounds, and contradictory keys are an error.

use terrace_api::numa::NumaMode;

use super::invalid::InvalidValue;
use super::{Compressed, Config, MemoryLimit, Metrics, Passthrough, device};
use crate::error::{Failure, Result};
use crate::http;
use crate::size::{KIB, MIB, Size};

/// Below this there is no room for frames beside the tables.
pub(super) const MEMORY_MIN: Size = Size(16 * MIB);
/// Above any machine's memory; catches a wrong unit before the address space runs out.
const MEMORY_MAX: Size = Size(64 << 40);

/// A longer time would keep a full cache closed to new pages for too long.
const MIN_TTL_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// Checks every key; returns the first error.
pub(super) fn check(config: &Config) -> std::result::Result<(), InvalidValue> {
    check_memory(config.memory).map_err(|(why, cure)| wrong("memory", why, cure))?;
    check_policy(&config.policy).map_err(|(why, cure)| wrong("policy", why, cure))?;
    check_min_ttl(config)?;
    within("numa_read_mb_s", config.numa_read_mb_s, 1, 100_000_000)?;
    within("numa_write_mb_s", config.numa_write_mb_s, 1, 100_000_000)?;
    check_dirty(config)?;
    check_readahead(config.io.readahead_max)?;
    if !config.preload.ring_slots.is_power_of_two() {
        let why = format!("= {} is not a power of two", config.preload.ring_slots);
        return Err(wrong("preload.ring_slots", why, "write 8, 16, 32 or 64".to_owned()));
    }
    within("preload.ring_slots", config.preload.ring_slots, 8, terrace_engine::RING_SLOTS_MAX as u32)?;
    within("preload.clients_max", config.preload.clients_max, 1, 4096)?;
    within("fuse.threads", config.fuse.threads, 1, 64)?;
    check_compressed(&config.tier.compressed)?;
    device::check(&config.tier.device)?;
    let known = terrace_policy::placement::NAMES;
    if !known.contains(&config.tier.placement.as_str()) {
        let why = format!("= \"{}\" is not known", config.tier.placement);
        return Err(InvalidValue::new("tier.placement", why, format!("use one of {}", known.join(", "))));
    }
    check_metrics(&config.metrics).map_err(|(why, cure)| wrong("metrics.address", why, cure))?;
    within("limits.inodes_max", config.limits.inodes_max, 1024, 1 << 22)?;
    within("limits.handles_max", config.limits.handles_max, 64, 1 << 20)
}

/// Parses the mode on machines of several memory nodes.
pub(super) fn parse_numa(name: &str, text: &str) -> Result<NumaMode> {
    match text {
        "off" => Ok(NumaMode::Off),
        "show" => Ok(NumaMode::Show),
        "auto" => Ok(NumaMode::Auto),
        _ => Err(Failure::new(name, format!("{text} is no mode"), "write off, show or auto")),
    }
}

pub(super) fn parse_passthrough(name: &str, text: &str) -> Result<Passthrough> {
    match text {
        "auto" => Ok(Passthrough::Auto),
        "run" => Ok(Passthrough::Run),
        "off" => Ok(Passthrough::Off),
        _ => Err(Failure::new(name, format!("{text} is no mode"), "write auto, run or off")),
    }
}

/// min_ttl needs generations, which not every policy has.
pub(super) fn check_min_ttl(config: &Config) -> std::result::Result<(), InvalidValue> {
    let ttl = config.min_ttl;
    if ttl.0 > MIN_TTL_MAX {
        return Err(wrong("min_ttl", format!("= {ttl} is out of bounds"), "write 0s to 1h".to_owned()));
    }
    let aged = |name: &&&str| terrace_policy::build(name, 1, 1).is_some_and(|p| p.window().is_some());
    if !ttl.0.is_zero() && !aged(&&config.policy.as_str()) {
        let why = format!("= {ttl}, but the policy {} has no generations", config.policy);
        let able: Vec<&str> = terrace_policy::NAMES.iter().filter(aged).copied().collect();
        return Err(wrong("min_ttl", why, format!("leave it at 0s, or choose one of {}", able.join(", "))));
    }
    Ok(())
}

fn check_dirty(config: &Config) -> std::result::Result<(), InvalidValue> {
    let dirty = &config.dirty;
    within("dirty.ratio", dirty.ratio.into(), 1, 80)?;
    within("dirty.background_ratio", dirty.background_ratio.into(), 0, 79)?;
    if dirty.background_ratio >= dirty.ratio {
        let why = format!("= {} is not below dirty.ratio = {}", dirty.background_ratio, dirty.ratio);
        let cure = "writing back must start before writers wait: lower it or raise dirty.ratio";
        return Err(wrong("dirty.background_ratio", why, cure.to_owned()));
    }
    for (key, span) in
        [("dirty.expire", dirty.expire), ("dirty.writeback_interval", dirty.writeback_interval)]
    {
        let ms = span.0.as_millis();
        if !(10..=86_400_000).contains(&ms) {
            return Err(wrong(key, format!("= {span} is out of bounds"), "write 10ms to 24h".to_owned()));
        }
    }
    if dirty.writeback_interval > dirty.expire {
        let why = format!("= {} is longer than dirty.expire = {}", dirty.writeback_interval, dirty.expire);
        let cure = "dirty pages stay longer than dirty.expire allows: lower it or raise dirty.expire";
        return Err(wrong("dirty.writeback_interval", why, cure.to_owned()));
    }
    Ok(())
}

fn check_compressed(tier: &Compressed) -> std::result::Result<(), InvalidValue> {
    within("tier.compressed.max_percent", tier.max_percent.into(), 1, 90)?;
    if tier.min_percent > tier.max_percent {
        let why =
            format!("= {} is above tier.compressed.max_percent = {}", tier.min_percent, tier.max_percent);
        return Err(wrong("tier.compressed.min_percent", why, "lower it or raise max_percent".to_owned()));
    }
    Ok(())
}

fn check_readahead(size: Size) -> std::result::Result<(), InvalidValue> {
    match size.0 {
        bytes if !bytes.is_multiple_of(4 * KIB) => Err(wrong(
            "io.readahead_max",
            format!("= {size} is not a whole number of pages"),
            "write a multiple of 4KiB".to_owned(),
        )),
        bytes if bytes > 16 * MIB => {
            Err(wrong("io.readahead_max", format!("= {size} is too large"), "write 0 to 16MiB".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Why metrics cannot be served at this address, and the cure.
pub(super) fn check_metrics(metrics: &Metrics) -> std::result::Result<(), (String, String)> {
    if metrics.address.is_empty() {
        return Ok(());
    }
    http::parse(&metrics.address, metrics.public).map(drop).map_err(|(why, cure)| {
        let how = cure
            .replace("say that it may be public", "allow it with --metrics-public or metrics.public = true");
        (why, how)
    })
}

fn within(key: &'static str, value: u32, min: u32, max: u32) -> std::result::Result<(), InvalidValue> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, format!("= {value} is out of bounds"), format!("write {min} to {max}")))
}

fn wrong(key: &'static str, why: String, cure: String) -> InvalidValue {
    InvalidValue::new(key, why, cure)
}

/// Why a memory limit is not allowed, and the cure.
fn check_memory(limit: MemoryLimit) -> std::result::Result<(), (String, String)> {
    let Some(size) = limit.fixed() else { return Ok(()) };
    if size < MEMORY_MIN {
        return Err((
            format!("{size} is below the minimum of {MEMORY_MIN}"),
            format!("give at least {MEMORY_MIN}"),
        ));
    }
    if size > MEMORY_MAX {
        return Err((
            format!("{size} is above the maximum of {MEMORY_MAX}"),
            "give less memory than the machine has".to_owned(),
        ));
    }
    Ok(())
}

/// Why a policy name is not allowed, and the cure.
pub(super) fn check_policy(name: &str) -> std::result::Result<(), (String, String)> {
    if terrace_policy::canonical(name).is_some() {
        return Ok(());
    }
    if let Some((_, instead)) = terrace_policy::SIMULATED.iter().find(|(simulated, _)| *simulated == name) {
        let why = format!("`{name}` is a yardstick of the simulator (terrace-sim) only");
        return Err((why, format!("use {instead}, the nearest one, or {}", terrace_policy::NAMES[0])));
    }
    let known = terrace_policy::NAMES.join(", ");
    Err((format!("there is no policy `{name}`"), format!("choose one of {known}")))
}

/// A memory limit from flag, environment or argument `name`.
pub(crate) fn parse_memory(name: &str, text: String) -> Result<MemoryLimit> {
    let limit = text.parse::<MemoryLimit>().map_err(|why| Failure::new(name, why, "see `terrace --help`"))?;
    check_memory(limit).map_err(|(why, cure)| Failure::new(name, why, cure))?;
    Ok(limit)
}
