//! Follows a program along a recorded schedule: chooses pages to prefetch, the distance ahead, and the end.
//!
//! ```text
//! pieces   ■ ■ ■ □ ■ │ ▒ ▒ · ▒ ▒ ▒ │ · · · ·        ■ used  □ unused  ▒ fetched ahead, unused yet
//!                    at             asked
//! ```
//! Hits cause no event, so fetched pieces are *watched*: the owner checks their use. A use moves `at`, and so
//! does a miss near it. Misses elsewhere move it only if several follow each other as in the schedule: the
//! program has skipped a part.
//!
//! The window is the pages that the program uses in two fetch times (bandwidth times latency). If it uses
//! less than half of the recently fetched pages, prefetching ends: another program runs.

use std::collections::BTreeMap;

/// Maximum pages of a piece: longer spans are cut.
pub const PIECE_PAGES: u64 = 32;
/// Initial and minimum window, pages.
const WINDOW_MIN: u64 = 32;
/// Pieces that may stay unused behind the program before they count as useless: threads take turns.
const SLACK: u32 = 64;
/// Pieces behind the window that still count as near.
const NEAR: u32 = 64;
/// Consecutive accesses elsewhere, ordered as in the schedule, that move the program's position there.
const STREAK: u32 = 3;
/// Number of such jumps that do not count against the schedule.
const JUMPS_FREE: u32 = 4;
/// Accesses elsewhere, without a use of the fetched pages, after which these count as useless.
const ASTRAY_MAX: u32 = 256;
/// Minimum number of fetched pages for a verdict. At twice as many the numbers are halved, so that recent
/// pages count most.
const JUDGED_MIN: u64 = 32;
const JUDGED_MAX: u64 = 512;
/// Pieces watched at once: the first, and some of the others, evenly spread.
const WATCHED_FIRST: usize = 48;
const WATCHED_REST: usize = 16;
/// Maximum distance from the program to the last requested piece if all pages are in memory, in windows.
const PRESENT_MAX: u64 = 8;

/// Consecutive pages of a file: the unit of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the file in the schedule.
    pub file: u32,
    /// Number of pages, at most [`PIECE_PAGES`].
    pub pages: u32,
    /// First page.
    pub first: u64,
}

/// Why prefetching has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All pieces were requested, and used or left behind.
    Done,
    /// Too few of the fetched pages were used.
    Useless,
}

/// Page counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fetched.
    pub fetched: u64,
    /// Used after they were fetched.
    pub used: u64,
    /// Left behind unused.
    pub unused: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ahead {
    asked_ns: u64,
    /// Its pages that were fetched for it; None: the fetch is under way.
    landed: Option<u32>,
    used: bool,
}

/// A program's position in its schedule.
#[derive(Debug)]
pub struct Follower {
    pieces: Vec<Piece>,
    /// Numbers of the pieces, by file and page.
    by_place: Vec<u32>,
    at: u32,
    asked: u32,
    ahead: BTreeMap<u32, Ahead>,
    window: u64,
    /// Pages of `ahead` without a known use.
    pending: u64,
    latency_ns: u64,
    /// Pages used in the current measurement, and its start.
    since: (u64, u64),
    elsewhere: Option<(u32, u32)>,
    jumps: u32,
    astray: u32,
    /// Recent pages, and the used ones among them.
    verdict: (u64, u64),
    counts: Counts,
    end: Option<End>,
}

impl Follower {
    /// A follower at the beginning of a schedule.
    pub fn new(pieces: Vec<Piece>) -> Follower {
        let mut by_place: Vec<u32> = (0..u32::try_from(pieces.len()).unwrap_or(u32::MAX)).collect();
        by_place.sort_unstable_by_key(|&n| (pieces[n as usize].file, pieces[n as usize].first));
        Follower {
            pieces,
            by_place,
            at: 0,
            asked: 0,
            ahead: BTreeMap::new(),
            window: WINDOW_MIN,
            pending: 0,
            latency_ns: 0,
            since: (0, 0),
            elsewhere: None,
            jumps: 0,
            astray: 0,
            verdict: (0, 0),
            counts: Counts::default(),
            end: None,
        }
    }

