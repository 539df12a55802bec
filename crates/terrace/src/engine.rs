//! The engine of an instance: its memory files, and its start from the configuration.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use terrace_engine::{
    CompressedConfig, Engine, EngineConfig, IoKind, NumaConfig, SegmentHandles, StampClock, SystemClock,
};
use terrace_io::{BlockingIo, Io, UringIo};
use terrace_policy::placement::levels::levels;
use terrace_tier::{Access, DeviceConfig, TargetTable};

use crate::config::{
    Admit, CompressionMode, Config, Durable, IoEngine, MemoryLimit, SourceShare, Tier, is_remote,
};
use crate::instance::Instance;
use crate::tier::{OpenTarget, remote};

/// The memory files of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<SegmentHandles>);

impl Memory {
    /// Creates the files, in the supervisor. `targets`: targets of the tiers on devices. Their index
    /// lies in these files.
    pub(crate) fn create(config: &Config, targets: &[OpenTarget]) -> io::Result<Memory> {
        SegmentHandles::create(&engine_config(config, targets)).map(|handles| Memory(Arc::new(handles)))
    }

    /// The tables of the targets that an engine begins with.
    pub(crate) fn tables(&self) -> Vec<Arc<TargetTable>> {
        self.0.tables()
    }

    /// Replaces the tables, and returns the old ones.
    pub(crate) fn set_tables(&self, tables: Vec<Arc<TargetTable>>) -> Vec<Arc<TargetTable>> {
        self.0.set_tables(tables)
    }

    /// Resident memory of the files, bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }

    /// See [`SegmentHandles::yield_memory`].
    pub(crate) fn give_back(&self, keep_bytes: u64) -> u64 {
        self.0.yield_memory(keep_bytes)
    }

    /// The region of the namespace: address and bytes.
    pub(crate) fn user_region(&self) -> (NonNull<u8>, usize) {
        self.0.user_region()
    }

    /// Whether the files have an object with this number.
    pub(crate) fn has_object(&self, id: u64) -> bool {
        self.0.segment.find_object(id).is_some()
    }

    /// Futex word of the lease holder.
    pub(crate) fn leases(&self) -> &AtomicU32 {
        &self.0.segment.header().leases
    }

    /// The same word, with the memory mapped for the rest of the process.
    pub(crate) fn leases_for_ever(&self) -> &'static AtomicU32 {
        let handles: &'static Memory = Box::leak(Box::new(self.clone()));
        handles.leases()
    }

    /// The limit in force: from the configuration, or from a later resize.
    pub(crate) fn limit(&self, config: &Config) -> Limit {
        let header = self.0.segment.header();
        match header.limit_bytes.load(Ordering::Relaxed) {
            0 => Limit { bytes: config.memory.room().0, auto: config.memory == MemoryLimit::Auto },
            bytes => Limit { bytes, auto: header.limit_is_auto.load(Ordering::Relaxed) != 0 },
        }
    }
}

/// For tests: a directory in place of /sys, which describes another machine.
const SYS: &str = "TERRACE_TEST_SYS";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes.
    pub bytes: u64,
    /// No limit is set by the user: `bytes` is the memory of the machine.
    pub auto: bool,
}

/// An engine over the memory files, and the tiers on devices.
pub(crate) fn start(
    config: &Config,
    memory: &Memory,
    targets: &[OpenTarget],
    instance: &Instance,
) -> io::Result<Arc<Engine>> {
    terrace_fs::set_up_heap();
    let mut config = engine_config(config, targets);
    open_media(&mut config.devices, targets)?;
    config.numa.saved = Some(instance.affinity());
    if let Some(sys) = std::env::var_os(SYS) {
        config.numa.sys = sys.into();
    }
    let io = io_of(config.io);
    Engine::start(config, memory.0.clone(), Arc::new(StampClock::default()), io)
}

/// Opens the media of targets that are not files, in the process of the engine.
pub(crate) fn open_media(devices: &mut [DeviceConfig], held: &[OpenTarget]) -> io::Result<()> {
    let unopened = |device: &DeviceConfig| matches!(device.access, Access::Unopened);
    let mut all = devices.iter_mut().zip(held).filter(|(device, _)| unopened(device));
    all.try_for_each(|(device, held)| remote::open_medium(device, &held.target))
}

/// An engine for this process alone: no other process can recover it.
pub(crate) fn alone(config: &Config, targets: &[OpenTarget]) -> io::Result<Arc<Engine>> {
    let config = engine_config(config, targets);
    let handles = Arc::new(SegmentHandles::create(&config)?);
    Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default()))
}

