//! terraced: the body of the daemon. It inherits its resources from the supervisor, serves until a stop or the
//! end of the mount, and exits.
//!
//! | thread | does |
//! |---|---|
//! | `terraced` | starts the others, serves the mount path or gives leases back, ends the process |
//! | `fuser-N` | answer requests of the kernel |
//! | `leases` | takes leases again after writers have gone |
//! | `reclaim`, `writeback`, `sample`, `prefetch-N`, `ahead`, `follow`, `numa`, `device-N` | threads of the engine |
//! | `preload`, `drain`, `syncfs`, `close` | threads of the preload server |
//! | `stores` | tries stores again that failed at the start |
//! | `control` | answers commands |
//! | `metrics` | answers scrapes of Prometheus |
//! | `signals` | SIGTERM: an orderly stop |
//! | `ready` | closes the predecessor's orphan descriptors, then reports to the supervisor |
//! | `memory` | keeps the cache within the memory of the machine and its control groups |
//! | `mounts` | follows the mount table: mounts of terrace below the source are not entered |
//! | `record` | records the unwritten data, for reports after a crash of all processes |

mod answers;
mod crossings;
mod front;
mod leases;
mod memory;
pub(crate) mod metrics;
mod mount_path;
mod orphan_fds;
mod record;
mod recording;
pub(crate) mod replay;
mod reserve;
mod stop;
mod thread;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use terrace_engine::Engine;

use crate::control::Server;
use crate::data_loss;
use crate::engine;
use crate::error::{Failure, Result, SEE_ALL_MESSAGES, reason};
use crate::handover::{EXIT_LOST, EXIT_REFUSED, Shared};
use crate::sys;
use crate::tier::{self, live::Live};

pub(crate) use answers::of_engine;
use memory::Guard;
use orphan_fds::OrphanFds;
use stop::Stopper;
pub(crate) use thread::thread;

/// Exit status after an error while serving: the supervisor starts another terraced.
const EXIT_FAILED: i32 = 1;

/// Outcome of an instance after its unmount.
enum Served {
    /// All data are in the source.
    Written,
    /// The source refused data: a line with bytes, files, and the reason.
    Lost(String),
}

/// Time for the client to read the last answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// For tests: terraced panics once the file of this name exists, and removes it.
const PANIC_AT: &str = "TERRACE_TEST_PANIC_AT";

/// Body of the process. It runs on a fresh thread, because glibc's main-thread state is the supervisor's.
pub(crate) fn main(shared: Shared, recovering: bool) -> ! {
    let _ = rustix::thread::set_name(c"terraced");
    sys::set_oom_score_adj(shared.oom_score_adj);
    abort_on_panic();
    // If the supervisor dies before its `go`, terraced would wait for ever.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if rustix::process::getppid() != Some(shared.supervisor) {
        sys::exit_now(EXIT_FAILED) // The supervisor died before the signal was set.
    }
    // Leaked on purpose: dropping it would close descriptors of the supervisor, which shares the table.
    let shared: &'static mut Shared = Box::leak(Box::new(shared));
    let (recorded, is_recorded) = std::sync::mpsc::channel();
    let life = std::thread::Builder::new().name("terraced".to_owned()).spawn(move || {
        wait_for_go(shared);
        live(shared, recovering, recorded)
    });
    // Not before info.json names this process. With a dead supervisor, a mount counts as dead if its record
    // names no living terraced. The next instance would then begin while this process still writes.
    let done = is_recorded.recv();
    let _ = rustix::process::set_parent_process_death_signal(None);
    drop(done);
    sys::exit_now(life.ok().and_then(|life| life.join().ok()).unwrap_or(EXIT_FAILED))
}

/// Waits for the supervisor, which opens a descriptor to watch this thread. None may be opened during a
/// recovery.
fn wait_for_go(shared: &mut Shared) {
    shared.to_supervisor.say(&format!("thread {}", rustix::thread::gettid().as_raw_pid()));
    wait_for_byte(&shared.go);
}

