//! Read-ahead: which pages to fetch before a program reads them. `path/prefetch.rs` fetches them.
//!
//! ```text
//!   window     spans to fetch beside a miss, by the policy's prefetcher
//!   marker     marks pages of a window; a touched mark queues the next window
//!   schedule   fetches the pieces of a recorded schedule in time
//! ```

pub(crate) mod marker;
pub(crate) mod schedule;
pub(crate) mod window;
