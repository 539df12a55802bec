//! A hash: fields with values, in order of their coming.

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;

use super::collection::Collection;
use super::record::{Damaged, FieldRecord, fields};
use super::word::Kind;

/// Memory of a field beside its bytes: two pointers with lengths, hash, place in the table, two allocations.
const FIELD_BYTES: usize = 80;

/// Values from this size on are not copied when the hash is written, bytes.
const LARGE: usize = 256;

/// The fields.
#[derive(Debug, Default)]
pub struct Hash {
    fields: IndexMap<Box<[u8]>, Box<[u8]>, DefaultHashBuilder>,
    encoded: usize,
}

impl Hash {
    /// A field's value.
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.get(field).map(|value| &**value)
    }
    /// Sets a field; whether it is new.
    pub fn set(&mut self, field: &[u8], value: &[u8], log: &mut Vec<u8>) -> bool {
        FieldRecord::Set(field, value).write(log);
        self.insert(field, value)
    }
    /// Deletes a field; whether it was there.
    pub fn delete(&mut self, field: &[u8], log: &mut Vec<u8>) -> bool {
        let there = self.remove(field);
        if there {
            FieldRecord::Delete(field).write(log);
        }
        there
    }
    /// The fields with their values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(field, value)| (&**field, &**value))
    }
    /// One of them by its place, which is below [`Collection::len`].
    pub fn at(&self, index: usize) -> (&[u8], &[u8]) {
        let (field, value) = &self.fields.get_index(index).expect("an index of this hash");
        (field, value)
    }

    fn insert(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.encoded += FieldRecord::bytes(field.len(), value.len());
        if let Some(old) = self.fields.get_mut(field) {
            self.encoded -= FieldRecord::bytes(field.len(), old.len());
            match old.len() == value.len() {
                true => old.copy_from_slice(value),
                false => *old = value.into(),
            }
            return false;
        }
        self.fields.insert(field.into(), value.into());
        true
    }
    fn remove(&mut self, field: &[u8]) -> bool {
        let old = self.fields.swap_remove(field);
        self.encoded -= old.as_ref().map_or(0, |value| FieldRecord::bytes(field.len(), value.len()));
        old.is_some()
    }
}

impl Collection for Hash {
    const KIND: Kind = Kind::Hash;

    fn decode(bytes: &[u8]) -> Result<Hash, Damaged> {
        let mut hash = Hash::default();
        for record in fields(bytes) {
            match record? {
                FieldRecord::Set(field, value) => hash.insert(field, value),
                FieldRecord::Delete(field) => hash.remove(field),
            };
        }
        Ok(hash)
    }
    fn with_parts<T>(&self, use_parts: impl FnOnce(&[&[u8]]) -> T) -> T {
        // Large values stay where they are, all else is copied; `large`: each with the place in it where it belongs.
        let (mut copied, mut large) = (Vec::new(), Vec::new());
        for (field, value) in self.iter() {
            FieldRecord::write_head(field, value, &mut copied);
            match value.len() < LARGE {
                true => copied.extend_from_slice(value),
                false => large.push((copied.len(), value)),
            }
        }
        let mut parts: Vec<&[u8]> = Vec::with_capacity(2 * large.len() + 1);
        let mut begin = 0;
        for (end, value) in large {
            parts.extend([&copied[begin..end], value]);
            begin = end;
        }
        parts.push(&copied[begin..]);
        use_parts(&parts)
    }
    fn len(&self) -> usize {
        self.fields.len()
    }
    fn encoded_bytes(&self) -> usize {
        self.encoded
    }
    fn memory_bytes(&self) -> usize {
        self.encoded + self.len() * FIELD_BYTES
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
        let compact = hash.with_parts(|parts| parts.concat());
        assert_eq!(compact.len(), hash.encoded_bytes());
        for bytes in [log, compact] {
            let hash = Hash::decode(&bytes).unwrap();
            let read: BTreeMap<_, _> = hash.iter().map(|(f, v)| (f.to_vec(), v.to_vec())).collect();
            assert_eq!(read, model);
        }
    }
}
