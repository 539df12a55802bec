//! Reads captures record by record: see [`format`](super::format).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::access::AccessPath;
use super::error::Error;
use super::format::{
    ACCESS, Broken, Event, FAST, HEADER, Header, LOSS, Last, MAGIC, MOVE, NAME, NAME_MAX, NAMELESS, Name,
    OBJECT, PATH_MAX, RECORD_MAX, Record, TIME, VERSION, WRITE, read_varint, unzigzag,
};
use super::input::Input;

/// Reads the records of a capture.
#[derive(Debug)]
pub(super) struct Decoder {
    header: Header,
    has_names: bool,
    last: Last,
}

impl Decoder {
    pub(super) fn new(input: &mut Input) -> Result<Decoder, Error> {
        let bytes = input.peek(HEADER)?;
        let Ok(bytes) = <[u8; HEADER]>::try_from(bytes) else {
            let fault = format!("{} bytes, a capture's header has {HEADER}", bytes.len());
            return Err(input.error(
                None,
                fault,
                "nothing was captured, or the file is cut short: capture again",
            ));
        };
        if !bytes.starts_with(&MAGIC) {
            return Err(input.error(None, "not a capture of terrace", "say what it is with --format"));
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let version = u16_at(8);
        if !(NAMELESS..=VERSION).contains(&version) {
            let fault = format!("a capture of version {version}, this program reads {VERSION}");
            return Err(input.error(None, fault, "read it with the terrace that wrote it, or a later one"));
        }
        let header = Header { page_bytes: u32_at(12), start_ms: u64_at(16), tick_ms: u32_at(24) };
        let length = usize::from(u16_at(10));
        if length < HEADER || header.tick_ms == 0 || input.peek(length)?.len() < length {
            return Err(input.error(None, "the header is damaged", "capture again"));
        }
        input.consume(length);
        Ok(Decoder { header, has_names: version > NAMELESS, last: Last::default() })
    }

    pub(super) fn header(&self) -> Header {
        self.header
    }

    /// The next access or loss; `None` at the end.
    pub(super) fn record(&mut self, input: &mut Input) -> Result<Option<Record>, Error> {
        loop {
            let most = match input.peek(1)? {
                [] => return Ok(None),
                [NAME] => NAME_MAX,
                _ => RECORD_MAX,
            };
            let bytes = input.peek(most)?;
            let mut rest = bytes;
            let parsed = self.parse(&mut rest);
            let taken = bytes.len() - rest.len();
            match parsed {
                Ok(record) => {
                    input.consume(taken);
                    if record.is_some() {
                        return Ok(record);
                    }
                }
                Err(Broken::Cut) => {
                    let cure = format!("`truncate -s {}` keeps the whole records before", input.position());
                    return Err(input.error(input.here(), "the last record is cut short", &cure));
                }
                Err(Broken::Wrong(fault)) => return Err(input.error(input.here(), fault, "capture again")),
            }
        }
    }

    /// Parses one record; `None`: it only advanced the clock.
    fn parse(&mut self, bytes: &mut &[u8]) -> Result<Option<Record>, Broken> {
        let (&first, rest) = bytes.split_first().ok_or(Broken::Cut)?;
        *bytes = rest;
        match (first & 3, first >> 2) {
            (ACCESS, _) => self.parse_access(first, bytes).map(|event| Some(Record::Access(event))),
            (LOSS, 0) => Ok(Some(Record::Lost(read_varint(bytes)?))),
            (TIME, 0) => {
                self.last.tick = self.last.tick.saturating_add(read_varint(bytes)?);
                Ok(None)
            }
            (NAME, 0) if self.has_names => parse_name(bytes).map(|name| Some(Record::Name(name))),
            _ => Err(Broken::Wrong("not a record")),
        }
    }

    fn parse_access(&mut self, first: u8, bytes: &mut &[u8]) -> Result<Event, Broken> {
        let (object, page) = match first >> 4 {
            OBJECT => {
                let object = self.last.object.wrapping_add(unzigzag(read_varint(bytes)?));
                (object, read_varint(bytes)?)
            }
            MOVE => (self.last.object, self.last.page.wrapping_add(unzigzag(read_varint(bytes)?))),
            step => (self.last.object, self.last.page.wrapping_add(u64::from(step))),
        };
        (self.last.object, self.last.page) = (object, page);
        let via = if first & FAST != 0 { AccessPath::Preload } else { AccessPath::Fuse };
        let time_ms = self.last.tick.saturating_mul(u64::from(self.header.tick_ms));
        Ok(Event { object, page, write: first & WRITE != 0, via, time_ms })
    }
}

fn parse_name(bytes: &mut &[u8]) -> Result<Name, Broken> {
    let [object, size, changed, length] = {
        let mut number = || read_varint(bytes);
        [number()?, number()?, number()?, number()?]
    };
    let length = usize::try_from(length).ok().filter(|&length| length <= PATH_MAX);
    let length = length.ok_or(Broken::Wrong("a path that is too long"))?;
    let (path, rest) = bytes.split_at_checked(length).ok_or(Broken::Cut)?;
    *bytes = rest;
    if path.contains(&0) {
        return Err(Broken::Wrong("a path with a zero byte"));
    }
    let path = OsStr::from_bytes(path).into();
    Ok(Name { object, path, bytes: size, changed_ns: unzigzag(changed) as i64 })
}

/// Iterator over the records of a capture. It ends at the end of the file, or after the first error.
#[derive(Debug)]
pub struct RecordReader {
    input: Input,
    decoder: Decoder,
    over: bool,
}

impl RecordReader {
    /// Reads a stream, compressed with zstd or not; `name` is for errors. Fails if it does not begin like a
    /// capture.
    pub fn new(name: &str, stream: Box<dyn io::Read + Send>) -> Result<RecordReader, Error> {
        let mut input = Input::new(name, stream)?;
        let decoder = Decoder::new(&mut input)?;
        Ok(RecordReader { input, decoder, over: false })
    }

