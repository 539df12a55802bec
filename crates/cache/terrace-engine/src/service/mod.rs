//! Threads of the engine that combine the folders below: writeback, each target of a tier, changes of the tier.

pub(crate) mod device_loop;
#[cfg(test)]
mod device_tests;
pub(crate) mod flusher;
pub(crate) mod live;
#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod park_tests;
#[cfg(test)]
mod target_tests;
#[cfg(test)]
mod testing;
