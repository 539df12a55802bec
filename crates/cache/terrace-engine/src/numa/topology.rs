//! The machine's topology from /sys: nodes, their processors and distances, caches, kinds of memory, and the
//! nodes of devices.
//!
//! This file parses a few small files itself, which saves a C library. Tests pass another root directory to
//! simulate machines. Missing files mean a kernel without NUMA: one node with all processors.

use std::fs;
use std::path::Path;
use terrace_system::list;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    /// The kernel's number.
    pub(crate) number: u32,
    /// Processors; none: memory only (CXL, persistent memory as memory).
    pub(crate) cpus: Vec<usize>,
    /// Memory, bytes; 0: unknown.
    pub(crate) memory_bytes: u64,
    /// The kernel's distance to each node of [`Topology::nodes`]; 10: the node itself.
    pub(crate) distances: Vec<u32>,
    /// The kernel's memory tier, 0 is the fastest; None: the kernel has no tiers.
    pub(crate) memory_tier: Option<u32>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Online nodes, by number. All other code uses indexes of this list.
    pub(crate) nodes: Vec<NodeInfo>,
    /// Processors that share a last-level cache.
    pub(crate) l3: Vec<Vec<usize>>,
}

impl Topology {
    /// Reads the topology below `sys`: /sys, except in tests.
    pub(crate) fn read(sys: &Path) -> Topology {
        let at = sys.join("devices/system/node");
        let numbers = text(&at.join("online")).map(|text| list(&text)).unwrap_or_default();
        let mut nodes: Vec<NodeInfo> = numbers.iter().map(|&n| node(&at, n as u32)).collect();
        if nodes.is_empty() {
            let cpus = text(&sys.join("devices/system/cpu/online")).map(|text| list(&text));
            let cpus = cpus.unwrap_or_else(|| vec![0]);
            nodes =
                vec![NodeInfo { number: 0, cpus, memory_bytes: 0, distances: vec![10], memory_tier: None }];
        }
        let mut topology = Topology { nodes, l3: Vec::new() };
        topology.read_distances(&at);
        topology.read_tiers(&sys.join("devices/virtual/memory_tiering"));
        topology.read_caches(&sys.join("devices/system/cpu"));
        topology
    }

    pub(crate) fn node_of_cpu(&self, cpu: usize) -> Option<usize> {
        self.nodes.iter().position(|node| node.cpus.contains(&cpu))
    }

    /// Index of the node with the kernel's number `number`.
    pub(crate) fn place_of(&self, number: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.number == number)
    }

    /// Index of a block device's node, if it has one: persistent memory, and devices on a socket's own bus.
    pub(crate) fn node_of_device(&self, sys: &Path, major: u32, minor: u32) -> Option<usize> {
        let at = sys.join(format!("dev/block/{major}:{minor}"));
        // A partition's directory has no `device`; its disk's directory, one level above, has.
        let found = ["device/numa_node", "../device/numa_node"].iter().find_map(|name| text(&at.join(name)));
        self.place_of(found?.trim().parse().ok()?)
    }

    /// Each file has the distances of its node to all online nodes, in their order.
    fn read_distances(&mut self, at: &Path) {
        let known = self.nodes.len();
        for node in &mut self.nodes {
            let line = text(&at.join(format!("node{}/distance", node.number))).unwrap_or_default();
            let found: Vec<u32> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            if found.len() == known {
                node.distances = found;
            }
        }
    }

    fn read_tiers(&mut self, at: &Path) {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("memory_tier")?.parse().ok());
            let nodes = text(&entry.path().join("nodelist")).unwrap_or_default();
            for node in list(&nodes) {
                if let Some(node) = self.nodes.iter_mut().find(|known| known.number as usize == node) {
                    node.memory_tier = number;
                }
            }
        }
    }

    fn read_caches(&mut self, at: &Path) {
        let cpus: Vec<usize> = self.nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        for cpu in cpus {
            let Some(cpus) = text(&at.join(format!("cpu{cpu}/cache/index3/shared_cpu_list"))) else {
                continue;
            };
            let shared = list(&cpus);
            if !shared.is_empty() && !self.l3.contains(&shared) {
                self.l3.push(shared);
            }
        }
    }
}

