//! Blobs go: one, or all of a bucket.

use super::commit::{self, Place};
use crate::core::Core;
use crate::error::Result;
use crate::index::{BucketState, Expect, Table, find, take};
use crate::log::Room;
use crate::record::{Record, TAGGED};
use crate::space::Extent;

/// Removes a blob, if there is one and `expect` holds.
///
/// # Errors
/// A removed bucket; failing I/O of the log.
pub(crate) fn remove(core: &Core, bucket: &BucketState, key: &[u8], expect: Expect) -> Result<bool> {
    let place = Place::new(core, bucket, key)?;
    let (number, extent) = {
        let mut table = bucket.write(place.hash);
        place.check_bucket()?;
        let entry = find(&table, place.hash, key);
        if entry.is_none() || !expect.holds(entry) {
            return Ok(false);
        }
        let number = if bucket.is_scratch() {
            core.take_unlogged()
        } else {
            core.log.append(&Record::Remove { bucket: bucket.id, key }, Room::Gives)?
        };
        (number, take_out(core, bucket, &mut table, place.hash, key))
    };
    commit::retire(core, bucket, number, extent);
    commit::finish(core, bucket, number).map(|()| true)
}

/// Takes a blob out of its table and the counts; its extent.
pub(super) fn take_out(
    core: &Core,
    bucket: &BucketState,
    table: &mut Table,
    hash: u64,
    key: &[u8],
) -> Extent {
    let Some(entry) = take(table, hash, key) else { return Extent::NONE };
    if entry.blob.has(TAGGED) {
        core.tags.pass_on(&(bucket.id, Some(key.into())), None);
    }
    bucket.count(-1, entry.blob.size, 0);
    core.counts.size(entry.blob.size, 0);
    core.counts.blob(-1, entry.key.len(), entry.logged_bytes());
    entry.extent()
}

/// Removes all blobs of a bucket, and with `gone` the bucket.
///
/// # Errors
/// As [`remove`].
pub(crate) fn clear(core: &Core, bucket: &BucketState, gone: bool) -> Result<u64> {
    core.check_open()?;
    let mut extents = Vec::new();
    let number = {
        let mut tables = bucket.write_all();
        Place { bucket, key: &[], hash: 0 }.check_bucket()?;
        let bucket_id = bucket.id;
        let record = if gone {
            Record::BucketGone { bucket: bucket_id }
        } else {
            Record::BucketClear { bucket: bucket_id }
        };
        let number = core.log.append(&record, Room::Gives)?;
        for table in &mut tables {
            for entry in std::mem::take(&mut **table) {
                core.counts.size(entry.blob.size, 0);
                core.counts.blob(-1, entry.key.len(), entry.logged_bytes());
                extents.push(entry.extent());
            }
        }
        bucket.count_none();
        core.tags.clear(bucket.id, gone);
        if gone {
            bucket.set_gone();
        }
        number
    };
    for extent in extents {
        commit::retire(core, bucket, number, extent);
    }
    commit::finish(core, bucket, number)?;
    Ok(number)
}
