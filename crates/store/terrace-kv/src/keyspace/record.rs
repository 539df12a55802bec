//! Storage format of the elements of hashes and sorted sets: a sequence of records.
//!
//! ```text
//! hash   [1][field bytes: varint][value bytes: varint][field][value]    set      [2][field bytes: varint][field]     delete
//! zset   [1][score: 8, little endian][member bytes: varint][member]     set      [2][member bytes: varint][member]   delete
//! ```
//! Small collections are compact: each element once, and reads walk the stored records. Larger ones are a
//! log: a change is appended ([`super::collection`]).

/// Code of a record that sets an element.
const SET: u8 = 1;
/// Code of a record that deletes an element.
const DELETE: u8 = 2;

/// Bytes that are not valid records: another program wrote the blob, or it is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// A record of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldRecord<'a> {
    /// Sets the field to this value.
    Set(&'a [u8], &'a [u8]),
    /// Deletes the field.
    Delete(&'a [u8]),
}

/// A record of a sorted set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MemberRecord<'a> {
    Set(&'a [u8], f64),
    Delete(&'a [u8]),
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_bytes(value: usize) -> usize {
    (usize::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

fn take_varint(bytes: &mut &[u8]) -> Result<usize, Damaged> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = take_byte(bytes)?;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Damaged)
}

fn take_byte(bytes: &mut &[u8]) -> Result<u8, Damaged> {
    let (&byte, rest) = bytes.split_first().ok_or(Damaged)?;
    *bytes = rest;
    Ok(byte)
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Damaged> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Damaged)?;
    *bytes = rest;
    Ok(taken)
}

/// A record of either type.
pub trait Record<'a>: Sized {
    /// Takes the first record off `bytes`, which must not be empty.
    ///
    /// # Errors
    /// No valid record.
    fn take(bytes: &mut &'a [u8]) -> Result<Self, Damaged>;
    /// The element that the record sets. None: it deletes one.
    fn sets(&self) -> Option<&'a [u8]>;
}

/// The records in `bytes`, each with its size.
pub(super) fn records<'a, R: Record<'a>>(
    mut bytes: &'a [u8],
) -> impl Iterator<Item = Result<(R, usize), Damaged>> {
    std::iter::from_fn(move || {
        let before = bytes.len();
        (before > 0).then(|| match R::take(&mut bytes) {
            Ok(record) => Ok((record, before - bytes.len())),
            Err(damaged) => {
                bytes = &[];
                Err(damaged)
            }
        })
    })
}

impl<'a> Record<'a> for FieldRecord<'a> {
    fn take(bytes: &mut &'a [u8]) -> Result<FieldRecord<'a>, Damaged> {
        let code = take_byte(bytes)?;
        let field = take_varint(bytes)?;
        match code {
            SET => {
                let value = take_varint(bytes)?;
                Ok(FieldRecord::Set(take(bytes, field)?, take(bytes, value)?))
            }
            DELETE => Ok(FieldRecord::Delete(take(bytes, field)?)),
            _ => Err(Damaged),
        }
    }
    fn sets(&self) -> Option<&'a [u8]> {
        match self {
            FieldRecord::Set(field, _) => Some(field),
            FieldRecord::Delete(_) => None,
        }
    }
}

impl<'a> Record<'a> for MemberRecord<'a> {
    fn take(bytes: &mut &'a [u8]) -> Result<MemberRecord<'a>, Damaged> {
        let code = take_byte(bytes)?;
        let score = match code {
            SET => {
                let score = take(bytes, 8)?.try_into().map(f64::from_le_bytes).map_err(|_| Damaged)?;
                Some(score).filter(|score: &f64| !score.is_nan()).ok_or(Damaged)?
            }
            DELETE => 0.0,
            _ => return Err(Damaged),
        };
        let length = take_varint(bytes)?;
        let member = take(bytes, length)?;
        Ok(if code == SET { MemberRecord::Set(member, score) } else { MemberRecord::Delete(member) })
    }
    fn sets(&self) -> Option<&'a [u8]> {
        match self {
            MemberRecord::Set(member, _) => Some(member),
            MemberRecord::Delete(_) => None,
        }
    }
}

