//! The trait `persist`: each blob of a bucket is also a file of a directory.
//!
//! The files follow each sync. 1. The store itself is made durable. 2. Each changed blob is written to a new
//! file, which is synced and renamed over the old one. A reader of the directory sees the blob before or
//! after a put. 3. The record *persisted* states that all files are up to date. It is logged while the bucket
//! is locked.
//!
//! After the syncs of the thread `store-sync`, steps 2 and 3 run in their own thread: a large bucket delays no
//! such sync. [`crate::Store::sync`], and each change with [`crate::SyncPolicy::Always`], wait for the files.
//!
//! A file is never newer than the durable blob. A start may find changes behind the last *persisted* record.
//! The start does not know which files were written, and compares all of them with their blobs.

mod files;
mod thread;
mod turn;

pub(crate) use thread::run;
pub(crate) use turn::{sync, write_out};
