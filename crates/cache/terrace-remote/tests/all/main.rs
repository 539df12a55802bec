//! The engine with targets in a store.

mod fs;
mod s3;
mod server;
mod world;
