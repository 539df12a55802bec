//! The record of unwritten data, renewed while the instance lives.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_engine::Engine;

use super::thread;
use crate::instance::Instance;
use crate::keeper::Shared;
use crate::lost::{Dirty, RECORD_EVERY};

/// Starts the thread that renews the record.
pub fn start(engine: &Arc<Engine>, shared: &Shared) -> std::io::Result<()> {
    let (engine, instance) = (engine.clone(), shared.instance.clone());
    let root = root(shared);
    thread("record", move || {
        loop {
            write(&now(&engine, &root), &instance);
            std::thread::sleep(RECORD_EVERY);
        }
    })
}

/// One record, now.
pub fn note(engine: &Engine, shared: &Shared) {
    write(&now(engine, &root(shared)), &shared.instance);
}

/// The source's path as the kernel tells it of a descriptor, which is how the engine tells those of files. Not always the path
/// by which it was named: for `run` the descriptor is of another mount namespace.
pub fn root(shared: &Shared) -> PathBuf {
    let fd = shared.place.src_fd.as_raw_fd();
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_else(|_| shared.place.src.clone())
}

/// What is unwritten now. Paths are told below the source: the reader knows that one.
pub fn now(engine: &Engine, root: &Path) -> Dirty {
    let below = |path: String| match Path::new(&path).strip_prefix(root) {
        Ok(below) => below.display().to_string(),
        Err(_) => path,
    };
    Dirty::now(engine.dirty_report().into_iter().map(|(path, bytes)| (below(path), bytes)).collect())
}

fn write(dirty: &Dirty, instance: &Instance) {
    // It fails when the directory has gone, at the end of the instance: not worth a word.
    let _ = dirty.record(instance);
}
