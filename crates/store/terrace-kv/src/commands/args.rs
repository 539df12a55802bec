//! Parsing of a command's arguments: option words, integers, cursors, index ranges.

use crate::error::{Outcome, Refusal};
use crate::wire::number::parse_int;

/// Whether an argument is this word, ignoring case.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Parses an integer.
///
/// # Errors
/// Not an integer.
pub(crate) fn int(arg: &[u8]) -> Outcome<i64> {
    parse_int(arg).ok_or(Refusal::NotInteger)
}

/// Parses a cursor of SCAN.
///
/// # Errors
/// Not a cursor.
pub(crate) fn cursor(arg: &[u8]) -> Outcome<u64> {
    let cursor = std::str::from_utf8(arg).ok().and_then(|text| text.parse().ok());
    cursor.ok_or_else(|| Refusal::err("invalid cursor"))
}

/// The range of two indices in `len` elements. Both are included, and negative ones count from the end.
pub(crate) fn slice(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_start = |index: i64| if index < 0 { (index + len).max(-1) } else { index };
    let (start, stop) = (from_start(start).max(0), from_start(stop).min(len - 1));
    if start > stop { 0..0 } else { start as usize..stop as usize + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_count_from_both_ends() {
        for (start, stop, range) in [
            (0, -1, 0..10),
            (-3, -1, 7..10),
            (2, 4, 2..5),
            (5, 100, 5..10),
            (5, 3, 0..0),
            (-100, 1, 0..2),
            (0, -100, 0..0),
            (10, 20, 0..0),
            (i64::MIN, i64::MAX, 0..10),
        ] {
            assert_eq!(slice(start, stop, 10), range, "{start} {stop}");
        }
        assert_eq!(slice(0, -1, 0), 0..0);
    }
}