/// io_uring, or blocking calls where the kernel forbids it (often in containers).
fn io_of(kind: IoKind) -> Arc<dyn Io> {
    if kind == IoKind::Uring {
        match UringIo::new() {
            Ok(uring) => return Arc::new(uring),
            Err(err) => tracing::warn!(
                "io_uring is not available ({err}); terrace uses blocking calls, with less parallel throughput"
            ),
        }
    }
    Arc::new(BlockingIo::default())
}

/// The engine's view of the configuration of the compressed tier.
fn compressed_config(tier: &Tier) -> CompressedConfig {
    let (config, default) = (&tier.compressed, CompressedConfig::default());
    CompressedConfig {
        codec: match config.codec {
            CompressionMode::None => None,
            CompressionMode::Lz4 => Some(terrace_engine::CompressionMode::Lz4),
            CompressionMode::Mixed => Some(terrace_engine::CompressionMode::Mixed),
            CompressionMode::Zstd => Some(terrace_engine::CompressionMode::Dense),
        },
        min_percent: config.min_percent.into(),
        max_percent: config.max_percent.into(),
        admit: match config.admit {
            Admit::Reused => terrace_engine::Admit::Reused,
            Admit::All => terrace_engine::Admit::All,
        },
        miss_ns: tier.miss.map_or(default.miss_ns, |miss| miss.as_nanos() as u64),
        ..default
    }
}

/// See [`DeviceConfig::always_faster`].
const ALWAYS_FASTER: &str = "TERRACE_TEST_TIER_ALWAYS_FASTER";

/// The engine's view of the targets, which stay open as long as the supervisor lives.
fn device_configs(held: &[OpenTarget]) -> Vec<DeviceConfig> {
    let times: Vec<u64> = held.iter().map(|held| held.device.read_time().as_nanos() as u64).collect();
    held.iter().zip(levels(&times)).map(|(held, level)| device_config(held, level)).collect()
}

/// A target as part of the tier `level`.
pub(crate) fn device_config(held: &OpenTarget, level: u8) -> DeviceConfig {
    let (device, superblock) = (&held.device, &held.target.superblock);
    let geometry = superblock.geometry;
    DeviceConfig {
        number: held.number,
        name: device.name.clone(),
        access: match is_remote(&device.path) {
            true => Access::Unopened,
            false => Access::File(held.target.fd.as_raw_fd()),
        },
        bytes: geometry.bytes(),
        region_bytes: geometry.region_bytes().into(),
        regions: geometry.regions(),
        first_region: held.first_region,
        level,
        tier_id: superblock.id.0,
        write_budget: device.write_budget.map(|size| size.0),
        rated_writes: device.rated_writes.map(|size| size.0),
        read_ns: device.speed.map(|speed| speed.read.as_nanos() as u64),
        write_ns: device.speed.map(|speed| (crate::size::PAGE as f64 * 1e9 / speed.write_bytes) as u64),
        always_faster: std::env::var_os(ALWAYS_FASTER).is_some(),
    }
}

/// The engine's view of the configuration.
pub(crate) fn engine_config(config: &Config, held: &[OpenTarget]) -> EngineConfig {
    EngineConfig {
        memory_bytes: config.memory.room().0,
        memory_is_auto: config.memory == MemoryLimit::Auto,
        policy: config.policy.clone(),
        min_ttl: config.min_ttl.0,
        huge_pages: config.huge_pages,
        dirty_background_ratio: config.dirty.background_ratio.into(),
        dirty_ratio: config.dirty.ratio.into(),
        dirty_expire: config.dirty.expire.0,
        writeback_interval: config.dirty.writeback_interval.0,
        readahead_max_bytes: config.io.readahead_max.0 as usize,
        durable_in_tier: config.dirty.durable == Durable::Tier,
        source_share: match config.dirty.source_share {
            SourceShare::Auto => terrace_engine::SourceShare::Measured,
            SourceShare::Off => terrace_engine::SourceShare::Off,
        },
        io: match config.io.engine {
            IoEngine::Uring => IoKind::Uring,
            IoEngine::Blocking => IoKind::Blocking,
        },
        compressed: compressed_config(&config.tier),
        devices: device_configs(held),
        placement: config.tier.placement.clone(),
        ring_slots: config.preload.ring_slots as usize,
        clients_max: config.preload.clients_max as usize,
        announced_writes: config.exclusive || config.guarded,
        numa: NumaConfig {
            mode: config.numa,
            read_capacity: f64::from(config.numa_read_mb_s) * 1e6,
            write_capacity: f64::from(config.numa_write_mb_s) * 1e6,
            ..NumaConfig::default()
        },
        ..EngineConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_engines() {
        let memory = MemoryLimit::Fixed(crate::size::Size(EngineConfig::default().memory_bytes));
        let ours = engine_config(&Config { memory, ..Config::default() }, &[]);
        assert_eq!(format!("{ours:?}"), format!("{:?}", EngineConfig::default()));
    }
}
