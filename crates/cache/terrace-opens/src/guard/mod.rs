//! Open files by fanotify and /proc: programs may write the files while they are served. Needs root.
//!
//! | module | what |
//! |---|---|
//! | [`listener`] | opens of watched files wait until they are handled, closes are reported |
//! | [`holders`] | the processes that can write a file without another open |
//! | [`task`] | a thread that opens or closes a file |
//! | [`file_id`] | device and inode number of a file |

mod file_id;
mod holders;
mod listener;
mod task;

pub use file_id::FileId;
pub use holders::{Writers, writers};
pub use listener::{Handler, Listener, Unavailable};
pub use task::Task;
