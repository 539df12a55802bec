//! The subcommands of terrace-sim, one a file, and their common options.

mod compressed;
mod device;
pub(crate) mod gates;
pub(crate) mod mrc;
pub(crate) mod numa;
pub(crate) mod options;
pub(crate) mod placement;
pub(crate) mod sim;
mod tiers;
