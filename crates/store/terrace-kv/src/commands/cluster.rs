//! The command CLUSTER: the cluster map in the formats of clients, and the keys of a slot. READONLY and
//! similar commands have no effect.

use super::args::{int, is};
use super::context::Context;
use super::subcommands::help_or_refuse;
use crate::cluster::slot::{SLOTS, slot_of};
use crate::cluster::{Cluster, Node};
use crate::error::{Outcome, Refusal};
use crate::keyspace::Keyspace;
use crate::wire::Reply;

/// READONLY, READWRITE, ASKING: no effect, since there are no replicas, and slots do not move.
pub(super) fn ok(context: &mut Context<'_>) -> Outcome {
    map_of(context)?;
    context.reply.ok();
    Ok(())
}

fn map_of<'a>(context: &Context<'a>) -> Outcome<&'a Cluster> {
    let cluster = context.server.config.cluster.as_ref();
    cluster.ok_or_else(|| Refusal::err("This instance has cluster support disabled"))
}

pub(super) fn cluster(context: &mut Context<'_>) -> Outcome {
    let (cluster, what, args) = (map_of(context)?, context.args.at(1), context.args);
    let reply = &mut context.reply;
    match (args.len(), args.get(2)) {
        (2, _) if is(what, "SLOTS") => slots(cluster, reply),
        (2, _) if is(what, "SHARDS") => shards(cluster, reply),
        (2, _) if is(what, "NODES") => reply.verbatim(&cluster.describe()),
        (2, _) if is(what, "INFO") => reply.verbatim(&info(cluster)),
        (2, _) if is(what, "MYID") => reply.text(&cluster.own().id),
        (2, _) if is(what, "LINKS") => reply.array(0),
        (3, Some(key)) if is(what, "KEYSLOT") => reply.int(slot_of(key)),
        (3, Some(slot)) if is(what, "COUNTKEYSINSLOT") => {
            let mut count = 0;
            each_key_in_slot(context.keyspace(), slot, |_| {
                count += 1;
                true
            })?;
            context.reply.int(count);
        }
        (4, Some(slot)) if is(what, "GETKEYSINSLOT") => {
            let count = usize::try_from(int(args.at(3))?).map_err(|_| Refusal::OutOfRange)?;
            keys_in_slot(context, slot, count)?;
        }
        _ => return help_or_refuse(context),
    }
    Ok(())
}

fn info(cluster: &Cluster) -> String {
    let nodes = cluster.nodes().len();
    format!(
        "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{SLOTS}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\ncluster_size:{nodes}\r\n\
         cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
    )
}

/// Visits the keys of a slot until `visit` returns false, by a scan of all keys.
fn each_key_in_slot(keyspace: &Keyspace, slot: &[u8], mut visit: impl FnMut(&[u8]) -> bool) -> Outcome {
    let slot = u16::try_from(int(slot)?).ok().filter(|slot| *slot < SLOTS);
    let slot = slot.ok_or_else(|| Refusal::err("Invalid slot"))?;
    keyspace.each_key(0, |key| slot_of(key) != slot || visit(key));
    Ok(())
}

fn keys_in_slot(context: &mut Context<'_>, slot: &[u8], max: usize) -> Outcome {
    let (keyspace, reply) = (context.keyspace(), &mut context.reply);
    let (mark, mut count) = (reply.mark(), 0);
    each_key_in_slot(keyspace, slot, |key| {
        if count < max {
            reply.bulk(key);
            count += 1;
        }
        count < max && !reply.is_truncated()
    })?;
    reply.array_since(mark, count);
    Ok(())
}

fn slots(cluster: &Cluster, reply: &mut Reply<'_>) {
    let ranges: Vec<_> =
        cluster.nodes().iter().flat_map(|node| node.slots.iter().map(move |slots| (node, slots))).collect();
    reply.array(ranges.len());
    for (node, slots) in ranges {
        reply.array(3);
        reply.int(*slots.start());
        reply.int(*slots.end());
        reply.array(4);
        reply.text(&node.host);
        reply.int(node.port);
        reply.text(&node.id);
        reply.array(0);
    }
}

fn shards(cluster: &Cluster, reply: &mut Reply<'_>) {
    reply.array(cluster.nodes().len());
    for node in cluster.nodes() {
        reply.map(2);
        reply.text("slots");
        reply.array(2 * node.slots.len());
        for slots in &node.slots {
            reply.int(*slots.start());
            reply.int(*slots.end());
        }
        reply.text("nodes");
        reply.array(1);
        shard_node(node, reply);
    }
}

fn shard_node(node: &Node, reply: &mut Reply<'_>) {
    reply.map(7);
    reply.text("id");
    reply.text(&node.id);
    reply.text("port");
    reply.int(node.port);
    for (key, value) in [("ip", &*node.host), ("endpoint", &*node.host), ("role", "master")] {
        reply.text(key);
        reply.text(value);
    }
    reply.text("replication-offset");
    reply.int(0);
    reply.text("health");
    reply.text("online");
}