    /// Memory of a schedule of `pieces` pieces, bytes.
    pub const fn bytes(pieces: u64) -> u64 {
        pieces * (size_of::<Piece>() + size_of::<u32>()) as u64
    }

    /// A piece of the schedule.
    pub fn piece(&self, number: u32) -> Piece {
        self.pieces[number as usize]
    }
    /// Whether and why prefetching has ended.
    pub fn end(&self) -> Option<End> {
        self.end
    }
    /// Page counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
    /// Maximum number of pages ahead of the program.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// The next piece to fetch; at most `pages_max` pages may be ahead. The caller reports its end with
    /// [`Follower::landed`].
    pub fn next(&mut self, now_ns: u64, pages_max: u64) -> Option<u32> {
        let window = self.window.min(pages_max);
        let far = u64::from(self.asked.saturating_sub(self.at)) >= window.saturating_mul(PRESENT_MAX);
        if self.end.is_some() || self.asked as usize >= self.pieces.len() || far || self.pending >= window {
            return None;
        }
        let (number, pages) = (self.asked, u64::from(self.piece(self.asked).pages));
        self.asked += 1;
        self.pending += pages;
        self.ahead.insert(number, Ahead { asked_ns: now_ns, landed: None, used: false });
        Some(number)
    }

    /// A fetch has ended: bit i of `mask` is set if it brought page i of the piece. No bit: all pages were in
    /// memory, or there was no room.
    pub fn landed(&mut self, number: u32, mask: u32, now_ns: u64) {
        let pages = u64::from(self.piece(number).pages);
        let came = u64::from(mask.count_ones());
        self.counts.fetched += came;
        // The piece may have been given up meanwhile.
        let Some(piece) = self.ahead.get_mut(&number) else {
            self.counts.unused += came;
            return;
        };
        piece.landed = Some(mask);
        if !piece.used {
            self.pending -= pages - came;
        }
        if mask == 0 {
            self.ahead.remove(&number);
            return self.look_for_the_end();
        }
        let took = now_ns.saturating_sub(piece.asked_ns);
        self.latency_ns = if self.latency_ns == 0 { took } else { (self.latency_ns * 7 + took) / 8 };
    }

    /// Pieces with a due check of their use, each with a page that was fetched for it.
    pub fn watched(&self) -> Vec<(u32, u64)> {
        let page = |(&number, piece): (&u32, &Ahead)| {
            let mask = piece.landed.filter(|_| !piece.used)?;
            Some((number, self.piece(number).first + u64::from(mask.trailing_zeros())))
        };
        let first = self.ahead.iter().filter_map(page).take(WATCHED_FIRST);
        let every = (self.ahead.len() / WATCHED_REST).max(1);
        let rest = self.ahead.iter().skip(WATCHED_FIRST).step_by(every).filter_map(page);
        first.chain(rest).collect()
    }

    /// A program has used a watched piece.
    pub fn used(&mut self, number: u32, now_ns: u64) {
        let Some(piece) = self.ahead.get_mut(&number).filter(|piece| !piece.used) else { return };
        piece.used = true;
        let pages = piece.landed.map_or(self.pieces[number as usize].pages, u32::count_ones);
        self.pending -= u64::from(pages);
        self.astray = 0;
        self.move_to(number + 1);
        self.measure(u64::from(pages), now_ns);
    }

    /// A miss: a program waits for pages that were not in memory.
    pub fn missed(&mut self, file: u32, first: u64, pages: u64, now_ns: u64) {
        let Some(number) = self.find(file, first, pages) else { return };
        if self.ahead.contains_key(&number) {
            // The fetch is under way or has just ended.
            return self.used(number, now_ns);
        }
        let near = self.at.saturating_sub(SLACK)..self.asked.saturating_add(NEAR);
        if near.contains(&number) {
            return self.move_to(number + 1);
        }
        self.astray += 1;
        if self.astray >= ASTRAY_MAX {
            self.astray = 0;
            self.leave_behind();
        }
        let follows = |&(last, _): &(u32, u32)| number > last && number - last <= NEAR / 4;
        let streak = self.elsewhere.filter(follows).map_or(1, |(_, streak)| streak + 1);
        self.elsewhere = Some((number, streak));
        if streak >= STREAK {
            let verdict = self.verdict;
            self.leave_behind();
            if self.jumps < JUMPS_FREE && self.end == Some(End::Useless) {
                (self.verdict, self.end) = (verdict, None);
            }
            self.jumps += 1;
            (self.elsewhere, self.at, self.asked) = (None, number + 1, number + 1);
        }
    }

