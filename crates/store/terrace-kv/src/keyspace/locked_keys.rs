//! Keys locked by a command, and the operations on them: no other command writes these keys meanwhile.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use terrace_sync::MutexGuard;

use super::collection::{Cached, Collection, Counted, Name, Open, SMALL, Write};
use super::compact;
use super::record::{FieldRecord, is_all_deletes};
use super::segment_list::SegmentList;
use super::segments;
use super::space::Keyspace;
use super::stripe::Stripe;
use super::word::{Form, Kind, Word};
use crate::blobs::{BlobError, Blobs, Db};
use crate::error::{Outcome, Refusal};

/// Estimated ratio of a decoded collection's memory to its blob's size, for elements of a few bytes.
const DECODED_TIMES: usize = 4;

/// A page of zeros. Longer runs repeat it.
const ZEROS: &[u8] = &[0; 4096];

/// Word and size of a key. None: the key does not exist.
pub(super) type Found = Option<(Word, u64)>;

/// Locked stripes, by number.
type Guards<'a> = SmallVec<[(usize, MutexGuard<'a, Stripe>); 4]>;

/// Locked keys; see [`Keyspace::lock_keys`].
#[derive(Debug)]
pub struct LockedKeys<'a> {
    keyspace: &'a Keyspace,
    guards: Guards<'a>,
    /// Read only when needed: most commands use keys without an expiry time.
    now: OnceCell<u64>,
}

impl Keyspace {
    /// Holds keys against other writers until the result is dropped.
    pub fn lock_keys<'a>(&self, db: Db, keys: impl IntoIterator<Item = &'a [u8]>) -> LockedKeys<'_> {
        self.lock_keys_in(keys.into_iter().map(|key| (db, key)))
    }

    /// Like [`Keyspace::lock_keys`], for keys of several databases.
    pub fn lock_keys_in<'a>(&self, keys: impl IntoIterator<Item = (Db, &'a [u8])>) -> LockedKeys<'_> {
        let mut stripes: SmallVec<[usize; 4]> = SmallVec::new();
        keys.into_iter().for_each(|(db, key)| stripes.push(self.stripe_of(db, key)));
        if stripes.len() > 1 {
            stripes.sort_unstable();
            stripes.dedup();
        }
        let mut guards = Guards::new();
        stripes.into_iter().for_each(|at| guards.push((at, self.stripes[at].lock())));
        LockedKeys { keyspace: self, guards, now: OnceCell::new() }
    }
}

