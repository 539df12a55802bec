//! Traces of page accesses: readers for several formats, and the writer for captures of terrace.
//!
//! ```text
//!   file ─► zstd? ─► Input (256 KiB) ─► u64 · oracle · text · csv · msr · terrace ─► Access, Access, ...
//! ```
//! A trace is never held in memory. A [`Reader`] needs the same memory for any file: 300 KiB, and up to 128
//! MiB inside zstd for files compressed with such a long window. Faults of a file are an [`Error`] with file,
//! place and cure; no content makes a reader panic.
//!
//! | format | content | names |
//! |---|---|---|
//! | `u64` | little-endian 64-bit page keys | `.u64` |
//! | `oracle` | libCacheSim's oracleGeneral: time u32, key u64, size u32, next use i64, little-endian, 24 bytes | `*oracleGeneral*` |
//! | `text` | one key a line | `.txt` |
//! | `csv` | a key in one column ([`Column`]) | `.csv`, `.tsv` |
//! | `msr` | disk requests of MSR Cambridge | by its first line |
//! | `terrace` | a capture: [`format`](mod@format) | by its first bytes |
//!
//! Each format may be compressed with zstd (detected by its first bytes; `.zst` is then removed from the
//! name). A request of `msr` counts as one access for each of its pages. A request of any other format counts
//! as one page.

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
