//! Search for the instance that uses a target.

use std::path::{Path, PathBuf};

use crate::instance::{self, Info};

/// Finds the instance that uses a target, by its record or its process.
pub(super) fn user_of(path: &Path, pid: Option<i32>) -> Option<Info> {
    let same = |tier: &PathBuf| tier == path || tier.canonicalize().ok() == path.canonicalize().ok();
    let is_it = |info: &Info| {
        let process = instance::in_our_pid_namespace(info) && pid == Some(info.pid);
        process || info.tiers.iter().any(same)
    };
    instance::living().into_iter().map(|(_, info)| info).find(is_it)
}
