//! terraced's answers to commands.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Pid;
use serde_json::{Value, json};
use terrace_engine::Engine;
use terrace_engine::lru::Refused;

use super::recording::Recording;
use super::stop::Stopper;
use crate::control::{Answer, No, Record, Request};
use crate::error::reason;
use crate::keeper::Shared;

/// Answers from the engine.
#[derive(Debug)]
pub struct Answers {
    engine: Arc<Engine>,
    stopper: Arc<Stopper>,
    keeper: Pid,
    mnt: PathBuf,
}

impl Answers {
    /// For this instance.
    pub fn new(engine: Arc<Engine>, stopper: Arc<Stopper>, shared: &Shared) -> Answers {
        Answers { engine, stopper, keeper: shared.keeper, mnt: shared.place.mnt.clone() }
    }
}

impl Answers {
    /// Without a keeper a crash of terraced would end the mount: only the keeper holds what must outlive it.
    fn keeper_lives(&self) -> bool {
        rustix::process::getppid() == Some(self.keeper)
    }
}

fn refused(why: Refused) -> No {
    No { code: "refused", why: why.to_string() }
}

impl Answer for Answers {
    fn answer(&self, request: Request) -> Result<Value, No> {
        let failed = |err: std::io::Error| No::failed(reason(err));
        match request {
            Request::Stat => Ok(json!({"stat": self.engine.stats(), "keeper_lives": self.keeper_lives()})),
            Request::Flush => self.engine.flush_all(true).map(|()| json!({})).map_err(failed),
            Request::Drop => Ok(json!({"pages": self.engine.drop_clean()})),
            Request::Check => Ok(json!({"disagreements": self.engine.check()})),
            Request::Resize { bytes } => self.engine.resize(bytes).map(|()| json!({})).map_err(failed),
            Request::Stop { lazy, lose } => {
                let stopped = self.stopper.stop(lazy, lose)?;
                Ok(json!({"in_use": stopped.in_use, "lost": stopped.lost}))
            }
            Request::Pid => Ok(
                json!({"keeper": self.keeper.as_raw_pid(), "terraced": std::process::id(), "mnt": self.mnt}),
            ),
            Request::Mrc => Ok(json!({"mrc": self.engine.mrc()})),
            Request::Lru => Ok(json!({"lru": self.engine.lru()})),
            Request::Age => self.engine.lru_age().map(|seq| json!({"seq": seq})).map_err(refused),
            Request::Evict { seq, pages } => {
                let done = self.engine.lru_evict(seq, pages.unwrap_or(u64::MAX)).map_err(refused)?;
                Ok(json!({"evicted": done.evicted, "kept": done.kept}))
            }
            Request::Trace => {
                Err(No { code: "usage", why: "a trace has a connection of its own".to_owned() })
            }
        }
    }

    fn record(&self) -> Result<Box<dyn Record>, No> {
        match Recording::begin(&self.engine) {
            Some(recording) => Ok(Box::new(recording)),
            None => Err(No { code: "busy", why: "a trace is being recorded already".to_owned() }),
        }
    }
}
