//! Helpers for tests of the engine's parts.

use crate::clock::Clock;
use crate::{Engine, EngineConfig, ObjectRef, SegmentHandles};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use terrace_io::Io;
use terrace_tier::Superblock;
use terrace_tier::{Access, DeviceConfig};

/// An engine over a new segment. It has no threads before [`Engine::serve`].
pub(crate) fn started(config: EngineConfig, clock: Arc<dyn Clock>, io: impl Io + 'static) -> Arc<Engine> {
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    Engine::start(config, handles, clock, Arc::new(io)).unwrap()
}

/// An object of `bytes` bytes, and its sparse file.
pub(crate) fn sparse_object(engine: &Engine, id: u64, bytes: u64) -> (ObjectRef, File) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    (engine.object(id, file.as_raw_fd(), bytes).unwrap(), file)
}

/// Configuration of the first target, on a formatted medium of `bytes` bytes.
pub(crate) fn device_config(access: Access, bytes: u64, found: &Superblock) -> DeviceConfig {
    DeviceConfig {
        number: 0,
        name: "test".into(),
        access,
        bytes,
        region_bytes: found.geometry.region_bytes().into(),
        regions: found.geometry.regions(),
        first_region: 0,
        level: 0,
        tier_id: found.id.0,
        write_budget: None,
        rated_writes: None,
        read_ns: None,
        write_ns: None,
        always_faster: true,
    }
}
