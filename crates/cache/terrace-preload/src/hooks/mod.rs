//! The functions that the library exports: a guarded decision, then the real call. Manual pages have the
//! safety contracts.
//!
//! The real call is outside `catch_unwind`, in a frame without destructors: glibc cancels read, open and
//! close by unwinding.

mod advise;
mod close;
mod exec;
mod guard;
mod locked;
mod make;
mod open;
mod print;
mod process;
mod read;
mod stream;
mod uring;
mod write;
mod write_back;

pub(crate) use process::watch_forks;
