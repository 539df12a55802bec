//! A hash value in memory: a table of fields with their values. A new field comes last; the last field takes
//! the place of a deleted one.

use compact_bytes::CompactBytes;
use hashbrown::DefaultHashBuilder;
use indexmap::{Equivalent, IndexMap};

use terrace_store::ScanCache;

use super::collection::Collection;
use super::dead_records::DeadRecords;
use super::record::FieldRecord;
use super::word::Kind;

/// Memory of a field without its bytes: entry with spare room, table slot, allocations of value and long
/// name.
const FIELD_BYTES: usize = 100;

/// Bytes of a value to prefetch. The hardware prefetcher follows a longer copy by itself.
const FETCHED_MAX: usize = 4096;

#[derive(Debug)]
struct Value {
    bytes: Box<[u8]>,
    /// Place of the record that set the value.
    place: u64,
}

/// A field's name as a look-up key. Short names are inline in the table's entries: a look-up fetches them
/// with the entry.
#[derive(Hash)]
struct Name<'a>(&'a [u8]);

impl Equivalent<CompactBytes> for Name<'_> {
    fn equivalent(&self, name: &CompactBytes) -> bool {
        *self.0 == **name
    }
}

#[derive(Debug, Default)]
pub(crate) struct Hash {
    fields: IndexMap<CompactBytes, Value, DefaultHashBuilder>,
    encoded: usize,
    /// Place where the log of changes begins.
    log_place: u64,
    dead_records: DeadRecords,
    scan_cache: ScanCache,
}

impl Hash {
    pub(crate) fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.get(&Name(field)).map(|value| &*value.bytes)
    }
    /// Prefetches these fields and their values into the CPU caches. The look-ups are independent, so their
    /// memory accesses overlap.
    pub(crate) fn prefetch(&self, names: &[&[u8]]) {
        for name in names {
            if let Some(value) = self.fields.get(&Name(name)) {
                terrace_store::prefetch(value.bytes.as_ptr(), value.bytes.len().min(FETCHED_MAX));
            }
        }
    }
    /// Sets a field. Returns whether it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8], log: &mut Vec<u8>) -> bool {
        let place = self.log_place + log.len() as u64;
        FieldRecord::Set(field, value).write(log);
        self.insert(field, value, place)
    }
    /// Deletes a field. Returns whether it existed.
    pub(crate) fn delete(&mut self, field: &[u8], log: &mut Vec<u8>) -> bool {
        let there = self.remove(field);
        if there {
            FieldRecord::Delete(field).write(log);
        }
        there
    }
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(field, value)| (&**field, &*value.bytes))
    }
    /// The field at an index, which is below [`Collection::len`].
    pub(crate) fn at(&self, index: usize) -> (&[u8], &[u8]) {
        let (field, value) = &self.fields.get_index(index).expect("an index of this hash");
        (field, &value.bytes)
    }

    fn insert(&mut self, field: &[u8], value: &[u8], place: u64) -> bool {
        self.encoded += FieldRecord::bytes(field.len(), value.len());
        if let Some(old) = self.fields.get_mut(&Name(field)) {
            self.encoded -= FieldRecord::bytes(field.len(), old.bytes.len());
            match old.bytes.len() == value.len() {
                true => old.bytes.copy_from_slice(value),
                false => old.bytes = value.into(),
            }
            self.dead_records.note(std::mem::replace(&mut old.place, place));
            return false;
        }
        self.fields.insert(CompactBytes::new(field), Value { bytes: value.into(), place });
        true
    }
    fn remove(&mut self, field: &[u8]) -> bool {
        let old = self.fields.swap_remove(&Name(field));
        if let Some(old) = &old {
            self.encoded -= FieldRecord::bytes(field.len(), old.bytes.len());
            self.dead_records.note(old.place);
        }
        old.is_some()
    }
}

impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

    type Record<'a> = FieldRecord<'a>;

    fn apply(&mut self, record: FieldRecord<'_>, place: u64) {
        match record {
            FieldRecord::Set(field, value) => self.insert(field, value, place),
            FieldRecord::Delete(field) => self.remove(field),
        };
    }
    fn place(&self, name: &[u8]) -> Option<u64> {
        self.fields.get(&Name(name)).map(|value| value.place)
    }
    fn dead_records(&mut self) -> &mut DeadRecords {
        &mut self.dead_records
    }
    fn scan_cache(&mut self) -> &mut ScanCache {
        &mut self.scan_cache
    }
    fn set_place(&mut self, name: &[u8], place: u64) {
        if let Some(value) = self.fields.get_mut(&Name(name)) {
            value.place = place;
        }
    }
    fn set_log_place(&mut self, place: u64) {
        self.log_place = place;
    }
    fn encode(&self) -> Vec<u8> {
        let mut records = Vec::with_capacity(self.encoded);
        self.iter().for_each(|(field, value)| FieldRecord::Set(field, value).write(&mut records));
        records
    }
    fn len(&self) -> usize {
        self.fields.len()
    }
    fn encoded_bytes(&self) -> usize {
        self.encoded
    }
    fn memory_bytes(&self) -> usize {
        self.encoded + self.len() * FIELD_BYTES + self.dead_records.bytes() + self.scan_cache.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn log_of_changes_decodes_to_the_hash() {
        let mut rng = Rng::new(seed("log_of_changes_decodes_to_the_hash"));
        let (mut hash, mut model, mut log) = (Hash::default(), BTreeMap::new(), Vec::new());
        for _ in 0..2000 {
            let field = rng.index(50).to_string().into_bytes();
            let value = rng.next_u64().to_string().repeat(rng.index(30)).into_bytes();
            if rng.chance(60) {
                assert_eq!(hash.set(&field, &value, &mut log), model.insert(field, value).is_none());
            } else {
                assert_eq!(hash.delete(&field, &mut log), model.remove(&field).is_some());
            }
        }
        let compact = hash.encode();
        assert_eq!(compact.len(), hash.encoded_bytes());
        for bytes in [log, compact] {
            let hash = Hash::decode(&bytes).unwrap();
            let read: BTreeMap<_, _> = hash.iter().map(|(f, v)| (f.to_vec(), v.to_vec())).collect();
            assert_eq!(read, model);
        }
    }
}
