//! After a power cut: pages that only a target has go to the source, before their files are served.
//!
//! A file is written to only if it is what the last run left, or what that run may have made of it (`path/permit.rs`). Otherwise somebody has changed it since:
//! a *conflict*, which is told and kept until a user decides.

use crate::context::Context;
use crate::device::format::{Record, holder};
use crate::device::io::DeviceIo;
use crate::device::scan::Permits;
use crate::device::{OwedFile, format};
use crate::file::identity::Identity;
use crate::file::object::ObjectId;
use crate::file::source::{PathFd, SourceFile};
use crate::io::{AlignedBuf, IoVec};
use crate::path::permit::{self, Boot, MARGIN_NS, PERMIT_NS, on_target, write_records};
use crate::path::sync;
use crate::state::device::Status;
use std::fmt;
use std::io;
use std::sync::Arc;
use terrace_shm::{DeviceSlot, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

/// What a target has of one file, and the source lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedPages {
    /// The number of the file: of its inode in the source.
    pub file: ObjectId,
    /// The name of the target.
    pub target: String,
    /// Pages.
    pub pages: u64,
}

/// Why pages are not written to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// The file was changed after the end of the run that they are of.
    Changed,
    /// It was changed at that time, and the machine has not been restarted since: by that run, or by another program just after.
    SameBoot,
    /// Keys on the target are damaged that may say that the source has them.
    Doubtful,
    /// Some of them cannot be read.
    Damaged,
    /// The file was not found, and nobody can be sure that it is gone.
    NotFound,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Conflict::Changed => "the file was changed since",
            Conflict::SameBoot => "the file may have been changed since",
            Conflict::Doubtful => "keys are damaged that may say that the source has them",
            Conflict::Damaged => "some of them cannot be read",
            Conflict::NotFound => "the file was not found, and may be there all the same",
        })
    }
}

/// What became of the pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// So many were written to the source, and are durable there.
    Written(u64),
    /// They are kept.
    Kept(Conflict),
    /// There are none any more: they were given up, or the file is gone.
    Dropped,
}

/// Where the file of some pages is.
#[derive(Debug)]
pub enum Whereabouts {
    /// An O_PATH descriptor.
    Found(PathFd),
    /// Nowhere in the source.
    Gone,
    /// Not everything could be searched.
    Unknown,
}

/// Who decides over a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nobody: they are kept.
    Keep,
    /// They are written over whatever is there.
    Write,
    /// They are given up.
    Discard,
}

/// What earlier runs have left, once all targets are known that may have some.
pub(crate) fn owed(cx: &Context) -> io::Result<Vec<OwedPages>> {
    permit::wait_for_scans(cx);
    let state = cx.state.lock();
    let all = || state.targets.iter().flat_map(|targets| &targets.all);
    for of in all() {
        if let Status::Off(why) = &of.status
            && of.owed.is_unknown
        {
            return Err(io::Error::other(format!("tier {} cannot be read: {why}", of.config.name)));
        }
    }
    let of = |name: &str, (file, owed): (&ObjectId, &OwedFile)| OwedPages {
        file: *file,
        target: name.to_owned(),
        pages: owed.pages.len() as u64,
    };
    Ok(all().flat_map(|device| device.owed.left.iter().map(|one| of(&device.config.name, one))).collect())
}

/// Writes what earlier runs have left of a file to it, or decides otherwise.
///
/// # Errors
/// The source's: the pages are kept.
pub(crate) fn replay(
    cx: &Context,
    id: ObjectId,
    at: Whereabouts,
    decision: Decision,
) -> io::Result<Replayed> {
    let of_target = |device: Arc<DeviceIo>| {
        let left = on_target(&mut cx.state.lock(), device.number, |of| of.owed.left.get(&id).cloned());
        Some((device, left??))
    };
    let all: Vec<(Arc<DeviceIo>, OwedFile)> = cx.devices.all().into_iter().filter_map(of_target).collect();
    if decision == Decision::Discard {
        all.iter().for_each(|(device, _)| settle(cx, device, id));
        return Ok(Replayed::Dropped);
    }
    let source = match at {
        Whereabouts::Found(fd) => SourceFile::through_page_cache(fd),
        Whereabouts::Unknown => return Ok(Replayed::Kept(Conflict::NotFound)),
        // If the source does not know durably that the file is gone, a power cut could bring it back.
        Whereabouts::Gone if cx.source_root.get().is_none() => return Ok(Replayed::Kept(Conflict::NotFound)),
        Whereabouts::Gone => {
            sync::sync_root(cx)?;
            all.iter().for_each(|(device, _)| settle(cx, device, id));
            return Ok(Replayed::Dropped);
        }
    };
    // What is in memory of a file that is served was read before, or is to be written yet.
    if decision == Decision::Keep && !all.is_empty() && cx.lookup_object(id).is_some() {
        return Ok(Replayed::Kept(Conflict::SameBoot));
    }
    let (boot, mut written) = (Boot::this(cx), 0);
    for (device, owed) in &all {
        let identity = Identity::of(source.as_path())?;
        let conflict = judge(owed, &identity, boot);
        if let Some(conflict) = conflict.filter(|_| decision == Decision::Keep) {
            return Ok(Replayed::Kept(conflict));
        }
        let Some(content) = read(device, owed) else { return Ok(Replayed::Kept(Conflict::Damaged)) };
        let until = (cx.clock.wall_ns() + PERMIT_NS).cast_unsigned();
        let permit = Record::Permit { object: id, until, holder: holder(boot.mark, identity.birth) };
        if !write_records(cx, device, &[permit]) {
            tracing::warn!("tier {}: it cannot be told that file {id} has its pages", device.name);
        }
        write(cx, &source, content)?;
        settle(cx, device, id);
        written += owed.pages.len() as u64;
    }
    Ok(if written > 0 { Replayed::Written(written) } else { Replayed::Dropped })
}

