//! The format of the record log.
//!
//! ```text
//! file     header (64 bytes), records
//! header   magic 8 · version 4 · 0 4 · generation 8 · number of the first record 8 · store 8 · seed of hashes 8 · 0 12 · crc 4
//! record   bytes of the body 4 · crc 4 · body
//! body     kind 1 · fields of the kind, little endian · the key or name last
//! ```
//! A record's crc covers the generation of its file, its number and its body. So no remains of another file,
//! or of another place, pass as the next record. The log ends where no valid record follows. Each record
//! states the result of a change, not the difference, so replaying a record twice is harmless. Log compaction
//! relies on that.

use std::ops::Range;

/// Size of the header, bytes.
pub(crate) const HEADER: usize = 64;
/// Bytes before a body.
pub(crate) const PREFIX: usize = 8;
/// Maximum length of a key, a bucket name or a tag, bytes.
pub(crate) const KEY_MAX: usize = 64 << 10;
/// Maximum length of a body, bytes.
pub(crate) const BODY_MAX: usize = 2 * KEY_MAX + 128;
/// Size of a `Put` without its key, with the prefix, bytes.
pub(crate) const PUT_BYTES: u64 = (PREFIX + 1 + 8 + BLOB) as u64;

const MAGIC: [u8; 8] = *b"TERRNAM1";
const VERSION: u32 = 1;
/// Size of a blob's description, bytes.
const BLOB: usize = 8 + 4 + 8 + 4 + 8;

/// The start of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Grows with each compaction.
    pub generation: u64,
    /// Number of the first record.
    pub first: u64,
    /// Identity of the store.
    pub store: u64,
    /// Hash seed of the store.
    pub seed: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        for (i, word) in [self.generation, self.first, self.store, self.seed].iter().enumerate() {
            out[16 + i * 8..24 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32fast::hash(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header. None: not a header of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        let mut fields = Fields(bytes);
        let is_ours = fields.take(8)? == MAGIC && fields.u32()? == VERSION;
        if !is_ours || crc32fast::hash(&bytes[..HEADER - 4]).to_le_bytes() != bytes[HEADER - 4..] {
            return None;
        }
        fields.u32()?;
        Some(Header {
            generation: fields.u64()?,
            first: fields.u64()?,
            store: fields.u64()?,
            seed: fields.u64()?,
        })
    }
}

/// A blob's description. Up to [`INLINE_MAX`] bytes the blob is inline: its bytes are here, and it has no
/// extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Blob {
    /// Start of the extent in units of 64 bytes, with score and flags in the high bits (see [`Blob::start`]).
    pub place: u64,
    /// Size of the extent, in units of 64 bytes.
    pub units: u32,
    /// Size, bytes.
    pub size: u64,
    /// Checksum of the bytes, unless [`UNCHECKED`] is set.
    pub crc: u32,
    /// The user's word.
    pub meta: u64,
}

/// Low bits of `place` that hold the start of the extent.
const START_BITS: u32 = 48;
/// Flag: the blob has no valid checksum, since parts of it were changed in place.
pub(crate) const UNCHECKED: u64 = 1 << 63;
/// Flag: the blob has tags.
pub(crate) const TAGGED: u64 = 1 << 62;
/// Flag: this record is the first to name the extent. Valid only while the store that wrote the record is
/// open.
pub(crate) const FIRST: u64 = 1 << 61;
/// Flag: the blob's bytes are inline, in place of start, units and checksum ([`Blob::inline`]).
pub(crate) const INLINE: u64 = 1 << 60;
/// Maximum size of an inline blob, bytes.
pub(crate) const INLINE_MAX: usize = START_BYTES + 4 + 4;
const START_BYTES: usize = START_BITS as usize / 8;

/// Kind of a [`Record::Trait`]: the bucket is scratch, its blobs are not logged.
pub(crate) const TRAIT_SCRATCH: u8 = 1;
/// Kind: the bucket persists, its blobs are also files. The text is the directory's path.
pub(crate) const TRAIT_PERSIST: u8 = 2;
/// Kind: all files of the bucket are up to date with its blobs.
pub(crate) const TRAIT_PERSISTED: u8 = 3;

