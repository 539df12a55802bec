//! The recording of a trace: the engine's records, written as a capture.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use terrace_api::capture::{AccessPath, Event, Header, Summary, Writer};
use terrace_engine::Engine;
use terrace_engine::trace::{Access, Kind, LOOK_EVERY, Recorder};

use crate::control::Record;

/// How far the file may be behind.
const FLUSH_EVERY: Duration = Duration::from_millis(200);
/// Milliseconds of a tick.
const TICK_MS: u32 = 1;

/// A recorder and its engine.
#[derive(Debug)]
pub struct Recording {
    engine: Arc<Engine>,
    recorder: Recorder,
}

/// Counts an access by its kind.
fn count(summary: &mut Summary, kind: Kind) {
    let Summary { preload, fuse, accesses, .. } = summary;
    *accesses += 1;
    *match kind {
        Kind::MainHit => &mut fuse.hits,
        Kind::MainMiss => &mut fuse.misses,
        Kind::FastHit => &mut preload.hits,
        Kind::FastMiss => &mut preload.misses,
        Kind::Write => &mut fuse.writes,
    } += 1;
}

impl Recording {
    /// None: a recording is under way already.
    pub fn begin(engine: &Arc<Engine>) -> Option<Recording> {
        Some(Recording { recorder: engine.record()?, engine: engine.clone() })
    }
}

impl Record for Recording {
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Summary> {
        let Recording { engine, mut recorder } = *self;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header =
            Header { start_ms: since_1970.as_millis() as u64, tick_ms: TICK_MS, ..Header::default() };
        let (mut writer, mut summary) = (Writer::new(out, &header), Summary::default());
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

fn put(writer: &mut Writer<&mut dyn Write>, summary: &mut Summary, access: Access) -> io::Result<()> {
    count(summary, access.kind);
    let fast = matches!(access.kind, Kind::FastHit | Kind::FastMiss);
    writer.access(&Event {
        object: access.object,
        page: access.page,
        write: access.kind == Kind::Write,
        via: if fast { AccessPath::Preload } else { AccessPath::Fuse },
        time_ms: access.at_ns / 1_000_000,
    })
}
