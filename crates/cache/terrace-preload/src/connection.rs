//! This process's connection to the daemon: the segment, the ring, the socket.
//!
//! | lives | where | what |
//! |---|---|---|
//! | as long as the process, and in its forks | statics | segment and touch table, configuration |
//! | in one process only | a page that fork wipes | socket, ring, the lock |
//!
//! A process registers lazily: it never connects if it opens no large file of the mount and changes none.
//! Loss of the daemon costs the socket; the mappings stay, and hits continue. All of this may run inside a
//! signal handler, so read paths never wait for the lock. A read that finds it taken uses the mount path.
//!
//! Requests that other processes rely on (MAPPED), and slow ones (FLUSH), use a separate connection. These
//! requests work after the preload path has closed for this process.

use crate::exchange::{HELLO_FDS, REQUIRED_FDS, address_of, exchange, is_hung_up, tell};
use crate::local::local;
use crate::sys::{self, Identity};
use crate::{directory, helper, quiet, rings, table};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use terrace_shm::layout::{LAYOUT_VERSION, NO_LEASES};
use terrace_shm::proto::{self, Hint, Reply, Request};
use terrace_shm::ring::Ring;
use terrace_shm::writes::{CLIENTS_MAX, ClientPage, Writes};
use terrace_shm::{Segment, TouchTable, scratch};

/// Shortest time between two wake-ups of the daemon.
const BELL_NS: u64 = 500_000;
/// Shortest time between two tries to register.
const RETRY_MS: u64 = 1000;
/// Longest wait for an answer that needs no I/O of the daemon. On a busy machine the program's open or read
/// would take as long.
const ANSWER_MS: u64 = 5000;
/// Longest wait for an answer to FLUSH over the registered connection.
const FLUSH_MS: u64 = 60_000;
/// Longest time of retries while the daemon hangs up instead of answering: it is being restarted, or out of
/// resources.
const PATIENCE_MS: u64 = 30_000;
/// A lock held longer than this belongs to a thread that a longjmp or a cancellation took away.
const STALE_LOCK_MS: u64 = 2 * FLUSH_MS + 10_000;
/// State that every path of the process reads.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) segment: Segment,
    pub(crate) touches: TouchTable,
    identity: Identity,
    /// Where writes are announced: the counts, with the identity of the clients' file.
    writes: Option<(Writes, Identity)>,
}

impl Attachment {
    /// The counts of announced writes. None: no writes are announced.
    #[inline]
    pub(crate) fn writes(&self) -> Option<&Writes> {
        self.writes.as_ref().map(|(writes, _)| writes)
    }
    /// Whether the lease holder is alive. Always true with a mount.
    #[inline]
    pub(crate) fn has_lease_holder(&self) -> bool {
        self.segment.header().leases.load(Ordering::Acquire) & NO_LEASES == 0
    }
}

/// State that a fork must not inherit (MADV_WIPEONFORK): all zero = not registered.
#[derive(Debug)]
struct Volatile {
    /// Time at which the lock was taken; 0 = free.
    lock: AtomicU64,
    /// Index of the ring in use + 1.
    ring: AtomicU32,
    /// Number of the client page for announced writes + 1; 0: none.
    writes_page: AtomicU32,
    last_try_ms: AtomicU64,
    last_check_ms: AtomicU64,
    /// 1: [`INHERITED`] and [`rings`] are this process's own, not its parent's.
    known: AtomicU32,
    socket: helper::Slot,
}

const VOLATILE_BYTES: usize = 4096;
const _: () = assert!(size_of::<Volatile>() <= VOLATILE_BYTES);

struct Static<T>(UnsafeCell<MaybeUninit<T>>);
// SAFETY: written once before it is published through an atomic pointer, read-only after.
unsafe impl<T> Sync for Static<T> {}

static WORLD_PLACE: Static<Attachment> = Static(UnsafeCell::new(MaybeUninit::uninit()));
static WORLD: AtomicPtr<Attachment> = AtomicPtr::new(std::ptr::null_mut());
static VOLATILE: AtomicPtr<Volatile> = AtomicPtr::new(std::ptr::null_mut());
/// st_dev of the mount; 0: the library is inert.
static DEV: AtomicU64 = AtomicU64::new(0);
static LARGE_FILE: AtomicU64 = AtomicU64::new(1 << 20);
/// The preload path is closed: no descriptor is classified and no read served.
static OFF: AtomicBool = AtomicBool::new(false);

