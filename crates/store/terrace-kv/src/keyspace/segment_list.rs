//! The log of a large collection, in pieces of about 256 KiB.
//!
//! ```text
//! key ──► head: id, number of the first piece      pieces with records: (id, 1) (id, 2) ... (id, n)
//! ```
//! A change appends a record to the last piece. A full piece is followed by a new one; nothing is copied to
//! make room. When most records are dead, the first piece is cleaned in three steps. Its live records are
//! appended at the end, the head names the next piece, and the first piece is removed. The order of changes
//! stays. A delete may be removed with its piece, since no earlier piece exists.
//!
//! Each step is a change of one blob, so after a crash the store has a prefix of these changes. A *note*, the
//! blob (id, 0), lets a start find pieces without a head. It names the key of the head. It is written before
//! the first piece of a new log, and before the head is replaced or removed. A start reads only the notes,
//! and keeps the pieces if that key's head names them ([`recover`]). On a full disk the note may lack the
//! key: a start then checks all heads.

use crate::blobs::{BlobError, Blobs, Db, Result, pieces_of};

use super::word::{Form, Word};

/// Size from which a piece is full, bytes.
const PIECE: u64 = 240 << 10;
/// Room of a piece, bytes. The last append fits as well, unless it is large.
const ROOM: u64 = 256 << 10;
/// Low bits of a place: the offset in a piece. The bits above are the piece's number, which begins at 1. It
/// may overflow: two pieces of a collection are never that far apart.
pub(super) const OFFSET_BITS: u32 = 30;
const NOTE: u64 = 0;
/// The id of the note for a database that is being cleared.
const CLEARING: u64 = 0;

/// Size of a piece's key, bytes.
const KEY: usize = 16;

fn key_of(id: u64, number: u64) -> [u8; KEY] {
    (u128::from(id) << 64 | u128::from(number)).to_be_bytes()
}

fn parse_key(key: &[u8]) -> Option<(u64, u64)> {
    let key = u128::from_be_bytes(key.try_into().ok()?);
    Some(((key >> 64) as u64, key as u64))
}

/// The place of a record: the piece's number and the offset in the piece.
pub(crate) fn place(number: u64, offset: u64) -> u64 {
    number << OFFSET_BITS | offset
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    id: u64,
    first: u64,
}

impl Head {
    fn encode(self) -> [u8; KEY] {
        key_of(self.id, self.first)
    }
    fn decode(bytes: &[u8]) -> Option<Head> {
        let (id, first) = parse_key(bytes)?;
        Some(Head { id, first })
    }
    /// Reads the head of a key. None: the key has none.
    fn read(blobs: &dyn Blobs, db: Db, key: &[u8]) -> Result<Option<Head>> {
        let is_head = |word: u64| Word::unpack(word).form == Form::Pieces;
        if !blobs.stat(db, key).is_some_and(|stat| is_head(stat.word)) {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let found = blobs.get(db, key, &mut bytes)?;
        Ok(found.filter(|stat| is_head(stat.word)).and_then(|_| Head::decode(&bytes)))
    }
}

/// The pieces of a collection.
#[derive(Debug, Clone)]
pub(crate) struct SegmentList {
    db: Db,
    head: Head,
    /// Number of the last piece. One below the first if there is none yet.
    last: u64,
    last_bytes: u64,
    bytes: u64,
}

impl SegmentList {
    /// Creates a chain and its note. The key names the chain only when all its pieces exist.
    pub(crate) fn create(blobs: &dyn Blobs, db: Db, key: &[u8]) -> Result<SegmentList> {
        let is_used =
            |id: &u64| [NOTE, 1].iter().any(|n| blobs.stat(pieces_of(db), &key_of(*id, *n)).is_some());
        let id = std::iter::repeat_with(|| fastrand::u64(CLEARING + 1..)).find(|id| !is_used(id));
        let head = Head { id: id.expect("an endless series"), first: 1 };
        let chain = SegmentList { db, head, last: 0, last_bytes: PIECE, bytes: 0 };
        chain.note(blobs, key)?;
        Ok(chain)
    }

