//! Doubles of the source for tests: no device at all, one with faults, one that a test watches or stops, and a kernel whose calls
//! fall short. Only builds for tests have it.

mod hook;
mod null;
mod short;
mod sim;

pub use hook::{Call, HookIo};
pub use null::NullIo;
pub use short::ShortCalls;
pub use sim::{Faults, SimIo};
