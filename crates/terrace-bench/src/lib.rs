//! Measures terrace from outside: loads, meters, alternation, statistics. The program `terrace-bench` is a thin command line over it.
//!
//! Reading order: [`stats`] (what is claimed), [`matrix`] (what is run, and in what order), [`system`] (bringing one side up), [`steps`] (meters
//! between commands), and the loads: [`worker`], [`fio`]; what differs between results: [`compare`]; raw results ([`raw`]) for
//! people: [`report`]. Apart from all that: [`probe`], what storage can do.

pub mod buffer;
pub mod cgroup;
pub mod compare;
pub mod content;
pub mod fio;
pub mod format;
pub mod machine;
pub mod matrix;
pub mod pages;
pub mod passthrough;
pub mod probe;
pub mod raw;
pub mod report;
pub mod signals;
pub mod stats;
pub mod steps;
pub mod system;
pub mod worker;
