//! Readahead: chooses the pages of a file to read ahead of its readers.
//!
//! A file has several readers. Each has a *stream* of its own, or they would end each other's windows:
//!
//! ```text
//! sequential   miss ■□□□□□□□□ next             one span behind the miss; doubles, as in the kernel's mm/readahead.c
//! stride       miss ■···□···□···□··· next      a span a step
//! none         miss ■                          random reads are unpredictable
//! ```
//! Pages read ahead are hits, so a stream's next miss comes behind its window. In a sequential stream it
//! comes earlier if a page in memory or stored elsewhere cut the window. It comes later if pages in memory
//! follow the window.
//!
//! The step is the majority of the recent distances between misses near each other, so a few outliers do no
//! harm. Source: Maruf and Chowdhury, "Effectively Prefetching Remote Memory with Leap", ATC 2020; the vote
//! is Boyer's and Moore's. Departures: distances start at the nearest stream, not at the last miss, because
//! readers take turns. A short history must be unanimous, because random misses of a small file are near each
//! other.
//!
//! A window with less than half of it used halves the stream's next window and the file's first window.
//! Without a first window, only a reader with three adjacent misses gets a window.

/// Maximum streams of a file. A further one replaces the least recently used stream without a window, or else
/// the least recently used of all.
const STREAMS_MAX: usize = 8;
/// Pages of the first window of a sequential stream.
const FIRST: u32 = 16;
/// Steps of the first window of a stride; the next constant is the maximum.
const STEPS: u32 = 4;
const STEPS_MAX: u32 = 32;
/// Part of a sequential window by which the next miss may come late, after pages in memory.
const BEHIND: u64 = 4;
/// Maximum step, pages: misses further apart are unrelated.
const STEP_MAX: u64 = 1024;
/// Number of distances remembered; the next constant is the number of equal ones that is enough.
const DISTANCES: usize = 32;
const UNANIMOUS: usize = 4;
/// Maximum number of pages by which a window is judged.
const JUDGED_MAX: u64 = 32;
/// Maximum number of halvings of the first window, which leave none.
const DOUBTS_MAX: u32 = FIRST.ilog2() + 1;
/// Minimum of a shrinking window: without a window there would be no use to measure.
const WINDOW_MIN: u32 = 2;

/// Consecutive pages of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first of them.
    pub first: u64,
    /// How many.
    pub pages: u64,
}

impl Span {
    /// The page behind it.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.pages)
    }
}

/// Limits of readahead.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum window, pages; 0: no readahead.
    pub window_max: u64,
    /// Pages of the file.
    pub file_pages: u64,
}

/// The pattern of a stream's misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A single miss, probably of a random reader.
    None,
    Sequential,
    /// Distance between the starts of consecutive misses, pages; not 0.
    Stride(i64),
}

#[derive(Debug, Clone)]
struct Stream {
    kind: Kind,
    last: Span,
    /// Page of the next expected miss.
    next: u64,
    /// Size of the last window: pages of a sequential stream, steps of a stride.
    window: u32,
    used: u32,
    /// Distances between earlier misses, the latest last.
    distances: Vec<i16>,
}

impl Stream {
    fn is_cut_at(&self, first: u64) -> bool {
        let window = u64::from(self.window);
        self.kind == Kind::Sequential
            && (self.next.saturating_sub(window)..=self.next + window / BEHIND).contains(&first)
            && first > self.last.first
    }

    /// The pages read ahead at its last miss, within the file.
    fn window(&self, file_pages: u64) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut add = |first: u64, end: u64| {
            let end = end.min(file_pages);
            match spans.last_mut() {
                _ if first >= end => {}
                Some(last) if last.end() >= first && last.first <= first => last.pages = end - last.first,
                Some(last) if end >= last.first && last.end() >= end => {
                    *last = Span { first, pages: last.end() - first };
                }
                _ => spans.push(Span { first, pages: end - first }),
            }
        };
        let Span { first, pages } = self.last;
        match self.kind {
            Kind::None => {}
            Kind::Sequential => add(self.last.end(), self.last.end() + u64::from(self.window)),
            Kind::Stride(step) => {
                let starts = (1..=i64::from(self.window)).map_while(|k| first.checked_add_signed(k * step));
                starts.for_each(|start| add(start, start + pages));
            }
        }
        spans
    }

    /// Whether less than half of the window was used.
    fn was_useless(&self, file_pages: u64, mut is_used: impl FnMut(u64) -> bool) -> bool {
        let spans = self.window(file_pages);
        let pages: u64 = spans.iter().map(|span| span.pages).sum();
        let every = pages.div_ceil(JUDGED_MAX).max(1);
        let looked_at = spans.iter().flat_map(|span| span.first..span.end()).step_by(every as usize);
        let (mut of, mut used) = (0, 0);
        for page in looked_at {
            of += 1;
            used += u64::from(is_used(page));
        }
        used * 2 < of
    }
}

