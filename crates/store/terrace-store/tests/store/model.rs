//! The store against a plain map: random operations with restarts, crashes over the segment, and log
//! compactions.

use crate::helpers::{content, dir, open_over, small};
use std::collections::BTreeMap;
use std::sync::Arc;
use terrace_store::{Error, Expect, Segment, Store};
use terrace_testkit::rng::{Rng, seed};

/// Blobs of a bucket: bytes and the user's word.
type Blobs = BTreeMap<Vec<u8>, (Arc<Vec<u8>>, u64)>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model(pub BTreeMap<String, Blobs>);

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Put {
        bucket: String,
        key: Vec<u8>,
        value: Arc<Vec<u8>>,
        meta: u64,
    },
    PutAbsent {
        bucket: String,
        key: Vec<u8>,
        value: Arc<Vec<u8>>,
    },
    PutAt {
        bucket: String,
        key: Vec<u8>,
        offset: usize,
        data: Vec<u8>,
    },
    Append {
        bucket: String,
        key: Vec<u8>,
        data: Vec<u8>,
    },
    Truncate {
        bucket: String,
        key: Vec<u8>,
        size: usize,
    },
    SetMeta {
        bucket: String,
        key: Vec<u8>,
        meta: u64,
    },
    Remove {
        bucket: String,
        key: Vec<u8>,
    },
    /// `Some`: with new bytes and a new user's word.
    Rename {
        from: (String, Vec<u8>),
        to: (String, Vec<u8>),
        new: Option<(Arc<Vec<u8>>, u64)>,
    },
    Clear {
        bucket: String,
    },
    Make {
        bucket: String,
    },
    RemoveBucket {
        bucket: String,
    },
    RenameBucket {
        from: String,
        to: String,
    },
}

const BUCKETS: u64 = 4;
const KEYS: u64 = 40;

fn bucket(rng: &mut Rng) -> String {
    format!("bucket{}", rng.below(BUCKETS))
}

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("key{}", rng.below(KEYS)).into_bytes()
}

/// A size from a few bytes to `max`.
fn size(rng: &mut Rng, max: u64) -> usize {
    let max = *rng.pick(&[40, 1500, 6000, max]);
    rng.below(max + 1) as usize
}

impl Op {
    /// A change of blobs up to `max` bytes.
    pub(crate) fn random(rng: &mut Rng, max: u64) -> Op {
        let (bucket, key) = (bucket(rng), key(rng));
        match rng.below(100) {
            0..40 => {
                let n = size(rng, max);
                Op::Put { bucket, key, value: Arc::new(content(rng.next_u64(), n)), meta: rng.next_u64() }
            }
            40..45 => {
                let n = size(rng, max);
                Op::PutAbsent { bucket, key, value: Arc::new(content(rng.next_u64(), n)) }
            }
            45..55 => {
                let (n, offset) = (size(rng, max / 2), size(rng, max / 2));
                Op::PutAt { bucket, key, offset, data: content(rng.next_u64(), n) }
            }
            55..67 => {
                let n = size(rng, max / 8);
                Op::Append { bucket, key, data: content(rng.next_u64(), n) }
            }
            67..72 => Op::Truncate { bucket, key, size: size(rng, max) },
            72..76 => Op::SetMeta { bucket, key, meta: rng.next_u64() },
            76..86 => Op::Remove { bucket, key },
            86..94 => {
                let n = size(rng, max);
                let new = rng.chance(30).then(|| (Arc::new(content(rng.next_u64(), n)), rng.next_u64()));
                Op::Rename { from: (bucket, key), to: (self::bucket(rng), self::key(rng)), new }
            }
            94..95 => Op::Clear { bucket },
            95..97 => Op::Make { bucket },
            97..98 => Op::RemoveBucket { bucket },
            _ => Op::RenameBucket { from: bucket, to: self::bucket(rng) },
        }
    }

    /// The buckets that the operation creates if missing, in this order.
    pub(crate) fn makes(&self) -> Vec<String> {
        match self {
            Op::Rename { from, to, .. } => vec![to.0.clone(), from.0.clone()],
            Op::RemoveBucket { .. } | Op::RenameBucket { .. } => Vec::new(),
            Op::Put { bucket, .. }
            | Op::PutAbsent { bucket, .. }
            | Op::PutAt { bucket, .. }
            | Op::Append { bucket, .. }
            | Op::Truncate { bucket, .. }
            | Op::SetMeta { bucket, .. }
            | Op::Remove { bucket, .. }
            | Op::Clear { bucket }
            | Op::Make { bucket } => vec![bucket.clone()],
        }
    }

