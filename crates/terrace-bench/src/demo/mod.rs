//! `terrace-bench demo`: what terrace is worth, in a few minutes. Either the built-in comparison ([`builtin`]: fio on real content of twice the
//! memory, the page cache against terrace), or the user's own program on the user's own directory ([`own`]).
//!
//! It is a demonstration: one run of a side, no interval. The measurement behind the README is a matrix.

mod builtin;
mod options;
mod own;
mod show;

use crate::matrix::cleanup::{Cleanup, Setup};
use crate::signals;
use crate::system;
use std::io;

pub use options::Demo;

/// Shows it; the exit code.
///
/// # Errors
/// Missing parts of the machine; a command that fails.
pub fn run(options: &Demo) -> io::Result<i32> {
    signals::catch();
    let mut cleanup = Cleanup::open(&options.state)?;
    cleanup.note(Setup::Group(system::group_name()))?;
    match &options.on {
        Some(dir) => own::run(options, dir, &mut cleanup),
        None => builtin::run(options, &mut cleanup),
    }
    .map(|()| 0)
}
