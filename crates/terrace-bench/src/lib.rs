//! Measures terrace from outside: loads, meters, alternation, statistics. The program `terrace-bench` is a thin command line over it.
//!
//! Reading order: [`stats`] (what is claimed), [`matrix`] (what is run, and in what order), [`system`] (bringing one side up), [`steps`] (meters
//! between commands), [`meters`] (devices and tiers), and the loads: [`worker`], [`reads`] by a [`pattern`], [`tier_hit`], [`fio`]; raw results: [`raw`]; differences
//! between results: [`compare`]. For a first look: [`demo`]. Apart from all that: [`metadata`], buckets and blobs of the store, [`nothing`], a server that stores nothing, and [`schedule`], which makes a capture what `terrace run --prefetch` reads.
// An output may be full, and its reader gone: `terrace_output::print_line`, `print` and `error_line`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod buffer;
pub mod calls;
pub mod cgroup;
pub mod cold;
pub mod compare;
pub mod content;
pub mod demo;
pub mod fio;
pub mod format;
pub mod machine;
pub mod matrix;
pub mod metadata;
pub mod meters;
pub mod nothing;
pub mod pages;
pub mod passthrough;
pub mod pattern;
pub mod raw;
mod reader;
pub mod reads;
pub mod schedule;
pub mod signals;
pub mod stats;
pub mod steps;
pub mod system;
pub mod tier_hit;
pub mod worker;
