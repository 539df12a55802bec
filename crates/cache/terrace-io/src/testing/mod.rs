//! Test doubles of the source's I/O: none at all, faults, a test's hook, short reads and writes. Only in
//! builds for tests.

mod hook;
mod null;
mod short;
mod sim;

pub use hook::{Call, HookIo};
pub use null::NullIo;
pub use short::ShortCalls;
pub use sim::{Faults, SimIo};
