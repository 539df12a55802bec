//! Thread placement: on which memory node each thread should run, and which frames should lie elsewhere.
//!
//! Source: NThread, "NUMA-Aware Thread Migration for High Performance NVMM File Systems" (MSST 2020). Slide
//! numbers of that talk mark each rule's origin, "ours" marks additions. A move of data between nodes of
//! persistent memory is slow and wears it. So threads move: to the data that they read, and away from a
//! saturated node.
//!
//! One file a rule: [`remote`], [`what_if`], [`contention`], [`cpu`], [`sharing`], [`gather`], [`gain`];
//! [`placer`] applies them in order. State in, moves out: the simulator and the daemon run the same objects.

pub mod contention;
pub mod cpu;
pub mod gain;
pub mod gather;
pub mod placer;
pub mod remote;
pub mod sharing;
#[cfg(test)]
mod testing;
pub mod view;
pub mod what_if;

pub use gain::What;
pub use placer::{Config, Decision, FrameMove, MoveReason, Placer, Rules, ThreadMove};
pub use view::{ANYWHERE, NODES_MAX, Node, Region, Thread, User, View};
