//! Cache policies on recorded accesses: the policy objects of the engine, the optimum, and the kernel's own policies as yardsticks.
//!
//! ```text
//!   trace file ─► trace: keys numbered once ─► cells: policy x size, on all cores ─► ranking · CSV · JSON
//!                                                │                                 └─► gates
//!                                                └─► sim: one policy in one pool; compressed_sim: with a compressed tier
//!   trace file ─► curve of miss ratios: one pass, no numbering, fixed memory
//! ```
//! The program `terrace-sim` is a thin command line over this. The engine's tests compare the engine with
//! [`sim`].
#![forbid(unsafe_code)]

pub mod cells;
pub mod compressed_sim;
pub mod device_sim;
pub mod gates;
pub mod kernel;
pub mod numa;
pub mod opt;
pub mod ranking;
pub mod reference;
pub mod sim;
pub mod trace;
pub mod yardsticks;
