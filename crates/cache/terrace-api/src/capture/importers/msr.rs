//! Traces of MSR Cambridge: disk requests, one a line, each touching one or more pages.
//!
//! Fields of a line: time (100 ns), host, disk, `Read` or `Write`, offset (bytes), size (bytes), response
//! time. Commas separate them.

use super::text::{self, fields, number};
use crate::capture::access::Access;
use crate::capture::error::{At, Error};
use crate::capture::format::mix;
use crate::capture::input::Input;

const PAGE: u64 = 4096;
const FIELDS: usize = 7;
/// Largest plausible request, bytes.
const REQUEST_MAX: u64 = 1 << 30;
const TICKS_PER_MS: u64 = 10_000;

#[derive(Debug, PartialEq, Eq)]
struct Request {
    tick: u64,
    disk: u64,
    write: bool,
    offset: u64,
    bytes: u64,
}

/// Parses a line as a request; none: another format.
fn request(line: &[u8]) -> Option<Request> {
    let mut all = fields(line, b',');
    let row: [&[u8]; FIELDS] = std::array::from_fn(|_| all.next().unwrap_or_default());
    if all.next().is_some() {
        return None;
    }
    let [tick, host, disk, kind, offset, bytes, _] = row;
    let write = kind.eq_ignore_ascii_case(b"write");
    if !write && !kind.eq_ignore_ascii_case(b"read") {
        return None;
    }
    let (tick, offset, bytes) = (number(tick)?, number(offset)?, number(bytes)?);
    let disk = mix(text::key(host)).wrapping_add(text::key(disk));
    let is_of_a_disk = bytes <= REQUEST_MAX && offset.checked_add(bytes).is_some();
    is_of_a_disk.then_some(Request { tick, disk, write, offset, bytes })
}

/// Is the first line such a request?
pub(super) fn begins(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    request(line.strip_suffix(b"\r").unwrap_or(line)).is_some()
}

/// A trace being read.
#[derive(Debug, Default)]
pub(super) struct Msr {
    line: Vec<u8>,
    first_tick: Option<u64>,
    /// Next page of the last request, if any is left.
    next: Option<Access>,
    left: u64,
}

impl Msr {
    /// The next page's access; `None` at the end.
    pub(super) fn access(&mut self, input: &mut Input) -> Result<Option<Access>, Error> {
        if self.left == 0 {
            if !text::next_line(input, &mut self.line)? {
                return Ok(None);
            }
            let Some(request) = request(&self.line) else {
                let fault = "not a request of an MSR trace";
                return Err(input.error(Some(At::Line(input.lines)), fault, "see --format and --column"));
            };
            let Request { tick, disk, write, offset, bytes } = request;
            let first = *self.first_tick.get_or_insert(tick);
            let time_ms = tick.saturating_sub(first) / TICKS_PER_MS;
            let (page, last) = (offset / PAGE, (offset + bytes.max(1) - 1) / PAGE);
            // The key contains the disk: equal pages of two disks are different.
            let key = mix(disk).wrapping_add(page);
            self.next = Some(Access { write, time_ms, ..Access::of(key) });
            self.left = last - page + 1;
        }
        self.left -= 1;
        let access = self.next;
        self.next = access.map(|access| Access { key: access.key.wrapping_add(1), ..access });
        Ok(access)
    }
}
