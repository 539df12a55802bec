//! Tags: sets of blobs and buckets under a name.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The holder of a tag: a bucket, or a blob of it.
pub(crate) type Tagged = (u64, Option<Box<[u8]>>);

/// All tags of a store. Locked inside the tables of a bucket, or alone.
#[derive(Debug, Default)]
pub(crate) struct Tags(Mutex<BTreeMap<Box<str>, BTreeSet<Tagged>>>);

impl Tags {
    /// Gives or takes a tag; whether that changes something.
    pub(crate) fn set(&self, tag: &str, who: Tagged, on: bool) -> bool {
        let mut tags = self.0.lock();
        if on {
            return tags.entry(tag.into()).or_default().insert(who);
        }
        let Some(members) = tags.get_mut(tag) else { return false };
        let was = members.remove(&who);
        if members.is_empty() {
            tags.remove(tag);
        }
        was
    }

    /// Whether it has the tag.
    pub(crate) fn has(&self, tag: &str, who: &Tagged) -> bool {
        self.0.lock().get(tag).is_some_and(|members| members.contains(who))
    }

    /// It is gone, or has another name now: `to` gets its tags.
    pub(crate) fn pass_on(&self, who: &Tagged, to: Option<&Tagged>) {
        self.0.lock().retain(|_, members| {
            if members.remove(who) {
                members.extend(to.cloned());
            }
            !members.is_empty()
        });
    }

    /// All blobs of a bucket are gone, and with `bucket_too` it.
    pub(crate) fn clear(&self, bucket: u64, bucket_too: bool) {
        self.0.lock().retain(|_, members| {
            members.retain(|(id, key)| *id != bucket || (key.is_none() && !bucket_too));
            !members.is_empty()
        });
    }

    /// Holders of the tag.
    pub(crate) fn members(&self, tag: &str) -> Vec<Tagged> {
        self.0.lock().get(tag).map(|members| members.iter().cloned().collect()).unwrap_or_default()
    }

    /// Its tags, sorted.
    pub(crate) fn of(&self, who: &Tagged) -> Vec<String> {
        let tags = self.0.lock();
        tags.iter().filter(|(_, members)| members.contains(who)).map(|(tag, _)| tag.to_string()).collect()
    }

    /// All tags, each with who has it.
    pub(crate) fn all(&self) -> Vec<(Box<str>, Tagged)> {
        let tags = self.0.lock();
        tags.iter()
            .flat_map(|(tag, members)| members.iter().map(move |who| (tag.clone(), who.clone())))
            .collect()
    }
}