/// The streams of a file. Memory is allocated as they appear.
#[derive(Debug, Default)]
pub struct Prefetcher {
    streams: Vec<Stream>,
    misses: u32,
    /// Useless windows less useful ones, within limits: the number of halvings of the first window.
    doubts: u32,
}

impl Prefetcher {
    /// Pages to read in addition to a miss of `[first, first + pages)`. A span that begins where the miss
    /// ends belongs to the same read. `is_used`: this page is in memory and was used by a program.
    pub fn miss(
        &mut self,
        first: u64,
        pages: u64,
        limits: Limits,
        mut is_used: impl FnMut(u64) -> bool,
    ) -> Vec<Span> {
        let miss = Span { first, pages };
        if limits.window_max == 0 || self.streams.iter().any(|stream| stream.last == miss) {
            // A repeated miss: it waited for another reader's I/O, or the page changed.
            return Vec::new();
        }
        self.misses = self.misses.wrapping_add(1);
        let exact = self.streams.iter().position(|stream| stream.next == first && first > 0);
        let cut = || self.streams.iter().position(|stream| stream.is_cut_at(first));
        match (exact, exact.is_none().then(cut).flatten()) {
            (Some(at), _) => self.go_on(at, miss, limits, is_used),
            (None, Some(at)) => {
                // Random misses in a small file may come near, too: their window must not grow.
                let window = self.streams[at].window.min(self.judged(at, limits, &mut is_used));
                self.put(Some(at), Kind::Sequential, miss, window, limits)
            }
            // First page: most files are read from beginning to end.
            (None, None) if first == 0 => {
                let (at, window) = (self.free(limits, &mut is_used), FIRST >> self.doubts);
                self.put(at, Kind::Sequential, miss, window, limits)
            }
            (None, None) => {
                let at = self.free(limits, &mut is_used);
                self.start(at, miss, limits)
            }
        }
    }

    /// Size of a stream's next window, by the use of the last one.
    fn judged(&mut self, at: usize, limits: Limits, is_used: impl FnMut(u64) -> bool) -> u32 {
        let stream = &self.streams[at];
        let window = stream.window;
        // Announced by [`Prefetcher::expect`], not read yet.
        if window == 0 || stream.last.pages == 0 {
            return window;
        }
        if stream.was_useless(limits.file_pages, is_used) {
            self.doubts = (self.doubts + 1).min(DOUBTS_MAX);
            return (window / 2).max(WINDOW_MIN);
        }
        self.doubts = self.doubts.saturating_sub(1);
        window.saturating_mul(2)
    }

    /// Index for a new stream: a replaced one's, after a judgement. None while there is room.
    fn free(&mut self, limits: Limits, is_used: impl FnMut(u64) -> bool) -> Option<usize> {
        let at = self.replaced()?;
        self.judged(at, limits, is_used);
        Some(at)
    }

    /// A program announces sequential reads from `first` on: its first miss gets the largest window.
    pub fn expect(&mut self, first: u64, window_max: u64) {
        if window_max == 0 {
            return;
        }
        self.misses = self.misses.wrapping_add(1);
        let at = self.streams.iter().position(|stream| stream.next == first).or_else(|| self.replaced());
        let stream = Stream {
            kind: Kind::Sequential,
            last: Span { first, pages: 0 },
            next: first,
            window: u32::try_from(window_max).unwrap_or(u32::MAX),
            used: self.misses,
            distances: Vec::new(),
        };
        self.set(at, stream);
    }

    /// A sequential reader has reached its last window. Returns the pages to fetch from `next` on, its
    /// expected next miss. That miss judges the window.
    pub fn reached(&mut self, next: u64, limits: Limits) -> Option<Span> {
        let goes_on = |stream: &Stream| stream.kind == Kind::Sequential && stream.next == next;
        let at = self.streams.iter().position(goes_on).filter(|_| next < limits.file_pages)?;
        self.misses = self.misses.wrapping_add(1);
        let window = self.streams[at].window.saturating_mul(2);
        let spans = self.put(Some(at), Kind::Sequential, Span { first: next, pages: 1 }, window, limits);
        Some(Span { first: next, pages: 1 + spans.iter().map(|span| span.pages).sum::<u64>() })
    }