fn wait_for_byte(go: impl AsFd) {
    let _ = rustix::io::retry_on_intr(|| rustix::io::read(&go, &mut [0u8; 1]));
}

/// Turns every panic into a crash: the next terraced repairs half-done work.
pub(crate) fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn live(shared: &mut Shared, recovering: bool, recorded: Sender<Sender<()>>) -> i32 {
    match serve(shared, recovering, recorded) {
        Ok(Served::Written) => {
            clean_up_for_dead_supervisor(shared);
            0
        }
        Ok(Served::Lost(line)) => {
            let cure = "what fsync acknowledged is safe; check the source and its storage";
            let failure = Failure::new(shared.place.src.display(), line, cure);
            shared.to_supervisor.say(&format!("failed {failure}"));
            EXIT_LOST
        }
        Err(failure) => {
            tracing::error!("{failure}");
            shared.to_supervisor.say(&format!("failed {failure}"));
            if recovering { EXIT_FAILED } else { EXIT_REFUSED }
        }
    }
}

/// Serves from start to unmount.
fn serve(shared: &mut Shared, recovering: bool, recorded: Sender<Sender<()>>) -> Result<Served> {
    let mut orphan_fds = match recovering {
        true => OrphanFds::find(shared).map_err(no_descriptors)?,
        false => OrphanFds::default(),
    };
    orphan_fds.finish_writes().map_err(no_rings)?;
    let mut guard = Guard::new(&shared.shortage, shared.memory.limit(&shared.config));
    if recovering {
        guard.make_room(&shared.memory);
        tier::record::take_over(shared);
    }
    // 1. The engine and the namespace over the inherited memory and descriptors.
    let engine = engine::start(&shared.config, &shared.memory, &shared.tier.held, &shared.instance)
        .map_err(no_cache)?;
    guard.look(&engine, &shared.memory);
    let taken_over = recovering.then(|| orphan_fds.named());
    let front = front::connect(shared, &engine, taken_over).map_err(no_mount)?;
    // 2. Threads that answer requests.
    engine.serve().map_err(no_cache)?;
    replay::before_serving(&engine, shared.place.src_fd.as_fd(), recovering)?;
    let control = Arc::new(Server::default());
    let stopper = Arc::new(Stopper::new(engine.clone(), shared, &front).map_err(no_copy)?);
    let (begun, serves) = std::sync::mpsc::channel();
    let tiers = Arc::new(Live::new(engine.clone(), shared));
    tiers.clone().try_stores_again().map_err(no_threads)?;
    let also = (front.leases(), tiers);
    let answers = answers::Answers::new(engine.clone(), stopper.clone(), guard.shown(), shared, also);
    start_threads(shared, &engine, (&control, Arc::new(answers)), &stopper, orphan_fds, (serves, recorded))
        .map_err(no_threads)?;
    guard.start(&engine, shared).map_err(no_threads)?;
    let schedule = shared.schedule.take();
    let begin = || {
        schedule.into_iter().for_each(|schedule| front.follow(shared, &engine, &schedule));
        begun.send(()).unwrap_or_default();
    };
    // 3. The front, until its end or a stop. If it fails, the next terraced gets the unwritten data.
    if let Err(err) = front.run(begin) {
        let _ = engine.flush_all(true);
        return Err(no_mount(err));
    }
    // 4. The last writes: the unmount makes the kernel write its dirty pages.
    let written = stopper.write_the_rest();
    record::note(&engine, shared);
    let served = match written {
        Ok(()) => Served::Written,
        Err(err) => {
            let why = reason(err);
            let unwritten = record::now(&engine, &record::root(shared));
            data_loss::note_refusal(&shared.instance, &why);
            Served::Lost(format!("{}: lost, the source refuses it: {why}", data_loss::described(&unwritten)))
        }
    };
    control.finish(ANSWER_WITHIN);
    // The record of lost data finds file names through their descriptors, so they stay open.
    if matches!(served, Served::Written) {
        shared.to_supervisor.say("done");
        front.close();
    }
    Ok(served)
}

