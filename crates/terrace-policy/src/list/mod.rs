//! What policies are made of: lists over slots, in parts or alone, ghosts of what has left, ages without stamps, and the search for
//! victims.

pub(crate) mod ghost;
pub(crate) mod queue_age;
pub(crate) mod segmented;
mod slots;
mod sweep;

pub use slots::{ABSENT, List, SLOTS_MAX, Slots};
pub use sweep::{HELD_WAIT, Held, Patience, SWEEP_RATE, Step, Sweep, collect, looks_max};