    /// Continues a stream: the miss came where expected.
    fn go_on(
        &mut self,
        at: usize,
        miss: Span,
        limits: Limits,
        is_used: impl FnMut(u64) -> bool,
    ) -> Vec<Span> {
        let (kind, window) = match (self.streams[at].kind, self.streams[at].window) {
            (Kind::None, _) => (Kind::Sequential, FIRST >> self.doubts),
            // Three in a row are no coincidence.
            (Kind::Sequential, 0) => (Kind::Sequential, FIRST),
            (kind, 0) => (kind, STEPS),
            (kind, _) => (kind, self.judged(at, limits, is_used)),
        };
        self.put(Some(at), kind, miss, window, limits)
    }

    /// Starts a stream for an unexpected miss. It takes over the distances of its neighbour.
    fn start(&mut self, at: Option<usize>, miss: Span, limits: Limits) -> Vec<Span> {
        let distance = |stream: &Stream| miss.first.abs_diff(stream.last.first);
        let near = |stream: &&mut Stream| stream.kind == Kind::None && distance(stream) <= STEP_MAX;
        let neighbour = self.streams.iter_mut().filter(near).min_by_key(|stream| distance(stream));
        let Some(neighbour) = neighbour else { return self.put(at, Kind::None, miss, 0, limits) };
        let mut distances = std::mem::take(&mut neighbour.distances);
        let signed = miss.first as i64 - neighbour.last.first as i64;
        if distances.len() == DISTANCES {
            distances.remove(0);
        }
        distances.push(i16::try_from(signed).expect("no more than STEP_MAX"));
        let step = majority(&distances).map(i64::from).filter(|&step| step != 0);
        let (kind, window) = step.map_or((Kind::None, 0), |step| (Kind::Stride(step), STEPS));
        let spans = self.put(at, kind, miss, window, limits);
        if kind == Kind::None
            && let Some(new) = self.streams.iter_mut().find(|stream| stream.last == miss)
        {
            new.distances = distances;
        }
        spans
    }

    /// Records the last miss of a stream. Returns the pages to read ahead.
    fn put(&mut self, at: Option<usize>, kind: Kind, miss: Span, window: u32, limits: Limits) -> Vec<Span> {
        let most = u32::try_from(limits.window_max).unwrap_or(u32::MAX);
        let end = miss.end();
        let (window, next) = match kind {
            Kind::None => (0, end),
            Kind::Sequential => (window.min(most), end + u64::from(window.min(most))),
            Kind::Stride(step) => {
                let steps =
                    window.min(STEPS_MAX).min(most / u32::try_from(miss.pages).unwrap_or(u32::MAX).max(1));
                let next = miss.first.checked_add_signed(step * (i64::from(steps) + 1));
                // A stride that reaches the beginning of the file ends.
                (steps, next.unwrap_or(u64::MAX))
            }
        };
        let stream = Stream { kind, last: miss, next, window, used: self.misses, distances: Vec::new() };
        let spans = stream.window(limits.file_pages);
        let whole = miss.first == 0 && next >= limits.file_pages;
        if at.is_some() || !whole {
            self.set(at, stream);
        }
        spans
    }

    fn set(&mut self, at: Option<usize>, stream: Stream) {
        match at {
            Some(at) => self.streams[at] = stream,
            None => {
                // Most files have one reader.
                self.streams.reserve_exact(1);
                self.streams.push(stream);
            }
        }
    }

    /// The stream replaced by a new one; None while there is room.
    fn replaced(&self) -> Option<usize> {
        if self.streams.len() < STREAMS_MAX {
            return None;
        }
        let age = |stream: &Stream| self.misses.wrapping_sub(stream.used);
        (0..self.streams.len()).max_by_key(|&at| (self.streams[at].window == 0, age(&self.streams[at])))
    }
}

/// Majority of the latest distances, of the shortest history that has one.
fn majority(distances: &[i16]) -> Option<i16> {
    let latest = |n: usize| distances.len().checked_sub(n).map(|from| &distances[from..]);
    if let Some([first, rest @ ..]) = latest(UNANIMOUS)
        && rest.iter().all(|distance| distance == first)
    {
        return Some(*first);
    }
    let widths = [DISTANCES / 4, DISTANCES / 2, DISTANCES];
    widths.into_iter().find_map(|n| vote(latest(n)?))
}

/// The value of more than half of them (Boyer-Moore: one pass finds the candidate, another counts it).
fn vote(values: &[i16]) -> Option<i16> {
    let (mut candidate, mut lead) = (None, 0_u32);
    for &value in values {
        match candidate {
            Some(held) if held == value => lead += 1,
            _ if lead == 0 => (candidate, lead) = (Some(value), 1),
            _ => lead -= 1,
        }
    }
    let votes = |held| values.iter().filter(|&&value| value == held).count();
    candidate.filter(|&held| votes(held) * 2 > values.len())
}

#[cfg(test)]
mod tests;
