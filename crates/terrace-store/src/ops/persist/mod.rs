//! The trait `persist`: each blob of a bucket is a file of a directory, too.
//!
//! Files follow at each sync: 1. the store itself is durable; 2. blobs that have changed since are written into a new file each, which is synced and takes
//! the old one's place: a program that reads the directory sees a blob before or after a put; 3. the record *persisted* says that all files are as
//! their blobs are. It is logged while nobody changes the bucket. Steps 2 and 3 have a thread of their own: a large bucket delays no sync.
//!
//! A file is never ahead of what is durable: after a power cut its blob is at least as new. A start that finds changes of the bucket behind the last
//! such record does not know which files were written, and compares all of them with their blobs.

mod files;
mod thread;
mod turn;

pub(crate) use thread::run;
pub(crate) use turn::{sync, write_out};
