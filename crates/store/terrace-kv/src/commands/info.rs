//! The command INFO: figures of the server, with Redis' names where they exist.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use super::args::is;
use super::client::VERSION;
use super::context::Context;
use crate::blobs::DATABASES;
use crate::config::Durability;
use crate::error::Outcome;
use crate::server::Server;

/// A section: its name, and its lines.
type Section = (&'static str, fn(&Server, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

/// INFO [section...]
pub(super) fn info(context: &mut Context<'_>) -> Outcome {
    let wanted = context.args;
    let all = wanted.len() == 1
        || wanted.from(1).any(|word| ["all", "default", "everything"].iter().any(|every| is(word, every)));
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if all || wanted.from(1).any(|word| is(word, name)) {
            let gap = if text.is_empty() { "" } else { "\r\n" };
            let _ = write!(text, "{gap}# {name}\r\n");
            write(context.server, &mut text);
        }
    }
    context.reply.verbatim(&text);
    Ok(())
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn server(server: &Server, text: &mut String) {
    let mode = if server.config.cluster.is_some() { "cluster" } else { "standalone" };
    line(text, "redis_version", VERSION);
    line(text, "terrace_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", mode);
    line(text, "os", "Linux");
    line(text, "arch_bits", 64);
    line(text, "process_id", std::process::id());
    line(text, "tcp_port", server.config.port);
    line(text, "uptime_in_seconds", server.since.elapsed().as_secs());
    line(text, "io_threads", server.config.all_threads());
}

fn clients(server: &Server, text: &mut String) {
    line(text, "connected_clients", server.clients.len());
    line(text, "maxclients", server.config.clients_max);
    line(text, "buffers_bytes", server.clients.buffers_bytes());
    line(text, "buffers_max_bytes", server.config.buffers_bytes_max);
}

fn memory(server: &Server, text: &mut String) {
    let (used, limit) = server.keyspace.blobs().memory();
    line(text, "used_memory", used);
    line(text, "maxmemory", limit);
    line(text, "maxmemory_policy", "noeviction");
    line(text, "decoded_bytes", server.keyspace.memory_bytes());
    line(text, "mem_allocator", "libc");
}

fn persistence(server: &Server, text: &mut String) {
    line(text, "loading", 0);
    line(text, "aof_enabled", u8::from(server.config.durability != Durability::Never));
    let failure = server.keyspace.blobs().sync_failure();
    line(text, "aof_last_write_status", if failure.is_some() { "err" } else { "ok" });
    if let Some(failure) = failure {
        line(text, "sync_failure", failure);
    }
}

fn stats(server: &Server, text: &mut String) {
    let (came, refused) = server.clients.totals();
    let (counters, keys) = (&server.counters, server.keyspace.counters());
    line(text, "total_connections_received", came);
    line(text, "rejected_connections", refused);
    line(text, "total_commands_processed", load(&counters.commands));
    line(text, "total_error_replies", load(&counters.errors));
    line(text, "total_net_input_bytes", load(&counters.input_bytes));
    line(text, "total_net_output_bytes", load(&counters.output_bytes));
    line(text, "closed_clients", load(&counters.closed));
    line(text, "wrong_passwords", load(&counters.wrong_passwords));
    line(text, "expired_keys", load(&keys.expired));
    line(text, "keyspace_hits", load(&keys.hits));
    line(text, "keyspace_misses", load(&keys.misses));
}

fn replication(_: &Server, text: &mut String) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
}

fn cluster(server: &Server, text: &mut String) {
    line(text, "cluster_enabled", u8::from(server.config.cluster.is_some()));
}

fn keyspace(server: &Server, text: &mut String) {
    for db in 0..DATABASES {
        let keys = server.keyspace.len(db);
        if keys > 0 {
            let expires = server.keyspace.volatile(db);
            line(text, &format!("db{db}"), format_args!("keys={keys},expires={expires},avg_ttl=0"));
        }
    }
}
