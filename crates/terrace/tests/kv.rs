//! Tests of `terrace serve kv` from outside: data that survive each kind of death, several servers,
//! refusals.

#[path = "kv/client.rs"]
mod client;
#[path = "kv/test_server.rs"]
mod test_server;

#[path = "kv/cluster.rs"]
mod cluster;
#[path = "kv/crashes.rs"]
mod crashes;
#[path = "kv/histories.rs"]
mod histories;
#[path = "kv/limits.rs"]
mod limits;
#[path = "kv/memcached.rs"]
mod memcached;
#[path = "kv/memory.rs"]
mod memory;
#[path = "kv/model.rs"]
mod model;
