//! Follower of a recorded schedule: the workers fetch the pages that a program will read next.
//! [`terrace_policy::follow`] decides.
//!
//! ```text
//! misses, page fills ─┐                    ┌─► jobs ──► workers ──► frames, on probation
//! touches of frames ──┴─► follower (1 ms) ─┴─► files, opened ahead and compared with what was recorded
//! ```
//! No program waits for the follower. It skips and counts files that are gone or have changed.

use crate::context::Context;
use crate::context::prefetch_queue::Job;
use crate::file::object::{ObjectId, ObjectRef};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_api::schedule::Schedule;
use terrace_api::stats::{self, ScheduleState};
use terrace_policy::follow::{End, Follower, PIECE_PAGES, Piece};
use terrace_policy::prefetch::Span;

/// Interval between looks; looks without events after which it grows; the longer interval.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
const LOOK_INTERVAL_IDLE: Duration = Duration::from_millis(50);
const BUSY_LOOKS: u32 = 50;
/// Largest number of queued jobs: the rest of the queue is for hints and strides.
const JOBS_WAITING_MAX: usize = 32;
/// Pieces per job, once enough pieces are ahead to keep all workers busy.
const PIECES_A_JOB: usize = 4;
const PIECES_FOR_ALL: u64 = 64;
const FILES_MAX: usize = 64;
/// Largest share of memory for a schedule. The end of a longer one is omitted.
const MEMORY_SHARE: u64 = 16;

/// Access to the files of a schedule: the engine does not know names.
pub trait ScheduledFiles: Send {
    /// Opens a file. None: it does not exist, or differs from the recorded one.
    fn open(&mut self, file: u32) -> Option<ObjectRef>;
    /// Releases an open file.
    fn release(&mut self, file: u32);
}

/// The schedule cut into pieces, as many as memory allows.
pub(crate) fn pieces(schedule: &Schedule, memory_bytes: u64) -> Vec<Piece> {
    let max = memory_bytes / MEMORY_SHARE / Follower::bytes(1);
    let cut = |span: &terrace_api::schedule::Span| {
        let terrace_api::schedule::Span { file, first, pages } = *span;
        (0..pages).step_by(PIECE_PAGES as usize).map(move |at| Piece {
            file,
            pages: (pages - at).min(PIECE_PAGES) as u32,
            first: first + at,
        })
    };
    schedule.spans.iter().flat_map(cut).take(usize::try_from(max).unwrap_or(usize::MAX)).collect()
}

/// An open file, and the last piece requested of it.
struct OpenFile {
    object: ObjectRef,
    last: u32,
}

struct Walk<'a> {
    cx: &'a Context,
    follower: Follower,
    files: Box<dyn ScheduledFiles>,
    opened: HashMap<u32, OpenFile>,
    by_object: HashMap<ObjectId, u32>,
    left_out: HashSet<u32>,
}

/// Follows until the schedule or the engine ends.
pub(crate) fn follow(cx: &Context, pieces: Vec<Piece>, files: Box<dyn ScheduledFiles>) {
    let mut walk = Walk::new(cx, pieces, files);
    let mut quiet = 0;
    while !cx.is_stopping() && walk.follower.end().is_none() {
        let long = quiet >= BUSY_LOOKS;
        let happened = walk.look(if long { LOOK_INTERVAL_IDLE } else { LOOK_INTERVAL }, long);
        quiet = if happened { 0 } else { quiet + 1 };
    }
    walk.finish();
}

