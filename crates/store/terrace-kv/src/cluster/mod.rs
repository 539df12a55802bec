//! A cluster: several servers with one keyspace. A map in a file assigns slots of keys to servers; it does
//! not change while they run.
//!
//! Clients use Redis' cluster protocol. Any server sends the map (CLUSTER SLOTS, SHARDS, NODES), and clients
//! connect to the server of a slot. Any other server redirects them (MOVED). There are no replicas, and slots
//! do not move. The servers need no agreement: a failed server takes only its own slots down.
//!
//! ```toml
//! [[node]]
//! host = "10.0.0.1"
//! port = 7001
//! slots = ["0-4095"]      # single slots or ranges; together the nodes have all of 0-16383, none twice
//! ```

pub mod slot;

use std::fmt;
use std::fmt::Write;
use std::ops::RangeInclusive;

use serde::Deserialize;
use slot::{SLOTS, slot_of};

/// One server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// 40 hexadecimal digits, derived from host and port.
    pub(crate) id: String,
    /// Name or address that clients connect to.
    pub(crate) host: String,
    /// TCP port.
    pub(crate) port: u16,
    pub(crate) slots: Vec<RangeInclusive<u16>>,
}

/// The map, and this server's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    nodes: Vec<Node>,
    own: usize,
    /// The node of each slot.
    owners: Vec<u16>,
}

/// The server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// This server has the slot.
    Here,
    /// Another server has the slot.
    Moved(u16, &'a Node),
    /// The keys are in different slots.
    Crosses,
}

/// An unusable map: one line, without the file's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadMap(pub String);

impl fmt::Display for BadMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMap {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapFile {
    node: Vec<NodeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    host: String,
    port: u16,
    slots: Vec<String>,
}

impl Cluster {
    /// Parses a map. This server is the node with this port, and with this host if several nodes have the
    /// port.
    ///
    /// # Errors
    /// The text is not a map; slots are missing or assigned twice; the server is not in the map.
    pub fn parse(text: &str, host: &str, port: u16) -> Result<Cluster, BadMap> {
        let file: MapFile = toml::from_str(text).map_err(|err| {
            let line = err.to_string();
            BadMap(line.lines().next_back().unwrap_or_default().to_owned())
        })?;
        let nodes = file.node.into_iter().map(node).collect::<Result<Vec<_>, _>>()?;
        let owners = owners_of(&nodes)?;
        let with_port = |(_, node): &(usize, &Node)| node.port == port;
        let candidates: Vec<usize> = nodes.iter().enumerate().filter(with_port).map(|(at, _)| at).collect();
        let own = match candidates[..] {
            [one] => Some(one),
            _ => candidates.into_iter().find(|at| nodes[*at].host == host),
        };
        let own = own.ok_or_else(|| BadMap(format!("no node of the map has host {host} and port {port}")))?;
        Ok(Cluster { nodes, own, owners })
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }
    /// This server.
    pub(crate) fn own(&self) -> &Node {
        &self.nodes[self.own]
    }
    pub(crate) fn is_own(&self, node: &Node) -> bool {
        node.id == self.own().id
    }

    /// The server for a request with these keys.
    pub(crate) fn route<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> Route<'_> {
        let mut slots = keys.into_iter().map(slot_of);
        let Some(slot) = slots.next() else { return Route::Here };
        if slots.any(|other| other != slot) {
            return Route::Crosses;
        }
        match usize::from(self.owners[usize::from(slot)]) {
            own if own == self.own => Route::Here,
            other => Route::Moved(slot, &self.nodes[other]),
        }
    }

    /// CLUSTER NODES.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let flags = if self.is_own(node) { "myself,master" } else { "master" };
            let (id, host, port, bus) = (&node.id, &node.host, node.port, u32::from(node.port) + 10_000);
            let _ = write!(text, "{id} {host}:{port}@{bus} {flags} - 0 0 1 connected");
            for slots in &node.slots {
                let _ = match slots.start() == slots.end() {
                    true => write!(text, " {}", slots.start()),
                    false => write!(text, " {}-{}", slots.start(), slots.end()),
                };
            }
            text.push('\n');
        }
        text
    }
}

