//! What tests of the engine's parts begin with.

use crate::clock::Clock;
use crate::io::Io;
use crate::{Engine, EngineConfig, ObjectRef, SegmentHandles};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// An engine over a segment of its own. It has no threads before [`Engine::serve`].
pub(crate) fn started(config: EngineConfig, clock: Arc<dyn Clock>, io: impl Io + 'static) -> Arc<Engine> {
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    Engine::start(config, handles, clock, Arc::new(io)).unwrap()
}

/// An object of so many bytes, and its file, which is sparse.
pub(crate) fn sparse_object(engine: &Engine, id: u64, bytes: u64) -> (ObjectRef, File) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    (engine.object(id, file.as_raw_fd(), bytes).unwrap(), file)
}
