//! A file's base version is the identity of a state that is durable in the source. After a power cut, a start
//! writes undestaged pages over this state, or over later changes within a write intent (`burst/replay.rs`).
//!
//! A file gets a base version in two ways:
//! - All content is durable in the source (`burst::sync_to_source`).
//! - The source lacks only pages. A write extends the source at once (`path/write.rs`), and a new file has
//!   grown from nothing. An fsync of the source makes size, existence and times durable, and the pages go to
//!   the target: [`renew`].
//!
//! A replay also writes older undestaged pages over the new base version. So the target must hold the newest
//! acknowledged version of each page. After writeback of such a page ([`Burst::must_destage`]) only the first
//! way remains: this sync ends the file's use of the target.

use crate::context::Context;
use crate::file::burst::Burst;
use crate::file::identity::Identity;
use crate::file::object::Object;
use crate::path::sync;
use crate::tier::intent;
use std::io;
use std::sync::atomic::Ordering;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// The source's state that was made durable.
pub(crate) struct Durable {
    /// Identity after that.
    identity: Option<Identity>,
    /// Changes begun before, and whether all had ended.
    changes: u64,
    calm: bool,
}

/// Makes the source's content durable. The caller holds the file's writeback lock.
pub(crate) fn make_durable(cx: &Context, o: &Object) -> io::Result<Durable> {
    let (changes, calm) = {
        let burst = o.burst.lock();
        (burst.changes, burst.changing == 0)
    };
    let stable = o.dirty.lock().unstable.is_empty();
    match stable {
        true => sync::sync(cx, o, false)?,
        false => sync::stabilize_locked(cx, o, false)?,
    }
    let identity = Identity::of(o.source().as_path()).ok();
    Ok(Durable { identity, changes, calm })
}

/// Makes this state the file's base version. If a change has begun since or is under way, or the clocks
/// differ, the file has none. `since`: number of changes before the comparison of the clocks.
pub(crate) fn take(cx: &Context, o: &Object, burst: &mut Burst, durable: Durable, since: u64) {
    let Durable { identity, changes, calm } = durable;
    let same = calm && burst.changing == 0 && burst.changes == changes;
    if let Some(identity) = identity.as_ref().filter(|_| same) {
        let since = (changes != since).then_some(burst.changed_at);
        let in_step = intent::is_in_step(since, identity.ctime, cx.clock.wall_ns());
        burst.in_step = in_step.unwrap_or(burst.in_step);
    }
    let is_base = same && burst.in_step && is_found_again(cx, o);
    burst.base_version =
        identity.filter(|identity| is_base && identity.is_lasting).map(|identity| identity.digest);
}

/// Gives a base version to a file with many pages for a target. The file lacks one: this run has changed the
/// source, or not examined it. The caller holds the file's writeback lock.
///
/// # Errors
/// The source's.
pub(crate) fn renew(cx: &Context, o: &Object) -> io::Result<()> {
    if !lacks_only_a_base_version(cx, o, &o.burst.lock()) || !is_found_again(cx, o) {
        return Ok(());
    }
    let change = intent::change(cx, o);
    let pages: Vec<u64> = o.dirty.lock().dirty.iter().copied().collect();
    // On failure all pages go to the source, which reports the error.
    let may_have_undestaged = reserve(cx, o, &pages).is_ok() && is_in_step(cx, o);
    drop(change);
    if may_have_undestaged {
        let begin = cx.clock.now_ns();
        let durable = make_durable(cx, o)?;
        cx.speeds.note_commit(cx.clock.now_ns().saturating_sub(begin));
        let since = durable.changes;
        take(cx, o, &mut o.burst.lock(), durable, since);
    }
    Ok(())
}

/// Allocates space in the source, so that writeback of acknowledged pages cannot fail there later. The
/// allocation changes the file.
///
/// # Errors
/// The source has no space.
pub(crate) fn reserve(cx: &Context, o: &Object, pages: &[u64]) -> io::Result<()> {
    let writer = o.source().writer()?;
    let size = o.size().max(o.growing.load(Ordering::Acquire));
    for run in pages.chunk_by(|page, next| page + 1 == *next) {
        let range = run[0] * PAGE..((run[0] + run.len() as u64) * PAGE).min(size);
        match cx.io.allocate(writer.raw(), range) {
            // Such a source reports the lack of space at the write.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => break,
            done => done?,
        }
    }
    Ok(())
}

/// Whether the source's clock agrees with this machine's now. The test changes the file: the last write may
/// be old, with the stamp of a clock that is ahead.
fn is_in_step(cx: &Context, o: &Object) -> bool {
    let changed = o.renew_ctime().and_then(|()| Identity::of(o.source().as_path()));
    let mut burst = o.burst.lock();
    burst.in_step = changed.is_ok_and(|identity| {
        intent::is_in_step(Some(burst.changed_at), identity.ctime, cx.clock.wall_ns()) == Some(true)
    });
    burst.in_step
}

fn lacks_only_a_base_version(cx: &Context, o: &Object, burst: &Burst) -> bool {
    let is_there = !o.gone.load(Ordering::Relaxed) && !o.doomed.load(Ordering::Relaxed);
    // Callers that wait for a failing source must get its error.
    let is_well = o.failing().is_none() && o.dirty_pages() >= cx.config.tier_fsync_min;
    let lacks = burst.base_version.is_none() && !burst.must_destage;
    lacks && is_there && is_well && (burst.target.is_some() || intent::choose(cx, o).is_some())
}

/// Whether the file's number is its inode number, by which a restart finds the file.
fn is_found_again(cx: &Context, o: &Object) -> bool {
    let of_root = |dev: u64| cx.source_root.get().is_none_or(|root| root.dev == dev);
    o.source().stat().is_ok_and(|stat| stat.st_ino == o.id() && of_root(stat.st_dev))
}