impl FieldRecord<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            FieldRecord::Set(field, value) => {
                out.reserve(FieldRecord::bytes(field.len(), value.len()));
                out.push(SET);
                put_varint(out, field.len());
                put_varint(out, value.len());
                out.extend_from_slice(field);
                out.extend_from_slice(value);
            }
            FieldRecord::Delete(field) => write_delete(out, field),
        }
    }

    /// Size of a record that sets a field, bytes.
    pub(crate) fn bytes(field: usize, value: usize) -> usize {
        1 + varint_bytes(field) + varint_bytes(value) + field + value
    }
}

impl MemberRecord<'_> {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            MemberRecord::Set(member, score) => {
                out.push(SET);
                out.extend_from_slice(&score.to_le_bytes());
                put_varint(out, member.len());
                out.extend_from_slice(member);
            }
            MemberRecord::Delete(member) => write_delete(out, member),
        }
    }

    /// Size of a record that sets a member, bytes.
    pub(crate) fn bytes(member: usize) -> usize {
        9 + varint_bytes(member) + member
    }
}

fn write_delete(out: &mut Vec<u8>, name: &[u8]) {
    out.push(DELETE);
    put_varint(out, name.len());
    out.extend_from_slice(name);
}

/// Whether a log only deletes elements. Deletes have the same format for both types.
pub(super) fn is_all_deletes(log: &[u8]) -> bool {
    fields(log).all(|record| matches!(record, Ok(FieldRecord::Delete(_))))
}

/// The records of a hash.
pub fn fields(bytes: &[u8]) -> impl Iterator<Item = Result<FieldRecord<'_>, Damaged>> {
    records(bytes).map(|record| record.map(|(record, _)| record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn records_read_back_as_written() {
        let long = vec![7; 300];
        let mut out = Vec::new();
        let wrote = [FieldRecord::Set(b"f", &long), FieldRecord::Delete(b""), FieldRecord::Set(&long, b"")];
        wrote.iter().for_each(|record| record.write(&mut out));
        assert_eq!(fields(&out).collect::<Result<Vec<_>, _>>().unwrap(), wrote);
        assert_eq!(out.len(), FieldRecord::bytes(1, 300) + 2 + FieldRecord::bytes(300, 0));
        let lengths =
            |out: &[u8]| records::<FieldRecord<'_>>(out).map(|record| record.unwrap().1).sum::<usize>();
        assert_eq!(lengths(&out), out.len());
        out.clear();
        let wrote =
            [MemberRecord::Set(b"m", -1.5), MemberRecord::Delete(b"m"), MemberRecord::Set(&long, 0.0)];
        wrote.iter().for_each(|record| record.write(&mut out));
        let read: Vec<_> = records::<MemberRecord<'_>>(&out).map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|(record, _)| *record).collect::<Vec<_>>(), wrote);
        assert_eq!(out.len(), MemberRecord::bytes(1) + 3 + MemberRecord::bytes(300));
        assert_eq!(read.iter().map(|(_, length)| length).sum::<usize>(), out.len());
    }

    #[test]
    fn damaged_records_are_refused_and_end() {
        let mut rng = Rng::new(seed("damaged_records_are_refused_and_end"));
        for _ in 0..20_000 {
            let length = rng.index(40);
            let mut bytes = rng.bytes(length);
            if let Some(first) = bytes.first_mut() {
                *first %= 3;
            }
            assert!(fields(&bytes).count() <= bytes.len());
            assert!(records::<MemberRecord<'_>>(&bytes).count() <= bytes.len());
        }
        assert_eq!(fields(&[3, 0]).next(), Some(Err(Damaged)));
    }
}
