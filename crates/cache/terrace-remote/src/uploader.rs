//! The uploader thread of a target in a store. It writes to the store in order, renews the lock, and probes a
//! failed store.

use crate::shared::{Request, SUPERBLOCKS, Shared};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time limit to put a region.
const PUT_WITHIN: Duration = Duration::from_secs(30);
/// Bounds of the pause between retries.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// After this time without failures, the pause starts at its minimum again.
const GOOD_AFTER: Duration = Duration::from_secs(60);

/// Body of the thread.
pub(crate) fn run(shared: &Shared) {
    let mut pause = Pause { next: PAUSE_MIN, failed: None };
    let mut renewed = None;
    while let Some(request) = next(shared, renewed) {
        if shared.health.reads_fail.load(Ordering::Acquire) && !pause.sleep(shared) {
            continue;
        }
        match step(shared, request, &mut renewed) {
            Ok(()) => {
                if shared.health.recover() {
                    tracing::info!("tier {}: the store works again", shared.name);
                }
                shared.changed.notify_all();
            }
            Err(why) => {
                shared.tell(&why);
                if !shared.health.reads_fail.load(Ordering::Acquire) {
                    pause.sleep(shared);
                }
            }
        }
        if shared.health.is_lost() {
            break;
        }
    }
    let mut queue = shared.queue.lock();
    queue.has_ended = true;
    shared.changed.notify_all();
}

/// Time since boot, including suspend: locks expire during suspend.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Waits for work, possibly without a request. None: the uploader must end.
fn next(shared: &Shared, renewed: Option<Duration>) -> Option<Option<Request>> {
    let mut queue = shared.queue.lock();
    loop {
        if queue.is_ending {
            return None;
        }
        let due = renewed.map_or(Duration::ZERO, |at| (at + shared.timing.renew).saturating_sub(now()));
        let request = queue.requests.front().cloned();
        if request.is_some() || due.is_zero() || shared.health.is_failing() {
            return Some(request);
        }
        shared.changed.wait_for(&mut queue, due);
    }
}

/// Does the due work. An error is the reason of a failure.
fn step(shared: &Shared, request: Option<Request>, renewed: &mut Option<Duration>) -> Result<(), String> {
    let (store, began) = (&shared.store, now());
    if renewed.is_none_or(|at| began >= at + shared.timing.renew) {
        match shared.lease.renew(store) {
            Ok(true) => *renewed = Some(began),
            Ok(false) => {
                let why = "another instance has taken the tier";
                tracing::error!(
                    "tier {}: {why}; this instance reads the source, and writes nothing more to the tier",
                    shared.name
                );
                shared.health.lose(why);
                shared.health.reads_fail.store(true, Ordering::Release);
                return Ok(());
            }
            Err(failed) => return Err(failed.why),
        }
    }
    if shared.health.reads_fail.load(Ordering::Acquire) {
        store.get(SUPERBLOCKS[0]).map_err(|failed| failed.why)?;
    }
    match request {
        None => Ok(()),
        Some(request) => execute(shared, request),
    }
}

fn execute(shared: &Shared, request: Request) -> Result<(), String> {
    let old = match &request {
        Request::Delete(name) => {
            shared.store.delete(name).map_err(|failed| failed.why)?;
            None
        }
        Request::Put { region, content, .. } => {
            let name = shared.next_name(*region);
            shared.store.put(&name, content.clone(), PUT_WITHIN).map_err(|failed| failed.why)?;
            shared.has_put(&request, name)
        }
    };
    let mut queue = shared.queue.lock();
    queue.requests.pop_front();
    // Ahead of all other requests: otherwise the object would be left behind if the instance ended.
    old.into_iter().for_each(|name| queue.requests.push_front(Request::Delete(name)));
    Ok(())
}

/// Pauses that grow while the store keeps failing.
struct Pause {
    next: Duration,
    failed: Option<Instant>,
}

impl Pause {
    /// Sleeps. Returns false if the uploader must end.
    fn sleep(&mut self, shared: &Shared) -> bool {
        if self.failed.is_some_and(|at| at.elapsed() > GOOD_AFTER + self.next) {
            self.next = PAUSE_MIN;
        }
        self.failed = Some(Instant::now());
        let until = Instant::now() + self.next;
        self.next = (self.next * 2).min(PAUSE_MAX);
        let mut queue = shared.queue.lock();
        while !queue.is_ending && !shared.changed.wait_until(&mut queue, until).timed_out() {}
        !queue.is_ending
    }
}
