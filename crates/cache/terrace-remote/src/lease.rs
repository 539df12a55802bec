//! Exclusive use of a target in a store: the lock object `lock/NUMBER`, which its holder rewrites
//! periodically.
//!
//! The first writer of an object named by a number takes that number; S3 and file systems decide this
//! atomically. A lock that was not written for [`Timing::valid`] has expired, and the next number may be
//! taken. Times are compared by the store's clock. A holder that could not write for half as long stops
//! changing the store. It gives up permanently when it sees a higher number.

use crate::store::{Failed, SOON, Store};
use bytes::Bytes;
use std::fmt;
use std::time::Duration;
use terrace_tier::TierId;

const FOLDER: &str = "lock/";
/// Content of a released lock.
const GIVEN_BACK: &[u8] = b"given back\n";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// A lock not written for this long has expired.
    pub(crate) valid: Duration,
    /// Interval at which the holder rewrites its lock.
    pub(crate) renew: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { valid: Duration::from_secs(60), renew: Duration::from_secs(15) }
    }
}

/// A held lock, valid as long as it is renewed.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    number: u64,
    content: Bytes,
}

#[derive(Debug)]
pub(crate) enum NotTaken {
    /// Another process holds it. If that process has died, the lock expires after this time.
    Held(Holder, Option<Duration>),
    /// The store ignores the condition that an object must be new.
    NoConditions,
    Failed(Failed),
}

impl From<Failed> for NotTaken {
    fn from(failed: Failed) -> NotTaken {
        NotTaken::Failed(failed)
    }
}

/// The process that holds a lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holder {
    pub(crate) host: String,
    /// Its process id there.
    pub pid: i32,
    start: String,
    /// Boot id of the machine, and the process's pid namespace.
    boot: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.is_empty() {
            true => f.write_str("another process"),
            false => write!(f, "process {} of {}", self.pid, self.host),
        }
    }
}

impl Holder {
    /// Describes a process of this machine.
    fn of(pid: i32) -> Holder {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Holder { host, pid, start: start_of(pid).unwrap_or_default(), boot: boot() }
    }
    fn encode(&self) -> String {
        let Holder { host, pid, start, boot } = self;
        format!("host={host}\npid={pid}\nstart={start}\nboot={boot}\n")
    }
    fn decode(content: &[u8]) -> Holder {
        let text = String::from_utf8_lossy(content);
        let value = |key: &str| {
            let of_line = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
            text.lines().find_map(of_line).unwrap_or_default()
        };
        Holder {
            host: value("host"),
            pid: value("pid").parse().unwrap_or(0),
            start: value("start"),
            boot: value("boot"),
        }
    }
    /// Whether it is a process of this machine, in the same pid namespace.
    pub fn is_here(&self) -> bool {
        !self.boot.is_empty() && self.boot == boot()
    }
    /// Whether it is known to have ended.
    fn is_gone(&self) -> bool {
        self.is_here() && start_of(self.pid).is_none_or(|start| start != self.start)
    }
}

/// Boot id of this machine, and this process's pid namespace.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", id.trim(), namespace.display())
}

/// Start time of a process, as the kernel counts it.
fn start_of(pid: i32) -> Option<String> {
    let stat = terrace_system::proc::stat(pid)?;
    (stat.state != 'Z').then(|| stat.began.to_string())
}

fn name(number: u64) -> String {
    format!("{FOLDER}{number:010}")
}

/// The numbers of all locks.
fn numbers(store: &Store) -> Result<Vec<u64>, Failed> {
    let listed = store.list(FOLDER, SOON)?;
    Ok(listed.iter().filter_map(|object| object.name.strip_prefix(FOLDER)?.parse().ok()).collect())
}

/// The holder of a target, if any, and the time until its lock expires.
pub(crate) fn holder(store: &Store, timing: Timing) -> Result<Option<(Holder, Option<Duration>)>, Failed> {
    match numbers(store)?.into_iter().max() {
        Some(last) => holder_of(store, timing, last),
        None => Ok(None),
    }
}

/// Like [`holder`], for the lock with the highest number.
fn holder_of(store: &Store, timing: Timing, last: u64) -> Result<Option<(Holder, Option<Duration>)>, Failed> {
    // A missing lock was replaced in the meantime by a higher one.
    let content = store.get(&name(last))?.unwrap_or_default();
    let holder = Holder::decode(&content);
    if content == GIVEN_BACK || holder.is_gone() {
        return Ok(None);
    }
    if holder.is_here() {
        return Ok(Some((holder, None)));
    }
    let age = age(store, &name(last))?.unwrap_or_default();
    Ok(timing.valid.checked_sub(age).map(|left| (holder, Some(left))))
}

/// Age of an object by the store's clock. None: it does not exist.
fn age(store: &Store, name: &str) -> Result<Option<Duration>, Failed> {
    let now = format!("{FOLDER}now-{}", random());
    store.put(&now, Bytes::from_static(b"now"), SOON)?;
    let (now_is, was) = (store.written(&now), store.written(name));
    store.delete(&now)?;
    let (Some(now_is), Some(was)) = (now_is?, was?) else { return Ok(None) };
    Ok(Some(now_is.duration_since(was).unwrap_or_default()))
}

fn random() -> String {
    TierId::random().map(|id| id.to_string()).unwrap_or_default()
}

