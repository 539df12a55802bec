//! Test doubles of the source's I/O: without a device, with faults, with a test's hook, and with short reads
//! and writes. Only in builds for tests.

mod hook;
mod null;
mod short;
mod sim;

pub use hook::{Call, HookIo};
pub use null::NullIo;
pub use short::ShortCalls;
pub use sim::{Faults, SimIo};
