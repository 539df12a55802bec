//! Writes to a compact hash: fields are set directly in its stored records. Decoding ten fields into a
//! table, each with an allocation, took longer than the rest of HSET.

use super::record::{Damaged, FieldRecord, records};

/// Maximum number of pairs for a linear search.
pub(crate) const PAIRS_MAX: usize = 16;

/// Appends the records of a hash with these fields set to `out`. Returns the number of new fields. If a field
/// occurs in several pairs, the last counts.
///
/// # Errors
/// The bytes are not compact, or not a hash.
///
/// # Panics
/// More than [`PAIRS_MAX`] pairs.
pub(crate) fn set(compact: &[u8], pairs: &[(&[u8], &[u8])], out: &mut Vec<u8>) -> Result<usize, Damaged> {
    assert!(pairs.len() <= PAIRS_MAX);
    let (mut known, mut at) = ([false; PAIRS_MAX], 0);
    for record in records(compact) {
        let (record, bytes) = record?;
        let FieldRecord::Set(field, _) = record else { return Err(Damaged) };
        let mut value = None;
        for (known, (name, new)) in known.iter_mut().zip(pairs) {
            if *name == field {
                (*known, value) = (true, Some(*new));
            }
        }
        match value {
            Some(value) => FieldRecord::Set(field, value).write(out),
            None => out.extend_from_slice(&compact[at..at + bytes]),
        }
        at += bytes;
    }
    let mut new = 0;
    for (at, (name, _)) in pairs.iter().enumerate() {
        let is_first = !pairs[..at].iter().any(|(earlier, _)| earlier == name);
        if !known[at] && is_first {
            let last = pairs.iter().rfind(|(later, _)| later == name);
            last.iter().for_each(|(_, value)| FieldRecord::Set(name, value).write(out));
            new += 1;
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::super::collection::Collection;
    use super::super::hash::Hash;
    use super::*;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn fields_are_set_as_in_a_table() {
        let mut rng = Rng::new(seed("fields_are_set_as_in_a_table"));
        let (mut hash, mut compact) = (Hash::default(), Vec::new());
        for round in 0..3000 {
            if round % 100 == 0 {
                (hash, compact) = (Hash::default(), Vec::new());
            }
            let count = rng.index(PAIRS_MAX + 1);
            let pair = |rng: &mut Rng| {
                let (field, bytes) = (rng.index(30).to_string().into_bytes(), rng.index(200));
                (field, rng.bytes(bytes))
            };
            let pairs: Vec<_> = (0..count).map(|_| pair(&mut rng)).collect();
            let borrowed: Vec<_> = pairs.iter().map(|(field, value)| (&**field, &**value)).collect();
            let mut out = Vec::new();
            let new = set(&compact, &borrowed, &mut out).unwrap();
            let wanted =
                pairs.iter().filter(|(field, value)| hash.set(field, value, &mut Vec::new())).count();
            assert_eq!(new, wanted);
            assert!(out == hash.encode(), "round {round}: {count} pairs");
            compact = out;
        }
    }

    #[test]
    fn log_of_changes_is_refused() {
        let (mut hash, mut log) = (Hash::default(), Vec::new());
        hash.set(b"f", b"1", &mut log);
        hash.delete(b"f", &mut log);
        assert_eq!(set(&log, &[(b"g", b"2")], &mut Vec::new()), Err(Damaged));
        assert_eq!(set(&[9], &[(b"g", b"2")], &mut Vec::new()), Err(Damaged));
    }
}
