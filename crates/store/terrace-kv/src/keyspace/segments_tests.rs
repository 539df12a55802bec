//! Tests of large collections against maps: crashes after any change of the store, full stores, and restarts
//! of a real store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_testkit::rng::{Rng, seed};

use super::collection::Collection;
use super::hash::Hash;
use super::segment_list::SegmentList;
use super::space::{Keyspace, system_clock};
use super::word::{Kind, Word};
use super::zset::Zset;
use crate::blobs::{Blobs, DATABASES, Db, pieces_of};
use crate::error::Outcome;
use crate::store::StoreBlobs;
use crate::testing::MemoryBlobs;

type Key = (Db, &'static [u8]);

/// Two keys of one database, one of another.
const HASHES: [Key; 3] = [(0, b"h"), (0, b"i"), (1, b"h")];
const ZSET: Key = (0, b"z");

#[derive(Debug, Clone, PartialEq, Default)]
struct Model {
    hashes: BTreeMap<Key, BTreeMap<Vec<u8>, Vec<u8>>>,
    zset: BTreeMap<Vec<u8>, i64>,
}

#[derive(Debug)]
enum Op {
    Set(Key, Vec<(Vec<u8>, Vec<u8>)>),
    Delete(Key, Vec<Vec<u8>>),
    Add(Vec<(Vec<u8>, i64)>),
    Drop(Vec<Vec<u8>>),
    Rename(Key, Key),
    Copy(Key, Key),
    Replace(Key),
    Remove(Key),
    Clear(Db),
}

fn field(rng: &mut Rng) -> Vec<u8> {
    format!("field{}", rng.below(60)).into_bytes()
}

impl Op {
    fn random(rng: &mut Rng) -> Op {
        let (a, b) = (*rng.pick(&HASHES), *rng.pick(&HASHES));
        let many_max = if rng.chance(10) { 30 } else { 3 };
        let many = 1 + rng.index(many_max);
        match rng.below(100) {
            0..60 => {
                let value = |rng: &mut Rng| {
                    let bytes_max = if rng.chance(50) { 40_000 } else { 300 };
                    let bytes = rng.index(bytes_max);
                    rng.bytes(bytes)
                };
                Op::Set(a, (0..many).map(|_| (field(rng), value(rng))).collect())
            }
            60..68 => Op::Delete(a, (0..many).map(|_| field(rng)).collect()),
            68..84 => {
                // Long names: few members make a large sorted set.
                let member = |rng: &mut Rng| format!("{:0>9000}", rng.below(60)).into_bytes();
                Op::Add((0..many).map(|_| (member(rng), rng.below(9) as i64)).collect())
            }
            84..87 => Op::Drop((0..many).map(|_| format!("{:0>9000}", rng.below(60)).into_bytes()).collect()),
            87..91 => Op::Rename(a, b),
            91..94 => Op::Copy(a, b),
            94..96 => Op::Replace(a),
            96..99 => Op::Remove(a),
            _ => Op::Clear(a.0),
        }
    }

    fn apply(&self, model: &mut Model) {
        match self {
            Op::Set(key, pairs) => model.hashes.entry(*key).or_default().extend(pairs.iter().cloned()),
            Op::Delete(key, fields) => {
                let hash = model.hashes.entry(*key).or_default();
                fields.iter().for_each(|field| {
                    hash.remove(field);
                });
            }
            Op::Add(members) => model.zset.extend(members.iter().cloned()),
            Op::Drop(members) => members.iter().for_each(|member| {
                model.zset.remove(member);
            }),
            Op::Rename(from, to) if from != to => {
                if let Some(moved) = model.hashes.remove(from) {
                    model.hashes.insert(*to, moved);
                }
            }
            Op::Copy(from, to) => {
                if let Some(copied) = model.hashes.get(from).cloned() {
                    model.hashes.insert(*to, copied);
                }
            }
            Op::Rename(..) => {}
            Op::Replace(key) | Op::Remove(key) => drop(model.hashes.remove(key)),
            Op::Clear(db) => {
                model.hashes.retain(|key, _| key.0 != *db);
                if *db == ZSET.0 {
                    model.zset.clear();
                }
            }
        }
        model.hashes.retain(|_, hash| !hash.is_empty());
    }

    fn run(&self, keyspace: &Keyspace) -> Outcome {
        let change_hash = |(db, key): Key, change: &dyn Fn(&mut Hash, &mut Vec<u8>)| {
            let mut locked = keyspace.lock_keys(db, [key]);
            if locked.stat(db, key).is_some_and(|(word, _)| word.kind == Kind::String) {
                locked.remove(db, key)?;
            }
            let mut open = locked.open_or_new::<Hash>(db, key)?;
            change(&mut open.content, &mut open.log);
            locked.close(db, key, open)
        };
        let change_zset = |change: &dyn Fn(&mut Zset, &mut Vec<u8>)| {
            let mut locked = keyspace.lock_keys(ZSET.0, [ZSET.1]);
            let mut open = locked.open_or_new::<Zset>(ZSET.0, ZSET.1)?;
            change(&mut open.content, &mut open.log);
            locked.close(ZSET.0, ZSET.1, open)
        };
        let is_hash =
            |(db, key): Key| keyspace.stat(db, key).is_some_and(|(word, _)| word.kind == Kind::Hash);
        match self {
            Op::Set(key, pairs) => change_hash(*key, &|hash, log| {
                pairs.iter().for_each(|(field, value)| {
                    hash.set(field, value, log);
                });
            }),
            Op::Delete(key, fields) => change_hash(*key, &|hash, log| {
                fields.iter().for_each(|field| {
                    hash.delete(field, log);
                });
            }),
            Op::Add(members) => change_zset(&|zset, log| {
                members.iter().for_each(|(member, score)| {
                    zset.set(member, *score as f64, log);
                });
            }),
            Op::Drop(members) => change_zset(&|zset, log| {
                members.iter().for_each(|member| {
                    zset.delete(member, log);
                });
            }),
            Op::Rename(from, to) if is_hash(*from) => keyspace.lock_keys_in([*from, *to]).rename(*from, *to),
            Op::Copy(from, to) if from != to && is_hash(*from) => {
                keyspace.lock_keys_in([*from, *to]).copy(*from, *to)
            }
            Op::Rename(..) | Op::Copy(..) => Ok(()),
            Op::Replace((db, key)) => {
                keyspace.lock_keys(*db, [*key]).write(*db, key, Word::new(Kind::String), b"a string")
            }
            Op::Remove((db, key)) => keyspace.lock_keys(*db, [*key]).remove(*db, key).map(drop),
            Op::Clear(db) => keyspace.clear(*db),
        }
    }
}

fn keyspace(blobs: Arc<dyn Blobs>) -> Keyspace {
    Keyspace::new(blobs, 64 << 20, system_clock())
}

/// The current content. Strings count as missing hashes.
fn dump(keyspace: &Keyspace) -> Model {
    let mut model = Model::default();
    for (db, key) in HASHES {
        let mut locked = keyspace.lock_keys(db, [key]);
        if let Ok(Some(open)) = locked.open::<Hash>(db, key) {
            let pairs = open.content.iter().map(|(field, value)| (field.to_vec(), value.to_vec()));
            model.hashes.insert((db, key), pairs.collect());
            locked.close(db, key, open).unwrap();
        }
    }
    let mut locked = keyspace.lock_keys(ZSET.0, [ZSET.1]);
    if let Some(open) = locked.open::<Zset>(ZSET.0, ZSET.1).unwrap() {
        model.zset = open.content.iter().map(|one| (one.member.to_vec(), one.score as i64)).collect();
        locked.close(ZSET.0, ZSET.1, open).unwrap();
    }
    model
}

/// Checks that each piece belongs to a head. Returns the number of pieces.
fn check_pieces(blobs: &dyn Blobs) -> u64 {
    let mut all = 0;
    for db in 0..DATABASES {
        let keys = HASHES.iter().chain([&ZSET]).filter(|key| key.0 == db);
        let chains = keys.filter_map(|(db, key)| SegmentList::find(blobs, *db, key).unwrap());
        let named: u64 = chains.map(|chain| chain.len()).sum();
        assert_eq!(blobs.len(pieces_of(db)), named, "pieces of database {db} and those that heads name");
        all += named;
    }
    all
}

#[test]
fn crash_after_any_change_keeps_whole_commands() {
    let mut rng = Rng::new(seed("crash_after_any_change_keeps_whole_commands"));
    let (mut blobs, mut model) = (Arc::new(MemoryBlobs::default()), Model::default());
    let (mut pieces_max, mut moves) = (0, 0);
    for round in 0..400 {
        let space = keyspace(blobs.clone());
        pieces_max = check_pieces(&*blobs).max(pieces_max);
        let made = blobs.changes.load(Ordering::Relaxed);
        blobs.changes_max.store(made + 1 + rng.below(40), Ordering::Relaxed);
        let (before, op) = loop {
            let (before, op) = (model.clone(), Op::random(&mut rng));
            op.apply(&mut model);
            if op.run(&space).is_err() {
                break (before, op);
            }
            // A failed step after the change itself returns no error.
            if blobs.changes.load(Ordering::Relaxed) >= blobs.changes_max.load(Ordering::Relaxed) {
                break (model.clone(), op);
            }
        };
        blobs = Arc::new(blobs.after_crash());
        let found = dump(&keyspace(blobs.clone()));
        let moved = matches!(op, Op::Rename(from, to) if from.0 != to.0 && before.hashes.contains_key(&from));
        moves += u64::from(moved);
        assert!(found == before || found == model, "round {round}: after a crash in {op:.40?}");
        model = found;
    }
    assert!(pieces_max > 10, "{pieces_max} pieces at the most");
    println!("{pieces_max} pieces at the most, {moves} crashes in a move to another database");
}

#[test]
fn move_is_done_or_not_after_a_crash_at_any_change() {
    let (from, to) = (HASHES[0], HASHES[2]);
    let fields = |of: u8| (0..120u32).map(|n| (n.to_le_bytes().to_vec(), vec![of; 5000])).collect();
    let (full, mut before) = (Arc::new(MemoryBlobs::default()), Model::default());
    let space = keyspace(full.clone());
    for op in [Op::Set(from, fields(1)), Op::Set(to, fields(2))] {
        op.apply(&mut before);
        op.run(&space).unwrap();
    }
    let (op, mut after) = (Op::Rename(from, to), before.clone());
    op.apply(&mut after);
    let (mut kept, mut moved) = (0, 0);
    for changes in 1.. {
        let blobs = Arc::new(full.after_crash());
        let space = keyspace(blobs.clone());
        blobs.changes_max.store(changes, Ordering::Relaxed);
        let done = op.run(&space);
        let is_whole = blobs.changes.load(Ordering::Relaxed) < changes;
        let blobs = Arc::new(blobs.after_crash());
        let found = dump(&keyspace(blobs.clone()));
        assert!(found == before || found == after, "killed after {changes} changes");
        assert!(done.is_err() || found == after, "killed after {changes} changes, and answered");
        check_pieces(&*blobs);
        *(if found == before { &mut kept } else { &mut moved }) += 1;
        if is_whole {
            break;
        }
    }
    assert!(kept > 3 && moved > 3, "killed {kept} times before the move and {moved} times after it");
}

#[test]
fn large_collections_equal_maps_over_restarts() {
    let mut rng = Rng::new(seed("large_collections_equal_maps_over_restarts"));
    let dir = tempfile::tempdir().unwrap();
    let options = terrace_store::StoreOptions {
        memory_bytes: 64 << 20,
        sync: terrace_store::SyncPolicy::Never,
        ..Default::default()
    };
    let mut model = Model::default();
    for _ in 0..8 {
        let store = terrace_store::Store::open(dir.path(), &options).unwrap();
        let blobs: Arc<dyn Blobs> = Arc::new(StoreBlobs::new(store.clone()).unwrap());
        let space = keyspace(blobs.clone());
        assert!(dump(&space) == model, "after a restart");
        for _ in 0..150 {
            let op = Op::random(&mut rng);
            op.apply(&mut model);
            op.run(&space).unwrap();
            // The server does this after each command: large values read stay reserved until then.
            blobs.release();
        }
        assert!(dump(&space) == model);
        check_pieces(&*blobs);
        blobs.release();
        drop((space, blobs));
        store.close().unwrap();
    }
}

/// Stored bytes of a hash, and bytes of its live records.
fn sizes(space: &Keyspace, (db, key): Key) -> (u64, u64) {
    let mut locked = space.lock_keys(db, [key]);
    let open = locked.open::<Hash>(db, key).unwrap().unwrap();
    let live = open.content.encoded_bytes() as u64;
    locked.close(db, key, open).unwrap();
    (SegmentList::find(&**space.blobs(), db, key).unwrap().unwrap().bytes(), live)
}

#[test]
fn changes_of_a_large_hash_write_little_and_leave_little() {
    let mut rng = Rng::new(seed("changes_of_a_large_hash_write_little_and_leave_little"));
    let blobs = Arc::new(MemoryBlobs::default());
    let space = keyspace(blobs.clone());
    let mut model = Model::default();
    let mut set = |number: u64, value: &[u8]| {
        let op = Op::Set(HASHES[0], vec![(number.to_string().into_bytes(), value.to_vec())]);
        op.apply(&mut model);
        op.run(&space).unwrap();
    };
    (0..4000).for_each(|number| set(number, &[1; 1000]));
    let written = blobs.written.load(Ordering::Relaxed);
    for _ in 0..20_000 {
        set(rng.below(4000), &rng.bytes(1000));
    }
    // The last changes set one field: pieces with no other dead record lie in between.
    for _ in 0..2000 {
        set(7, &rng.bytes(1000));
    }
    // Records that were moved several times are right, too.
    assert!(dump(&keyspace(Arc::new(blobs.after_crash()))) == model);
    let (stored, live) = sizes(&space, HASHES[0]);
    assert!(stored < 2 * live + (1 << 20), "{stored} bytes stored, {live} count");
    let times = (blobs.written.load(Ordering::Relaxed) - written) as f64 / 22e6;
    assert!(times < 1.6, "{times} bytes written for a byte set");
    println!("{times:.2} bytes written for a byte set, {:.2} stored", stored as f64 / live as f64);
}

#[test]
fn piece_that_could_not_be_dropped_is_cleaned_again() {
    let mut rng = Rng::new(seed("piece_that_could_not_be_dropped_is_cleaned_again"));
    let blobs = Arc::new(MemoryBlobs::default());
    let space = keyspace(blobs.clone());
    let mut model = Model::default();
    let mut refused = 0;
    for number in 0..9000u64 {
        let field = if number < 1500 { number } else { rng.below(1500) };
        let op = Op::Set(HASHES[0], vec![(field.to_string().into_bytes(), rng.bytes(1000))]);
        let made = blobs.changes.load(Ordering::Relaxed);
        // The record and the copy of live records are written; the new head is not.
        let fails = number > 1500 && number % 2 == 0;
        blobs.changes_max.store(if fails { made + 2 } else { 0 }, Ordering::Relaxed);
        op.apply(&mut model);
        op.run(&space).unwrap();
        refused += u64::from(fails && blobs.changes.load(Ordering::Relaxed) == made + 2);
    }
    assert!(refused > 3, "{refused} pieces were cleaned for nothing");
    assert!(dump(&keyspace(Arc::new(blobs.after_crash()))) == model);
    let (stored, live) = sizes(&space, HASHES[0]);
    assert!(stored < 2 * live + (1 << 20), "{stored} bytes stored, {live} count");
    check_pieces(&*blobs);
}

#[test]
fn full_store_refuses_and_keeps_a_large_hash() {
    let blobs = Arc::new(MemoryBlobs::default());
    let space = keyspace(blobs.clone());
    let fields = |from: u32| (from..from + 100).map(|n| (n.to_le_bytes().to_vec(), vec![7; 5000])).collect();
    let mut model = Model::default();
    let op = Op::Set(HASHES[0], fields(0));
    op.apply(&mut model);
    op.run(&space).unwrap();
    blobs.is_full.store(true, Ordering::Relaxed);
    assert!(Op::Set(HASHES[0], fields(50)).run(&space).is_err());
    assert!(Op::Copy(HASHES[0], HASHES[1]).run(&space).is_err());
    blobs.is_full.store(false, Ordering::Relaxed);
    assert!(dump(&space) == model);
    check_pieces(&*blobs);
}

#[test]
fn full_store_removes_a_large_hash_over_crashes() {
    let full = Arc::new(MemoryBlobs::default());
    let fields = (0..200u32).map(|n| (n.to_le_bytes().to_vec(), vec![7; 5000])).collect();
    Op::Set(HASHES[0], fields).run(&keyspace(full.clone())).unwrap();
    for op in [Op::Remove(HASHES[0]), Op::Clear(HASHES[0].0)] {
        for changes in 1.. {
            let blobs = Arc::new(full.after_crash());
            let space = keyspace(blobs.clone());
            blobs.is_full.store(true, Ordering::Relaxed);
            blobs.changes_max.store(changes, Ordering::Relaxed);
            let done = op.run(&space);
            let is_whole = blobs.changes.load(Ordering::Relaxed) < changes;
            let blobs = Arc::new(blobs.after_crash());
            let left = dump(&keyspace(blobs.clone())).hashes.get(&HASHES[0]).map_or(0, BTreeMap::len);
            assert!(left == 200 || left == 0, "killed after {changes} changes of {op:?}: {left} fields");
            assert!(done.is_err() || left == 0, "killed after {changes} changes of {op:?}, and answered");
            check_pieces(&*blobs);
            if is_whole {
                done.unwrap();
                break;
            }
        }
    }
}