    pub(crate) fn apply(&self, model: &mut Model) {
        let blobs =
            |model: &mut Model, name: &String| std::mem::take(model.0.entry(name.clone()).or_default());
        let edit = |model: &mut Model, name: &String, key: &Vec<u8>, f: &dyn Fn(&mut Vec<u8>)| {
            let (value, _) = model.0.entry(name.clone()).or_default().entry(key.clone()).or_default();
            f(Arc::make_mut(value));
        };
        match self {
            Op::Put { bucket, key, value, meta } => {
                model.0.entry(bucket.clone()).or_default().insert(key.clone(), (value.clone(), *meta));
            }
            Op::PutAbsent { bucket, key, value } => {
                let blobs = model.0.entry(bucket.clone()).or_default();
                blobs.entry(key.clone()).or_insert_with(|| (value.clone(), 0));
            }
            Op::PutAt { bucket, key, offset, data } => edit(model, bucket, key, &|value| {
                let len = value.len().max(offset + data.len());
                value.resize(len, 0);
                value[*offset..offset + data.len()].copy_from_slice(data);
            }),
            Op::Append { bucket, key, data } => {
                edit(model, bucket, key, &|value| value.extend_from_slice(data));
            }
            Op::Truncate { bucket, key, size } => {
                if let Some((value, _)) = model.0.entry(bucket.clone()).or_default().get_mut(key) {
                    Arc::make_mut(value).resize(*size, 0);
                }
            }
            Op::SetMeta { bucket, key, meta } => {
                if let Some(blob) = model.0.entry(bucket.clone()).or_default().get_mut(key) {
                    blob.1 = *meta;
                }
            }
            Op::Remove { bucket, key } => {
                model.0.entry(bucket.clone()).or_default().remove(key);
            }
            Op::Rename { from, to, new } => {
                model.0.entry(to.0.clone()).or_default();
                let blob = model.0.entry(from.0.clone()).or_default().remove(&from.1);
                if let Some(blob) = blob {
                    model
                        .0
                        .entry(to.0.clone())
                        .or_default()
                        .insert(to.1.clone(), new.clone().unwrap_or(blob));
                }
            }
            Op::Clear { bucket } => drop(blobs(model, bucket)),
            Op::Make { bucket } => {
                model.0.entry(bucket.clone()).or_default();
            }
            Op::RemoveBucket { bucket } => {
                model.0.remove(bucket);
            }
            Op::RenameBucket { from, to } => {
                if !model.0.contains_key(to)
                    && let Some(blobs) = model.0.remove(from)
                {
                    model.0.insert(to.clone(), blobs);
                }
            }
        }
    }

    pub(crate) fn run(&self, store: &Store) -> Result<(), Error> {
        match self {
            Op::Put { bucket, key, value, meta } => {
                let (a, b) = value.split_at(value.len() / 3);
                // Some blobs get room to grow.
                match meta % 4 {
                    0 => store.bucket(bucket)?.put_with_room(key, &[a, b], *meta, 64 << 10).map(drop),
                    _ => store.bucket(bucket)?.put_if(key, &[a, b], *meta, Expect::Any).map(drop),
                }
            }
            Op::PutAbsent { bucket, key, value } => {
                store.bucket(bucket)?.put_if(key, &[value.as_slice()], 0, Expect::Absent).map(drop)
            }
            Op::PutAt { bucket, key, offset, data } => {
                store.bucket(bucket)?.put_at(key, *offset as u64, data).map(drop)
            }
            Op::Append { bucket, key, data } => store.bucket(bucket)?.append(key, data).map(drop),
            Op::Truncate { bucket, key, size } => store.bucket(bucket)?.truncate(key, *size as u64).map(drop),
            Op::SetMeta { bucket, key, meta } => {
                store.bucket(bucket)?.set_meta(key, *meta, Expect::Any).map(drop)
            }
            Op::Remove { bucket, key } => store.bucket(bucket)?.remove(key).map(drop),
            Op::Rename { from, to, new } => {
                let (target, source) = (store.bucket(&to.0)?, store.bucket(&from.0)?);
                match new {
                    Some((value, meta)) => source.rename_as(&from.1, &target, &to.1, value, *meta),
                    None => source.rename_into(&from.1, &target, &to.1),
                }
                .map(drop)
            }
            Op::Clear { bucket } => store.bucket(bucket)?.clear(),
            Op::Make { bucket } => store.bucket(bucket).map(drop),
            Op::RemoveBucket { bucket } => store.remove_bucket(bucket).map(drop),
            Op::RenameBucket { from, to } => match store.rename_bucket(from, to) {
                Ok(_) | Err(Error::Exists { .. }) => Ok(()),
                Err(e) => Err(e),
            },
        }
    }
}

