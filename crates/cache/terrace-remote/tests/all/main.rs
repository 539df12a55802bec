//! Tests of the engine with tier targets in an object store: a directory, or an S3 bucket.

mod fixture;
mod fs;
mod s3;
mod server;
