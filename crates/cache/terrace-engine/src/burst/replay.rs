//! Replay after a power cut: undestaged pages go to the source, before their files are served.
//!
//! A start writes the pages only over a state that the last run left, or may have made (`tier/intent.rs`).
//! Any other state comes from another program: a *conflict*. The start reports it, and keeps the pages until
//! a user decides.

use crate::context::Context;
use crate::file::identity::Identity;
use crate::file::object::ObjectId;
use crate::file::source::{PathFd, SourceFile};
use crate::path::sync;
use crate::state::device::Status;
use crate::tier::intent::{self, Boot, INTENT_NS, MARGIN_NS, on_target, write_records};
use std::fmt;
use std::io;
use std::sync::Arc;
use terrace_io::{AlignedBuf, IoVec};
use terrace_shm::{DeviceSlot, PAGE_SIZE};
use terrace_tier::DeviceIo;
use terrace_tier::WriteIntents;
use terrace_tier::format::{Record, holder};
use terrace_tier::{UndestagedFile, format};

const PAGE: u64 = PAGE_SIZE as u64;

/// Undestaged pages of one file on a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndestagedPages {
    /// Number of the file: its inode in the source.
    pub file: ObjectId,
    /// Name of the target.
    pub target: String,
    /// Pages.
    pub pages: u64,
}

/// Reason why undestaged pages are not written to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The file was changed after the run that wrote the pages.
    Changed,
    /// The file changed within the write intent, without a reboot since. The run or a later program may have
    /// changed it.
    SameBoot,
    /// Damaged keys may have recorded that the source has the pages.
    Doubtful,
    /// Some pages cannot be read.
    Damaged,
    /// The file was not found, but may exist.
    NotFound,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Conflict::Changed => "the file was changed after these writes",
            Conflict::SameBoot => "the file may have been changed after these writes",
            Conflict::Doubtful => "damaged keys of the tier may record that the file has these data",
            Conflict::Damaged => "some of these data cannot be read from the tier",
            Conflict::NotFound => "the file was not found, but may exist",
        })
    }
}

/// Result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// Number of pages written to the source durably.
    Written(u64),
    /// The pages are kept.
    Kept(Conflict),
    /// No pages are left: they were discarded, or the file is gone.
    Dropped,
}

/// Search result for a file with undestaged pages.
#[derive(Debug)]
pub enum FileLookup {
    /// An O_PATH descriptor.
    Found(PathFd),
    /// The file is not in the source.
    Gone,
    /// The search was incomplete.
    Unknown,
}

/// Decision on a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep the pages.
    Keep,
    /// Write the pages over any content.
    Write,
    /// Discard the pages.
    Discard,
}

/// Undestaged pages of earlier runs, once all targets that may have some are scanned.
pub(crate) fn undestaged(cx: &Context) -> io::Result<Vec<UndestagedPages>> {
    intent::wait_for_scans(cx);
    let state = cx.state.lock();
    let all = || state.targets.iter().flat_map(|targets| &targets.all);
    for of in all() {
        if let Status::Off(why) = &of.status
            && of.undestaged.is_unknown
        {
            return Err(io::Error::other(format!("tier {} cannot be read: {why}", of.config.name)));
        }
    }
    let of = |name: &str, (file, undestaged): (&ObjectId, &UndestagedFile)| UndestagedPages {
        file: *file,
        target: name.to_owned(),
        pages: undestaged.pages.len() as u64,
    };
    Ok(all()
        .flat_map(|device| device.undestaged.earlier.iter().map(|one| of(&device.config.name, one)))
        .collect())
}

/// See [`crate::Engine::replay`].
pub(crate) fn replay(cx: &Context, id: ObjectId, at: FileLookup, decision: Decision) -> io::Result<Replayed> {
    let of_target = |device: Arc<DeviceIo>| {
        let earlier =
            on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.earlier.get(&id).cloned());
        Some((device, earlier??))
    };
    let all: Vec<(Arc<DeviceIo>, UndestagedFile)> =
        cx.devices.all().into_iter().filter_map(of_target).collect();
    if decision == Decision::Discard {
        all.iter().for_each(|(device, _)| complete(cx, device, id));
        return Ok(Replayed::Dropped);
    }
    let source = match at {
        FileLookup::Found(fd) => SourceFile::through_page_cache(fd),
        FileLookup::Unknown => return Ok(Replayed::Kept(Conflict::NotFound)),
        // A power cut could bring the file back while the deletion is not durable in the source.
        FileLookup::Gone if cx.source_root.get().is_none() => return Ok(Replayed::Kept(Conflict::NotFound)),
        FileLookup::Gone => {
            sync::sync_root(cx)?;
            all.iter().for_each(|(device, _)| complete(cx, device, id));
            return Ok(Replayed::Dropped);
        }
    };
    // A served file has pages in memory, perhaps dirty ones.
    if decision == Decision::Keep && !all.is_empty() && cx.lookup_object(id).is_some() {
        return Ok(Replayed::Kept(Conflict::SameBoot));
    }
    let (boot, mut written) = (Boot::this(cx), 0);
    for (device, undestaged) in &all {
        let identity = Identity::of(source.as_path())?;
        let conflict = judge(undestaged, &identity, boot);
        if let Some(conflict) = conflict.filter(|_| decision == Decision::Keep) {
            return Ok(Replayed::Kept(conflict));
        }
        let Some(content) = read(device, undestaged) else { return Ok(Replayed::Kept(Conflict::Damaged)) };
        let until = (cx.clock.wall_ns() + INTENT_NS).cast_unsigned();
        let intent = Record::WriteIntent { object: id, until, holder: holder(boot.mark, identity.birth) };
        if !write_records(cx, device, &[intent]) {
            tracing::warn!(
                "tier {}: the write-intent record of file {id} cannot be written; a power cut during this replay may leave a conflict",
                device.name()
            );
        }
        write(cx, &source, content)?;
        complete(cx, device, id);
        written += undestaged.pages.len() as u64;
    }
    Ok(if written > 0 { Replayed::Written(written) } else { Replayed::Dropped })
}

