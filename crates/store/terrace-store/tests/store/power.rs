//! Power cuts: afterwards the store holds a prefix of all changes, at least up to the last sync.

use crate::helpers::{dir, small};
use crate::model::{Model, Op, difference, dump};
use crate::power_io::PowerIo;
use std::path::Path;
use std::sync::Arc;
use terrace_store::{Segment, Store, StoreOptions, SyncPolicy};
use terrace_testkit::rng::{Rng, seed};

/// Blobs stay smaller than those changed in place.
const SIZE_MAX: u64 = 30_000;

fn open(dir: &Path, sync: SyncPolicy, io: Arc<PowerIo>) -> Result<Store, terrace_store::Error> {
    let options = StoreOptions { sync, ..small() };
    Store::open_with(dir, &options, &Segment::create(&options)?, io)
}

/// Runs operations until the power is cut. Returns the contents that the store may have then.
fn work(rng: &mut Rng, store: &Store, io: &PowerIo, always: bool, mut model: Model) -> Vec<Model> {
    let mut history = vec![model.clone()];
    loop {
        let done = match rng.below(40) {
            0..3 => store.sync().map(|()| true),
            3 => store.checkpoint().map(|()| true),
            4 => store.engine().flush_all(false).map(|()| false).or(Ok(false)),
            _ => {
                let op = Op::random(rng, SIZE_MAX);
                // Each bucket that the operation creates is its own change.
                for bucket in op.makes() {
                    Op::Make { bucket }.apply(&mut model);
                    history.push(model.clone());
                }
                op.apply(&mut model);
                let done = op.run(store).map(|()| always);
                history.push(model.clone());
                done
            }
        };
        match done {
            // All changes up to here are durable.
            Ok(true) => drop(history.drain(..history.len() - 1)),
            Ok(false) => {}
            Err(e) => {
                assert!(io.is_dead(), "only the cut may fail: {e}");
                return history;
            }
        }
    }
}

fn cuts(always: bool, rounds: u64) {
    let mut rng = Rng::new(seed("store-power"));
    let (mut place, mut model) = (dir(), Model::default());
    let policy = if always { SyncPolicy::Always } else { SyncPolicy::Never };
    for round in 0..rounds {
        let io = Arc::new(PowerIo::over(place.path()));
        io.cut_after(1 + rng.below(if always { 60 } else { 120 }));
        let history = match open(place.path(), policy, io.clone()) {
            Ok(store) => {
                let history = work(&mut rng, &store, &io, always, model.clone());
                store.crash();
                history
            }
            Err(e) => {
                assert!(io.is_dead(), "round {round}: {e}");
                vec![model.clone()]
            }
        };
        let mut after = dir();
        io.image(after.path(), &mut rng);
        // The power may be cut again during the start.
        while rng.chance(40) {
            let io = Arc::new(PowerIo::over(after.path()));
            io.cut_after(1 + rng.below(10));
            match open(after.path(), policy, io.clone()) {
                Ok(store) => store.crash(),
                Err(e) => assert!(io.is_dead(), "round {round}: {e}"),
            }
            let next = dir();
            io.image(next.path(), &mut rng);
            after = next;
        }
        let whole = Arc::new(PowerIo::over(after.path()));
        let store = open(after.path(), policy, whole).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let found = dump(&store);
        let held = history.iter().rev().any(|model| *model == found);
        if !held {
            let oldest = difference(&found, &history[0]);
            let newest = difference(&found, history.last().unwrap());
            panic!("round {round}: none of {} states; synced: {oldest:?}; last: {newest:?}", history.len());
        }
        if rng.chance(50) {
            store.crash()
        } else {
            store.close().unwrap()
        }
        let store = open(after.path(), policy, Arc::new(PowerIo::over(after.path()))).unwrap();
        assert_eq!(difference(&dump(&store), &found), None, "round {round}: the next start");
        store.close().unwrap();
        (place, model) = (after, found);
        if model.0.values().map(|blobs| blobs.len()).sum::<usize>() > 100 {
            (place, model) = (dir(), Model::default());
        }
    }
}

fn rounds(quick: u64) -> u64 {
    let set = std::env::var("TERRACE_POWER_CUTS").ok().and_then(|n| n.parse().ok());
    set.unwrap_or(if std::env::var_os("TERRACE_SOAK").is_some() { 20 * quick } else { quick })
}

#[test]
fn a_power_cut_leaves_a_prefix_with_all_that_was_synced() {
    cuts(false, rounds(100));
}

#[test]
fn a_power_cut_keeps_each_change_that_syncs_by_itself() {
    cuts(true, rounds(100));
}
