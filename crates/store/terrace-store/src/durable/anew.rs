//! Log compaction, when most of the log is garbage: one record for each bucket and blob. Other threads go on
//! with changes.
//!
//! 1. The end of the log is noted.
//! 2. Each table is written in turn. A blob may change before or after its table is written. So the records
//!    since step 1 are copied behind: each states a change's result, and the last one counts.
//! 3. The new file is synced, while other threads go on.
//! 4. When few records are left to copy, appends are blocked. The rest is copied and synced, and the new file
//!    replaces the old one.
//!
//! Record numbers never go back: those of the new file begin far above.

use super::sync::{complete, note_durable};
use crate::error::{Error, Result};
use crate::index::BucketState;
use crate::log::{Frozen, Position, Writer, Written};
use crate::record::{self, Header, Record};
use crate::records::Records;
use crate::state::StoreState;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Maximum number of records of one file.
const NUMBERS: u64 = 1 << 32;
/// Bytes of records copied while appends are blocked.
const LAST: u64 = 256 << 10;
/// Maximum number of copy rounds while appends go on.
const ROUNDS: usize = 16;

/// The name of the new log until it replaces the old one.
pub(crate) fn new_path(names: &Path) -> PathBuf {
    let mut path = names.as_os_str().to_owned();
    path.push(".new");
    path.into()
}

/// Compacts the log. All changes before the call are durable afterwards.
///
/// # Errors
/// No room; a failed write. The old log stays.
pub(crate) fn write_anew(state: &StoreState) -> Result<()> {
    let _anew = state.durable.anew.lock();
    let path = new_path(&state.names_path);
    let result = write(state, &path);
    if result.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    result
}

fn write(state: &StoreState, path: &Path) -> Result<()> {
    let error = |action| move |e| Error::io(path, action, e);
    let (mut begin, old, generation) = state.log.position()?;
    let file = create_new(path).map_err(error("create"))?;
    let header = Header {
        generation: generation + 1,
        first: begin.number + NUMBERS,
        store: state.store,
        seed: state.seed,
    };
    let mut writer = Writer::new(&*state.io, path, file, header);
    for bucket in state.names.all() {
        writer.add(&Record::Bucket { bucket: bucket.id, name: bucket.name().as_bytes() })?;
        add_blobs(&bucket, &mut writer)?;
    }
    add_tags(state, &mut writer)?;
    begin = copy_most(state, &old, generation, begin, &mut writer)?;
    // The turn precedes the log's end, as in a sync: a sync of the old file ends before the switch. The new
    // mark must also cover all that an earlier sync covered, since released room may hold other blobs.
    let _turn = state.durable.turn.lock();
    complete(state)?;
    begin = copy_most(state, &old, generation, begin, &mut writer)?;
    // Records copied below are left to the next sync, so that appends do not wait for the heap's sync.
    let (covered, upto) = (begin.number - 1, writer.next_number() - 1);
    state.log.journal.begin_sync(covered, upto);
    let replaced = replace(state, (&old, generation, begin), (path, upto), writer);
    let (frozen, written) = replaced.inspect_err(|_| state.log.journal.rename_turn())?;
    let synced = state.io.sync(state.dir.as_raw_fd(), false);
    frozen.switch(written);
    // If this sync failed, the rename may not be durable. A power cut may then bring the old file back,
    // without later records.
    synced.map_err(|e| state.log.fail("sync the directory of", e))?;
    state.log.journal.end_sync();
    note_durable(state, covered);
    state.durable.syncs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Syncs the new log, copies the rest of the old one, and replaces it. Blocks appends while the result lives.
fn replace<'a>(
    state: &'a StoreState,
    (old, generation, begin): (&File, u64, Position),
    (path, upto): (&Path, u64),
    mut writer: Writer<'_>,
) -> Result<(Frozen<'a>, Written)> {
    state.heap.sync()?;
    writer.sync()?;
    let begin = copy_most(state, old, generation, begin, &mut writer)?;
    let frozen = state.log.freeze();
    let end = frozen.position()?;
    copy(old, generation, begin, end, &mut writer, &state.names_path)?;
    writer.add(&Record::Mark { upto })?;
    writer.sync()?;
    std::fs::rename(path, &state.names_path).map_err(|e| Error::io(path, "rename", e))?;
    Ok((frozen, writer.end()))
}

/// Creates an empty log file. Private to its user: it has the names of all blobs and the bytes of small ones.
pub(crate) fn create_new(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Copies records of the old log until few are left, or appends keep up with the copy. Returns the position
/// reached.
fn copy_most(
    state: &StoreState,
    old: &File,
    generation: u64,
    mut begin: Position,
    writer: &mut Writer<'_>,
) -> Result<Position> {
    for _ in 0..ROUNDS {
        let (end, ..) = state.log.position()?;
        begin = copy(old, generation, begin, end, writer, &state.names_path)?;
        if state.log.bytes() - begin.at <= LAST {
            break;
        }
    }
    Ok(begin)
}

fn add_blobs(bucket: &BucketState, writer: &mut Writer<'_>) -> Result<()> {
    if bucket.is_scratch() {
        return writer.add(&Record::Trait { bucket: bucket.id, kind: record::TRAIT_SCRATCH, text: &[] });
    }
    if let Some(persist) = bucket.persist() {
        let text = persist.dir().as_os_str().as_bytes();
        writer.add(&Record::Trait { bucket: bucket.id, kind: record::TRAIT_PERSIST, text })?;
    }
    let mut result = Ok(());
    bucket.for_each_table(|table| {
        for entry in table {
            if result.is_ok() {
                result = writer.add(&Record::Put { bucket: bucket.id, blob: entry.blob, key: &entry.key });
            }
        }
    });
    result?;
    // Blobs changed since the noted end of the log are in the copied records again.
    let is_current = bucket.persist().is_some_and(|persist| {
        let _tables = bucket.write_all();
        persist.is_settled()
    });
    match is_current {
        true => writer.add(&Record::Trait { bucket: bucket.id, kind: record::TRAIT_PERSISTED, text: &[] }),
        false => Ok(()),
    }
}

fn add_tags(state: &StoreState, writer: &mut Writer<'_>) -> Result<()> {
    for (tag, (bucket, key)) in state.tags.all() {
        let (whole, key) = (key.is_none(), key.unwrap_or_default());
        writer.add(&Record::Tag { bucket, whole, on: true, tag: tag.as_bytes(), key: &key })?;
    }
    Ok(())
}

/// Copies the records between two positions, except marks. Returns the position reached.
fn copy(
    old: &File,
    generation: u64,
    from: Position,
    to: Position,
    writer: &mut Writer<'_>,
    path: &Path,
) -> Result<Position> {
    let mut records = Records::from(old, generation, from);
    while records.position().number < to.number {
        let at = records.position().at;
        match records.next().map_err(|e| Error::io(path, "read", e))? {
            Some((_, Record::Mark { .. })) => {}
            Some((_, record)) => writer.add(&record)?,
            None => {
                let what = format!("a record that was just written is damaged at byte {at}");
                return Err(Error::Damaged { path: path.to_owned(), what });
            }
        }
    }
    Ok(to)
}

/// Whether most of the log is garbage.
pub(crate) fn is_due(state: &StoreState) -> bool {
    /// Smaller logs are not compacted, bytes.
    const SMALL: u64 = 32 << 20;
    let live = state.counts.logged.load(Ordering::Relaxed);
    state.log.bytes() > 2 * live + SMALL
}
