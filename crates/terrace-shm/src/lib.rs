//! The shared segment.
