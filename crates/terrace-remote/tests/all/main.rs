//! The engine over targets in a store.

mod fs;
mod s3;
mod server;
mod world;
