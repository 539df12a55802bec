//! Large collections in pieces: written, read, cleaned, copied, and removed with their keys. The order of the steps is [`super::chain`]'s.

use super::chain::Chain;
use super::collection::Collection;
use super::held::Held;
use super::word::Word;
use crate::blobs::{Blobs, Db, Result};
use crate::error::Outcome;

/// Pieces that one command cleans at most.
const CLEANED_MAX: usize = 2;

impl Held<'_> {
    /// Replaces or removes the blob of a key by `change`, and then the pieces that it named.
    pub(super) fn replace<T>(&self, db: Db, key: &[u8], change: impl FnOnce() -> Result<T>) -> Outcome<T> {
        let blobs = self.blobs();
        let Some(chain) = Chain::find(blobs, db, key)? else { return Ok(change()?) };
        chain.note(blobs, key)?;
        let changed = change();
        let tidied = if changed.is_ok() { chain.remove(blobs) } else { chain.forget_note(blobs) };
        if let Err(err) = tidied {
            tracing::warn!("pieces of a collection stay until the next start: {err}");
        }
        Ok(changed?)
    }

    /// Writes a collection whole, in pieces.
    pub(super) fn write_pieces<C: Collection>(
        &mut self,
        db: Db,
        key: &[u8],
        word: Word,
        content: &mut C,
    ) -> Outcome<Chain> {
        let records = content.encode();
        let mut cuts = vec![0];
        let mut at = 0;
        C::walk(&records, &mut |bytes, _| {
            at += bytes;
            if Chain::is_piece(at - cuts.last().copied().unwrap_or(0)) {
                cuts.push(at);
            }
        })
        .map_err(|_| super::held::damaged(key))?;
        if cuts.last() != Some(&at) {
            cuts.push(at);
        }
        self.with_new_chain(db, key, word, |blobs, chain| {
            for cut in cuts.windows(2) {
                let piece = &records[cut[0]..cut[1]];
                let at = chain.append(blobs, piece)?;
                set_places(content, piece, at);
            }
            Ok(())
        })
    }

    /// Copies the pieces of a key to another, whatever that was.
    pub(super) fn copy_pieces(&mut self, from: &Chain, word: Word, (db, key): (Db, &[u8])) -> Outcome {
        self.with_new_chain(db, key, word, |blobs, chain| {
            from.read(blobs, |_, records| chain.append(blobs, records).map(drop))
        })
        .map(drop)
    }

    /// Has a chain filled and then named by the key; if that fails nothing of it stays.
    fn with_new_chain(
        &mut self,
        db: Db,
        key: &[u8],
        word: Word,
        fill: impl FnOnce(&dyn Blobs, &mut Chain) -> Result<()>,
    ) -> Outcome<Chain> {
        let mut chain = Chain::create(self.blobs(), db, key)?;
        let filled = fill(self.blobs(), &mut chain).map_err(Into::into);
        let named = filled.and_then(|()| self.write(db, key, word, &chain.head()));
        let tidied = match &named {
            Ok(()) => chain.forget_note(self.blobs()),
            Err(_) => chain.remove(self.blobs()),
        };
        if let Err(err) = tidied {
            tracing::warn!("a note of a collection's pieces stays until the next start: {err}");
        }
        named.map(|()| chain)
    }
}

/// Adds the records of changes to the last piece.
pub(super) fn append<C: Collection>(
    blobs: &dyn Blobs,
    content: &mut C,
    chain: &mut Chain,
    log: &[u8],
) -> Result<()> {
    let expected = chain.end();
    let at = chain.append(blobs, log)?;
    if at != expected {
        set_places(content, log, at);
    }
    Ok(())
}

/// Cleans the first pieces, if most of all records is superseded.
pub(super) fn clean<C: Collection>(
    blobs: &dyn Blobs,
    (db, key, word): (Db, &[u8], Word),
    content: &mut C,
    chain: &mut Chain,
) -> Result<()> {
    debug_assert!(blobs.stat(db, key).is_some());
    for _ in 0..CLEANED_MAX {
        if !chain.is_sparse(content.encoded_bytes() as u64) {
            break;
        }
        let (mut records, mut live, mut at) = (Vec::new(), Vec::new(), 0);
        chain.read_first(blobs, &mut records)?;
        let begin = chain.begin();
        let walked = C::walk(&records, &mut |bytes, name| {
            if name.is_some_and(|name| content.place(name) == Some(begin + at as u64)) {
                live.extend_from_slice(&records[at..at + bytes]);
            }
            at += bytes;
        });
        walked
            .map_err(|_| crate::blobs::BlobError::Failed("a piece of a collection is damaged".to_owned()))?;
        if !live.is_empty() {
            let at = chain.append(blobs, &live)?;
            set_places(content, &live, at);
        }
        chain.drop_first(blobs, key, word, records.len())?;
    }
    Ok(())
}

/// The elements that these records set were set by them, from `at` on.
fn set_places<C: Collection>(content: &mut C, records: &[u8], at: u64) {
    let mut at = at;
    let walked = C::walk(records, &mut |bytes, name| {
        if let Some(name) = name {
            content.set_place(name, at);
        }
        at += bytes as u64;
    });
    debug_assert_eq!(walked, Ok(()), "records that were just written");
}
