//! Decisions of a tier on a device: where pages are written and what is overwritten ([`log`]), and which pages are written at
//! all ([`admit`], by what a read costs: [`cost`]). The engine and the simulator run the same objects.

pub mod admit;
pub mod cost;
pub mod log;