impl<'a> LockedKeys<'a> {
    /// The time of this command, milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        *self.now.get_or_init(|| self.keyspace.now())
    }

    fn blobs(&self) -> &'a dyn Blobs {
        &*self.keyspace.blobs
    }

    fn is_expired(&self, word: Word) -> bool {
        word.expires.is_some() && word.is_expired(self.now())
    }

    fn stripe(&mut self, db: Db, key: &[u8]) -> &mut Stripe {
        let at = self.keyspace.stripe_of(db, key);
        let place = self.guards.binary_search_by_key(&at, |(at, _)| *at).expect("the key is locked");
        &mut self.guards[place].1
    }

    /// Word and size of a key. Removes an expired key.
    pub(crate) fn stat(&mut self, db: Db, key: &[u8]) -> Option<(Word, u64)> {
        let stat = self.keyspace.blobs.stat(db, key)?;
        let word = Word::unpack(stat.word);
        if !self.is_expired(word) {
            return Some((word, stat.size));
        }
        match self.remove_blob(db, key, word) {
            Ok(_) => {
                self.keyspace.counters.expired.fetch_add(1, Ordering::Relaxed);
            }
            Err(err) => {
                // The store logs failing syncs itself, and many keys may expire while they fail.
                if !matches!(err, Refusal::Store(BlobError::NotDurable(_))) {
                    tracing::warn!("an expired key cannot be removed: {err}");
                }
                self.keyspace.deadlines.note_incomplete();
            }
        }
        None
    }

    /// A number that changes with each write of an existing key.
    pub(crate) fn version(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.keyspace.blobs.stat(db, key).map(|stat| stat.version)
    }

    /// Like `stat`, for a key that must have this type if it exists.
    ///
    /// # Errors
    /// The key has another type.
    pub(crate) fn stat_of(&mut self, db: Db, key: &[u8], kind: Kind) -> Outcome<Option<(Word, u64)>> {
        match self.stat(db, key) {
            Some((word, _)) if word.kind != kind => Err(Refusal::WrongType),
            found => Ok(found),
        }
    }

    /// Reads a string. Returns its word.
    ///
    /// # Errors
    /// The key has another type; errors of the store.
    pub(crate) fn read_string(&mut self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Outcome<Option<Word>> {
        let mut found = self.keyspace.blobs.get(db, key, out)?.map(|stat| Word::unpack(stat.word));
        if found.is_some_and(|word| self.is_expired(word)) {
            found = self.stat(db, key).map(|(word, _)| word);
        }
        let count = &self.keyspace.counters;
        match found {
            Some(word) if word.kind == Kind::String => {
                count.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(word));
            }
            Some(_) => return Err(Refusal::WrongType),
            None => count.misses.fetch_add(1, Ordering::Relaxed),
        };
        out.clear();
        Ok(None)
    }

    /// Replaces the value of a key, whatever its type.
    pub(crate) fn write(&mut self, db: Db, key: &[u8], word: Word, content: &[u8]) -> Outcome {
        self.put((db, key), None, word, &[content], 0)
    }

    /// Creates a string with `content` at `offset`, behind zeros. The key must not exist. The zeros are never
    /// all in memory, even for the longest value.
    pub(crate) fn write_behind_zeros(&mut self, db: Db, key: &[u8], offset: u64, content: &[u8]) -> Outcome {
        let (pages, rest) = (offset as usize / ZEROS.len(), offset as usize % ZEROS.len());
        let mut parts = vec![ZEROS; pages];
        parts.extend([&ZEROS[..rest], content]);
        self.put((db, key), None, Word::new(Kind::String), &parts, 0)
    }

    /// Replaces the value of a key that was found to be a string with this word, or to be absent.
    pub(crate) fn rewrite(&mut self, db: Db, key: &[u8], found: Option<Word>, content: &[u8]) -> Outcome {
        let word = found.unwrap_or(Word::new(Kind::String));
        self.put((db, key), Some(word.form), word, &[content], 0)
    }

    /// Writes a value from several parts over one of the form `old`, if known. The value may grow up to
    /// `room` bytes.
    fn put(
        &mut self,
        (db, key): (Db, &[u8]),
        old: Option<Form>,
        word: Word,
        parts: &[&[u8]],
        room: u64,
    ) -> Outcome {
        let word = word.as_stored();
        let put = || self.keyspace.blobs.put(db, key, word.pack(), parts, room);
        let old = segments::replace(self.blobs(), (db, key), old, put)?.map(Word::unpack);
        self.forget(db, key, old);
        self.note_expiry(db, key, old, Some(word));
        Ok(())
    }

    /// Writes into an existing string.
    pub(crate) fn write_at(&mut self, db: Db, key: &[u8], offset: u64, content: &[u8]) -> Outcome {
        Ok(self.keyspace.blobs.put_at(db, key, offset, content)?)
    }

    /// Appends to an existing string.
    pub(crate) fn append(&mut self, db: Db, key: &[u8], content: &[u8]) -> Outcome {
        Ok(self.keyspace.blobs.append(db, key, content)?)
    }

    /// Sets the expiry time of an existing key.
    pub(crate) fn set_expiry(&mut self, db: Db, key: &[u8], word: Word, expires: Option<u64>) -> Outcome {
        let new = Word { expires, ..word }.as_stored();
        self.keyspace.blobs.set_word(db, key, new.pack())?;
        self.note_expiry(db, key, Some(word), Some(new));
        Ok(())
    }

    /// Removes a key. Returns whether it existed.
    pub(crate) fn remove(&mut self, db: Db, key: &[u8]) -> Outcome<bool> {
        match self.stat(db, key) {
            Some((word, _)) => self.remove_blob(db, key, word),
            None => Ok(false),
        }
    }

    fn remove_blob(&mut self, db: Db, key: &[u8], word: Word) -> Outcome<bool> {
        self.forget(db, key, Some(word));
        let there = segments::replace(self.blobs(), (db, key), Some(word.form), || {
            self.keyspace.blobs.remove(db, key)
        })?;
        self.note_expiry(db, key, Some(word), None);
        Ok(there)
    }

    /// Renames an existing key, replacing the key of the new name.
    pub(crate) fn rename(&mut self, from: (Db, &[u8]), to: (Db, &[u8])) -> Outcome {
        if from == to {
            return Ok(());
        }
        let word_of = |(db, key)| self.keyspace.blobs.stat(db, key).map(|stat| Word::unpack(stat.word));
        let (moved, replaced) = (word_of(from), word_of(to));
        self.forget(from.0, from.1, moved);
        self.forget(to.0, to.1, replaced);
        let blobs = self.blobs();
        // Pieces are in the database of their key.
        let chain = if from.0 == to.0 { None } else { SegmentList::find(blobs, from.0, from.1)? };
        match (chain, moved) {
            (Some(chain), Some(word)) => segments::change_database(blobs, &chain, word, from, to)?,
            _ => {
                let old = replaced.map(|word| word.form);
                segments::replace(blobs, to, old, || blobs.rename(from, to)).map(drop)?;
            }
        }
        self.note_expiry(from.0, from.1, moved, None);
        self.note_expiry(to.0, to.1, replaced, moved);
        Ok(())
    }

    /// Copies an existing key over another.
    pub(crate) fn copy(&mut self, from: (Db, &[u8]), to: (Db, &[u8])) -> Outcome {
        if let (Some(chain), Some(stat)) =
            (SegmentList::find(self.blobs(), from.0, from.1)?, self.blobs().stat(from.0, from.1))
        {
            let word = Word::unpack(stat.word);
            return segments::copy(self.blobs(), &chain, to, |head| self.write(to.0, to.1, word, head));
        }
        let mut content = Vec::new();
        match self.keyspace.blobs.get(from.0, from.1, &mut content)? {
            Some(stat) => self.write(to.0, to.1, Word::unpack(stat.word), &content),
            None => Ok(()),
        }
    }

    fn note_expiry(&self, db: Db, key: &[u8], old: Option<Word>, new: Option<Word>) {
        let expires = |word: Option<Word>| word.and_then(|word| word.expires);
        let change = (expires(old), expires(new));
        self.keyspace.deadlines.change(db, key, change, || self.keyspace.blobs.has_room(0));
    }

    /// Drops a decoded collection.
    fn forget(&mut self, db: Db, key: &[u8], word: Option<Word>) {
        if word.is_some_and(|word| word.form != Form::Compact)
            && let Some((.., bytes)) = self.stripe(db, key).take(db, key)
        {
            self.keyspace.decoded_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Sets fields of a compact hash without opening it, or of a new hash. Returns the number of new fields.
    /// None: the hash is not compact, or would not stay so.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Panics
    /// More than [`compact::PAIRS_MAX`] pairs.
    pub(crate) fn set_compact(
        &mut self,
        (db, key): (Db, &[u8]),
        found: Found,
        pairs: &[(&[u8], &[u8])],
        scratch: &mut Vec<u8>,
    ) -> Outcome<Option<usize>> {
        let (word, stored) = found.unwrap_or((Word::new(Kind::Hash), 0));
        if word.form != Form::Compact {
            return Ok(None);
        }
        scratch.clear();
        if found.is_some() {
            self.keyspace.blobs.get(db, key, scratch)?;
        }
        let added: usize =
            pairs.iter().map(|(field, value)| FieldRecord::bytes(field.len(), value.len())).sum();
        let mut records = Vec::with_capacity(stored as usize + added);
        match compact::set(scratch, pairs, &mut records) {
            Ok(new) if records.len() <= SMALL => {
                let counters = &self.keyspace.counters;
                let count = if found.is_some() { &counters.hits } else { &counters.misses };
                count.fetch_add(1, Ordering::Relaxed);
                self.put((db, key), Some(word.form), word, &[&records], 0)?;
                Ok(Some(new))
            }
            // Damage is reported when the hash is opened.
            Ok(_) | Err(_) => Ok(None),
        }
    }

    /// Opens a collection. None: the key does not exist.
    ///
    /// # Errors
    /// The key has another type; errors of the store.
    pub fn open<C: Collection>(&mut self, db: Db, key: &[u8]) -> Outcome<Option<Open<C>>> {
        let found = self.stat_of(db, key, C::KIND)?;
        self.open_found(db, key, found)
    }

    /// Opens a collection by its word and size, or a new one.
    pub(crate) fn open_found_or_new<C: Collection>(
        &mut self,
        db: Db,
        key: &[u8],
        found: Found,
    ) -> Outcome<Open<C>> {
        Ok(self.open_found(db, key, found)?.unwrap_or_else(Open::new))
    }

    fn open_found<C: Collection>(&mut self, db: Db, key: &[u8], found: Found) -> Outcome<Option<Open<C>>> {
        let count = &self.keyspace.counters;
        let Some((word, stored)) = found else {
            count.misses.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        };
        count.hits.fetch_add(1, Ordering::Relaxed);
        if let Some((name, Cached { content, chain, memory_bytes }, bytes)) =
            self.stripe(db, key).take(db, key)
        {
            let all = self.keyspace.decoded_bytes.clone();
            let counted = Some(Counted { all, bytes, content_bytes: memory_bytes, name: Some(name) });
            if let Ok(content) = content.downcast::<C>() {
                return Ok(Some(opened(content, word, stored, chain, counted)));
            }
        }
        let (content, chain) = self.read_collection(db, key, word, stored)?;
        Ok(Some(opened(Box::new(content), word, stored, chain, None)))
    }

    fn read_collection<C: Collection>(
        &mut self,
        db: Db,
        key: &[u8],
        word: Word,
        stored: u64,
    ) -> Outcome<(C, Option<SegmentList>)> {
        let chain = if word.form == Form::Pieces { SegmentList::find(self.blobs(), db, key)? } else { None };
        self.check_room(word, chain.as_ref().map_or(stored, SegmentList::bytes))?;
        let mut content = C::default();
        let mut add = |place, records: &[u8]| content.add(records, place).map_err(|_| segments::damaged(key));
        match &chain {
            Some(chain) => chain.read(self.blobs(), add)?,
            None if word.form == Form::Pieces => return Err(segments::damaged(key)),
            None => {
                let mut bytes = Vec::new();
                self.keyspace.blobs.get(db, key, &mut bytes)?;
                add(0, &bytes)?;
            }
        }
        Ok((content, chain))
    }

    /// Makes room to decode a collection. Drops other decoded collections if necessary.
    ///
    /// # Errors
    /// No memory is left.
    fn check_room(&mut self, word: Word, stored: u64) -> Outcome {
        let needs = stored as usize * DECODED_TIMES;
        if word.form == Form::Compact || self.keyspace.blobs.has_room(needs) {
            return Ok(());
        }
        self.forget_decoded(None, || false);
        if self.keyspace.blobs.has_room(needs) { Ok(()) } else { Err(BlobError::NoMemory.into()) }
    }

    /// Opens a collection, or a new one.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn open_or_new<C: Collection>(&mut self, db: Db, key: &[u8]) -> Outcome<Open<C>> {
        Ok(self.open(db, key)?.unwrap_or_else(Open::new))
    }

    /// Writes the changes of a collection, and keeps a large one decoded. Without this call nothing is
    /// changed.
    ///
    /// # Errors
    /// Errors of the store; the collection exceeds the memory of decoded collections.
    pub(crate) fn close<C: Collection>(&mut self, db: Db, key: &[u8], open: Open<C>) -> Outcome {
        let change = open.write();
        let Open { mut content, log, word, mut chain, counted, .. } = open;
        let mut word = word.unwrap_or(Word::new(C::KIND));
        let old = Some(word.form);
        if content.memory_bytes() > self.keyspace.decoded_max {
            content.shed();
        }
        let grows = change.is_some() && content.memory_bytes() > self.keyspace.decoded_max;
        if grows && change != Some(Write::Remove) && !is_all_deletes(&log) {
            return Err(BlobError::NoMemory.into());
        }
        match change {
            None => {}
            Some(Write::Remove) => {
                self.remove_blob(db, key, word)?;
                return Ok(());
            }
            Some(Write::Append) => match &mut chain {
                None => self.append(db, key, &log)?,
                Some(chain) => {
                    segments::append(self.blobs(), &mut *content, chain, &log)?;
                    self.clean(key, word, &mut *content, chain);
                }
            },
            Some(Write::Whole(form @ Form::Pieces)) => {
                word.form = form;
                let blobs = self.blobs();
                let name = |head: &[u8]| self.put((db, key), old, word, &[head], 0);
                chain = Some(segments::write(blobs, (db, key), &mut *content, name)?);
            }
            Some(Write::Whole(form)) => {
                (word.form, chain) = (form, None);
                content.dead_records().clear();
                // A log doubles before it is rewritten.
                let room = if form == Form::Log { 2 * content.encoded_bytes() as u64 } else { 0 };
                self.put((db, key), old, word, &[&content.encode()], room)?;
            }
        }
        if word.form != Form::Compact {
            self.keep((db, key), content, chain, counted);
        }
        Ok(())
    }

    /// Cleans pieces. The change itself is already written, so the next change retries after a failure.
    fn clean<C: Collection>(&self, key: &[u8], word: Word, content: &mut C, chain: &mut SegmentList) {
        if let Err(err) = segments::clean(self.blobs(), (key, word), content, chain) {
            tracing::warn!(
                "a collection keeps its superseded records, and its next change retries their removal: {err}"
            );
        }
    }

    /// Keeps a collection decoded, part of which may already be counted. Drops other collections if
    /// necessary.
    fn keep<C: Collection>(
        &mut self,
        (db, key): (Db, &[u8]),
        mut content: Box<C>,
        chain: Option<SegmentList>,
        mut counted: Option<Counted>,
    ) {
        let keyspace = self.keyspace;
        let (before, content_before) = counted.as_ref().map_or((0, 0), |c| (c.bytes, c.content_bytes));
        let fits =
            |needs| keyspace.decoded_bytes.load(Ordering::Relaxed) - before + needs <= keyspace.decoded_max;
        let can_stay = |needs| {
            fits(needs) && (needs <= content_before || keyspace.blobs.has_room(needs - content_before))
        };
        let mut needs = counted_for(content.memory_bytes(), content_before, keyspace.decoded_max);
        if !can_stay(needs) {
            content.shed();
            needs = counted_for(content.memory_bytes(), content_before, keyspace.decoded_max);
            self.forget_decoded(Some((db, key)), || fits(needs));
        }
        if !can_stay(needs) {
            return;
        }
        let name = counted.as_mut().and_then(|counted| counted.name.take());
        let cached = Cached { content, chain, memory_bytes: needs };
        let bytes = self.stripe(db, key).keep(name.unwrap_or_else(|| Name::new(db, key)), cached);
        keyspace.decoded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Drops decoded collections until `is_enough`, first those of the key's stripe.
    fn forget_decoded(&mut self, first: Option<(Db, &[u8])>, is_enough: impl Fn() -> bool) {
        let keyspace = self.keyspace;
        if let Some((db, key)) = first.filter(|_| !is_enough()) {
            let freed = self.stripe(db, key).forget();
            keyspace.decoded_bytes.fetch_sub(freed, Ordering::Relaxed);
        }
        for stripe in &keyspace.stripes {
            if is_enough() {
                return;
            }
            // Skips stripes locked by this command or another.
            let freed = stripe.try_lock().map_or(0, |mut stripe| stripe.forget());
            keyspace.decoded_bytes.fetch_sub(freed, Ordering::Relaxed);
        }
    }
}

/// Bytes to count for a collection of `bytes`, when `before` were counted. The count grows in steps, so that
/// memory is not requested, and the cache not resized, with each command. At most `max`, the limit of a
/// collection.
fn counted_for(bytes: usize, before: usize, max: usize) -> usize {
    let step = (bytes / 64).next_power_of_two().max(512);
    match (bytes..=bytes + 2 * step).contains(&before) {
        true => before,
        false => bytes.next_multiple_of(step).min(bytes.max(max)),
    }
}

fn opened<C: Collection>(
    mut content: Box<C>,
    word: Word,
    stored: u64,
    chain: Option<SegmentList>,
    counted: Option<Counted>,
) -> Open<C> {
    content.set_log_place(chain.as_ref().map_or(0, SegmentList::end));
    Open { content, log: Vec::new(), word: Some(word), stored, chain, counted }
}
