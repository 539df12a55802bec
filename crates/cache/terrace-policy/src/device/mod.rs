//! Decisions of a device tier: the layout of the log ([`log`]) and admission ([`admit`], by the read costs in
//! [`cost`]). The engine and the simulator run the same objects.

pub mod admit;
pub mod cost;
pub mod log;