fn node(entry: NodeEntry) -> Result<Node, BadMap> {
    let NodeEntry { host, port, slots } = entry;
    let slots = slots.iter().map(|text| slots_of(text)).collect::<Result<Vec<_>, _>>()?;
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(BadMap(format!("host = {host:?} is no name of a host")));
    }
    Ok(Node { id: id_of(&host, port), host, port, slots })
}

fn slots_of(text: &str) -> Result<RangeInclusive<u16>, BadMap> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let slot = |text: &str| text.trim().parse().ok().filter(|slot| *slot < SLOTS);
    match (slot(first), slot(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(BadMap(format!("{text:?} is no range of slots; write \"0-4095\""))),
    }
}

/// Node id: FNV-1a of host and port, in two widths. The same at each start and on each server.
fn id_of(host: &str, port: u16) -> String {
    let name = format!("{host}:{port}");
    let wide = |seed: u128| {
        name.bytes().fold(seed, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
    };
    let first = wide(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    format!("{first:032x}{:08x}", wide(first) as u32)
}

fn owners_of(nodes: &[Node]) -> Result<Vec<u16>, BadMap> {
    let mut owners: Vec<Option<u16>> = vec![None; usize::from(SLOTS)];
    for (at, node) in nodes.iter().enumerate() {
        for slot in node.slots.iter().flat_map(Clone::clone) {
            match owners[usize::from(slot)].replace(at as u16) {
                None => {}
                Some(other) if usize::from(other) == at => {
                    let Node { host, port, .. } = node;
                    return Err(BadMap(format!("{host}:{port} has slot {slot} twice; write it once")));
                }
                Some(_) => return Err(BadMap(format!("two nodes have slot {slot}"))),
            }
        }
    }
    let missing = owners.iter().position(Option::is_none);
    match missing {
        Some(slot) => Err(BadMap(format!("no node has slot {slot}"))),
        None => Ok(owners.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = r#"
        [[node]]
        host = "127.0.0.1"
        port = 7001
        slots = ["0-8191", "16383"]
        [[node]]
        host = "127.0.0.1"
        port = 7002
        slots = ["8192-16382"]
    "#;

    #[test]
    fn keys_are_routed_by_the_map() {
        let cluster = Cluster::parse(MAP, "127.0.0.1", 7001).unwrap();
        // bar: 5061, foo: 12182.
        assert_eq!(cluster.route([b"bar".as_slice()]), Route::Here);
        assert_eq!(cluster.route([b"foo".as_slice()]), Route::Moved(12182, &cluster.nodes()[1]));
        assert_eq!(cluster.route([b"foo".as_slice(), b"bar"]), Route::Crosses);
        assert_eq!(cluster.route([b"{bar}1".as_slice(), b"bar"]), Route::Here);
        assert!(
            cluster
                .describe()
                .contains("127.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-8191 16383\n")
        );
        assert_eq!(cluster.own().id.len(), 40);
        let other = Cluster::parse(MAP, "127.0.0.1", 7002).unwrap();
        assert_eq!(other.nodes()[0].id, cluster.own().id, "each server gives the other the same id");
    }

    #[test]
    fn maps_with_errors_are_refused() {
        let refused = |text: &str| Cluster::parse(text, "127.0.0.1", 7001).unwrap_err().0;
        assert_eq!(refused(&MAP.replace("8192-16382", "8193-16382")), "no node has slot 8192");
        assert_eq!(refused(&MAP.replace("8192-16382", "8191-16382")), "two nodes have slot 8191");
        assert_eq!(
            refused(&MAP.replace("\"16383\"", "\"16383\", \"7\"")),
            "127.0.0.1:7001 has slot 7 twice; write it once"
        );
        assert!(refused(&MAP.replace("16383", "16384")).contains("no range of slots"));
        assert_eq!(
            refused(&MAP.replace("7001", "7009")),
            "no node of the map has host 127.0.0.1 and port 7001"
        );
        assert!(refused("[[node]]\nname = 1").contains("unknown field"));
    }
}