/// A copy of the socket, for the child of a fork, in which the page is wiped.
static INHERITED: helper::Slot = helper::Slot::new();

static ADDRESS: Static<libc::sockaddr_un> = Static(UnsafeCell::new(MaybeUninit::uninit()));

/// Called once this process has a page for announced writes.
static HAS_PAGE: OnceLock<fn()> = OnceLock::new();

/// Reads the environment. Called once, from .init_array. `has_page`: see [`HAS_PAGE`].
pub(crate) fn configure(has_page: fn()) {
    let _ = HAS_PAGE.set(has_page);
    let dev = number(c"TERRACE_DEV").filter(|&dev| dev != 0);
    let (Some(path), Some(dev)) = (sys::variable(c"TERRACE_SOCKET"), dev) else { return };
    if quiet::is_filtered() {
        return;
    }
    let Some(address) = address_of(path) else { return };
    number(c"TERRACE_LARGE_FILE").inspect(|&large| LARGE_FILE.store(large, Ordering::Relaxed));
    // SAFETY: written before DEV publishes it.
    unsafe { (*ADDRESS.0.get()).write(address) };
    DEV.store(dev, Ordering::Release);
}

fn number(name: &CStr) -> Option<u64> {
    std::str::from_utf8(sys::variable(name)?).ok()?.parse().ok()
}

/// st_dev of the mount, if its daemon needs announcements. It stays after the preload path has closed:
/// descriptors opened before are still a client's.
#[inline]
pub(crate) fn told_dev() -> Option<u64> {
    speaks_of().filter(|_| !directory::is_leased())
}

/// st_dev of the files, if writes to them are announced. It stays after the preload path has closed.
#[inline]
pub(crate) fn announced_dev() -> Option<u64> {
    if directory::announces_writes() { speaks_of() } else { None }
}

/// st_dev of the files, if requests to the daemon are allowed.
#[inline]
fn speaks_of() -> Option<u64> {
    let dev = DEV.load(Ordering::Acquire);
    (dev != 0 && !quiet::is_silent()).then_some(dev)
}

/// Whether requests to the daemon are allowed.
pub(crate) fn may_ask() -> bool {
    speaks_of().is_some()
}

/// st_dev of the mount, if the preload path is open.
#[inline]
pub(crate) fn mount_dev() -> Option<u64> {
    let dev = DEV.load(Ordering::Acquire);
    (dev != 0 && !OFF.load(Ordering::Relaxed)).then_some(dev)
}

/// Begins to close the preload path for this process. The fence orders the flag before a look at the marks of
/// writers: a thread that sets a mark later sees the flag.
#[cold]
pub(crate) fn turn_off() {
    OFF.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
}

/// Ends the connection of a closed preload path.
#[cold]
pub(crate) fn close() {
    if let Some(held) = known().and_then(Held::try_take) {
        hang_up(held.0);
    }
}

/// Closes the preload path for reads. Marked descriptors stay writers.
#[cold]
pub(crate) fn stop_reads() {
    OFF.store(true, Ordering::SeqCst);
    table::dismiss_all();
}

/// The segment, if this process or an ancestor ever registered.
#[inline]
pub(crate) fn world() -> Option<&'static Attachment> {
    // SAFETY: null or WORLD_PLACE, initialised before the pointer was published.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// Size from which a file makes the process that opens it a client, bytes (`TERRACE_LARGE_FILE`).
pub(crate) fn large_file() -> u64 {
    LARGE_FILE.load(Ordering::Relaxed)
}

/// The page, if this process or an ancestor ever used the connection.
#[inline]
fn known() -> Option<&'static Volatile> {
    // SAFETY: null or a page that is never unmapped; all of it atomics and cells guarded by the lock.
    unsafe { VOLATILE.load(Ordering::Acquire).as_ref() }
}

