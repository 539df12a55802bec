//! Durability: syncs, log compaction, and the thread that does both.

mod anew;
mod retry;
mod sync;
mod thread;

pub(crate) use anew::{create_new, new_path, write_anew};
pub(crate) use retry::Retry;
pub(crate) use sync::{hold, sync, sync_upto};
pub(crate) use thread::run;
