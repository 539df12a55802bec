//! Writer of `dirty.json`, the record of unwritten data: a thread renews it while terraced lives.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_api::instance::{Dirty, DirtyFile};
use terrace_engine::Engine;

use super::thread::thread;
use crate::data_loss::{self, FILES_MAX, RECORD_EVERY};
use crate::handover::Shared;

/// Starts the thread that renews the record.
pub(super) fn start(engine: &Arc<Engine>, shared: &Shared) -> std::io::Result<()> {
    let (engine, instance) = (engine.clone(), shared.instance.clone());
    let root = root(shared);
    thread("record", move || {
        let (mut last, mut warned) = (None, false);
        loop {
            let now = now(&engine, &root);
            // Mostly there is no change: then only the record's time is renewed.
            let recorded = if last.as_ref() == Some(&now) {
                data_loss::renew(&instance)
            } else {
                data_loss::record(&instance, &now)
            };
            last = recorded.is_ok().then_some(now);
            if let Err(err) = recorded
                // At the end of the instance, its directory is removed.
                && instance.path("").exists()
                && !std::mem::replace(&mut warned, true)
            {
                let dir = instance.path("");
                tracing::warn!(
                    "{}: the record of unwritten data cannot be written ({err}): a crash report may lack files; free space there",
                    dir.display()
                );
            }
            std::thread::sleep(RECORD_EVERY);
        }
    })
}

/// Writes one record now.
pub(super) fn note(engine: &Engine, shared: &Shared) {
    // Fails once the directory is gone, at the end of the instance: no message is needed.
    let _ = data_loss::record(&shared.instance, &now(engine, &root(shared)));
}

/// The source's path, as the kernel shows it for a descriptor. The engine gets the paths of files in the same
/// way. It may differ from the path given by the user: for `run`, the descriptor belongs to another mount
/// namespace.
pub(super) fn root(shared: &Shared) -> PathBuf {
    let fd = shared.place.src_fd.as_raw_fd();
    std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_else(|_| shared.place.src.clone())
}

/// The unwritten data. Paths are relative to the source, which the reader knows.
pub(super) fn now(engine: &Engine, root: &Path) -> Dirty {
    let below = |path: String| match Path::new(&path).strip_prefix(root) {
        Ok(below) => below.display().to_string(),
        Err(_) => path,
    };
    let report = engine.dirty_report(FILES_MAX);
    let files = report.files.into_iter().map(|(path, bytes)| DirtyFile { path: below(path), bytes });
    Dirty { bytes: report.bytes, files_total: report.files_total, files: files.collect() }
}
