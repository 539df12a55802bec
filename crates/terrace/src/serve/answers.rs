//! Answers of a server of keys to `terrace stat` and other commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::Pid;
use terrace_api::control::{CommandError, Done, ErrorCode, PidReply, Reply, Request, StatReply, StopReply};
use terrace_api::stats::KeyValue;
use terrace_api::tiers::TierRow;
use terrace_kv::Server;
use terrace_store::Store;

use crate::control::{Answer, Record};
use crate::daemon::of_engine;
use crate::serve::setup::ServerSetup;

/// Answers from the store and the server.
#[derive(Debug)]
pub(super) struct Answers {
    store: Store,
    server: Arc<Server>,
    supervisor: Option<Pid>,
    dir: PathBuf,
    /// Statistics rows of unusable tiers.
    tiers_off: Vec<TierRow>,
}

impl Answers {
    pub(super) fn new(
        store: Store,
        server: Arc<Server>,
        supervisor: Option<Pid>,
        setup: &ServerSetup,
    ) -> Answers {
        Answers { store, server, supervisor, dir: setup.dir.clone(), tiers_off: setup.tier.off() }
    }

    fn key_value(&self) -> KeyValue {
        let (server, keys) = (&self.server, self.server.keyspace.counters());
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyValue {
            keys: (0..terrace_kv::blobs::DATABASES).map(|db| server.keyspace.len(db)).sum(),
            clients: server.clients.len(),
            commands: load(&server.counters.commands),
            errors: load(&server.counters.errors),
            hits: load(&keys.hits),
            misses: load(&keys.misses),
            expired: load(&keys.expired),
            input_bytes: load(&server.counters.input_bytes),
            output_bytes: load(&server.counters.output_bytes),
            buffers_bytes: server.clients.buffers_bytes() as u64,
            decoded_bytes: server.keyspace.memory_bytes() as u64,
            sync_failure: self.store.sync_failure(),
        }
    }
}

fn refused(why: &str) -> CommandError {
    CommandError::new(ErrorCode::Refused, why)
}

impl Answer for Answers {
    fn answer(&self, request: Request) -> Result<Reply, CommandError> {
        Ok(match request {
            Request::Stat(_) => {
                let (mut stat, kv) = (Box::new(self.store.stats()), Some(self.key_value()));
                stat.tiers.extend(self.tiers_off.clone());
                let supervisor_lives = rustix::process::getppid() == self.supervisor;
                Reply::Stat(StatReply { stat, supervisor_lives, kv })
            }
            Request::Sync(_) => {
                self.store.sync().map_err(CommandError::failed)?;
                Reply::Sync(Done {})
            }
            Request::Stop(_) => {
                self.server.is_stopping.store(true, Ordering::Relaxed);
                Reply::Stop(StopReply::default())
            }
            Request::Pid(_) => Reply::Pid(PidReply {
                supervisor: self.supervisor.map_or(0, Pid::as_raw_pid),
                terraced: std::process::id(),
                mnt: self.dir.clone(),
            }),
            Request::Resize(to) if to.auto => {
                return Err(refused("a server of keys chooses its memory once, at its start"));
            }
            Request::TierAdd(_) | Request::TierRemove(_) | Request::TierResize(_) => {
                return Err(refused("a server of keys keeps the tiers of its start"));
            }
            other => return of_engine(self.store.engine(), other),
        })
    }

    fn record(&self) -> Result<Box<dyn Record>, CommandError> {
        Err(refused("a server of keys records no trace"))
    }
}