/// The page, made if necessary: most programs need none.
fn volatile() -> Option<&'static Volatile> {
    if known().is_none() && speaks_of().is_some() {
        let page = sys::map_anonymous(VOLATILE_BYTES);
        // SAFETY: a new page of the library, published after madvise has succeeded.
        if page.is_null() || !unsafe { sys::madvise(page, VOLATILE_BYTES, libc::MADV_WIPEONFORK) } {
            return None;
        }
        // The page of a thread that loses this race stays untouched.
        let _ =
            VOLATILE.compare_exchange(std::ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire);
    }
    known()
}

/// True if the daemon knows this process.
#[inline]
pub(crate) fn is_registered() -> bool {
    known().is_some_and(|v| v.ring.load(Ordering::Acquire) != 0)
}

/// Number of the ring of this process, if it is registered.
#[inline]
fn ring_number() -> Option<usize> {
    (known()?.ring.load(Ordering::Acquire) as usize).checked_sub(1)
}

/// The ring of this process, for counts.
#[inline]
pub(crate) fn ring() -> Option<&'static Ring> {
    ring_number().map(rings::at)
}

/// The ring of this process, for fills and trace records.
#[inline]
pub(crate) fn hold_ring() -> Option<rings::PinnedRing> {
    ring_number().and_then(rings::hold)
}

/// The counts of announced writes, if this process or an ancestor ever registered.
#[inline]
pub(crate) fn writes() -> Option<&'static Writes> {
    world()?.writes()
}

/// This process's page for announced writes. None: not registered (yet), or the daemon has no free page.
#[inline]
pub(crate) fn writes_page() -> Option<&'static ClientPage> {
    let number = known()?.writes_page.load(Ordering::Acquire).checked_sub(1)?;
    Some(writes()?.client(number as usize))
}