/// The source has what it is to have of the file.
fn settle(cx: &Context, device: &DeviceIo, id: ObjectId) {
    let told = write_records(cx, device, &[Record::Paid { object: id }]);
    if !told {
        tracing::warn!("tier {}: what it has of file {id} will be found again, and told", device.name);
    }
    on_target(&mut cx.state.lock(), device.number, |of| of.owed.paid(id, told));
    device.wakeup.signal();
}

/// Whether the pages may be written to a file that is found like this.
fn judge(owed: &OwedFile, now: &Identity, boot: Boot) -> Option<Conflict> {
    if owed.doubtful {
        return Some(Conflict::Doubtful);
    }
    if owed.base == Some(now.digest) {
        return None;
    }
    let permit = owed.permit.filter(|_| now.birth != 0);
    let Some(Permits { first, until, holder }) = permit else { return Some(Conflict::Changed) };
    let (of_boot, of_file) = (holder >> 16, holder & 0xffff);
    let permitted = first.cast_signed() - PERMIT_NS - MARGIN_NS..=until.cast_signed();
    if !permitted.contains(&now.ctime) || of_file != u32::from(now.birth) {
        return Some(Conflict::Changed);
    }
    match of_boot == u32::from(boot.mark) {
        true => Some(Conflict::SameBoot),
        // A machine that starts within seconds, or whose clock was set back.
        false if now.ctime >= boot.began => Some(Conflict::Changed),
        false => None,
    }
}

/// Pages with their content. None: some are damaged.
fn read(device: &DeviceIo, owed: &OwedFile) -> Option<Vec<(u64, Vec<u8>)>> {
    let geometry = device.writer.lock().superblock.geometry;
    let mut buf = AlignedBuf::default();
    let page = |(page, (slot, crc)): (&u64, &(DeviceSlot, u32))| {
        let content = buf.with(PAGE_SIZE, |buf| {
            device.medium.read(geometry.byte_of(*slot), buf).ok()?;
            (format::crc(buf) == *crc).then(|| buf.to_vec())
        });
        Some((*page, content?))
    };
    owed.pages.iter().map(page).collect()
}

fn write(cx: &Context, source: &SourceFile, content: Vec<(u64, Vec<u8>)>) -> io::Result<()> {
    let size = source.stat()?.st_size as u64;
    let fd = source.buffered()?;
    for (page, mut content) in content {
        // What is behind the end was cut off.
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

    /// What the last run has certainly left, or made itself, is written over; nothing else is.
    #[test]
    fn only_what_the_run_left_is_written_over() {
        const S: i64 = 1_000_000_000;
        let (until, pages) = (100 * S, BTreeMap::from([(0, (DeviceSlot::new(0, 1), 5))]));
        let permit = |holder| Some(Permits { first: 90 * S as u64, until: until as u64, holder });
        let mut owed = OwedFile { base: Some(7), permit: None, pages, since: 1, doubtful: false };
        let (same, other) = (Boot { mark: 1, began: 0 }, Boot { mark: 9, began: 150 * S });
        assert_eq!(judge(&owed, &found(7, 95 * S, 3), same), None);
        assert_eq!(judge(&owed, &found(8, 95 * S, 3), other), Some(Conflict::Changed), "no permit");
        owed.permit = permit(holder(1, 3));
        assert_eq!(judge(&owed, &found(7, 95 * S, 3), same), None);
        assert_eq!(judge(&owed, &found(8, until, 3), other), None, "the run itself");
        assert_eq!(judge(&owed, &found(8, 85 * S, 3), other), None, "its first change");
        assert_eq!(judge(&owed, &found(8, until, 3), same), Some(Conflict::SameBoot));
        assert_eq!(judge(&owed, &found(8, until + 1, 3), other), Some(Conflict::Changed), "later");
        assert_eq!(
            judge(&owed, &found(8, 83 * S, 3), other),
            Some(Conflict::Changed),
            "a clock that was set back"
        );
        let quick = Boot { began: 99 * S, ..other };
        assert_eq!(judge(&owed, &found(8, until, 3), quick), Some(Conflict::Changed), "after a quick start");
        assert_eq!(judge(&owed, &found(8, until, 4), other), Some(Conflict::Changed), "another file");
        owed.permit = permit(holder(1, 0));
        assert_eq!(judge(&owed, &found(8, until, 0), other), Some(Conflict::Changed), "no birth times");
        owed.doubtful = true;
        assert_eq!(judge(&owed, &found(7, 95 * S, 3), same), Some(Conflict::Doubtful));
    }
}
