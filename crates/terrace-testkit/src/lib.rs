//! What the tests of several crates need. A development dependency only: nothing of the product links it.
//!
//! [`rng`]: random numbers from a printed seed. [`traces`]: page accesses to simulate. [`pages`]: content that says where it belongs.
//! [`wait`]: waiting for a condition.
#![forbid(unsafe_code)]

pub mod pages;
pub mod rng;
pub mod traces;
pub mod wait;
