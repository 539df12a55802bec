//! Reads without admission: the page goes to the caller only. Its entry gets a shadow, so a second read
//! admits it.

use crate::context::Context;
use crate::file::object::Object;
use crate::state::State;
use crate::state::page_table::{NotInMemory, key_of};
use std::cell::RefCell;
use std::io;
use std::num::NonZeroU32;
use std::ops::Range;
use terrace_io::{AlignedBuf, IoVec};
use terrace_shm::{PAGE_SIZE, State as EntryState};

const PAGE: u64 = PAGE_SIZE as u64;

thread_local! {
    static BOUNCE: RefCell<AlignedBuf> = RefCell::new(AlignedBuf::default());
}

/// An absent page, and the state of its entry.
pub(super) type Absent = (u64, NotInMemory);

/// Passes on source pages without admission. Their shadows let a second read admit them. `calm`: the object's
/// content lock is held.
pub(super) fn pass_on(
    cx: &Context,
    o: &Object,
    Range { start: at, end }: Range<u64>,
    buf: &mut [u8],
    plan: &[Absent],
    calm: bool,
) -> io::Result<usize> {
    let (first, len) = (plan[0].0, plan.len() * PAGE_SIZE);
    let until = end.min((first + plan.len() as u64) * PAGE);
    let want = (until - at) as usize;
    let fd = o.source().reader()?;
    let direct = at.is_multiple_of(PAGE) && want == len && (buf.as_ptr() as usize).is_multiple_of(512);
    let read = |ptr: *mut u8| {
        // SAFETY: `ptr` has `len` writable bytes: the caller's buffer or this thread's bounce buffer.
        unsafe { cx.io.read(fd.raw(), first * PAGE, &[IoVec { ptr, len }]) }
    };
    if direct {
        let n = read(buf.as_mut_ptr())?;
        buf[n.min(len)..len].fill(0);
    } else {
        BOUNCE.with_borrow_mut(|bounce| {
            bounce.with(len, |b| -> io::Result<()> {
                let n = read(b.as_mut_ptr())?;
                b[n.min(len)..].fill(0);
                let skip = (at - first * PAGE) as usize;
                buf[..want].copy_from_slice(&b[skip..skip + want]);
                Ok(())
            })
        })?;
    }
    let mut state = cx.state.lock();
    let mut good = 0;
    for &(page, seen) in plan {
        if state.is_current(o, page, seen.before) {
            remember(&mut state, o, page);
            state.sampler.pass(key_of(o.id(), page));
        } else if !calm {
            break;
        }
        good += 1;
    }
    state.counts.not_admitted += good;
    Ok(((first + good) * PAGE).min(until).saturating_sub(at) as usize)
}

fn remember(state: &mut State, o: &Object, page: u64) {
    let Some(shadow) = state.lru.policy.shadow().map(|s| s.0).or(NonZeroU32::new(1)) else { return };
    if let Some(place) = state.pages.index.ensure(o.slot_index(), page) {
        let e = state.pages.index.get(place);
        if e.state() == EntryState::Absent && e.shadow() == 0 {
            terrace_shm::protocol::publish(state.pages.index.entry(place), e.with_shadow(shadow.get()));
        }
    }
}
