//! How far sequential readers of a file are read ahead.
//!
//! Pages that were read ahead are hits, so the next miss of a sequential reader comes where its window ended; the window then doubles, as in
//! the kernel's mm/readahead.c. It comes earlier where the window was cut, because a page in it was in memory or lies elsewhere, and later where the window
//! is followed by pages in memory. A file has several readers: each is a *stream* of its own, or they would end each other's windows.

/// Streams of a file. One more takes the place of a stream that has no window, the least recently used first.
const STREAMS_MAX: usize = 8;
/// Pages of the first window.
const FIRST: u32 = 16;

/// Windows are followed by pages in memory for this part of their length at the most.
const BEHIND: u64 = 4;

/// One reader: where its next miss is expected, and what was read ahead at the last.
#[derive(Debug, Clone, Copy)]
struct Stream {
    next: u64,
    window: u32,
    used: u32,
}

impl Stream {
    fn goes_on_at(&self, first: u64) -> bool {
        let window = u64::from(self.window);
        (self.next - window..=self.next + window / BEHIND).contains(&first)
    }
}

/// The streams of a file. Memory is taken as they appear.
#[derive(Debug, Default)]
pub struct Readahead {
    streams: Vec<Stream>,
    misses: u32,
}

impl Readahead {
    /// Pages to read beyond a miss of `[first, first + pages)`, `window_max` at the most.
    pub fn beyond(&mut self, first: u64, pages: u64, window_max: u64) -> u64 {
        self.misses = self.misses.wrapping_add(1);
        let find =
            |goes_on: &dyn Fn(&Stream) -> bool| self.streams.iter().position(goes_on).filter(|_| first > 0);
        let exact = find(&|stream| stream.next == first);
        let continued = exact.or_else(|| find(&|stream| stream.goes_on_at(first)));
        let window = match continued.map(|at| self.streams[at].window) {
            // The first page: most files are read from their beginning to their end.
            None if first == 0 => FIRST,
            None => 0,
            Some(0) => FIRST,
            Some(window) if exact.is_some() => window.saturating_mul(2),
            // Random misses in a small file may come near, too: theirs must not grow.
            Some(window) => window,
        };
        let window = window.min(u32::try_from(window_max).unwrap_or(u32::MAX));
        let stream = Stream { next: first + pages + u64::from(window), window, used: self.misses };
        match continued.or_else(|| self.replaced()) {
            Some(at) => self.streams[at] = stream,
            None => self.streams.push(stream),
        }
        window.into()
    }

    /// The stream that gives way to a new one; none while there is room.
    fn replaced(&self) -> Option<usize> {
        if self.streams.len() < STREAMS_MAX {
            return None;
        }
        let age = |stream: &Stream| self.misses.wrapping_sub(stream.used);
        // A stream without a window is one miss of a random reader, as far as anybody knows.
        (0..self.streams.len()).max_by_key(|&at| (self.streams[at].window == 0, age(&self.streams[at])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 128;

    /// A reader of one page after the other: what its misses, from `at` on, read ahead.
    fn read(readahead: &mut Readahead, at: &mut u64) -> u64 {
        let window = readahead.beyond(*at, 1, MAX);
        *at += 1 + window;
        window
    }

    #[test]
    fn windows_double_up_to_the_limit() {
        let (mut readahead, mut at) = (Readahead::default(), 0);
        let windows: Vec<u64> = (0..6).map(|_| read(&mut readahead, &mut at)).collect();
        assert_eq!(windows, [16, 32, 64, 128, 128, 128]);
        assert_eq!(Readahead::default().beyond(0, 1, 4), 4);
    }

    #[test]
    fn windows_that_are_cut_or_followed_by_pages_in_memory_go_on() {
        let (mut readahead, mut at) = (Readahead::default(), 0);
        let mut windows = Vec::new();
        for arrived in [16, 1, 32, 20, 64, 2, 128, 128] {
            // So many pages of the window were read.
            windows.push(readahead.beyond(at, 1, MAX));
            at += 1 + arrived;
        }
        assert_eq!(windows, [16, 32, 32, 64, 64, 128, 128, 128]);
        assert_eq!(readahead.streams.len(), 1, "one reader, one stream");
        at = readahead.streams[0].next + 30;
        assert_eq!(read(&mut readahead, &mut at), MAX, "30 pages were in memory");
        at = readahead.streams[0].next + 33;
        assert_eq!(read(&mut readahead, &mut at), 0, "as far away as another reader's");
    }

    #[test]
    fn readers_of_one_file_keep_their_windows() {
        let mut readahead = Readahead::default();
        let mut readers: Vec<u64> = (0..STREAMS_MAX as u64).map(|n| n * 100_000).collect();
        for _ in 0..6 {
            readers.iter_mut().for_each(|at| {
                read(&mut readahead, at);
            });
        }
        assert!(readers.iter_mut().all(|at| read(&mut readahead, at) == MAX));
    }

    #[test]
    fn random_misses_do_not_end_a_stream() {
        let (mut readahead, mut at) = (Readahead::default(), 0);
        for n in 1..200 {
            read(&mut readahead, &mut at);
            for miss in 0..20 {
                assert_eq!(readahead.beyond(1_000_000 + (n * 20 + miss) * 7, 1, MAX), 0);
            }
        }
        assert_eq!(read(&mut readahead, &mut at), MAX);
        assert_eq!(readahead.streams.len(), STREAMS_MAX);
    }

    #[test]
    fn streams_that_end_make_room_for_new_ones() {
        let mut readahead = Readahead::default();
        for n in 1..100 {
            let mut at = n * 10_000;
            let windows: Vec<u64> = (0..3).map(|_| read(&mut readahead, &mut at)).collect();
            assert_eq!(windows, [0, 16, 32], "reader {n}");
        }
    }
}
