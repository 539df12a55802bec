//! Thread placement on machines with several memory nodes: the daemon's policy (`terrace_policy::numa`) in a
//! model of the paper's machines.
//!
//! [`machine`] is the model, [`load`] the work of threads, [`run`] a load under a policy, [`cells`] the
//! comparison.

pub mod cells;
pub mod load;
pub mod machine;
pub mod run;
