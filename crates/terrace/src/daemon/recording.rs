//! The recording of a trace: the engine's records, written as a capture.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use terrace_engine::Engine;
use terrace_engine::trace::{Access, Kind, LOOK_EVERY, Recorder};
use terrace_trace::Door;
use terrace_trace::capture::{Event, Header, Writer};

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

/// Accesses by kind.
#[derive(Debug, Default)]
struct Tally {
    main_hits: u64,
    main_misses: u64,
    fast_hits: u64,
    fast_misses: u64,
    writes: u64,
}

impl Tally {
    fn count(&mut self, kind: Kind) {
        *match kind {
            Kind::MainHit => &mut self.main_hits,
            Kind::MainMiss => &mut self.main_misses,
            Kind::FastHit => &mut self.fast_hits,
            Kind::FastMiss => &mut self.fast_misses,
            Kind::Write => &mut self.writes,
        } += 1;
    }
    fn total(&self) -> u64 {
        self.main_hits + self.main_misses + self.fast_hits + self.fast_misses + self.writes
    }
}

impl Recording {
    /// None: a recording is under way already.
    pub fn begin(engine: &Arc<Engine>) -> Option<Recording> {
        Some(Recording { recorder: engine.record()?, engine: engine.clone() })
    }
}

impl Record for Recording {
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Value> {
        let Recording { engine, mut recorder } = *self;
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let header =
            Header { start_ms: since_1970.as_millis() as u64, tick_ms: TICK_MS, ..Header::default() };
        let (mut writer, mut tally) = (Writer::new(out, &header), Tally::default());
        let (begin, mut flushed, mut lost) = (Instant::now(), Instant::now(), 0);
        while !ended() && !engine.is_stopping() {
            std::thread::sleep(LOOK_EVERY);
            recorder.look(&mut |access| put(&mut writer, &mut tally, access))?;
            let now_lost = recorder.lost().total();
            writer.lost(now_lost - lost)?;
            lost = now_lost;
            if flushed.elapsed() >= FLUSH_EVERY {
                writer.flush()?;
                flushed = Instant::now();
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let all_lost = recorder.finish(&mut |access| put(&mut writer, &mut tally, access))?;
        writer.lost(all_lost.total() - lost)?;
        writer.flush()?;
        Ok(json!({
            "seconds": seconds, "accesses": tally.total(), "bytes": writer.bytes(),
            "fast_door": {"hits": tally.fast_hits, "misses": tally.fast_misses},
            "main_door": {"hits": tally.main_hits, "misses": tally.main_misses, "writes": tally.writes},
            "lost": all_lost,
        }))
    }
}

fn put(writer: &mut Writer<&mut dyn Write>, tally: &mut Tally, access: Access) -> io::Result<()> {
    tally.count(access.kind);
    let fast = matches!(access.kind, Kind::FastHit | Kind::FastMiss);
    writer.access(&Event {
        object: access.object,
        page: access.page,
        write: access.kind == Kind::Write,
        door: if fast { Door::Fast } else { Door::Main },
        time_ms: access.at_ns / 1_000_000,
    })
}
