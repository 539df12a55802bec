//! terraced's answers to commands on the control socket.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Pid;
use terrace_api::control::{
    AgeReply, CheckReply, CommandError, Done, DropCachesReply, ErrorCode, LruReply, MrcReply, NumaReply,
    PidReply, Reply, Request, StageReply, StatReply,
};
use terrace_api::stats::Stats;
use terrace_engine::Engine;
use terrace_engine::lru::Refused;

use super::leases::{self, Served};
use super::memory::Shown;
use super::record;
use super::recording::Recording;
use super::stop::Stopper;
use crate::control::{Answer, Record};
use crate::error::reason;
use crate::handover::Shared;
use crate::tier::live::Live;

/// Answers from the engine.
pub(super) struct Answers {
    engine: Arc<Engine>,
    stopper: Arc<Stopper>,
    supervisor: Pid,
    mnt: PathBuf,
    /// Path of the source, as `/proc` shows it.
    root: PathBuf,
    sizing: Shown,
    leases: Option<Served>,
    tiers: Arc<Live>,
}

impl Answers {
    pub(super) fn new(
        engine: Arc<Engine>,
        stopper: Arc<Stopper>,
        sizing: Shown,
        shared: &Shared,
        (leases, tiers): (Option<Served>, Arc<Live>),
    ) -> Answers {
        let mnt = shared.place.mnt.clone();
        let root = record::root(shared);
        let supervisor = shared.supervisor;
        Answers { engine, stopper, supervisor, mnt, root, sizing, leases, tiers }
    }

    fn stats(&self) -> Stats {
        let mut stats = self.engine.stats();
        stats.memory.sizing = Some(self.sizing.lock().clone());
        stats.tiers.extend(self.tiers.off());
        if let Some(served) = &self.leases {
            served.count(&mut stats);
        }
        stats
    }

    /// Without the supervisor, a crash of terraced ends the mount: only the supervisor holds the resources
    /// that outlive it.
    fn supervisor_lives(&self) -> bool {
        rustix::process::getppid() == Some(self.supervisor)
    }
}

fn refused(why: Refused) -> CommandError {
    let code = match why {
        Refused::NoGenerations(_) => ErrorCode::NoGenerations,
        Refused::TooYoung { .. } => ErrorCode::Refused,
    };
    CommandError::new(code, why)
}

/// The engine refuses a size without an error of the system, which a failed writeback has.
fn not_resized(err: std::io::Error) -> CommandError {
    let is_refusal = err.kind() == std::io::ErrorKind::InvalidInput && err.raw_os_error().is_none();
    CommandError::new(if is_refusal { ErrorCode::Refused } else { ErrorCode::Failed }, reason(err))
}

/// Answers the commands that need only the engine.
pub(crate) fn of_engine(engine: &Engine, request: Request) -> Result<Reply, CommandError> {
    Ok(match request {
        Request::DropCaches(_) => Reply::DropCaches(DropCachesReply { pages: engine.drop_clean() }),
        Request::Check(_) => Reply::Check(CheckReply { disagreements: engine.check() }),
        Request::Resize(to) if !to.auto => {
            engine.resize(to.bytes).map_err(not_resized)?;
            Reply::Resize(Done {})
        }
        Request::Mrc(_) => Reply::Mrc(MrcReply { mrc: engine.mrc() }),
        Request::Numa(_) => Reply::Numa(NumaReply { numa: Box::new(engine.numa()) }),
        Request::Lru(_) => Reply::Lru(LruReply { lru: Box::new(engine.lru()) }),
        Request::Age(_) => Reply::Age(AgeReply { seq: engine.lru_age().map_err(refused)? }),
        Request::Evict(what) => {
            Reply::Evict(engine.lru_evict(what.seq, what.pages.unwrap_or(u64::MAX)).map_err(refused)?)
        }
        Request::Trace(_) => {
            return Err(CommandError::new(ErrorCode::Usage, "a trace has a connection of its own"));
        }
        _ => return Err(CommandError::new(ErrorCode::Usage, "this instance does not know the command")),
    })
}

impl Answer for Answers {
    fn answer(&self, request: Request) -> Result<Reply, CommandError> {
        let (engine, failed) = (&self.engine, |err: std::io::Error| CommandError::failed(reason(err)));
        Ok(match request {
            Request::Stat(_) => Reply::Stat(StatReply {
                stat: Box::new(self.stats()),
                supervisor_lives: self.supervisor_lives(),
                kv: None,
            }),
            Request::Sync(_) => {
                engine.flush_all(true).map_err(failed)?;
                Reply::Sync(Done {})
            }
            Request::Resize(to) if to.auto => {
                engine.resize_auto();
                Reply::Resize(Done {})
            }
            Request::TierAdd(asked) => {
                if self.leases.is_some() {
                    leases::sync_at_the_end(engine, &self.root).map_err(failed)?;
                }
                Reply::TierAdd(self.tiers.add(&asked)?)
            }
            Request::TierRemove(asked) => Reply::TierRemove(self.tiers.remove(&asked)?),
            Request::TierResize(asked) => Reply::TierResize(self.tiers.resize(&asked)?),
            Request::Stage(part) => {
                let none = || CommandError::new(ErrorCode::Usage, "this instance has a mount");
                let served = self.leases.as_ref().ok_or_else(none)?;
                let bytes = served.stage(engine, &self.root, &part).map_err(failed)?;
                Reply::Stage(StageReply { bytes })
            }
            Request::Stop(how) => Reply::Stop(self.stopper.stop(how.lazy, how.lose)?),
            Request::Release(_) => Reply::Release(self.stopper.release()?),
            Request::Pid(_) => Reply::Pid(PidReply {
                supervisor: self.supervisor.as_raw_pid(),
                terraced: std::process::id(),
                mnt: self.mnt.clone(),
            }),
            other => return of_engine(engine, other),
        })
    }

    fn record(&self) -> Result<Box<dyn Record>, CommandError> {
        match Recording::begin(&self.engine, &self.root) {
            Some(recording) => Ok(Box::new(recording)),
            None => Err(CommandError::new(ErrorCode::Busy, "a trace is being recorded already")),
        }
    }
}
