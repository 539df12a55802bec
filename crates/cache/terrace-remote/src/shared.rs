//! State of a target in a store, for its readers, writer and uploader: places of regions, queued requests,
//! health.

use crate::lease::{Lease, Timing};
use crate::store::{Failed, Kind, Part, Store};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use terrace_sync::{Condvar, Mutex, RwLock};
use terrace_tier::{DATA_AT, Geometry};

/// The objects of the two copies of the superblock.
pub(crate) const SUPERBLOCKS: [&str; 2] = ["s/superblock-a", "s/superblock-b"];
pub(crate) const REGIONS: &str = "r/";
/// Maximum number of full regions that wait for the store. Above it, evicted pages are not kept in this tier.
pub(crate) const WAITING_MAX: usize = 2;
/// Time limit to list the regions.
const LIST_WITHIN: Duration = Duration::from_secs(10);

/// State shared by readers, the writer and the uploader.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    pub(crate) lease: Lease,
    pub(crate) timing: Timing,
    pub(crate) places: RwLock<Option<Places>>,
    /// Held while the regions are listed.
    pub(crate) attaching: Mutex<()>,
    pub(crate) queue: Mutex<Queue>,
    /// Signals changes of the queue and of the health.
    pub(crate) changed: Condvar,
    pub(crate) health: Health,
    pub(crate) waiting: AtomicUsize,
}

/// Queued requests, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) requests: VecDeque<Request>,
    pub(crate) is_ending: bool,
    pub(crate) has_ended: bool,
}

/// A change of the store.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    /// The content of a region, so far or complete.
    Put { region: u32, filling: u64, content: Bytes, is_last: bool },
    /// An object that is no longer referenced.
    Delete(String),
}

/// Whether the store works.
#[derive(Debug, Default)]
pub(crate) struct Health {
    why: Mutex<Option<String>>,
    /// `why` is set: nothing is written.
    is_failing: AtomicBool,
    /// Reads fail, too: none is tried.
    pub(crate) reads_fail: AtomicBool,
    is_lost: AtomicBool,
}

impl Health {
    /// Notes a failed request. Returns true if the store worked before.
    pub(crate) fn fail(&self, why: &str) -> bool {
        *self.why.lock() = Some(why.to_owned());
        !self.is_failing.swap(true, Ordering::AcqRel)
    }
    /// Notes that another instance has taken the target.
    pub(crate) fn lose(&self, why: &str) {
        self.is_lost.store(true, Ordering::Release);
        self.fail(why);
    }
    /// Notes that the store works. Returns true if it failed before.
    pub(crate) fn recover(&self) -> bool {
        if self.is_lost() || !self.is_failing.load(Ordering::Acquire) {
            return false;
        }
        self.reads_fail.store(false, Ordering::Release);
        *self.why.lock() = None;
        self.is_failing.swap(false, Ordering::AcqRel)
    }
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }
    pub(crate) fn why(&self) -> Option<String> {
        if self.is_failing() { self.why.lock().clone() } else { None }
    }
    /// The error of requests that are not tried.
    pub(crate) fn error(&self) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, self.why().unwrap_or_else(|| "the store fails".to_owned()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) of: HashMap<u32, Place>,
    pub(crate) open: Option<u32>,
    pub(crate) fillings: u64,
    /// Sequence of the next object.
    next: u64,
    random: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Place {
    /// Number of the region's current filling, counted since this run began.
    pub(crate) filling: u64,
    /// Name and size in bytes.
    pub(crate) object: Option<(String, u64)>,
    pub(crate) content: Option<Content>,
}

#[derive(Debug)]
pub(crate) enum Content {
    Open(Vec<u8>),
    Full(Bytes),
}

/// A part of a region.
pub(crate) enum Found {
    Here(Vec<u8>),
    /// In the store. Bytes behind the part's end read as zeros.
    There(Part),
}

/// `REGION-SEQUENCE-RANDOM`
fn region_name(region: u32, sequence: u64, random: u32) -> String {
    format!("{REGIONS}{region:06}-{sequence:016x}-{random:08x}")
}

/// The region and sequence of an object.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(REGIONS)?.split('-');
    let region = parts.next()?.parse().ok()?;
    let sequence = u64::from_str_radix(parts.next()?, 16).ok()?;
    Some((region, sequence))
}

/// Each run of the daemon has its own sequences, from `run << RUN_BITS`.
const RUN_BITS: u32 = 32;

impl Places {
    /// Lists the regions in the store, and objects that no longer count.
    fn find(store: &Store, geometry: Geometry) -> Result<(Places, Vec<String>), Failed> {
        let mut places = Places::default();
        let mut newest: HashMap<u32, (u64, String, u64)> = HashMap::new();
        let (mut old, mut last) = (Vec::new(), 0);
        for object in store.list(REGIONS, LIST_WITHIN)? {
            let Some((region, sequence)) = parse_name(&object.name) else { continue };
            last = last.max(sequence);
            let is_sound = region < geometry.regions() && object.bytes <= geometry.region_bytes().into();
            match newest.get(&region) {
                _ if !is_sound => old.push(object.name),
                Some((newer, ..)) if *newer > sequence => old.push(object.name),
                _ => {
                    let replaced = newest.insert(region, (sequence, object.name, object.bytes));
                    old.extend(replaced.map(|(_, name, _)| name));
                }
            }
        }
        for (region, (_, name, bytes)) in newest {
            places.of.insert(region, Place { object: Some((name, bytes)), ..Place::default() });
        }
        places.next = ((last >> RUN_BITS) + 1) << RUN_BITS;
        // Differs from the names of a run with unlisted objects.
        places.random = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_nsec as u32;
        Ok((places, old))
    }

