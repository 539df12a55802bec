//! Building blocks of policies: lists over slots, two-part queues, ghosts, queue ages, victim search.

pub(crate) mod ghost;
pub(crate) mod queue_age;
pub(crate) mod segmented;
mod slots;
mod sweep;

pub use slots::{ABSENT, List, SLOTS_MAX, Slots};
pub use sweep::{HELD_WAIT, HeldQueue, Patience, SWEEP_RATE, Step, Sweep, collect, looks_max};
