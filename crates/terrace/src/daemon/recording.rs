//! Records the engine's page accesses and writes them as a capture.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use terrace_api::capture::{AccessPath, Event, Header, Name, Summary, Writer};
use terrace_engine::trace::{Access, Kind, LOOK_EVERY, Recorder};
use terrace_engine::{Engine, ObjectId};

use crate::control::Record;

/// Interval of flushes: the file lags at most this far behind.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Length of a tick, milliseconds.
const TICK_MS: u32 = 1;

/// A recorder and its engine.
#[derive(Debug)]
pub(super) struct Recording {
    engine: Arc<Engine>,
    recorder: Recorder,
    /// Path of the source, as `/proc` shows it.
    root: PathBuf,
}

fn count(summary: &mut Summary, kind: Kind) {
    let Summary { preload, fuse, accesses, .. } = summary;
    *accesses += 1;
    *match kind {
        Kind::MountHit => &mut fuse.hits,
        Kind::MountMiss => &mut fuse.misses,
        Kind::PreloadHit => &mut preload.hits,
        Kind::PreloadMiss => &mut preload.misses,
        Kind::Write => &mut fuse.writes,
    } += 1;
}

impl Recording {
    /// Begins a recording. None: one is under way already.
    pub(super) fn begin(engine: &Arc<Engine>, root: &Path) -> Option<Recording> {
        Some(Recording { recorder: engine.record()?, engine: engine.clone(), root: root.to_owned() })
    }
}

impl Record for Recording {
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Summary> {
        let Recording { engine, mut recorder, root } = *self;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header =
            Header { start_ms: since_1970.as_millis() as u64, tick_ms: TICK_MS, ..Header::default() };
        let (mut writer, mut summary) = (Writer::new(out, &header), Summary::default());
        let mut named = HashSet::new();
        let mut put = |writer: &mut Writer<_>, summary: &mut Summary, access: Access| {
            if named.insert(access.object)
                && let Some(name) = name_of(&engine, &root, access.object)
            {
                writer.name(&name)?;
            }
            put(writer, summary, access)
        };
        let (begin, mut flushed, mut lost) = (Instant::now(), Instant::now(), 0);
        while !ended() && !engine.is_stopping() {
            std::thread::sleep(LOOK_EVERY);
            recorder.look(&mut |access| put(&mut writer, &mut summary, access))?;
            let now_lost = recorder.lost().total();
            writer.lost(now_lost - lost)?;
            lost = now_lost;
            if flushed.elapsed() >= FLUSH_EVERY {
                writer.flush()?;
                flushed = Instant::now();
            }
        }
        summary.seconds = begin.elapsed().as_secs_f64();
        summary.lost = recorder.finish(&mut |access| put(&mut writer, &mut summary, access))?;
        writer.lost(summary.lost.total() - lost)?;
        writer.flush()?;
        summary.bytes = writer.bytes();
        Ok(summary)
    }
}

/// The object's file. None: it is deleted, or has no name below the source.
fn name_of(engine: &Engine, root: &Path, object: ObjectId) -> Option<Name> {
    let file = engine.lookup_object(object)?;
    let path = std::fs::read_link(file.source().proc_path()).ok()?;
    let path = path.strip_prefix(root).ok()?.to_owned();
    let bytes = file.source().stat().ok()?.st_size as u64;
    Some(Name { object, path, bytes, changed_ns: file.source().times()?.0 })
}

fn put(writer: &mut Writer<&mut dyn Write>, summary: &mut Summary, access: Access) -> io::Result<()> {
    count(summary, access.kind);
    let is_preload = matches!(access.kind, Kind::PreloadHit | Kind::PreloadMiss);
    writer.access(&Event {
        object: access.object,
        page: access.page,
        write: access.kind == Kind::Write,
        via: if is_preload { AccessPath::Preload } else { AccessPath::Fuse },
        time_ms: access.at_ns / 1_000_000,
    })
}
