//! Choice of the records that a start trusts.
//!
//! After a power cut or a kill of all processes, the log may be ahead of the heap. A start trusts records up
//! to the last mark without a check. It trusts later ones up to the last record after which the heap holds
//! all blobs. A replaced blob that no sync has covered may be missing: its room may hold other blobs. A blob
//! under a mark is never missing: its room stays unused until the next mark.

use crate::index::Hashes;
use crate::open::files::Files;
use crate::record::{Blob, INLINE, Record, UNCHECKED};
use crate::records::Records;
use crate::space::{Extent, PAGE, UNIT};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use terrace_io::Io;

/// Bytes of one read.
const PIECE: usize = 1 << 20;

/// Numbers of the last marked record of the log, and of its last record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanned {
    /// Number of the last record known to be durable.
    pub marked: u64,
    pub last: u64,
}

/// A blob, from the record that describes it to its replacement's.
#[derive(Debug)]
struct Span {
    from: u64,
    upto: u64,
    blob: Blob,
}

/// A bucket, and two hashes of a key.
type Name = (u64, u64, u64);

/// Blobs of the records after the marks.
struct Spans {
    hashes: [Hashes; 2],
    live: HashMap<Name, (u64, Blob)>,
    over: Vec<Span>,
}

impl Spans {
    fn name(&self, bucket: u64, key: &[u8]) -> Name {
        (bucket, self.hashes[0].of(key), self.hashes[1].of(key))
    }

    fn end(&mut self, name: &Name, upto: u64) {
        if let Some((from, blob)) = self.live.remove(name) {
            self.over.push(Span { from, upto, blob });
        }
    }

    fn begin(&mut self, name: Name, number: u64, blob: Blob) {
        self.end(&name, number);
        // Inline bytes come with their record: they need no check.
        if !blob.has(UNCHECKED) && !blob.has(INLINE) {
            self.live.insert(name, (number, blob));
        }
    }

    fn end_bucket(&mut self, bucket: u64, upto: u64) {
        let over = self.live.extract_if(|(of, ..), _| *of == bucket);
        self.over.extend(over.map(|(_, (from, blob))| Span { from, upto, blob }));
    }

    fn note(&mut self, number: u64, record: &Record<'_>) {
        match *record {
            Record::Put { bucket, blob, key } => self.begin(self.name(bucket, key), number, blob),
            Record::Move { from_bucket, from, bucket, blob, key } => {
                self.end(&self.name(from_bucket, from), number);
                self.begin(self.name(bucket, key), number, blob);
            }
            Record::Remove { bucket, key } => self.end(&self.name(bucket, key), number),
            Record::BucketGone { bucket } | Record::BucketClear { bucket } => {
                self.end_bucket(bucket, number);
            }
            Record::Bucket { .. } | Record::Mark { .. } | Record::Tag { .. } | Record::Trait { .. } => {}
        }
    }
}

/// Number of the last record that the start trusts. Afterwards the heap file covers the extents of all blobs.
///
/// # Errors
/// The device fails.
pub(super) fn last(files: &Files, io: &dyn Io, Scanned { marked, last }: Scanned) -> io::Result<u64> {
    if marked >= last {
        return Ok(last);
    }
    let seed = files.header.seed;
    let hashes = [Hashes::new(seed), Hashes::new(!seed)];
    let mut spans = Spans { hashes, live: HashMap::new(), over: Vec::new() };
    let mut records = Records::new(&files.names, &files.header);
    let mut end = 0;
    while let Some((number, record)) = records.next()? {
        if number > marked {
            spans.note(number, &record);
            end = end.max(end_of_room(&record));
        }
    }
    let mut over = spans.over;
    over.extend(spans.live.into_values().map(|(from, blob)| Span { from, upto: u64::MAX, blob }));
    over.sort_unstable_by_key(|span| std::cmp::Reverse(span.from));
    let (heap, mut buffer) = (File::from(files.heap.try_clone()?), Vec::new());
    let mut believed = last;
    for Span { from, upto, blob } in over {
        if from <= believed && believed < upto && !stands(&heap, &blob, &mut buffer)? {
            believed = from - 1;
        }
    }
    // If the heap has grown, the file may end within the last extent.
    let end = end.next_multiple_of(PAGE);
    if heap.metadata()?.len() < end {
        io.truncate(heap.as_raw_fd(), end)?;
    }
    Ok(believed)
}

/// End of the extent that a record gives a blob. 0: it has none.
fn end_of_room(record: &Record<'_>) -> u64 {
    match record {
        Record::Put { blob, .. } | Record::Move { blob, .. } => {
            let extent = Extent::of(blob);
            extent.offset() + extent.bytes()
        }
        _ => 0,
    }
}

/// True if the heap holds the bytes of a blob.
fn stands(heap: &File, blob: &Blob, buffer: &mut Vec<u8>) -> io::Result<bool> {
    if blob.size > u64::from(blob.units) * UNIT {
        return Ok(false);
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut done = 0;
    while done < blob.size {
        let n = (blob.size - done).min(PIECE as u64) as usize;
        buffer.resize(n.max(buffer.len()), 0);
        match heap.read_exact_at(&mut buffer[..n], blob.start() * UNIT + done) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        hasher.update(&buffer[..n]);
        done += n as u64;
    }
    Ok(hasher.finalize() == blob.crc)
}