fn start_threads(
    shared: &mut Shared,
    engine: &Arc<Engine>,
    (control, answers): (&Arc<Server>, Arc<answers::Answers>),
    stopper: &Arc<Stopper>,
    orphan_fds: OrphanFds,
    (serves, recorded): (Receiver<()>, Sender<Sender<()>>),
) -> std::io::Result<()> {
    let (listener, control) = (shared.control.try_clone()?, control.clone());
    metrics::start(shared.metrics.as_ref(), &answers, &shared.instance)?;
    thread("control", move || control.serve(&listener, answers))?;
    let (preload, preload_engine) = (shared.preload.try_clone()?, engine.clone());
    thread("preload", move || {
        if let Err(err) = preload_engine.serve_preload(&preload) {
            tracing::error!("the preload path ends ({err}); programs continue on the slower mount path");
        }
    })?;
    let signalled = stopper.clone();
    thread("signals", move || signalled.obey_signals())?;
    record::start(engine, shared)?;
    if let Some(path) = std::env::var_os(PANIC_AT) {
        // If the file exists at the start, terraced panics before it serves.
        assert!(std::fs::remove_file(&path).is_err(), "{PANIC_AT} asked for it");
        thread("panic", move || panic_when_there(path.as_ref()))?;
    }
    let (mut to_supervisor, go) = (shared.to_supervisor.try_clone()?, shared.go.try_clone()?);
    thread("ready", move || {
        // Closes the dead daemon's orphan descriptors, once the mount path serves. One of them may be a file
        // of the mount, passed by a client. Its close is a request to this very daemon.
        orphan_fds.close();
        // Only once the mount path has replaced its descriptors: above the lowered limit that is impossible.
        if serves.recv().is_err() {
            return; // The front has failed.
        }
        if let Err(err) = reserve::keep() {
            tracing::warn!(
                "no descriptors are reserved for a restart ({err}); a restarted terraced may lack some: raise the limit of open files"
            );
        }
        to_supervisor.say("ready");
        wait_for_byte(&go);
        // Waits until the main thread has cleared the parent-death signal.
        let (done, outlives) = std::sync::mpsc::channel();
        let _ = recorded.send(done);
        let _ = outlives.recv();
        to_supervisor.say("free");
    })
}

fn panic_when_there(path: &std::path::Path) {
    while std::fs::remove_file(path).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{PANIC_AT} asked for it");
}

fn clean_up_for_dead_supervisor(shared: &Shared) {
    if rustix::process::getppid() != Some(shared.supervisor) {
        shared.instance.remove();
    }
}

fn no_descriptors(err: std::io::Error) -> Failure {
    cannot("descriptors of the dead daemon cannot be listed", err)
}

fn no_rings(err: std::io::Error) -> Failure {
    cannot("rings of the dead daemon cannot be read", err)
}

fn no_cache(err: std::io::Error) -> Failure {
    cannot("the cache cannot start", err)
}

fn no_mount(err: std::io::Error) -> Failure {
    cannot("the mount cannot be served", err)
}

fn no_copy(err: std::io::Error) -> Failure {
    let what = "the channel to the supervisor cannot be duplicated";
    Failure::new(what, reason(err), "raise the limit of open files (`ulimit -n`)")
}

/// Threads also need copies of sockets.
fn no_threads(err: std::io::Error) -> Failure {
    let cure = "raise the limits of processes (`ulimit -u`, pids.max of the control group) and of open files";
    Failure::new("threads of the daemon cannot start", reason(err), cure)
}

fn cannot(what: &str, err: std::io::Error) -> Failure {
    Failure::new(what, reason(err), SEE_ALL_MESSAGES)
}