/// The lock of a connection, freed on drop.
struct Held(&'static Volatile);

impl Held {
    fn try_take(v: &'static Volatile) -> Option<Held> {
        let now = sys::now_ms().max(1);
        let since = v.lock.load(Ordering::Relaxed);
        if since != 0 && now.saturating_sub(since) < STALE_LOCK_MS {
            return None;
        }
        v.lock.compare_exchange(since, now, Ordering::Acquire, Ordering::Relaxed).ok()?;
        local().holding.set(1);
        Some(Held(v))
    }
    /// For calls that may wait (open, mmap, sync): waits up to `ANSWER_MS`, unless a handler has interrupted
    /// the holder.
    fn take(v: &'static Volatile) -> Option<Held> {
        if local().holding.get() != 0 {
            return None;
        }
        (0..ANSWER_MS).find_map(|_| {
            Held::try_take(v).or_else(|| {
                sys::nap(1);
                None
            })
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        local().holding.set(0);
        self.0.lock.store(0, Ordering::Release);
    }
}

/// Registers this process, unless it is registered, or a try was less than a second ago. Returns whether it
/// is registered. An open waits for a thread that is registering: its descriptor can be classified only now.
/// A read does not wait.
pub(crate) fn register(wait: bool) -> bool {
    let Some(v) = volatile() else { return false };
    if is_registered() {
        return true;
    }
    let held = if wait { Held::take(v) } else { Held::try_take(v) };
    held.is_some_and(|held| is_registered() || connect(&held).is_some())
}

/// Registers this process for announcements, unless it is registered. An earlier failure does not delay the try.
pub(crate) fn register_writer() -> bool {
    let Some(v) = volatile() else { return false };
    is_registered() || Held::take(v).is_some_and(|held| is_registered() || connect_at_once(&held).is_some())
}

/// Requests the source of an open file. None: not available now. The caller owns the returned descriptor.
pub(crate) fn source(fd: c_int) -> Option<(Reply, Option<c_int>)> {
    let held = Held::try_take(volatile()?)?;
    let mut fds = [-1; HELLO_FDS];
    let reply = ask(&held, proto::SOURCE, Some(fd), &mut fds, ANSWER_MS)?;
    Some((reply, (fds[0] >= 0).then_some(fds[0])))
}

/// Requests that an open file be served, without a mount. The reply may be a refusal. None: not available
/// now.
pub(crate) fn serve(fd: c_int) -> Option<Reply> {
    let held = Held::try_take(volatile()?)?;
    ask(&held, proto::SERVE, Some(fd), &mut [-1; HELLO_FDS], ANSWER_MS)
}

/// Announces an open for writing of a file that the daemon may serve. A stopped daemon delays no open.
pub(crate) fn watch(fd: c_int) {
    let has_holder = world().is_some_and(Attachment::has_lease_holder);
    if let Some(held) = volatile().filter(|_| has_holder).and_then(Held::take) {
        ask(&held, proto::WATCH, Some(fd), &mut [-1; HELLO_FDS], ANSWER_MS);
    }
}

/// Requests target number `n` of the device tiers. None: not available now. The caller owns the table and the
/// target. Err: no such target, or none for clients (`EOPNOTSUPP`).
pub(crate) fn device(n: u32) -> Option<Result<[c_int; 2], c_int>> {
    let held = Held::try_take(volatile()?)?;
    let mut fds = [-1; HELLO_FDS];
    let reply = ask(&held, proto::target(n), None, &mut fds, ANSWER_MS)?;
    if reply.errno == 0 && fds[0] >= 0 && fds[1] >= 0 {
        return Some(Ok([fds[0], fds[1]]));
    }
    fds.into_iter().filter(|&fd| fd >= 0).for_each(sys::close);
    Some(Err(reply.errno as c_int))
}

/// Announces a writable shared mapping of `fd`, and waits for the daemon's answer. False: the announcement
/// failed, so the daemon would serve content older than the mapping's stores.
pub(crate) fn mapped(fd: c_int) -> bool {
    match insist(proto::MAPPED, Some(fd), u64::MAX, || true) {
        Ok(reply) if reply.errno == 0 => true,
        // Not a client: the daemon sees its opens, and the kernel caches these files. The daemon notices
        // mappings of inherited descriptors later. (A server's children without its rights cannot reach the
        // connection.)
        _ => !is_registered(),
    }
}

/// Leaves the file of `fd` to the kernel for the rest of the run: its writes cannot be announced. False: no
/// answer, or a refusal. A stopped daemon gives no answer, and delays no program.
pub(crate) fn give_up(fd: c_int) -> bool {
    let end = sys::now_ms() + ANSWER_MS;
    // A process that has never been registered does not know the state of the daemon.
    let has_holder = || world().map_or_else(|| sys::now_ms() < end, Attachment::has_lease_holder);
    has_holder()
        && insist(proto::GIVE_UP, Some(fd), ANSWER_MS, has_holder).is_ok_and(|reply| reply.errno == 0)
}

/// Requests that the daemon write everything back. Returns zero or an errno.
pub(crate) fn flush() -> c_int {
    insist(proto::FLUSH, None, u64::MAX, || true).map_or(libc::EIO, |reply| reply.errno as c_int)
}

/// Repeats a request until there is an answer, no daemon to give one, or `goes_on` returns false. A restarting
/// daemon answers late, and other calls of the program would wait for it as well. It uses a separate
/// connection, since a slow answer must not delay other requests. The registered one may also be unusable
/// (after a fork, or in a handler that interrupted its holder).
fn insist(op: u32, fd: Option<c_int>, wait_ms: u64, goes_on: impl Fn() -> bool) -> Result<Reply, c_int> {
    let v = volatile().ok_or(libc::ENOENT)?;
    let end = sys::now_ms() + PATIENCE_MS;
    let mut pause_ms = 1;
    loop {
        let why = match dial() {
            Ok(s) => match ask_apart(s, op, fd, wait_ms) {
                Some(reply) => return Ok(reply),
                None => libc::ECONNRESET,
            },
            // No descriptor left, another root directory, another user: the registered connection may still
            // work.
            Err(why) => match ask_registered(v, op, fd, wait_ms.min(FLUSH_MS)) {
                Some(reply) => return Ok(reply),
                None => why,
            },
        };
        let hopeless = matches!(why, libc::ENOENT | libc::ECONNREFUSED | libc::EACCES | libc::ENOTDIR);
        if hopeless && v.socket.get().is_none() || sys::now_ms() >= end || !goes_on() {
            return Err(why);
        }
        sys::nap(pause_ms);
        pause_ms = (pause_ms * 2).min(64);
    }
}

fn ask_apart(s: c_int, op: u32, fd: Option<c_int>, wait_ms: u64) -> Option<Reply> {
    // A vfork child shares the table of descriptors here with its parent, but not the descriptors.
    let kept = if local().vforked() { None } else { helper::lift(s) };
    let s = kept.map_or(s, |kept| kept.fd);
    let reply = exchange(s, op, fd, &mut [-1; HELLO_FDS], wait_ms);
    match kept {
        Some(kept) => helper::lower(kept),
        None => sys::close(s),
    }
    reply
}

fn ask_registered(v: &'static Volatile, op: u32, fd: Option<c_int>, wait_ms: u64) -> Option<Reply> {
    let held = Held::take(v)?;
    let reply = exchange(v.socket.get()?, op, fd, &mut [-1; HELLO_FDS], wait_ms);
    if reply.is_none() {
        hang_up(held.0);
    }
    reply
}

/// Wakes the daemon, unless a thread of this process has just done so: threads see it asleep until it runs.
/// The wake-up uses the socket, because the socket's inode is unique. An eventfd fails here: after a close by
/// the program, its own eventfd of that number would look the same.
pub(crate) fn ring_bell() {
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let (now, last) = (sys::now_ns(), LAST_NS.load(Ordering::Relaxed));
    if now.saturating_sub(last) < BELL_NS
        || LAST_NS.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    if let Some(fd) = known().and_then(|v| v.socket.get()) {
        tell(fd, Request { op: proto::RING, version: LAYOUT_VERSION }.as_bytes());
    }
}

/// Passes on a program's advice for a span. It does not wait, and is dropped if the socket is full.
pub(crate) fn hint(hint: &Hint) {
    if let Some(fd) = known().and_then(|v| v.socket.get()) {
        tell(fd, hint.as_bytes());
    }
}

/// Called when no slot of the ring is free; acts at most once a second. If the daemon has hung up, or if
/// threads that never returned hold every slot, this process registers again.
pub(crate) fn check_ring(leaked: bool) {
    let Some(v) = volatile() else { return };
    let now = sys::now_ms();
    if now.saturating_sub(v.last_check_ms.load(Ordering::Relaxed)) < RETRY_MS {
        return;
    }
    v.last_check_ms.store(now, Ordering::Relaxed);
    let Some(held) = Held::try_take(v) else { return };
    if leaked || v.socket.get().is_none_or(is_hung_up) {
        hang_up(v);
        connect(&held);
    }
}

fn hang_up(v: &Volatile) {
    v.socket.discard();
    INHERITED.clear();
}

pub(crate) fn forked() {
    local().holding.set(0);
    scratch::forked();
    quiet::forked();
    if !quiet::is_silent() {
        leave_parent();
    }
}

/// The inherited socket and the rings belong to the parent.
fn leave_parent() {
    INHERITED.discard();
    rings::leave_parent();
}

/// One request and its answer, over the present connection or a new one.
fn ask(held: &Held, op: u32, fd: Option<c_int>, fds: &mut [c_int; HELLO_FDS], wait_ms: u64) -> Option<Reply> {
    let socket = match held.0.socket.get() {
        Some(s) => s,
        None => connect(held)?,
    };
    let reply = exchange(socket, op, fd, fds, wait_ms);
    if reply.is_none() {
        // A late answer would count as that of the next request.
        hang_up(held.0);
    }
    reply
}

/// As [`connect_at_once`], unless the preload path is closed, or a try was less than a second ago.
fn connect(held: &Held) -> Option<c_int> {
    let now = sys::now_ms().max(1);
    let last = held.0.last_try_ms.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < RETRY_MS {
        return None;
    }
    mount_dev()?;
    connect_at_once(held)
}

/// Connects, registers (HELLO), and maps the ring and, once, the segment. Returns the socket on success.
fn connect_at_once(held: &Held) -> Option<c_int> {
    let v = held.0;
    // A fork that ran no handlers (a raw system call, clone) still has its parent's state.
    if v.known.swap(1, Ordering::Relaxed) == 0 {
        leave_parent();
    }
    let socket = dial().ok().and_then(helper::raise);
    let mut fds = [-1; HELLO_FDS];
    let done = socket.and_then(|socket| {
        let reply = exchange(socket.fd, proto::HELLO, None, &mut fds, ANSWER_MS)?;
        welcome(v, &reply, &mut fds)
    });
    for fd in fds.into_iter().filter(|&fd| fd >= 0) {
        sys::close(fd);
    }
    if done.is_none() {
        v.last_try_ms.store(sys::now_ms().max(1), Ordering::Relaxed);
        socket.into_iter().for_each(helper::lower);
        return None;
    }
    let socket = socket?;
    v.socket.set(socket);
    INHERITED.set(socket);
    Some(socket.fd)
}

/// A new connection, or errno.
fn dial() -> Result<c_int, c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address was written before DEV was set, and every caller has seen DEV.
    unsafe {
        let s = sys::raw(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]);
        if s < 0 {
            return Err(-s as c_int);
        }
        let (at, len) = (ADDRESS.0.get() as usize, size_of::<libc::sockaddr_un>());
        let ret = sys::raw(libc::SYS_connect, [s as usize, at, len, 0, 0, 0]);
        if ret != 0 {
            sys::close(s as c_int);
            return Err(-ret as c_int);
        }
        Ok(s as c_int)
    }
}

/// Maps the memory received with HELLO's answer. The caller closes the descriptors.
fn welcome(v: &'static Volatile, reply: &Reply, fds: &mut [c_int; HELLO_FDS]) -> Option<()> {
    // Where writes are announced, no read is served without their counts.
    let expected = if directory::announces_writes() { HELLO_FDS } else { REQUIRED_FDS };
    let refused = reply.errno != 0 || Some(reply.mount_dev) != speaks_of();
    if refused || fds[..expected].contains(&-1) {
        return None;
    }
    let (segment, _) = sys::identity(fds[0])?;
    let writes = match directory::announces_writes() {
        true if reply.object > CLIENTS_MAX as u64 => return None,
        true => Some(sys::identity(fds[3])?.0),
        false => None,
    };
    match world() {
        None => attach(segment, writes, fds)?,
        Some(w) if w.identity == segment && w.writes.as_ref().map(|&(_, of)| of) == writes => {}
        // Another instance has the known device number: the table describes the old one.
        Some(_) => {
            stop_reads();
            return None;
        }
    }
    // SAFETY: received descriptors, which the caller closes later.
    let ring = rings::take(unsafe { BorrowedFd::borrow_raw(fds[2]) }, reply.ring_slots as usize)?;
    // A process keeps its first page, also with a new daemon: writes are under way there.
    if writes.is_some() && v.writes_page.load(Ordering::Relaxed) == 0 {
        v.writes_page.store(reply.object as u32, Ordering::SeqCst);
        HAS_PAGE.get().inspect(|has_page| has_page());
    }
    v.ring.store(ring as u32 + 1, Ordering::Release);
    Some(())
}

fn attach(identity: Identity, writes: Option<Identity>, fds: &[c_int; HELLO_FDS]) -> Option<()> {
    // SAFETY: received descriptors, which the caller closes later.
    let borrowed = |i: usize| unsafe { BorrowedFd::borrow_raw(fds[i]) };
    let (segment, touches) = (borrowed(0), borrowed(1));
    let segment = Segment::attach(segment).ok()?;
    let touches = TouchTable::attach(touches, &segment.geometry()).ok()?;
    let writes = match writes {
        Some(of) => Some((Writes::attach(borrowed(3), borrowed(4)).ok()?, of)),
        None => None,
    };
    // SAFETY: the lock is held and nothing is published yet, so no other thread accesses the place.
    let place = unsafe { (*WORLD_PLACE.0.get()).write(Attachment { segment, touches, identity, writes }) };
    WORLD.store(place, Ordering::Release);
    Some(())
}
