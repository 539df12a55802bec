//! Threads and their data on machines of several memory nodes: the policy of the daemon (`terrace_policy::numa`) in a model of the paper's
//! machines, which are not at hand.
//!
//! [`machine`] is the model, [`load`] what threads do, [`run`] a load under a policy, [`cells`] the comparison.

pub mod cells;
pub mod load;
pub mod machine;
pub mod run;
