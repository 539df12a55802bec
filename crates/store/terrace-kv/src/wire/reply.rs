//! Replies, written directly to a connection's output: RESP2, or RESP3 if the client has chosen it (HELLO 3).
//!
//! A type that RESP2 lacks becomes Redis' substitute: an array of twice the length (map), a string (double).

use super::number::{float_text, write_int};

/// Maximum framing of a text, bytes: type, length, line ends.
const FRAME: usize = 64;

#[derive(Debug)]
pub(crate) struct Reply<'a> {
    out: &'a mut Vec<u8>,
    /// Maximum length of `out`. Nothing is written beyond it.
    end_max: usize,
    /// Part of the reply was not written.
    is_truncated: bool,
    /// Whether the client understands RESP3.
    pub(crate) resp3: bool,
}

impl<'a> Reply<'a> {
    /// Appends a reply to `out`, of at most `bytes_max` bytes.
    pub(crate) fn new(out: &'a mut Vec<u8>, bytes_max: usize, resp3: bool) -> Reply<'a> {
        let end_max = out.len().saturating_add(bytes_max);
        Reply { out, end_max, is_truncated: false, resp3 }
    }

    /// Whether the reply exceeded its limit, and is incomplete.
    pub(crate) fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Length of the output so far, bytes.
    pub(crate) fn mark(&self) -> usize {
        self.out.len()
    }
    /// Removes everything written since `mark`.
    pub(crate) fn take_back(&mut self, mark: usize) {
        self.out.truncate(mark);
        self.is_truncated = false;
    }

    /// Whether `bytes` more fit.
    fn has_room(&mut self, bytes: usize) -> bool {
        self.is_truncated |= self.out.len().saturating_add(bytes) > self.end_max;
        if !self.is_truncated {
            self.grow(self.out.len() + bytes + FRAME);
        }
        !self.is_truncated
    }

    /// Grows the output to `bytes` in all: by doubling, but not far beyond the reply's limit. All capacity
    /// counts as the client's, and too much of it closes the client.
    fn grow(&mut self, bytes: usize) {
        if bytes > self.out.capacity() {
            let doubled = (2 * self.out.capacity()).min(self.end_max.saturating_add(FRAME));
            self.out.reserve_exact(bytes.max(doubled) - self.out.len());
        }
    }
    fn header(&mut self, kind: u8, number: impl itoa::Integer) {
        if !self.has_room(0) {
            return;
        }
        self.out.push(kind);
        write_int(self.out, number);
        self.out.extend_from_slice(b"\r\n");
    }
    fn line(&mut self, kind: u8, line: &str) {
        if !self.has_room(0) {
            return;
        }
        self.out.push(kind);
        self.out.extend_from_slice(line.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
    /// Raw bytes of another protocol.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        if self.has_room(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }
    pub(crate) fn raw_line(&mut self, line: &str) {
        // See `error`.
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.raw(line.as_bytes());
        self.raw(b"\r\n");
    }
    pub(crate) fn ok(&mut self) {
        self.status("OK");
    }
    pub(crate) fn status(&mut self, line: &str) {
        self.line(b'+', line);
    }
    /// An error: its code, a space, its text.
    pub(crate) fn error(&mut self, line: &str) {
        // The text may contain bytes from a client.
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.line(b'-', &line);
    }
    pub(crate) fn int(&mut self, value: impl itoa::Integer) {
        self.header(b':', value);
    }
    pub(crate) fn bulk(&mut self, text: &[u8]) {
        if !self.has_room(text.len()) {
            return;
        }
        self.header(b'$', text.len());
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
    /// A string that may be missing.
    pub(crate) fn optional(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => self.bulk(text),
            None => self.null(),
        }
    }
    pub(crate) fn text(&mut self, text: impl AsRef<str>) {
        self.bulk(text.as_ref().as_bytes());
    }
    /// Text for human readers.
    pub(crate) fn verbatim(&mut self, text: &str) {
        if !self.resp3 {
            return self.bulk(text.as_bytes());
        }
        self.header(b'=', text.len() + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }
    /// The header of an array of `count` elements.
    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count);
    }
    /// Inserts the header of an array before everything written since `mark`. So elements are not gathered
    /// just to be counted.
    pub(crate) fn array_since(&mut self, mark: usize, count: usize) {
        self.before(mark, |reply| reply.array(count));
    }
    /// Inserts output before everything written since `mark`.
    pub(crate) fn before(&mut self, mark: usize, write: impl FnOnce(&mut Reply<'a>)) {
        let end = self.out.len();
        write(self);
        let written = self.out.len() - end;
        self.out[mark..].rotate_right(written);
    }
    /// The header of a map of `pairs` pairs.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.resp3 {
            true => self.header(b'%', pairs),
            false => self.header(b'*', 2 * pairs),
        }
    }
    /// The header of a set of `count` elements.
    pub(crate) fn set(&mut self, count: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, count);
    }
    pub(crate) fn double(&mut self, value: f64) {
        let text = float_text(value);
        match self.resp3 {
            true => self.line(b',', &text),
            false => self.bulk(text.as_bytes()),
        }
    }
    /// Writes each element until the reply exceeds its limit. The remaining elements are not computed.
    pub(crate) fn each<T>(
        &mut self,
        elements: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Reply<'a>, T),
    ) {
        let mut elements = elements.into_iter();
        while !self.is_truncated
            && let Some(element) = elements.next()
        {
            write(self, element);
        }
    }
    /// An array of strings.
    pub(crate) fn texts<T: AsRef<[u8]>>(
        &mut self,
        texts: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    ) {
        let texts = texts.into_iter();
        self.array(texts.len());
        self.each(texts, |reply, text| reply.bulk(text.as_ref()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resp3: bool, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, 1000, resp3));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn resp2_has_strings_and_arrays_for_what_it_lacks() {
        for (resp3, null, map, double) in
            [(false, "$-1\r\n", "*2\r\n", "$3\r\n1.5\r\n"), (true, "_\r\n", "%1\r\n", ",1.5\r\n")]
        {
            assert_eq!(written(resp3, |reply| reply.null()), null);
            assert_eq!(written(resp3, |reply| reply.map(1)), map);
            assert_eq!(written(resp3, |reply| reply.double(1.5)), double);
        }
        assert_eq!(written(true, |reply| reply.verbatim("a")), "=5\r\ntxt:a\r\n");
    }

    #[test]
    fn head_of_an_array_may_come_last() {
        let mut out = b"before".to_vec();
        let mut reply = Reply::new(&mut out, 20, false);
        let mark = reply.mark();
        (1..=3).for_each(|number| reply.int(number));
        reply.array_since(mark, 3);
        assert_eq!(out, b"before*3\r\n:1\r\n:2\r\n:3\r\n");
    }

    #[test]
    fn errors_stay_on_their_line() {
        assert_eq!(
            written(false, |reply| reply.error("ERR unknown 'a\r\n+OK'")),
            "-ERR unknown 'a  +OK'\r\n"
        );
    }

    #[test]
    fn reply_has_a_longest_length() {
        let mut out = b"before".to_vec();
        let mut reply = Reply::new(&mut out, 20, false);
        (0..1000).for_each(|_| reply.bulk(b"0123456789"));
        assert!(reply.is_truncated());
        assert!(out.len() < 60);
        Reply::new(&mut out, 20, false)
            .each(std::iter::repeat(b"0123456789"), |reply, text| reply.bulk(text));
        assert!(out.len() < 120);
    }

    #[test]
    fn reply_takes_no_more_memory_than_its_length() {
        const MAX: usize = 1 << 20;
        let mut out = Vec::new();
        Reply::new(&mut out, MAX, false).bulk(&[7; MAX]);
        assert!(out.len() > MAX && out.capacity() <= MAX + FRAME, "{}", out.capacity());
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, MAX, false);
        (0..MAX).for_each(|_| reply.bulk(&[7; 1000]));
        assert!(reply.is_truncated() && out.capacity() <= MAX + FRAME, "{}", out.capacity());
    }
}
