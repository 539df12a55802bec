//! The engine with targets in a store.

mod fixture;
mod fs;
mod s3;
mod server;
