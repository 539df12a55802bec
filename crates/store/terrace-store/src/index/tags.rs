//! Tags: names given to blobs and buckets of a store, each with its set of holders.

use super::memory::IndexMemory;
use crate::allocated::allocated;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_sync::Mutex;

/// The holder of a tag: a bucket, or a blob of a bucket.
pub(crate) type Tagged = (u64, Option<Box<[u8]>>);

/// Bytes of a tag without its name, or of a holder without its key, in trees two thirds full.
const TAG_BYTES: u64 = 72;
const HOLDER_BYTES: u64 = 40;

fn holder_bytes(who: &Tagged) -> u64 {
    HOLDER_BYTES + who.1.as_ref().map_or(0, |key| allocated(key.len()))
}

/// Memory that this tag takes for a new holder, bytes.
pub(crate) fn bytes_of(tag: &str, who: &Tagged) -> u64 {
    TAG_BYTES + allocated(tag.len()) + holder_bytes(who)
}

type Holders = BTreeMap<Box<str>, BTreeSet<Tagged>>;

/// All tags of a store. The lock is taken inside the lock of a bucket's table, or alone.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    holders: Mutex<Holders>,
    /// The store has had a tag. Set while a table of the holder's bucket is locked. So a thread with all its
    /// tables locked can skip the shared lock of `holders` while this is unset.
    used: AtomicBool,
}

impl Tags {
    /// Adds a tag to a holder, or removes it. Returns whether that changes anything.
    pub(crate) fn set(&self, tag: &str, who: Tagged, on: bool, memory: &IndexMemory) -> bool {
        let mut tags = self.holders.lock();
        if on {
            self.used.store(true, Ordering::Relaxed);
            let (of_tag, of_holder) = (TAG_BYTES + allocated(tag.len()), holder_bytes(&who));
            let members = tags.entry(tag.into()).or_insert_with(|| {
                memory.add(of_tag);
                BTreeSet::new()
            });
            let is_new = members.insert(who);
            memory.add(if is_new { of_holder } else { 0 });
            return is_new;
        }
        let Some(members) = tags.get_mut(tag) else { return false };
        let was = members.remove(&who);
        memory.sub(if was { holder_bytes(&who) } else { 0 });
        if !has_members(tag, members, memory) {
            tags.remove(tag);
        }
        was
    }

    pub(crate) fn has(&self, tag: &str, who: &Tagged) -> bool {
        self.holders.lock().get(tag).is_some_and(|members| members.contains(who))
    }

    /// Moves the tags of a holder to its new name `to`; removes them if there is none.
    pub(crate) fn pass_on(&self, who: &Tagged, to: Option<&Tagged>, memory: &IndexMemory) {
        self.holders.lock().retain(|tag, members| {
            if members.remove(who) {
                memory.sub(holder_bytes(who));
                if let Some(to) = to.cloned() {
                    let bytes = holder_bytes(&to);
                    memory.add(if members.insert(to) { bytes } else { 0 });
                }
            }
            has_members(tag, members, memory)
        });
    }

    /// Removes the tags of all blobs of a bucket, and with `bucket_too` of the bucket itself.
    pub(crate) fn clear(&self, bucket: u64, bucket_too: bool, memory: &IndexMemory) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        self.holders.lock().retain(|tag, members| {
            members.retain(|who| {
                let stays = who.0 != bucket || (who.1.is_none() && !bucket_too);
                memory.sub(if stays { 0 } else { holder_bytes(who) });
                stays
            });
            has_members(tag, members, memory)
        });
    }

    pub(crate) fn members(&self, tag: &str) -> Vec<Tagged> {
        self.holders.lock().get(tag).map(|members| members.iter().cloned().collect()).unwrap_or_default()
    }

    /// The tags of a holder, sorted.
    pub(crate) fn of(&self, who: &Tagged) -> Vec<String> {
        let tags = self.holders.lock();
        tags.iter().filter(|(_, members)| members.contains(who)).map(|(tag, _)| tag.to_string()).collect()
    }

    /// All pairs of tag and holder.
    pub(crate) fn all(&self) -> Vec<(Box<str>, Tagged)> {
        let tags = self.holders.lock();
        tags.iter()
            .flat_map(|(tag, members)| members.iter().map(move |who| (tag.clone(), who.clone())))
            .collect()
    }
}

/// Whether the tag still has holders. If not, subtracts its memory.
fn has_members(tag: &str, members: &BTreeSet<Tagged>, memory: &IndexMemory) -> bool {
    memory.sub(if members.is_empty() { TAG_BYTES + allocated(tag.len()) } else { 0 });
    !members.is_empty()
}
