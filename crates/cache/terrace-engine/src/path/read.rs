//! Reads: resident pages are copied out, absent ones are faulted in.
//!
//! [`read`] loops over `terrace_shm::reader::Reader::read_resident` for hits, and `fault::fault` for misses.

use crate::access_log::Kind;
use crate::context::Context;
use crate::file::object::ObjectRef;
use crate::path::decompress::CompressedReader;
use crate::path::fault::{AccessPath, Miss, fault};
use crate::path::promote;
use std::io;
use std::sync::atomic::Ordering;
use terrace_shm::PAGE_SIZE;
use terrace_shm::reader::{Outcome, Reader};

const PAGE: u64 = PAGE_SIZE as u64;
/// Failed attempts for a page after which a read excludes writers: they change the page too fast.
const FAILED_TRIES_MAX: u32 = 3;

/// Reads at `offset` into `buf`; short only at the end of the file.
pub(crate) fn read(
    cx: &Context,
    o: &ObjectRef,
    offset: u64,
    buf: &mut [u8],
    access: AccessPath,
) -> io::Result<usize> {
    cx.counters.reads.fetch_add(1, Ordering::Relaxed);
    let (mut done, mut missed) = (0, 0);
    let (mut failed_tries, mut calm) = (0, None);
    let traced = cx.is_traced();
    let resident = Reader { seg: &cx.handles.segment, touches: &cx.handles.touches };
    let mut reader = CompressedReader::new(&cx.handles);
    while done < buf.len() {
        let (at, rest) = (offset + done as u64, &mut buf[done..]);
        // SAFETY: `rest` is valid for its length; we hold the object, so the slot is its.
        let step =
            unsafe { resident.read_resident(o.slot(), at, rest.as_mut_ptr(), rest.len(), &mut reader) };
        if traced {
            let (Outcome::Done(n) | Outcome::Miss { done: n } | Outcome::MountPath { done: n }) = step;
            cx.note_access(o, at, n, Kind::MountHit);
        }
        match step {
            Outcome::Done(n) => {
                done += n;
                break;
            }
            Outcome::Miss { done: n } => {
                let miss = Miss { at: at + n as u64, access, calm: calm.is_some() };
                let (n2, on_device) = fault(cx, o, miss, &mut rest[n..])?;
                if traced {
                    cx.note_access(o, miss.at, n2, Kind::MountMiss);
                }
                missed += n2.div_ceil(PAGE_SIZE).saturating_sub(on_device);
                done += n + n2;
                failed_tries = if n + n2 == 0 { failed_tries + 1 } else { 0 };
            }
            // A write is under way, or the page changes during each copy: wait for the writer.
            Outcome::MountPath { done: n } => {
                done += n;
                if calm.is_none() {
                    drop(o.content.read());
                }
                failed_tries = if n == 0 { failed_tries + 1 } else { 0 };
                if failed_tries >= FAILED_TRIES_MAX {
                    // A compressed page that cannot be decoded is damaged. The source has it.
                    cx.state.lock().invalidate_page(o, (offset + done as u64) / PAGE);
                }
            }
        }
        if failed_tries >= FAILED_TRIES_MAX && calm.is_none() {
            calm = Some(o.content.read());
        }
    }
    promote::finish_read(cx, o, reader);
    count_read(cx, done, missed);
    Ok(done)
}

/// Counts a read of `done` bytes with `missed` absent pages.
fn count_read(cx: &Context, done: usize, missed: usize) {
    cx.counters.read_bytes.fetch_add(done as u64, Ordering::Relaxed);
    cx.counters.miss_pages.fetch_add(missed as u64, Ordering::Relaxed);
    let pages = done.div_ceil(PAGE_SIZE);
    cx.counters.hit_pages.fetch_add(pages.saturating_sub(missed) as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock};
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, SyncSender};
    use std::time::Duration;
    use terrace_io::testing::{Call, HookIo, NullIo};
    use terrace_sync::Mutex;

    /// Lets another thread change the file during each read of the source, and waits for it, with a limit.
    #[derive(Debug, Default)]
    struct ConcurrentWrites {
        reads: AtomicU32,
        writer: Mutex<Option<SyncSender<SyncSender<()>>>>,
    }

    impl ConcurrentWrites {
        fn during_reads(&self, at_once: usize) {
            for _ in 0..at_once {
                self.reads.fetch_add(1, Ordering::Relaxed);
                let writer = self.writer.lock().clone();
                if let Some(writer) = writer {
                    let (done, wait) = std::sync::mpsc::sync_channel(1);
                    writer.send(done).unwrap();
                    assert_ne!(
                        wait.recv_timeout(Duration::from_millis(100)),
                        Err(RecvTimeoutError::Disconnected)
                    );
                }
            }
        }
    }

    /// Number of source reads for the first 16 pages of a file that `meddle` changes during each of them.
    fn reads_needed(access: AccessPath, meddle: impl Fn(&Engine, &ObjectRef) + Send) -> u32 {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let writes = Arc::new(ConcurrentWrites::default());
        let during = writes.clone();
        let device = HookIo::new(NullIo, move |call| {
            if let Call::Read(at_once) = call {
                during.during_reads(at_once);
            }
            Ok(())
        });
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(device)).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        let o = engine.object(7, file.as_raw_fd(), 8 << 20).unwrap();
        std::thread::scope(|s| {
            let (ask, asked) = std::sync::mpsc::sync_channel::<SyncSender<()>>(8);
            let (engine, o) = (&engine, &o);
            s.spawn(move || {
                for done in asked {
                    meddle(engine, o);
                    let _ = done.try_send(());
                }
            });
            *writes.writer.lock() = Some(ask);
            let mut buf = vec![1; 16 * 4096];
            assert_eq!(engine.read(o, 0, &mut buf, access).unwrap(), buf.len());
            assert!(buf.iter().all(|&b| b == 0));
            *writes.writer.lock() = None;
        });
        assert_eq!(engine.check(), Vec::<String>::new());
        writes.reads.load(Ordering::Relaxed)
    }

    #[test]
    fn a_write_elsewhere_does_not_fail_a_read() {
        for access in [AccessPath::Preload, AccessPath::Fuse] {
            let needed = reads_needed(access, |engine, o| {
                engine.write(o, 5 << 20, &[2; 4096]).unwrap();
            });
            assert_eq!(needed, 1, "{access:?}");
        }
    }

    #[test]
    fn a_read_of_what_others_change_all_the_time_ends() {
        for access in [AccessPath::Preload, AccessPath::Fuse] {
            let needed = reads_needed(access, |engine, o| {
                engine.with_source(o, 0..16 * 4096, |_| Ok(())).unwrap();
            });
            assert!((1..=super::FAILED_TRIES_MAX + 1).contains(&needed), "{needed} reads, {access:?}");
        }
    }
}