    /// Pieces to be judged, each with the pages fetched for it. The caller counts the used ones and calls
    /// [`Follower::judge`].
    pub fn due(&mut self) -> Vec<(u32, u32)> {
        let due = |(&number, piece): (&u32, &Ahead)| {
            let mask = piece.landed?;
            let passed = number.saturating_add(if piece.used { 1 } else { SLACK }) < self.at;
            (passed || piece.used && mask.count_ones() == 1).then_some((number, mask))
        };
        self.ahead.iter().take_while(|(number, _)| **number <= self.at).filter_map(due).collect()
    }

    /// Counts the used pages of a piece.
    pub fn judge(&mut self, number: u32, used: u32) {
        let Some(Ahead { landed: Some(mask), used: known, .. }) = self.ahead.remove(&number) else { return };
        let came = mask.count_ones();
        // A known use still counts after the eviction of its page.
        let used = used.max(u32::from(known)).min(came);
        if !known {
            self.pending -= u64::from(came);
        }
        self.note(u64::from(came), u64::from(used));
    }

    /// The piece's file does not exist.
    pub fn skip(&mut self, number: u32) {
        if self.ahead.remove(&number).is_some() {
            self.pending -= u64::from(self.piece(number).pages);
            self.look_for_the_end();
        }
    }

    fn look_for_the_end(&mut self) {
        if self.asked as usize >= self.pieces.len() && self.ahead.is_empty() {
            self.end.get_or_insert(End::Done);
        }
    }

    /// Counts all pieces ahead as they are: the program has gone elsewhere.
    fn leave_behind(&mut self) {
        for piece in std::mem::take(&mut self.ahead).into_values() {
            let came = piece.landed.map_or(0, u32::count_ones);
            self.note(u64::from(came), u64::from(u32::from(piece.used).min(came)));
        }
        self.pending = 0;
    }

    fn move_to(&mut self, number: u32) {
        self.at = self.at.max(number);
        if self.asked < self.at {
            self.asked = self.at;
        }
        self.elsewhere = None;
        self.look_for_the_end();
    }

    /// Sets the window: the pages that the program uses in two fetch times.
    fn measure(&mut self, pages: u64, now_ns: u64) {
        let (used, since) = &mut self.since;
        if *since == 0 {
            *since = now_ns;
            return;
        }
        *used += pages;
        let took = now_ns.saturating_sub(*since);
        if *used * 2 < self.window || took == 0 {
            return;
        }
        let wanted = u128::from(*used) * 2 * u128::from(self.latency_ns) / u128::from(took);
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        self.window = wanted.clamp(self.window / 2, self.window * 2).max(WINDOW_MIN);
        self.since = (0, now_ns);
    }

    fn note(&mut self, came: u64, used: u64) {
        self.counts.used += used;
        self.counts.unused += came - used;
        self.verdict = (self.verdict.0 + came, self.verdict.1 + used);
        let (of, used) = self.verdict;
        if of >= JUDGED_MIN && used * 2 < of {
            self.end = Some(End::Useless);
        }
        if of >= JUDGED_MAX {
            self.verdict = (of / 2, used / 2);
        }
        self.look_for_the_end();
    }

    /// The piece that contains one of these pages.
    fn find(&self, file: u32, first: u64, pages: u64) -> Option<u32> {
        let end = first.saturating_add(pages);
        let place = |&n: &u32| (self.pieces[n as usize].file, self.pieces[n as usize].first);
        let after = self.by_place.partition_point(|n| place(n) < (file, end));
        let number = *self.by_place.get(after.checked_sub(1)?)?;
        let piece = self.piece(number);
        (piece.file == file && piece.first + u64::from(piece.pages) > first).then_some(number)
    }
}

#[cfg(test)]
mod tests;
