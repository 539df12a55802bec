//! Writes captures: see [`format`](super::format).

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use super::access::AccessPath;
use super::format::{
    ACCESS, Event, FAST, HEADER, Header, LOSS, Last, MAGIC, MOVE, NAME, Name, OBJECT, PATH_MAX, RECORD_MAX,
    STEP_MAX, TIME, VERSION, WRITE, varint, zigzag,
};

/// Size of a batch, bytes.
const BATCH: usize = 64 << 10;

/// Writes a capture, in batches of whole records. Call [`Writer::flush`] at the end and whenever the file
/// must be up to date. Dropping the writer loses unflushed records.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    batch: Vec<u8>,
    last: Last,
    tick_ms: u64,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a capture. Nothing is written before the first batch is full or flushed.
    ///
    /// # Panics
    /// If the tick is 0.
    pub fn new(out: W, header: &Header) -> Writer<W> {
        assert!(header.tick_ms > 0, "a tick has a length");
        let mut batch = Vec::with_capacity(BATCH + RECORD_MAX);
        batch.extend_from_slice(&MAGIC);
        batch.extend_from_slice(&VERSION.to_le_bytes());
        batch.extend_from_slice(&(HEADER as u16).to_le_bytes());
        batch.extend_from_slice(&header.page_bytes.to_le_bytes());
        batch.extend_from_slice(&header.start_ms.to_le_bytes());
        batch.extend_from_slice(&header.tick_ms.to_le_bytes());
        batch.extend_from_slice(&[0; 4]);
        Writer { out, batch, last: Last::default(), tick_ms: u64::from(header.tick_ms), bytes: 0 }
    }

    /// Records an access. Fails only if a batch cannot be written; that batch is then lost.
    pub fn access(&mut self, event: &Event) -> io::Result<()> {
        let tick = event.time_ms / self.tick_ms;
        if tick > self.last.tick {
            self.batch.push(TIME);
            varint(&mut self.batch, tick - self.last.tick);
            self.last.tick = tick;
        }
        let flags =
            if event.write { WRITE } else { 0 } | if event.via == AccessPath::Preload { FAST } else { 0 };
        let step = event.page.wrapping_sub(self.last.page);
        if event.object != self.last.object {
            self.batch.push(ACCESS | flags | OBJECT << 4);
            varint(&mut self.batch, zigzag(event.object.wrapping_sub(self.last.object)));
            varint(&mut self.batch, event.page);
        } else if step <= STEP_MAX {
            self.batch.push(ACCESS | flags | (step as u8) << 4);
        } else {
            self.batch.push(ACCESS | flags | MOVE << 4);
            varint(&mut self.batch, zigzag(step));
        }
        (self.last.object, self.last.page) = (event.object, event.page);
        self.flush_over(BATCH)
    }

    /// Records that accesses were lost here; 0: writes nothing.
    pub fn lost(&mut self, accesses: u64) -> io::Result<()> {
        if accesses > 0 {
            self.batch.push(LOSS);
            varint(&mut self.batch, accesses);
        }
        self.flush_over(BATCH)
    }

    /// Records the file of an object; skips paths longer than [`PATH_MAX`].
    pub fn name(&mut self, name: &Name) -> io::Result<()> {
        let path = name.path.as_os_str().as_bytes();
        if path.len() <= PATH_MAX {
            self.batch.push(NAME);
            for n in [name.object, name.bytes, zigzag(name.changed_ns as u64), path.len() as u64] {
                varint(&mut self.batch, n);
            }
            self.batch.extend_from_slice(path);
        }
        self.flush_over(BATCH)
    }

    /// Bytes of the capture so far, written or buffered.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.batch.len() as u64
    }

    /// Writes the buffered records.
    pub fn flush(&mut self) -> io::Result<()> {
        self.flush_over(0)?;
        self.out.flush()
    }

    fn flush_over(&mut self, limit: usize) -> io::Result<()> {
        if self.batch.len() < limit.max(1) {
            return Ok(());
        }
        let written = self.out.write_all(&self.batch);
        self.bytes += self.batch.len() as u64;
        self.batch.clear();
        written
    }

    /// Flushes, and returns the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::Record;
    use super::super::reader::RecordReader;
    use super::*;

    fn event(object: u64, page: u64) -> Event {
        Event { object, page, write: false, via: AccessPath::Fuse, time_ms: 0 }
    }

    /// The bytes are the format: changing them needs a new version.
    #[test]
    fn bytes_are_as_documented() {
        let header = Header { page_bytes: 4096, start_ms: 0x0102_0304, tick_ms: 10 };
        let mut writer = Writer::new(Vec::new(), &header);
        writer.access(&event(7, 0)).unwrap();
        writer.access(&Event { write: true, via: AccessPath::Preload, time_ms: 29, ..event(7, 1) }).unwrap();
        writer.access(&event(7, 0)).unwrap();
        writer.lost(300).unwrap();
        writer.lost(0).unwrap();
        let name = Name { object: 5, path: "d/e".into(), bytes: 300, changed_ns: -2 };
        writer.name(&name).unwrap();
        writer.access(&event(5, 200)).unwrap();
        let bytes = writer.finish().unwrap();
        let head = b"\x89TRACE\r\n\x02\0\x20\0\0\x10\0\0\x04\x03\x02\x01\0\0\0\0\x0a\0\0\0\0\0\0\0";
        assert_eq!(&bytes[..32], head);
        let records = [0xf0, 14, 0, 2, 2, 0x1c, 0xe0, 1, 1, 0xac, 2, 3, 5, 0xac, 2, 3, 3];
        assert_eq!(bytes[32..49], records);
        assert_eq!(bytes[49..], *b"d/e\xf0\x03\xc8\x01");
        let records: Vec<_> = RecordReader::new("t", Box::new(io::Cursor::new(bytes))).unwrap().collect();
        assert_eq!(records[4], Ok(Record::Name(name)));
    }

    #[test]
    fn a_sequential_read_takes_one_byte_a_page() {
        let mut writer = Writer::new(Vec::new(), &Header::default());
        for page in 0..10_000 {
            writer.access(&event(0, page)).unwrap();
        }
        assert_eq!(writer.bytes(), 32 + 10_000);
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes.len(), 32 + 10_000);
        assert_eq!(RecordReader::new("t", Box::new(io::Cursor::new(bytes))).unwrap().count(), 10_000);
    }
}