    /// Header of the capture.
    pub fn header(&self) -> Header {
        self.decoder.header()
    }
}

impl Iterator for RecordReader {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Result<Record, Error>> {
        if self.over {
            return None;
        }
        let record = self.decoder.record(&mut self.input).transpose();
        self.over = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::Writer;
    use super::*;

    fn event(object: u64, page: u64) -> Event {
        Event { object, page, write: false, via: AccessPath::Fuse, time_ms: 0 }
    }

    fn read(bytes: Vec<u8>) -> Vec<Result<Record, Error>> {
        RecordReader::new("t", Box::new(io::Cursor::new(bytes))).unwrap().collect()
    }

    #[test]
    fn damaged_trace_is_reported_with_its_place() {
        let mut writer = Writer::new(Vec::new(), &Header::default());
        writer.access(&event(0, 3)).unwrap();
        writer.access(&event(1 << 40, 3)).unwrap();
        let bytes = writer.finish().unwrap();
        let cut = read(bytes[..bytes.len() - 1].to_vec());
        assert_eq!(cut.len(), 2);
        let error = cut[1].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "t: at byte 33: the last record is cut short (`truncate -s 33` keeps the whole records before)"
        );
        let mut unknown = bytes.clone();
        unknown.push(7);
        assert!(read(unknown)[2].as_ref().unwrap_err().to_string().contains("not a record"));
        let mut long = bytes.clone();
        long.push(LOSS);
        long.extend([0xff; 12]);
        assert!(read(long)[2].as_ref().unwrap_err().to_string().contains("without an end"));
        let mut later = bytes.clone();
        later[8] = 3;
        let error = RecordReader::new("t", Box::new(io::Cursor::new(later))).unwrap_err();
        assert!(error.to_string().contains("version 3"), "{error}");
        for (name, fault) in [
            (&[NAME, 5, 1, 1, 3, b'a'][..], "cut short"),
            (&[NAME, 5, 1, 1, 2, b'a', 0], "a zero byte"),
            (&[NAME, 5, 1, 1, 0x81, 0x20], "too long"),
        ] {
            let error = read([&bytes, name].concat())[2].clone().unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
    }

    #[test]
    fn first_version_has_no_names() {
        let mut writer = Writer::new(Vec::new(), &Header::default());
        writer.access(&event(7, 3)).unwrap();
        let mut bytes = writer.finish().unwrap();
        bytes[8] = NAMELESS as u8;
        assert_eq!(read(bytes.clone()), [Ok(Record::Access(event(7, 3)))]);
        bytes.extend([NAME, 7, 1, 1, 1, b'a']);
        assert!(read(bytes)[1].as_ref().unwrap_err().to_string().contains("not a record"));
    }
}
