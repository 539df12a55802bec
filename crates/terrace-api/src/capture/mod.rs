//! Traces of page accesses: read as a stream, whatever the format, and terrace's own captures written.
//!
//! ```text
//!   file ─► zstd? ─► Input (256 KiB) ─► u64 · oracle · text · csv · terrace ─► Access, Access, ...
//! ```
//! A trace is never held in memory: what a [`Reader`] needs does not depend on what it reads (300 KiB, and up to
//! 128 MiB inside zstd where the file was compressed with so long a window). Faults of a file come as an
//! [`Error`] that names the file, the place and the cure; nothing a file holds makes a reader panic.
//!
//! | format | content | names |
//! |---|---|---|
//! | `u64` | little-endian 64-bit page keys | `.u64` |
//! | `oracle` | libCacheSim's oracleGeneral: time u32, key u64, size u32, next use i64, little-endian, 24 bytes | `*oracleGeneral*` |
//! | `text` | one key a line | `.txt` |
//! | `csv` | a key in one column ([`Column`]) | `.csv`, `.tsv` |
//! | `terrace` | a capture: [`format`](mod@format) | by its first bytes |
//!
//! Each of them may be compressed with zstd (known by its first bytes; `.zst` is then taken off the name). Every
//! request is one page: sizes that a format states are not looked at.

mod access;
mod error;
pub mod format;
mod importers;
mod input;
mod reader;
pub mod summary;
mod writer;

pub use access::{Access, AccessPath};
pub use error::{At, Error};
pub use format::{Event, Header, Name, Record, page_key};
pub use importers::{Column, Format, Options, Reader};
pub use reader::RecordReader;
pub use summary::{Lost, Summary, SummaryReport};
pub use writer::Writer;
