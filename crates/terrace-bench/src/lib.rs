//! Measures terrace from outside: loads, meters, alternation, statistics. The program `terrace-bench` is a thin command line over it.
//!
//! Reading order: [`stats`] (what is claimed), [`trial`] (rounds and verdicts), [`system`] (one run of one side), [`steps`] (meters between
//! commands), [`suites`] (the ready comparisons), and the loads: [`worker`], [`fio`]; what differs between results: [`compare`]; raw results for
//! people: [`report`]. Apart from all that: [`probe`], what storage can do, and [`watch`], a mount live in the terminal.

pub mod cgroup;
pub mod compare;
pub mod content;
pub mod demo;
pub mod fio;
pub mod machine;
pub mod matrix;
mod output;
pub mod pages;
pub mod passthrough;
pub mod probe;
mod progress;
pub mod raw;
pub mod report;
pub mod stats;
pub mod steps;
pub mod suites;
pub mod system;
pub mod trial;
pub mod watch;
pub mod worker;
