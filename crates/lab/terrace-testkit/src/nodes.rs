//! A simulated machine of several memory nodes: files in the format of /sys, which code under test reads
//! instead.

use std::fs;
use std::path::Path;

/// Creates below `sys` the files of nodes with these processors, in the kernel's format, all online.
///
/// # Panics
/// The files cannot be written.
pub fn feign(sys: &Path, cpus: &[&str]) {
    let nodes = sys.join("devices/system/node");
    for (n, cpus) in cpus.iter().enumerate() {
        let node = nodes.join(format!("node{n}"));
        fs::create_dir_all(&node).expect("a directory of a node");
        fs::write(node.join("cpulist"), cpus).expect("a list of processors");
    }
    fs::write(nodes.join("online"), format!("0-{}", cpus.len() - 1)).expect("a list of nodes");
}