/// The whole content of a store.
pub(crate) fn dump(store: &Store) -> Model {
    let mut model = Model::default();
    for name in store.buckets() {
        let bucket = store.bucket(&name).unwrap();
        let blobs = bucket.list(b"").into_iter().map(|key| {
            let mut value = Vec::new();
            let stat = bucket.get_into(&key, &mut value).unwrap().expect("it is listed");
            assert_eq!(stat.size, value.len() as u64);
            (key.to_vec(), (Arc::new(value), stat.meta))
        });
        let blobs: Blobs = blobs.collect();
        assert_eq!(bucket.len(), blobs.len() as u64);
        assert_eq!(bucket.bytes(), blobs.values().map(|(value, _)| value.len() as u64).sum::<u64>());
        model.0.insert(name, blobs);
    }
    model
}

/// The first difference of two models.
pub(crate) fn difference(a: &Model, b: &Model) -> Option<String> {
    if a.0.keys().ne(b.0.keys()) {
        return Some(format!("buckets {:?} and {:?}", a.0.keys(), b.0.keys()));
    }
    for (name, blobs) in &a.0 {
        let others = &b.0[name];
        for key in blobs.keys().chain(others.keys()) {
            if blobs.get(key) != others.get(key) {
                let show = |blobs: &Blobs| {
                    blobs.get(key).map(|(value, meta)| (value.len(), value.first().copied(), *meta))
                };
                let key = String::from_utf8_lossy(key);
                return Some(format!("{name}/{key}: {:?} and {:?}", show(blobs), show(others)));
            }
        }
    }
    None
}

#[test]
fn agrees_with_a_map_across_restarts_and_crashes() {
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 40_000 } else { 2500 };
    let mut rng = Rng::new(seed("store-model"));
    let dir = dir();
    let mut segment = Segment::create(&small()).unwrap();
    let mut store = open_over(dir.path(), &segment);
    let mut model = Model::default();
    for i in 0..rounds {
        let op = Op::random(&mut rng, 150_000);
        op.run(&store).unwrap_or_else(|e| panic!("step {i}, {op:?}: {e}"));
        op.apply(&mut model);
        match rng.below(400) {
            0 => {
                store.close().unwrap();
                if rng.chance(50) {
                    segment = Segment::create(&small()).unwrap();
                }
                store = open_over(dir.path(), &segment);
            }
            1..3 => {
                store.crash();
                store = open_over(dir.path(), &segment);
            }
            3 => store.checkpoint().unwrap(),
            4..8 => store.sync().unwrap(),
            8..10 => drop(store.engine().drop_clean()),
            10 => assert_eq!(store.engine().check(), Vec::<String>::new()),
            _ => continue,
        }
        if let Some(difference) = difference(&dump(&store), &model) {
            panic!("step {i}: store and model differ: {difference}");
        }
    }
    assert_eq!(difference(&dump(&store), &model), None);
    let (usage, live) = (store.usage(), 2 * KEYS * BUCKETS * 150_000);
    assert!(usage.heap_bytes < 2 * live, "room is used again: {usage:?}");
    assert_eq!(usage.blobs, model.0.values().map(|blobs| blobs.len() as u64).sum::<u64>());
}

/// Threads use the same keys: a get returns a whole value that was put, and the appended bytes add up.
#[test]
fn threads_see_whole_values_only() {
    let dir = dir();
    let store = crate::helpers::open(dir.path());
    let bucket = store.bucket("b").unwrap();
    let value = |i: u64| (i.to_le_bytes().repeat(1 + (i % 900) as usize)).clone();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut out, mut seen) = (Vec::new(), 0u64);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        for key in [&b"a"[..], b"b", b"c"] {
                            if bucket.get_into(key, &mut out).unwrap().is_some() {
                                let first = u64::from_le_bytes(out[..8].try_into().unwrap());
                                assert_eq!(out, value(first));
                                seen += 1;
                            }
                        }
                    }
                    seen
                })
            })
            .collect();
        for thread in 0..2u64 {
            let (bucket, store) = (&bucket, &store);
            scope.spawn(move || {
                for i in 0..4000u64 {
                    let key = [&b"a"[..], b"b", b"c"][(i % 3) as usize];
                    bucket.put(key, &value(2 * i + thread)).unwrap();
                    bucket.append(b"sum", &[thread as u8]).unwrap();
                    if i % 50 == 0 {
                        bucket.remove(key).unwrap();
                        store.sync().unwrap();
                    }
                }
            });
        }
        while bucket.size(b"sum") != Some(8000) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(seen > 0);
    });
    let sum = bucket.get(b"sum").unwrap().unwrap();
    assert_eq!(sum.iter().filter(|&&thread| thread == 1).count(), 4000);
}
