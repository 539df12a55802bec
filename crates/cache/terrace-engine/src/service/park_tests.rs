//! Files opened soon after a change: their identity is accepted only once the change has settled.

use super::testing::{Fixture, PAGE, without_compression};
use crate::file::identity::SETTLES;
use crate::file::object::ObjectRef;
use crate::tier::park::{FEW_BYTES, valid_identity};
use crate::{AccessPath, Engine};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Publishes a file that has just changed. The test decides when the change counts as settled.
fn just_changed(engine: &Engine, file: &File, len: u64) -> ObjectRef {
    // On a busy machine the change may have settled already.
    for id in 1000.. {
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        let o = engine.object(id, file.as_raw_fd(), len).unwrap();
        if o.identity_due_ns.swap(u64::MAX, Ordering::Relaxed) != 0 {
            return o;
        }
        engine.forget_object(id).unwrap();
    }
    unreachable!()
}

fn read(engine: &Engine, o: &ObjectRef, page: u64) {
    engine.read(o, page * PAGE as u64, &mut vec![1; PAGE], AccessPath::Preload).unwrap();
}

#[test]
fn file_opened_soon_after_a_change_gets_its_identity_later() {
    let w = Fixture::new(without_compression());
    let (engine, _objects) = w.start();
    for by_open in [true, false] {
        let file = tempfile::tempfile().unwrap();
        let o = just_changed(&engine, &file, FEW_BYTES);
        let is_cached = |page| {
            let before = w.source_reads.load(Ordering::Relaxed);
            read(&engine, &o, page);
            w.source_reads.load(Ordering::Relaxed) == before
        };
        read(&engine, &o, 0);
        std::thread::sleep(2 * SETTLES);
        engine.note_open(&o);
        assert!(valid_identity(&engine.cx, &o).is_none() && is_cached(0), "not before its time");
        o.identity_due_ns.store(1, Ordering::Relaxed);
        match by_open {
            true => engine.note_open(&o),
            false => read(&engine, &o, 200),
        }
        assert!(valid_identity(&engine.cx, &o).is_some());
        assert!(!is_cached(0) && is_cached(0), "what was read before may be older than the identity");
        file.write_all_at(b"x", 0).unwrap();
        std::thread::sleep(2 * SETTLES);
        assert!(valid_identity(&engine.cx, &o).is_none(), "changed since");
    }
    engine.shutdown().unwrap();
}

#[test]
fn large_file_keeps_its_pages_instead() {
    let w = Fixture::new(without_compression());
    let (engine, _objects) = w.start();
    let file = tempfile::tempfile().unwrap();
    let o = just_changed(&engine, &file, 2 * FEW_BYTES);
    read(&engine, &o, 0);
    std::thread::sleep(2 * SETTLES);
    o.identity_due_ns.store(1, Ordering::Relaxed);
    engine.note_open(&o);
    assert!(engine.remembers(&o) && valid_identity(&engine.cx, &o).is_none());
    engine.shutdown().unwrap();
}