impl Walk<'_> {
    fn new(cx: &Context, pieces: Vec<Piece>, files: Box<dyn ScheduledFiles>) -> Walk<'_> {
        cx.followed.set_active(true);
        Walk {
            cx,
            follower: Follower::new(pieces),
            files,
            opened: HashMap::new(),
            by_object: HashMap::new(),
            left_out: HashSet::new(),
        }
    }

    /// One look. True: there were events.
    fn look(&mut self, interval: Duration, long: bool) -> bool {
        let events = self.cx.followed.take(interval, long);
        let now_ns = self.cx.clock.now_ns();
        for (number, mask) in &events.landed {
            self.follower.landed(*number, *mask, now_ns);
        }
        for miss in &events.missed {
            if let Some(&file) = self.by_object.get(&miss.object) {
                self.follower.missed(file, miss.first, miss.pages, now_ns);
            }
        }
        let used = self.used();
        used.iter().for_each(|number| self.follower.used(*number, now_ns));
        self.judge();
        let requested = self.request_due(now_ns);
        self.show();
        requested || !used.is_empty() || !events.landed.is_empty() || !events.missed.is_empty()
    }

    /// Watched pieces with pages that a program has used.
    fn used(&self) -> Vec<u32> {
        let watched = self.follower.watched();
        if watched.is_empty() {
            return Vec::new();
        }
        let state = self.cx.state.lock();
        let is_used = |&(number, page): &(u32, u64)| {
            let opened = self.opened.get(&self.follower.piece(number).file);
            opened.is_some_and(|opened| state.is_page_used(&opened.object, page))
        };
        watched.into_iter().filter(is_used).map(|(number, _)| number).collect()
    }

    fn judge(&mut self) {
        let due = self.follower.due();
        if due.is_empty() {
            return;
        }
        let state = self.cx.state.lock();
        for (number, mask) in due {
            let Piece { file, first, .. } = self.follower.piece(number);
            let pages = (0..u64::from(u32::BITS)).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit);
            let used = self
                .opened
                .get(&file)
                .map_or(0, |opened| pages.filter(|page| state.is_page_used(&opened.object, *page)).count());
            self.follower.judge(number, used as u32);
        }
    }

    /// Queues the pieces that may be fetched now.
    fn request_due(&mut self, now_ns: u64) -> bool {
        // A quarter of the readahead room is left to hints and strides.
        let pages_max = u64::from(self.cx.pool_frames()) / u64::from(crate::state::ahead::SHARE) * 3 / 4;
        let mut requested = false;
        while self.cx.jobs.waiting() < JOBS_WAITING_MAX {
            let a_job = if self.follower.window() < PIECES_FOR_ALL { 1 } else { PIECES_A_JOB };
            let numbers: Vec<u32> =
                std::iter::from_fn(|| self.follower.next(now_ns, pages_max)).take(a_job).collect();
            if numbers.is_empty() {
                break;
            }
            requested = true;
            let same_file = |a: &u32, b: &u32| self.follower.piece(*a).file == self.follower.piece(*b).file;
            let parts: Vec<Vec<u32>> = numbers.chunk_by(same_file).map(<[u32]>::to_vec).collect();
            parts.iter().for_each(|part| self.request(part));
        }
        requested
    }

    fn request(&mut self, numbers: &[u32]) {
        let file = self.follower.piece(numbers[0]).file;
        let spans = numbers.iter().map(|&number| {
            let Piece { pages, first, .. } = self.follower.piece(number);
            (number, Span { first, pages: pages.into() })
        });
        let spans = spans.collect();
        let pushed = match self.open(file, numbers[numbers.len() - 1]) {
            Some(object) => self.cx.jobs.push(Job::Scheduled(object, spans)),
            None => false,
        };
        if !pushed {
            numbers.iter().for_each(|number| self.follower.skip(*number));
        }
    }

    fn open(&mut self, file: u32, last: u32) -> Option<ObjectRef> {
        if let Some(opened) = self.opened.get_mut(&file) {
            opened.last = last;
            return Some(opened.object.clone());
        }
        if self.left_out.contains(&file) {
            return None;
        }
        let Some(object) = self.files.open(file) else {
            self.left_out.insert(file);
            return None;
        };
        if self.opened.len() >= FILES_MAX
            && let Some((&oldest, _)) = self.opened.iter().min_by_key(|(_, opened)| opened.last)
        {
            self.release(oldest);
        }
        self.by_object.insert(object.id(), file);
        self.opened.insert(file, OpenFile { object: object.clone(), last });
        Some(object)
    }

    fn release(&mut self, file: u32) {
        if let Some(opened) = self.opened.remove(&file) {
            self.by_object.remove(&opened.object.id());
            drop(opened);
            self.files.release(file);
        }
    }

    fn show(&self) {
        let counts = self.follower.counts();
        *self.cx.followed.shown.lock() = Some(stats::Schedule {
            state: match self.follower.end() {
                None => ScheduleState::Following,
                Some(End::Done) => ScheduleState::Done,
                Some(End::Useless) => ScheduleState::Useless,
            },
            fetched: counts.fetched,
            used: counts.used,
            unused: counts.unused,
            files_left_out: self.left_out.len() as u64,
        });
    }

    fn finish(mut self) {
        self.cx.followed.set_active(false);
        self.show();
        let opened: Vec<u32> = self.opened.keys().copied().collect();
        opened.into_iter().for_each(|file| self.release(file));
        self.cx.followed.bytes.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