impl Blob {
    /// Start of the extent, in units of 64 bytes.
    pub(crate) fn start(&self) -> u64 {
        self.place & ((1 << START_BITS) - 1)
    }
    /// Moves the extent; score and flags stay.
    pub(crate) fn set_start(&mut self, start: u64) {
        self.place = self.place & !((1 << START_BITS) - 1) | start;
    }
    /// The inline bytes, if the blob is inline. The first `size` of them count.
    pub(crate) fn inline(&self) -> Option<[u8; INLINE_MAX]> {
        self.has(INLINE).then(|| {
            let mut bytes = [0; INLINE_MAX];
            bytes[..START_BYTES].copy_from_slice(&self.place.to_le_bytes()[..START_BYTES]);
            bytes[START_BYTES..][..4].copy_from_slice(&self.units.to_le_bytes());
            bytes[START_BYTES + 4..].copy_from_slice(&self.crc.to_le_bytes());
            bytes
        })
    }
    /// Makes the blob inline. The first `size` of the bytes count.
    pub(crate) fn set_inline(&mut self, bytes: [u8; INLINE_MAX]) {
        let mut start = [0; 8];
        start[..START_BYTES].copy_from_slice(&bytes[..START_BYTES]);
        self.set_start(u64::from_le_bytes(start));
        let [a, b, c, d, e, f, g, h] = *bytes.last_chunk().expect("8 of them");
        (self.units, self.crc) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        self.set(INLINE, true);
    }
    /// Its score, 0 to 255.
    pub(crate) fn score(&self) -> u8 {
        (self.place >> START_BITS) as u8
    }
    pub(crate) fn set_score(&mut self, score: u8) {
        self.place = self.place & !(0xff << START_BITS) | u64::from(score) << START_BITS;
    }
    pub(crate) fn has(&self, flag: u64) -> bool {
        self.place & flag != 0
    }
    pub(crate) fn set(&mut self, flag: u64, on: bool) {
        self.place = if on { self.place | flag } else { self.place & !flag };
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// A bucket is new or renamed.
    Bucket {
        bucket: u64,
        name: &'a [u8],
    },
    /// A bucket is removed, with its blobs.
    BucketGone {
        bucket: u64,
    },
    BucketClear {
        bucket: u64,
    },
    /// A blob is put, or its description changes.
    Put {
        /// Number of its bucket.
        bucket: u64,
        /// The blob as it is now.
        blob: Blob,
        key: &'a [u8],
    },
    Remove {
        bucket: u64,
        key: &'a [u8],
    },
    /// A blob is renamed; an earlier blob of the new key is gone.
    Move {
        /// Number of the bucket it was in.
        from_bucket: u64,
        from: &'a [u8],
        /// Number of its bucket now.
        bucket: u64,
        blob: Blob,
        key: &'a [u8],
    },
    /// The heap's content up to record `upto` is durable.
    Mark {
        /// Number of the last record that is covered.
        upto: u64,
    },
    /// A blob gets a tag, or loses it.
    Tag {
        bucket: u64,
        /// The tag is the bucket's, not a blob's.
        whole: bool,
        /// False: the tag is removed.
        on: bool,
        tag: &'a [u8],
        key: &'a [u8],
    },
    Trait {
        bucket: u64,
        /// Kind of trait, for instance [`TRAIT_SCRATCH`].
        kind: u8,
        text: &'a [u8],
    },
}

const BUCKET: u8 = 1;
const BUCKET_GONE: u8 = 2;
const BUCKET_CLEAR: u8 = 3;
const PUT: u8 = 4;
const REMOVE: u8 = 5;
const MOVE: u8 = 6;
const MARK: u8 = 7;
const TAG: u8 = 8;
const TRAIT: u8 = 9;

/// Appends a record to `out`, with number `number` of the log `generation`.
pub(crate) fn encode(record: &Record<'_>, generation: u64, number: u64, out: &mut Vec<u8>) {
    let at = out.len();
    draft(record, out);
    let unused = out.len() - at - number_draft(&mut out[at..], generation, number).len();
    out.drain(at..at + unused);
}

/// Bytes before the body of a draft: the other input of the checksum. Its last [`PREFIX`] bytes become the
/// record's prefix.
const DRAFTED: usize = 16;

/// Appends a record without its number, which may still be unknown.
pub(crate) fn draft(record: &Record<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; DRAFTED]);
    body(record, out);
}

/// Numbers a draft for the log `generation`. Returns the bytes of the record.
pub(crate) fn number_draft(draft: &mut [u8], generation: u64, number: u64) -> &[u8] {
    draft[..8].copy_from_slice(&generation.to_le_bytes());
    draft[8..DRAFTED].copy_from_slice(&number.to_le_bytes());
    let (crc, len) = (crc32fast::hash(draft), (draft.len() - DRAFTED) as u32);
    let record = &mut draft[DRAFTED - PREFIX..];
    record[..4].copy_from_slice(&len.to_le_bytes());
    record[4..PREFIX].copy_from_slice(&crc.to_le_bytes());
    record
}