/// Records that no page of the file is undestaged any more.
fn complete(cx: &Context, device: &DeviceIo, id: ObjectId) {
    let recorded = write_records(cx, device, &[Record::DestageComplete { object: id }]);
    if !recorded {
        tracing::warn!(
            "tier {}: the destage-complete record of file {id} cannot be written; the next start may write its pages again",
            device.name()
        );
    }
    on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.complete(id, recorded));
    device.wake();
}

/// Whether the pages may be written to a file with identity `now`.
fn judge(undestaged: &UndestagedFile, now: &Identity, boot: Boot) -> Option<Conflict> {
    if undestaged.doubtful {
        return Some(Conflict::Doubtful);
    }
    if undestaged.base_version == Some(now.digest) {
        return None;
    }
    let intents = undestaged.intents.filter(|_| now.birth != 0);
    let Some(WriteIntents { first, until, holder }) = intents else { return Some(Conflict::Changed) };
    let (of_boot, of_file) = (holder >> 16, holder & 0xffff);
    let within = first.cast_signed() - INTENT_NS - MARGIN_NS..=until.cast_signed();
    if !within.contains(&now.ctime) || of_file != u32::from(now.birth) {
        return Some(Conflict::Changed);
    }
    match of_boot == u32::from(boot.mark) {
        true => Some(Conflict::SameBoot),
        // The machine booted within seconds, or its clock went back.
        false if now.ctime >= boot.began => Some(Conflict::Changed),
        false => None,
    }
}

/// The undestaged pages with their content. None: some are damaged.
fn read(device: &DeviceIo, undestaged: &UndestagedFile) -> Option<Vec<(u64, Vec<u8>)>> {
    let geometry = device.writer().superblock().geometry;
    let mut buf = AlignedBuf::default();
    let page = |(page, (slot, crc)): (&u64, &(DeviceSlot, u32))| {
        let content = buf.with(PAGE_SIZE, |buf| {
            device.medium().read(geometry.byte_of(*slot), buf).ok()?;
            (format::crc(buf) == *crc).then(|| buf.to_vec())
        });
        Some((*page, content?))
    };
    undestaged.pages.iter().map(page).collect()
}

fn write(cx: &Context, source: &SourceFile, content: Vec<(u64, Vec<u8>)>) -> io::Result<()> {
    let size = source.stat()?.st_size as u64;
    let fd = source.buffered()?;
    for (page, mut content) in content {
        // The file has been truncated since.
        let len = size.saturating_sub(page * PAGE).min(PAGE) as usize;
        if len == 0 {
            continue;
        }
        let buf = IoVec { ptr: content.as_mut_ptr(), len };
        // SAFETY: the content lives until the call returns.
        unsafe { cx.io.write(fd.raw(), page * PAGE, &[buf])? };
    }
    cx.io.sync(fd.raw(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::identity::found;
    use std::collections::BTreeMap;

    /// Only a state that the last run has certainly left, or made itself, is written over.
    #[test]
    fn only_what_the_run_left_is_written_over() {
        const S: i64 = 1_000_000_000;
        let (until, pages) = (100 * S, BTreeMap::from([(0, (DeviceSlot::new(0, 1), 5))]));
        let intents = |holder| Some(WriteIntents { first: 90 * S as u64, until: until as u64, holder });
        let mut undestaged =
            UndestagedFile { base_version: Some(7), intents: None, pages, since: 1, doubtful: false };
        let (same, other) = (Boot { id: 1, mark: 1, began: 0 }, Boot { id: 9, mark: 9, began: 150 * S });
        assert_eq!(judge(&undestaged, &found(7, 95 * S, 3), same), None);
        assert_eq!(
            judge(&undestaged, &found(8, 95 * S, 3), other),
            Some(Conflict::Changed),
            "no write intent"
        );
        undestaged.intents = intents(holder(1, 3));
        assert_eq!(judge(&undestaged, &found(7, 95 * S, 3), same), None);
        assert_eq!(judge(&undestaged, &found(8, until, 3), other), None, "the run itself");
        assert_eq!(judge(&undestaged, &found(8, 85 * S, 3), other), None, "its first change");
        assert_eq!(judge(&undestaged, &found(8, until, 3), same), Some(Conflict::SameBoot));
        assert_eq!(judge(&undestaged, &found(8, until + 1, 3), other), Some(Conflict::Changed), "later");
        assert_eq!(
            judge(&undestaged, &found(8, 83 * S, 3), other),
            Some(Conflict::Changed),
            "a clock that was set back"
        );
        let quick = Boot { began: 99 * S, ..other };
        assert_eq!(
            judge(&undestaged, &found(8, until, 3), quick),
            Some(Conflict::Changed),
            "after a quick start"
        );
        assert_eq!(judge(&undestaged, &found(8, until, 4), other), Some(Conflict::Changed), "another file");
        undestaged.intents = intents(holder(1, 0));
        assert_eq!(judge(&undestaged, &found(8, until, 0), other), Some(Conflict::Changed), "no birth times");
        undestaged.doubtful = true;
        assert_eq!(judge(&undestaged, &found(7, 95 * S, 3), same), Some(Conflict::Doubtful));
    }
}