fn node(at: &Path, number: u32) -> NodeInfo {
    let dir = at.join(format!("node{number}"));
    let cpus = text(&dir.join("cpulist")).map(|text| list(&text)).unwrap_or_default();
    let total = |line: &str| line.split_once("MemTotal:")?.1.split_whitespace().next()?.parse::<u64>().ok();
    let kib = text(&dir.join("meminfo")).and_then(|info| info.lines().find_map(total));
    NodeInfo { number, cpus, memory_bytes: kib.unwrap_or(0) * 1024, distances: Vec::new(), memory_tier: None }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated /sys: files and their contents.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn two_sockets_and_a_cxl_node_are_found() {
        let sys = machine(&[
            ("devices/system/node/online", "0-1,3\n"),
            ("devices/system/node/node0/cpulist", "0-1\n"),
            ("devices/system/node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 1 kB\n"),
            ("devices/system/node/node0/distance", "10 21 31\n"),
            ("devices/system/node/node1/cpulist", "2-3\n"),
            ("devices/system/node/node1/distance", "21 10 31\n"),
            ("devices/system/node/node3/cpulist", "\n"),
            ("devices/system/node/node3/distance", "31 31 10\n"),
            ("devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1\n"),
            ("devices/virtual/memory_tiering/memory_tier22/nodelist", "3\n"),
            ("devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "0-1\n"),
            ("devices/system/cpu/cpu1/cache/index3/shared_cpu_list", "0-1\n"),
            ("devices/system/cpu/cpu2/cache/index3/shared_cpu_list", "2-3\n"),
            ("dev/block/259:1/device/numa_node", "1\n"),
            ("dev/block/8:0/device/numa_node", "-1\n"),
        ]);
        let found = Topology::read(sys.path());
        assert_eq!(found.nodes.iter().map(|n| n.number).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!((found.nodes[0].memory_bytes, found.nodes[0].distances[2]), (1 << 20, 31));
        assert_eq!(
            found.nodes.iter().map(|n| n.memory_tier).collect::<Vec<_>>(),
            [Some(4), Some(4), Some(22)]
        );
        assert_eq!((found.node_of_cpu(3), found.node_of_cpu(9)), (Some(1), None));
        assert!(found.nodes[2].cpus.is_empty());
        assert_eq!(found.l3, [vec![0, 1], vec![2, 3]]);
        assert_eq!(found.node_of_device(sys.path(), 259, 1), Some(1));
        assert_eq!(found.node_of_device(sys.path(), 8, 0), None, "no node");
        assert_eq!(found.node_of_device(sys.path(), 8, 1), None, "no such device");
    }

    #[test]
    fn kernel_without_nodes_has_one() {
        let sys = machine(&[("devices/system/cpu/online", "0-3\n")]);
        let found = Topology::read(sys.path());
        assert_eq!((found.nodes.len(), found.nodes[0].cpus.len()), (1, 4));
        assert_eq!(Topology::read(Path::new("/nowhere")).nodes.len(), 1);
    }

    #[test]
    fn node_that_is_offline_is_none() {
        let sys = machine(&[
            ("devices/system/node/online", "1\n"),
            ("devices/system/node/node0/cpulist", "0-1\n"),
            ("devices/system/node/node1/cpulist", "2-3\n"),
        ]);
        let found = Topology::read(sys.path());
        assert_eq!((found.nodes.len(), found.node_of_cpu(0), found.node_of_cpu(2)), (1, None, Some(0)));
    }

    #[test]
    fn this_machine_has_a_node_for_this_thread() {
        let found = Topology::read(Path::new("/sys"));
        assert!(!found.nodes.is_empty() && found.nodes.iter().any(|node| !node.cpus.is_empty()));
    }
}