fn body(record: &Record<'_>, out: &mut Vec<u8>) {
    let mut head = |kind: u8, word: u64| {
        out.push(kind);
        out.extend_from_slice(&word.to_le_bytes());
    };
    match *record {
        Record::Bucket { bucket, name } => {
            head(BUCKET, bucket);
            out.extend_from_slice(name);
        }
        Record::BucketGone { bucket } => head(BUCKET_GONE, bucket),
        Record::BucketClear { bucket } => head(BUCKET_CLEAR, bucket),
        Record::Put { bucket, blob, key } => {
            head(PUT, bucket);
            push_blob(&blob, out);
            out.extend_from_slice(key);
        }
        Record::Remove { bucket, key } => {
            head(REMOVE, bucket);
            out.extend_from_slice(key);
        }
        Record::Move { from_bucket, from, bucket, blob, key } => {
            head(MOVE, from_bucket);
            push_text(from, out);
            out.extend_from_slice(&bucket.to_le_bytes());
            push_blob(&blob, out);
            out.extend_from_slice(key);
        }
        Record::Mark { upto } => head(MARK, upto),
        Record::Tag { bucket, whole, on, tag, key } => {
            head(TAG, bucket);
            out.push(u8::from(on) | u8::from(whole) << 1);
            push_text(tag, out);
            out.extend_from_slice(key);
        }
        Record::Trait { bucket, kind, text } => {
            head(TRAIT, bucket);
            out.push(kind);
            out.extend_from_slice(text);
        }
    }
}

fn push_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

fn push_blob(blob: &Blob, out: &mut Vec<u8>) {
    let mut fixed = [0; BLOB];
    fixed[..8].copy_from_slice(&blob.place.to_le_bytes());
    fixed[8..12].copy_from_slice(&blob.units.to_le_bytes());
    fixed[12..20].copy_from_slice(&blob.size.to_le_bytes());
    fixed[20..24].copy_from_slice(&blob.crc.to_le_bytes());
    fixed[24..].copy_from_slice(&blob.meta.to_le_bytes());
    out.extend_from_slice(&fixed);
}

fn checksum(generation: u64, number: u64, body: &[u8]) -> u32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&generation.to_le_bytes());
    place[8..].copy_from_slice(&number.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&place);
    hasher.update(body);
    hasher.finalize()
}

/// Decodes the record at the start of `bytes`, and the range of its body. None unless it has number `number`
/// of the log `generation`.
pub(crate) fn decode(bytes: &[u8], generation: u64, number: u64) -> Option<(Record<'_>, Range<usize>)> {
    let mut fields = Fields(bytes);
    let (len, crc) = (fields.u32()? as usize, fields.u32()?);
    if len == 0 || len > BODY_MAX {
        return None;
    }
    let body = fields.take(len)?;
    if checksum(generation, number, body) != crc {
        return None;
    }
    Some((parse(body)?, PREFIX..PREFIX + len))
}

/// Size of a mark, bytes.
pub(crate) const MARK_BYTES: usize = PREFIX + MARK_BODY;
const MARK_BODY: usize = 1 + 8;

/// The number that a mark at the start of `bytes` covers. None: they do not look like a mark. Does not verify
/// the checksum.
pub(crate) fn mark_upto(bytes: &[u8]) -> Option<u64> {
    let mut fields = Fields(bytes);
    let len = fields.u32()?;
    fields.u32()?;
    let is_mark = len as usize == MARK_BODY && fields.u8()? == MARK;
    if is_mark { fields.u64() } else { None }
}

/// Parses a body. None: invalid in this version.
pub(crate) fn parse(body: &[u8]) -> Option<Record<'_>> {
    let mut fields = Fields(body);
    let (kind, word) = (fields.u8()?, fields.u64()?);
    let bucket = word;
    let record = match kind {
        BUCKET => Record::Bucket { bucket, name: fields.rest() },
        BUCKET_GONE => Record::BucketGone { bucket },
        BUCKET_CLEAR => Record::BucketClear { bucket },
        PUT => Record::Put { bucket, blob: fields.blob()?, key: fields.rest() },
        REMOVE => Record::Remove { bucket, key: fields.rest() },
        MOVE => Record::Move {
            from_bucket: word,
            from: fields.text()?,
            bucket: fields.u64()?,
            blob: fields.blob()?,
            key: fields.rest(),
        },
        MARK => Record::Mark { upto: word },
        TAG => {
            let bits = fields.u8()?;
            Record::Tag {
                bucket,
                whole: bits & 2 != 0,
                on: bits & 1 != 0,
                tag: fields.text()?,
                key: fields.rest(),
            }
        }
        TRAIT => Record::Trait { bucket, kind: fields.u8()?, text: fields.rest() },
        _ => return None,
    };
    // Kinds without a text must leave no bytes.
    fields.0.is_empty().then_some(record)
}

