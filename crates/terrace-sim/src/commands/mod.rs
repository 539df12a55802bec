//! The subcommands, one a file, and their common options.

mod compressed;
mod device;
pub mod gates;
pub mod mrc;
pub mod numa;
pub mod options;
pub mod placement;
pub mod sim;
