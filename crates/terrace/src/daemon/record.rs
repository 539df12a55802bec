//! The record of unwritten data, renewed while the instance lives.

use std::sync::Arc;

use terrace_engine::Engine;

use super::thread;
use crate::instance::Instance;
use crate::keeper::Shared;
use crate::lost::{Dirty, RECORD_EVERY};

/// Starts the thread that renews the record.
pub fn start(engine: &Arc<Engine>, shared: &Shared) -> std::io::Result<()> {
    let (engine, instance) = (engine.clone(), shared.instance.clone());
    let src = shared.place.src.display().to_string();
    thread("record", move || {
        loop {
            write(&now(&engine, &src), &instance);
            std::thread::sleep(RECORD_EVERY);
        }
    })
}

/// One record, now.
pub fn note(engine: &Engine, shared: &Shared) {
    write(&now(engine, &shared.place.src.display().to_string()), &shared.instance);
}

/// Paths are told below the source: the record's reader knows that one.
fn now(engine: &Engine, src: &str) -> Dirty {
    let below =
        |path: String| path.strip_prefix(src).map_or(path.clone(), |p| p.trim_start_matches('/').to_owned());
    Dirty::now(engine.dirty_report().into_iter().map(|(path, bytes)| (below(path), bytes)).collect())
}

fn write(dirty: &Dirty, instance: &Instance) {
    // It fails when the directory has gone, at the end of the instance: not worth a word.
    let _ = dirty.record(instance);
}
