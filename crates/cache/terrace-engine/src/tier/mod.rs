//! The writer of the tier on devices: appends pages to the log of a target, and reorganizes its regions.
//!
//! ```text
//!   append       batches of pages and records at the end of a target's log
//!   place        the target of each page
//!   regions      reclaim of the oldest region
//!   pages        pages of a region, from its keys
//!   organize     moves pages that are used together
//!   demote       pages that leave memory
//!   hibernate    pages in memory at a clean end
//!   intent       write-intent and destage-complete records
//!   park         pages of closed files
//!   trouble      failed reads of a target
//! ```

pub(crate) mod append;
pub(crate) mod demote;
pub(crate) mod hibernate;
pub(crate) mod intent;
pub(crate) mod organize;
pub(crate) mod pages;
pub(crate) mod park;
pub(crate) mod place;
pub(crate) mod regions;
pub(crate) mod trouble;