/// The unread fields of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    fn blob(&mut self) -> Option<Blob> {
        let blob = Blob {
            place: self.u64()?,
            units: self.u32()?,
            size: self.u64()?,
            crc: self.u32()?,
            meta: self.u64()?,
        };
        let is_possible = !blob.has(INLINE) || blob.size <= INLINE_MAX as u64;
        is_possible.then_some(blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record<'static>> {
        let mut blob = Blob { place: 0, units: 64, size: 4000, crc: 7, meta: 9 };
        blob.set_start(77);
        blob.set_score(200);
        blob.set(UNCHECKED, true);
        let mut inline = Blob { size: 3, ..Blob::default() };
        inline.set_inline([5; INLINE_MAX]);
        vec![
            Record::Bucket { bucket: 1, name: b"name" },
            Record::BucketGone { bucket: 2 },
            Record::BucketClear { bucket: 3 },
            Record::Put { bucket: 4, blob, key: b"" },
            Record::Put { bucket: 4, blob: inline, key: b"few" },
            Record::Remove { bucket: 5, key: b"key" },
            Record::Move { from_bucket: 6, from: b"old", bucket: 7, blob, key: b"new" },
            Record::Mark { upto: 8 },
            Record::Tag { bucket: 9, whole: false, on: true, tag: b"tag", key: b"key" },
            Record::Trait { bucket: 10, kind: 2, text: b"/path" },
        ]
    }

    #[test]
    fn records_come_back_as_they_were_written() {
        for (i, record) in samples().iter().enumerate() {
            let mut bytes = Vec::new();
            encode(record, 3, i as u64, &mut bytes);
            let (back, body) = decode(&bytes, 3, i as u64).unwrap();
            assert_eq!((back, body.end), (*record, bytes.len()));
            assert_eq!(decode(&bytes, 4, i as u64), None, "another file's");
            assert_eq!(decode(&bytes, 3, i as u64 + 1), None, "another place's");
        }
    }

    #[test]
    fn flags_and_score_do_not_touch_the_start() {
        let mut blob = Blob::default();
        blob.set_start((1 << START_BITS) - 1);
        blob.set_score(255);
        blob.set(TAGGED, true);
        assert_eq!((blob.start(), blob.score()), ((1 << START_BITS) - 1, 255));
        assert!(blob.has(TAGGED) && !blob.has(UNCHECKED));
        blob.set_start(1);
        blob.set_score(0);
        assert_eq!((blob.start(), blob.score(), blob.has(TAGGED)), (1, 0, true));
    }

    #[test]
    fn bytes_in_a_description_leave_score_word_and_flags() {
        let mut blob = Blob { size: INLINE_MAX as u64, meta: 9, ..Blob::default() };
        blob.set_score(200);
        blob.set(TAGGED, true);
        assert_eq!(blob.inline(), None);
        let bytes: [u8; INLINE_MAX] = std::array::from_fn(|i| 0xf0 | i as u8);
        blob.set_inline(bytes);
        assert_eq!(blob.inline(), Some(bytes));
        assert_eq!((blob.score(), blob.has(TAGGED), blob.meta), (200, true, 9));
        blob.set_score(7);
        blob.set(FIRST, true);
        assert_eq!(blob.inline(), Some(bytes));
        for (size, is_possible) in [(blob.size, true), (blob.size + 1, false)] {
            let (mut out, blob) = (Vec::new(), Blob { size, ..blob });
            encode(&Record::Put { bucket: 1, blob, key: b"k" }, 1, 1, &mut out);
            assert_eq!(decode(&out, 1, 1).is_some(), is_possible, "{size} bytes");
        }
    }

    #[test]
    fn a_damaged_record_is_none() {
        for (i, record) in samples().iter().enumerate() {
            let mut bytes = Vec::new();
            encode(record, 1, i as u64, &mut bytes);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    bytes[at] ^= 1 << bit;
                    assert_eq!(decode(&bytes, 1, i as u64), None, "record {i}, byte {at}, bit {bit}");
                    bytes[at] ^= 1 << bit;
                }
                assert_eq!(decode(&bytes[..at], 1, i as u64), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn headers_come_back_and_damage_is_seen() {
        let header = Header { generation: 1, first: 2, store: 3, seed: 4 };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for at in (0..HEADER).filter(|at| !(12..16).contains(at)) {
            bytes[at] ^= 1;
            assert_eq!(Header::decode(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
