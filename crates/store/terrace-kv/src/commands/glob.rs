//! Patterns of KEYS and SCAN MATCH: `*`, `?`, `[a-z]`, `[^a]`, and `\` to escape a character.
//!
//! After a mismatch only the last `*` takes one more byte. Earlier stars keep their match: the last one can
//! match the same bytes. So the time is at most pattern times text, for any number of stars.

/// Whether all of `text` matches.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The position behind the last star, and the end of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
            if p == pattern.len() {
                return true;
            }
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return true;
        }
        if let Some(byte) = text.get(t)
            && let Some(next) = one(pattern, p, *byte)
        {
            (p, t) = (next, t + 1);
            continue;
        }
        match &mut star {
            Some((behind, taken)) if *taken < text.len() => {
                *taken += 1;
                (p, t) = (*behind, *taken);
            }
            _ => return false,
        }
    }
}

/// The next position in the pattern if the element at `p` matches the byte.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let (found, next) = class(pattern, p + 1, byte);
            found.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        other => (other == byte).then_some(p + 1),
    }
}

/// Whether the class at `p` has the byte, and the class's end. An unclosed class ends with the pattern.
fn class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut found = false;
    loop {
        match pattern[p.min(pattern.len())..] {
            [] => return (found != negated, pattern.len()),
            [b']', ..] => return (found != negated, p + 1),
            [b'\\', own, ..] => {
                found |= own == byte;
                p += 2;
            }
            [first, b'-', last, ..] => {
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                p += 3;
            }
            [own, ..] => {
                found |= own == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::rng::{Rng, seed};

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, yes) in [
            ("", "", true),
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("foo\\*", "foo*", true),
            ("foo\\*", "foox", false),
            ("[a", "a", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
            ("key:1??", "key:1000", false),
            ("[\\]]", "]", true),
            ("a\\", "a\\", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), yes, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_long_time() {
        assert!(!matches("a*".repeat(20_000).as_bytes(), "b".repeat(20_000).as_bytes()));
        assert!(!matches(format!("{}c", "a*".repeat(40)).as_bytes(), "a".repeat(4000).as_bytes()));
    }

    /// A simple reference implementation.
    fn slowly(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|taken| slowly(rest, &text[taken..])),
            _ => text.split_first().is_some_and(|(byte, after)| {
                one(pattern, 0, *byte).is_some_and(|next| slowly(&pattern[next..], after))
            }),
        }
    }

    #[test]
    fn stars_match_as_the_plain_definition() {
        let mut rng = Rng::new(seed("stars_match_as_the_plain_definition"));
        for _ in 0..20_000 {
            let mut some = |letters: &[u8]| {
                let length = rng.index(8);
                (0..length).map(|_| *rng.pick(letters)).collect::<Vec<u8>>()
            };
            let (pattern, text) = (some(b"ab*?[]^-\\"), some(b"ab-]"));
            assert_eq!(matches(&pattern, &text), slowly(&pattern, &text), "{pattern:?} {text:?}");
        }
    }
}