    /// Finds `len` bytes from `offset` of a region.
    fn find_part(&self, region: u32, offset: u64, len: u64) -> io::Result<Found> {
        let beyond = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let place = self.of.get(&region);
        let (end, content) = match place.map(|place| (&place.content, &place.object)) {
            Some((Some(Content::Open(content)), _)) => (content.len() as u64, Some(&content[..])),
            Some((Some(Content::Full(content)), _)) => (content.len() as u64, Some(&content[..])),
            Some((None, Some((_, bytes)))) => (*bytes, None),
            _ => (0, None),
        };
        // Batches are written whole. A scan looks for a key behind the last batch, where there is no content.
        let there = end.checked_sub(offset).ok_or_else(beyond)?.min(len);
        if there == 0 {
            return Ok(Found::Here(Vec::new()));
        }
        match (content, place.and_then(|place| place.object.as_ref())) {
            (Some(content), _) => {
                Ok(Found::Here(content[offset as usize..(offset + there) as usize].to_vec()))
            }
            (None, Some((name, _))) => {
                Ok(Found::There(Part { name: name.clone(), range: offset..offset + there }))
            }
            (None, None) => Err(beyond()),
        }
    }
}

impl Shared {
    /// Lists the regions in the store, once.
    fn attach(&self) -> io::Result<()> {
        let _one = self.attaching.lock();
        if self.places.read().is_some() {
            return Ok(());
        }
        if self.health.reads_fail.load(Ordering::Acquire) {
            return Err(self.health.error());
        }
        let (places, old) =
            Places::find(&self.store, self.geometry).map_err(|failed| self.note_read(failed))?;
        *self.places.write() = Some(places);
        self.queue.lock().requests.extend(old.into_iter().map(Request::Delete));
        self.changed.notify_all();
        Ok(())
    }

    /// Notes a failed read. If the store failed, reads are no longer tried until it works again.
    pub(crate) fn note_read(&self, failed: Failed) -> io::Error {
        if failed.kind != Kind::Absent {
            self.health.reads_fail.store(true, Ordering::Release);
            self.tell(&failed.why);
        }
        failed.into()
    }

    /// Notes a failed request.
    pub(crate) fn tell(&self, why: &str) {
        if self.health.fail(why) {
            tracing::warn!("tier {}: {why}; the source is read until the store works again", self.name);
        }
        self.changed.notify_all();
    }

    /// Returns a name for the next object of a region.
    pub(crate) fn next_name(&self, region: u32) -> String {
        let mut places = self.places.write();
        let places = places.get_or_insert_default();
        places.next += 1;
        region_name(region, places.next, places.random)
    }

    /// Notes that the content of a region is in the store. Returns the object that no longer counts.
    pub(crate) fn has_put(&self, request: &Request, name: String) -> Option<String> {
        let Request::Put { region, filling, content, is_last } = request else { return None };
        if *is_last {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        let mut places = self.places.write();
        let place = places.as_mut().and_then(|places| places.of.get_mut(region));
        let Some(place) = place.filter(|place| place.filling == *filling) else { return Some(name) };
        if *is_last {
            place.content = None;
        }
        place.object.replace((name, content.len() as u64)).map(|(old, _)| old)
    }

    pub(crate) fn push(&self, requests: impl IntoIterator<Item = Request>) {
        self.queue.lock().requests.extend(requests);
        self.changed.notify_all();
    }

    pub(crate) fn region_of(&self, at: u64) -> Option<(u32, u64)> {
        let at = at.checked_sub(DATA_AT)?;
        let bytes = u64::from(self.geometry.region_bytes());
        let region = u32::try_from(at / bytes).ok().filter(|region| *region < self.geometry.regions())?;
        Some((region, at % bytes))
    }

    /// Finds the bytes of a read. None: they belong to the superblocks.
    pub(crate) fn find(&self, at: u64, len: u64) -> io::Result<Option<Found>> {
        let Some((region, offset)) = self.region_of(at) else {
            return if at + len <= DATA_AT { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        };
        if self.places.read().is_none() {
            self.attach()?;
        }
        let places = self.places.read();
        let places = places.as_ref().ok_or(io::ErrorKind::UnexpectedEof)?;
        match places.find_part(region, offset, len)? {
            Found::There(_) if self.health.reads_fail.load(Ordering::Acquire) => Err(self.health.error()),
            found => Ok(Some(found)),
        }
    }

    /// Completes the open region: returns the request to upload it.
    pub(crate) fn close_open(&self, places: &mut Places) -> Option<Request> {
        let region = places.open.take()?;
        let place = places.of.get_mut(&region)?;
        let Some(Content::Open(content)) = place.content.take() else { return None };
        let content = Bytes::from(content);
        place.content = Some(Content::Full(content.clone()));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Some(Request::Put { region, filling: place.filling, content, is_last: true })
    }

    /// The request to upload the open region, if the store lacks a part of it.
    pub(crate) fn copy_open(&self) -> Option<Request> {
        let places = self.places.read();
        let places = places.as_ref()?;
        let region = places.open?;
        let place = places.of.get(&region)?;
        let Some(Content::Open(content)) = &place.content else { return None };
        let has = place.object.as_ref().map_or(0, |(_, bytes)| *bytes);
        (content.len() as u64 > has).then(|| Request::Put {
            region,
            filling: place.filling,
            content: Bytes::copy_from_slice(content),
            is_last: false,
        })
    }
}