impl Lease {
    /// Takes the lock of a target for a process of this machine and its children.
    ///
    /// # Errors
    /// Another process holds it; a request failed.
    pub(crate) fn take(store: &Store, timing: Timing, pid: i32) -> Result<Lease, NotTaken> {
        let before = numbers(store)?;
        let last = before.iter().copied().max().unwrap_or(0);
        if last > 0
            && let Some((holder, left)) = holder_of(store, timing, last)?
        {
            return Err(NotTaken::Held(holder, left));
        }
        let number = last + 1;
        let content = Bytes::from(format!("{}random={}\n", Holder::of(pid).encode(), random()));
        if !store.put_first(&name(number), content.clone())? {
            let first = store.get(&name(number))?.unwrap_or_default();
            return Err(NotTaken::Held(Holder::decode(&first), None));
        }
        if store.put_first(&name(number), content.clone())? {
            store.delete(&name(number))?;
            return Err(NotTaken::NoConditions);
        }
        // The process that took the next number may have removed this lock in between.
        if let Some(higher) = numbers(store)?.into_iter().find(|higher| *higher > number) {
            store.delete(&name(number))?;
            let content = store.get(&name(higher))?.unwrap_or_default();
            return Err(NotTaken::Held(Holder::decode(&content), None));
        }
        for old in before {
            store.delete(&name(old))?;
        }
        Ok(Lease { number, content })
    }

    pub(crate) fn parts(&self) -> (u64, &[u8]) {
        (self.number, &self.content)
    }

    pub(crate) fn of_parts(number: u64, content: &str) -> Lease {
        Lease { number, content: Bytes::from(content.to_owned()) }
    }

    /// Renews the lock. Returns false if another instance has taken the target.
    ///
    /// # Errors
    /// Errors of the store. The lock may expire.
    pub(crate) fn renew(&self, store: &Store) -> Result<bool, Failed> {
        if numbers(store)?.into_iter().any(|number| number > self.number) {
            store.delete(&name(self.number))?;
            return Ok(false);
        }
        store.put(&name(self.number), self.content.clone(), SOON).map(|()| true)
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// Errors of the store. The lock expires by itself.
    pub(crate) fn give_back(&self, store: &Store) -> Result<(), Failed> {
        // The object stays with its number, so that numbers never repeat.
        store.put(&name(self.number), Bytes::from_static(GIVEN_BACK), SOON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::store;

    fn this() -> i32 {
        std::process::id() as i32
    }

    fn take(store: &Store, timing: Timing) -> Result<Lease, NotTaken> {
        Lease::take(store, timing, this())
    }

    /// Puts a lock of another machine.
    fn put_foreign(store: &Store, number: u64) {
        let holder = Holder { host: "far".to_owned(), pid: 7, start: "1".to_owned(), boot: "x".to_owned() };
        store.put(&name(number), holder.encode().into(), SOON).unwrap();
    }

    const SHORT: Timing = Timing { valid: Duration::from_millis(300), renew: Duration::from_millis(50) };

    #[test]
    fn second_instance_is_told_who_has_the_target() {
        let (_dir, store) = store();
        let lease = take(&store, Timing::default()).unwrap();
        let Err(NotTaken::Held(holder, None)) = take(&store, Timing::default()) else { panic!() };
        assert_eq!(holder, Holder::of(this()));
        assert!(lease.renew(&store).unwrap());
        lease.give_back(&store).unwrap();
        take(&store, Timing::default()).unwrap();
    }

    #[test]
    fn lock_of_a_process_that_has_ended_is_taken_at_once() {
        let (_dir, store) = store();
        let ended = Holder { start: "0".to_owned(), ..Holder::of(this()) };
        store.put(&name(4), ended.encode().into(), SOON).unwrap();
        assert_eq!(take(&store, Timing::default()).unwrap().number, 5);
        assert_eq!(numbers(&store).unwrap(), [5]);
    }

    #[test]
    fn lock_is_in_force_as_long_as_the_process_that_it_names() {
        let (_dir, store) = store();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        Lease::take(&store, Timing::default(), child.id() as i32).unwrap();
        let Err(NotTaken::Held(holder, None)) = take(&store, Timing::default()) else { panic!() };
        assert_eq!(holder.pid, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        take(&store, Timing::default()).unwrap();
    }

    #[test]
    fn lock_of_another_machine_goes_out_of_force() {
        let (_dir, store) = store();
        put_foreign(&store, 1);
        let Err(NotTaken::Held(holder, Some(_))) = take(&store, Timing::default()) else { panic!() };
        assert_eq!(holder.to_string(), "process 7 of far");
        std::thread::sleep(SHORT.valid);
        let lease = take(&store, SHORT).unwrap();
        assert!(lease.renew(&store).unwrap());
        put_foreign(&store, 3);
        assert!(!lease.renew(&store).unwrap(), "another has taken it");
        assert_eq!(numbers(&store).unwrap(), [3]);
    }

    #[test]
    fn one_of_many_takes_the_lock() {
        let (_dir, store) = store();
        put_foreign(&store, 1);
        std::thread::sleep(SHORT.valid);
        let won = std::thread::scope(|scope| {
            let take = |_| scope.spawn(|| take(&store, SHORT).is_ok());
            let threads: Vec<_> = (0..8).map(take).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
        });
        assert_eq!(won, 1);
    }
}
