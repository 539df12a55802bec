//! Measures terrace from outside: loads, meters, alternation, statistics. The program `terrace-bench` is a thin command line over it.
//!
//! Reading order: [`stats`] (what is claimed), [`matrix`] (what is run, and in what order), [`system`] (bringing one side up), [`steps`] (meters
//! between commands), [`meters`] (devices and tiers), and the loads: [`worker`], [`reads`] by a [`pattern`], [`tier_hit`], [`fio`]; what differs between results: [`compare`]; raw results ([`raw`]) for
//! people: [`report`]. For a first look: [`demo`]. Apart from all that: [`probe`], what storage can do, [`metadata`], buckets and blobs of the store, [`gray_scott`], a simulation
//! that writes, [`nothing`], a server that stores nothing, and [`schedule`], which makes a capture what `terrace run --prefetch` reads.
// A reader may go away: `terrace_output::print_line`, or `print`, where `println` panics.
#![deny(clippy::print_stdout)]

pub mod buffer;
pub mod calls;
pub mod cgroup;
pub mod cold;
pub mod compare;
pub mod content;
pub mod demo;
pub mod fio;
pub mod format;
pub mod gray_scott;
pub mod machine;
pub mod matrix;
pub mod metadata;
pub mod meters;
pub mod nothing;
pub mod pages;
pub mod passthrough;
pub mod pattern;
pub mod probe;
pub mod raw;
mod reader;
pub mod reads;
pub mod report;
pub mod schedule;
pub mod signals;
pub mod stats;
pub mod steps;
pub mod system;
pub mod tier_hit;
pub mod worker;
