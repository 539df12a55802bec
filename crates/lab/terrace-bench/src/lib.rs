//! Measures terrace from outside: loads, meters, alternation, statistics. The program `terrace-bench` is a thin command line over it.
//!
//! Reading order: [`stats`] (statistics of comparisons), [`matrix`] (the runs and their order), [`system`]
//! (the systems under test), [`steps`] (meters between commands), [`meters`] (devices and tiers), and the
//! loads: [`worker`], [`reads`] by a [`pattern`], [`tier_hit`], [`fio`]. Raw results: [`raw`]; differences
//! between results: [`compare`]. For a first look: [`demo`]. Independent of these: [`metadata`], buckets and
//! blobs of the store; [`nothing`], a server that stores nothing; [`schedule`], which converts a capture for
//! `terrace run --prefetch`.
// Output may hit a full disk or a closed pipe: `terrace_output::print_line`, `print` and `error_line` handle
// both.
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
pub mod stats;
pub mod steps;
pub mod system;
pub mod tier_hit;
pub mod worker;