    /// Finds the chain of a key. None: the key has none.
    pub(crate) fn find(blobs: &dyn Blobs, db: Db, key: &[u8]) -> Result<Option<SegmentList>> {
        // Without any pieces, a look-up costs nothing.
        match blobs.is_empty(pieces_of(db)) {
            true => Ok(None),
            false => Ok(Head::read(blobs, db, key)?.map(|head| SegmentList::load(blobs, db, head))),
        }
    }

    fn load(blobs: &dyn Blobs, db: Db, head: Head) -> SegmentList {
        let mut chain =
            SegmentList { db, head, last: head.first.wrapping_sub(1), last_bytes: PIECE, bytes: 0 };
        while let Some(stat) = blobs.stat(pieces_of(db), &key_of(head.id, chain.last + 1)) {
            chain.last += 1;
            chain.last_bytes = stat.size;
            chain.bytes += stat.size;
        }
        // A crash may have come between the head's change and the removal of the previous piece.
        let before = key_of(head.id, head.first.wrapping_sub(1));
        if head.first > 1 && blobs.stat(pieces_of(db), &before).is_some() {
            let _ = blobs.remove(pieces_of(db), &before);
        }
        chain
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> u64 {
        self.last + 1 - self.head.first
    }
    /// Bytes of all pieces.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
    pub(crate) fn head(&self) -> [u8; KEY] {
        self.head.encode()
    }
    /// The place of the next records, unless they overflow the piece.
    pub(crate) fn end(&self) -> u64 {
        match self.last_bytes < PIECE {
            true => place(self.last, self.last_bytes),
            false => place(self.last + 1, 0),
        }
    }
    /// The place of the first piece.
    pub(crate) fn begin(&self) -> u64 {
        place(self.head.first, 0)
    }
    /// Whether most records are dead. `live`: bytes of live records.
    pub(crate) fn is_sparse(&self, live: u64) -> bool {
        self.bytes > 2 * live + 2 * ROOM
    }
    /// Whether records of this size fill a piece.
    pub(crate) fn is_piece(bytes: usize) -> bool {
        bytes as u64 >= PIECE
    }

    /// Appends records as a whole. Returns their place.
    ///
    /// # Errors
    /// Errors of the store; then nothing has changed.
    pub(crate) fn append(&mut self, blobs: &dyn Blobs, records: &[u8]) -> Result<u64> {
        let bytes = records.len() as u64;
        if self.last_bytes < PIECE && self.last_bytes + bytes <= ROOM {
            blobs.append(pieces_of(self.db), &key_of(self.head.id, self.last), records)?;
        } else {
            blobs.put(pieces_of(self.db), &key_of(self.head.id, self.last + 1), 0, &[records], ROOM)?;
            (self.last, self.last_bytes) = (self.last + 1, 0);
        }
        let at = place(self.last, self.last_bytes);
        self.last_bytes += bytes;
        self.bytes += bytes;
        Ok(at)
    }

    /// Reads all pieces in order, each with its place.
    ///
    /// # Errors
    /// Errors of the store and of `visit`.
    pub(crate) fn read<E: From<BlobError>>(
        &self,
        blobs: &dyn Blobs,
        mut visit: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut bytes = Vec::new();
        for number in self.head.first..=self.last {
            self.read_piece(blobs, number, &mut bytes)?;
            visit(place(number, 0), &bytes)?;
        }
        Ok(())
    }

    pub(crate) fn read_first(&self, blobs: &dyn Blobs, bytes: &mut Vec<u8>) -> Result<()> {
        self.read_piece(blobs, self.head.first, bytes)
    }

    fn read_piece(&self, blobs: &dyn Blobs, number: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let found = blobs.get(pieces_of(self.db), &key_of(self.head.id, number), bytes)?;
        found.map(drop).ok_or_else(|| {
            BlobError::Failed("a part of this key's value is missing; delete the key".to_owned())
        })
    }

    /// Removes the first piece, of `bytes` bytes, which has no live records.
    pub(crate) fn drop_first(
        &mut self,
        blobs: &dyn Blobs,
        key: &[u8],
        word: Word,
        bytes: usize,
    ) -> Result<()> {
        let next = Head { first: self.head.first + 1, ..self.head };
        blobs.put(self.db, key, word.pack(), &[&next.encode()], 0)?;
        let gone = std::mem::replace(&mut self.head, next);
        self.bytes -= bytes as u64;
        blobs.remove(pieces_of(self.db), &key_of(gone.id, gone.first)).map(drop)
    }

    /// Puts the note before the key's head is created or removed. On a full disk the note omits the key: only
    /// removals make room, and they need a note first.
    pub(crate) fn note(&self, blobs: &dyn Blobs, key: &[u8]) -> Result<()> {
        let (name, first) = (key_of(self.head.id, NOTE), self.head.first.to_be_bytes());
        match blobs.put(pieces_of(self.db), &name, 0, &[&first, key], 0) {
            Err(BlobError::Full) => blobs.put_note(pieces_of(self.db), &name, &first),
            noted => noted.map(drop),
        }
    }
    /// Removes the note: the head exists.
    pub(crate) fn forget_note(&self, blobs: &dyn Blobs) -> Result<()> {
        blobs.remove(pieces_of(self.db), &key_of(self.head.id, NOTE)).map(drop)
    }
    /// Removes all pieces, then the note: the head is gone. The last piece goes first, so that a start can
    /// find the rest after a crash.
    pub(crate) fn remove(&self, blobs: &dyn Blobs) -> Result<()> {
        for number in (self.head.first..=self.last).rev() {
            blobs.remove(pieces_of(self.db), &key_of(self.head.id, number))?;
        }
        self.forget_note(blobs)
    }
}

/// Removes all keys of a database, and their pieces.
pub(crate) fn clear(blobs: &dyn Blobs, db: Db) -> Result<()> {
    if blobs.is_empty(pieces_of(db)) {
        return blobs.clear(db);
    }
    blobs.put_note(pieces_of(db), &key_of(CLEARING, NOTE), &[])?;
    blobs.clear(db)?;
    blobs.clear(pieces_of(db))
}

/// Recovers a database after a crash: removes pieces without a head. Called before the first command.
pub(crate) fn recover(blobs: &dyn Blobs, db: Db) -> Result<()> {
    let (mut notes, mut from) = (Vec::new(), 0);
    loop {
        let page = blobs.scan(pieces_of(db), from, 1024);
        notes.extend(page.keys.iter().filter_map(|key| parse_key(key)).filter(|(_, number)| *number == NOTE));
        if page.next == 0 {
            break;
        }
        from = page.next;
    }
    if notes.contains(&(CLEARING, NOTE)) {
        blobs.clear(db)?;
        return blobs.clear(pieces_of(db));
    }
    for (id, _) in notes {
        let mut note = Vec::new();
        blobs.get(pieces_of(db), &key_of(id, NOTE), &mut note)?;
        let Some((first, key)) = note.split_first_chunk() else { continue };
        let noted = Head { id, first: u64::from_be_bytes(*first) };
        let chain = SegmentList::load(blobs, db, noted);
        let has_head = match key {
            // A note without the key.
            [] => has_head_anywhere(blobs, db, id)?,
            key => has_head(blobs, db, key, id)?,
        };
        match has_head {
            true => chain.forget_note(blobs)?,
            false => chain.remove(blobs)?,
        }
    }
    Ok(())
}

/// Whether the key's head names the collection `id`.
fn has_head(blobs: &dyn Blobs, db: Db, key: &[u8], id: u64) -> Result<bool> {
    Ok(Head::read(blobs, db, key)?.is_some_and(|head| head.id == id))
}

/// Whether any key's head names the collection `id`.
fn has_head_anywhere(blobs: &dyn Blobs, db: Db, id: u64) -> Result<bool> {
    let mut from = 0;
    loop {
        let page = blobs.scan(db, from, 1024);
        for key in &page.keys {
            if has_head(blobs, db, key, id)? {
                return Ok(true);
            }
        }
        if page.next == 0 {
            return Ok(false);
        }
        from = page.next;
    }
}
