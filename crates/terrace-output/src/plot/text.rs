//! Text of a report: how it is escaped, how wide it will be, how it is shortened and wrapped.
//!
//! Widths are estimates from above: nobody knows the reader's font, so they follow DejaVu Sans, which is wider than what browsers take
//! for `sans-serif` elsewhere.

/// Text for element content and quoted attributes of HTML and XML.
///
/// Characters that XML forbids, and those that turn the direction of the text around them, become U+FFFD: names come from files.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || turns(c) => out.push('\u{fffd}'),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Marks and overrides of the bidirectional algorithm (UAX 9).
fn turns(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Estimated width in pixels of one line of `text` at a font size.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size
}

fn em(c: char) -> f64 {
    match c {
        'm' | 'W' | '%' | '@' => 1.0,
        'w' | 'M' | 'O' | 'Q' | '+' | '=' | '<' | '>' | '~' => 0.86,
        'A'..='Z' => 0.75,
        c if (c as u32) < 0x250 => 0.64,
        _ => 1.1,
    }
}

/// `text` in at most `room` pixels: its middle gives way, as names that differ do so at an end.
pub fn fitted(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let letters: Vec<char> = text.chars().collect();
    let room = room - width("...", size);
    let (mut head, mut tail, mut used) = (0, 0, 0.0);
    loop {
        let from_head = head <= tail;
        let next = if from_head { letters[head] } else { letters[letters.len() - 1 - tail] };
        used += em(next) * size;
        if used > room || head + tail >= letters.len() {
            break;
        }
        if from_head { head += 1 } else { tail += 1 }
    }
    let (begin, end): (String, String) =
        (letters[..head].iter().collect(), letters[letters.len() - tail..].iter().collect());
    format!("{begin}...{end}")
}

/// `text` in lines of at most `room` pixels, broken at spaces, or anywhere in a word that is too long; what does not fit into `lines_max`
/// lines is shortened.
pub fn wrapped(text: &str, size: f64, room: f64, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    let mut rest = text.split_whitespace();
    while let Some(word) = rest.next() {
        let last = lines.last_mut().expect("one line or more");
        let longer = if last.is_empty() { word.to_string() } else { format!("{last} {word}") };
        if width(&longer, size) <= room {
            *last = longer;
            continue;
        }
        if !last.is_empty() {
            if lines.len() == lines_max {
                let all = rest.fold(longer, |all, word| format!("{all} {word}"));
                *lines.last_mut().expect("one line or more") = fitted(&all, size, room);
                return lines;
            }
            lines.push(String::new());
        }
        break_word(word, size, room, lines_max, &mut lines);
    }
    lines
}

/// Puts a word that may be longer than a line into the last line, which is empty, and those after it.
fn break_word(word: &str, size: f64, room: f64, lines_max: usize, lines: &mut Vec<String>) {
    let mut rest = word;
    while width(rest, size) > room && lines.len() < lines_max {
        let mut used = 0.0;
        let fits = |c: &char| {
            used += em(*c) * size;
            used <= room
        };
        let taken: String = rest.chars().take_while(fits).collect();
        let taken = if taken.is_empty() { rest.chars().take(1).collect() } else { taken };
        rest = &rest[taken.len()..];
        *lines.last_mut().expect("one line or more") = taken;
        lines.push(String::new());
    }
    *lines.last_mut().expect("one line or more") = fitted(rest, size, room);
}

/// A number for people: about four digits, no exponent below a thousand millions.
pub fn number(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if !(1e-4..1e9).contains(&a) => format!("{v:.2e}"),
        a if a >= 1000.0 => format!("{v:.0}"),
        a if a >= 100.0 => format!("{v:.1}"),
        a if a >= 10.0 => format!("{v:.2}"),
        a if a >= 0.1 => format!("{v:.3}"),
        _ => format!("{v:.4}"),
    }
}

/// The half-width of an interval: two digits say enough.
pub fn rough(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        a if !(1e-4..1e9).contains(&a) => format!("{v:.1e}"),
        a => {
            let decimals = (1 - a.log10().floor() as i32).max(0) as usize;
            format!("{v:.decimals$}")
        }
    }
}

/// A difference: with its sign.
pub fn signed(v: f64) -> String {
    format!("{}{}", if v > 0.0 { "+" } else { "" }, number(v))
}

/// "1 cell", "2 cells".
pub fn count(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// "a", "a and b", "a, b and c".
pub fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_are_only_text() {
        assert_eq!(
            escaped("<script>'a' & \"b\"</script>"),
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot;&lt;/script&gt;"
        );
        assert_eq!(escaped("a\0b\u{1b}[31m\u{202e}c\u{ffff}"), "a\u{fffd}b\u{fffd}[31m\u{fffd}c\u{fffd}");
    }

    #[test]
    fn shortened_text_fits_and_keeps_both_ends() {
        let name = "terrace-with-a-very-long-configuration-name-A";
        for room in [60.0, 100.0, 200.0] {
            let short = fitted(name, 12.0, room);
            assert!(
                width(&short, 12.0) <= room && short.starts_with("te") && short.ends_with('A'),
                "{short}"
            );
        }
        assert_eq!(fitted("kernel", 12.0, 100.0), "kernel");
        assert_eq!(fitted("kernel", 12.0, 1.0), "...");
    }

    #[test]
    fn wrapped_text_fits_and_loses_nothing_before_the_last_line() {
        let text = format!("short words and {} end", "w".repeat(90));
        let lines = wrapped(&text, 12.0, 200.0, 20);
        assert!(lines.iter().all(|line| width(line, 12.0) <= 200.0), "{lines:?}");
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        let few = wrapped(&text, 12.0, 200.0, 2);
        assert!(few.len() <= 2 && few.iter().all(|line| width(line, 12.0) <= 200.0), "{few:?}");
        assert_eq!(wrapped("", 12.0, 10.0, 3), [""]);
    }

    #[test]
    fn numbers_and_lists_for_people() {
        assert_eq!([8467.89, 12.5, 0.123, 0.0].map(number), ["8468", "12.50", "0.123", "0"]);
        assert_eq!(number(1e300), "1.00e300");
        assert_eq!([66.23, 9.376, 0.0123, 0.0, 16_954.0].map(rough), ["66", "9.4", "0.012", "0", "16954"]);
        assert_eq!(listed(&["a".into(), "b".into(), "c".into()]), "a, b and c");
        assert_eq!((count(1, "run"), count(0, "run")), ("1 run".into(), "0 runs".into()));
    }
}
