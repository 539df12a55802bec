//! This process's connection to the daemon: the segment, the ring, the socket.
//!
//! | lives | where | what |
//! |---|---|---|
//! | as long as the process, and in its forks | statics | mappings of segment and touch table, configuration |
//! | in one process only | a page that fork wipes | socket, ring, the lock |
//!
//! Registered lazily: a process that opens no large file of the mount, and changes none, never connects. Losing the daemon costs the socket;
//! the mappings stay, and hits go on. All of it may run inside a signal handler, so nobody waits for the lock on a read
//! path: whoever finds it taken uses the mount path.
//!
//! Requests that other processes rely on (MAPPED), and slow ones (FLUSH), use a connection of their own, which
//! goes on after the preload path has closed for this process.

use crate::exchange::{HELLO_FDS, exchange};
use crate::local::local;
use crate::sys::{self, Identity};
use crate::{directory, helper, quiet, rings, table};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use terrace_shm::layout::{LAYOUT_VERSION, NO_LEASES};
use terrace_shm::proto::{self, Hint, Reply, Request};
use terrace_shm::ring::Ring;
use terrace_shm::{Segment, TouchTable, scratch};

/// Between two bells.
const BELL_NS: u64 = 500_000;
/// Between two tries to register.
const RETRY_MS: u64 = 1000;
/// For an answer that needs no I/O of the daemon. The open or read at hand would wait for it as long, on a busy machine.
const ANSWER_MS: u64 = 5000;
/// For an answer that means writing everything back, where it has to come over the registered connection.
const FLUSH_MS: u64 = 60_000;
/// For a daemon that hangs up instead of answering: it is being restarted, or is at the end of its means.
const PATIENCE_MS: u64 = 30_000;
/// A lock held longer than this was left behind by a thread that a longjmp or a cancellation took away.
const STALE_LOCK_MS: u64 = 2 * FLUSH_MS + 10_000;
/// State that every path of the process reads.
#[derive(Debug)]
pub struct World {
    /// The segment.
    pub segment: Segment,
    /// Access counts.
    pub touches: TouchTable,
    identity: Identity,
}

impl World {
    /// Does anybody answer for the leases? Always, where there is a mount.
    #[inline]
    pub fn has_keeper(&self) -> bool {
        self.segment.header().leases.load(Ordering::Acquire) & NO_LEASES == 0
    }
}

/// State that a fork must not inherit (MADV_WIPEONFORK): all zero = not registered.
#[derive(Debug)]
struct Volatile {
    /// Time when it was taken; 0 = free.
    lock: AtomicU64,
    /// Index of the ring in use + 1.
    ring: AtomicU32,
    last_try_ms: AtomicU64,
    last_check_ms: AtomicU64,
    /// This process has been here: what [`INHERITED`] and [`rings`] hold is its own.
    known: AtomicU32,
    socket: helper::Slot,
}

const VOLATILE_BYTES: usize = 4096;
const _: () = assert!(size_of::<Volatile>() <= VOLATILE_BYTES);

struct Static<T>(UnsafeCell<MaybeUninit<T>>);
// SAFETY: written once before it is published through an atomic pointer, read-only after.
unsafe impl<T> Sync for Static<T> {}

static WORLD_PLACE: Static<World> = Static(UnsafeCell::new(MaybeUninit::uninit()));
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());
static VOLATILE: AtomicPtr<Volatile> = AtomicPtr::new(std::ptr::null_mut());
/// st_dev of the mount; 0: the library is inert.
static DEV: AtomicU64 = AtomicU64::new(0);
/// See [`large_file`].
static LARGE_FILE: AtomicU64 = AtomicU64::new(1 << 20);
/// Nothing is classified and no read served any more.
static OFF: AtomicBool = AtomicBool::new(false);

/// The socket once more, for the child of a fork, which finds the page wiped.
static INHERITED: helper::Slot = helper::Slot::new();

static ADDRESS: Static<libc::sockaddr_un> = Static(UnsafeCell::new(MaybeUninit::uninit()));

/// Reads the environment. Called once, from .init_array.
pub fn configure() {
    let (Some(path), Some(dev)) = (sys::variable(c"TERRACE_SOCKET"), sys::variable(c"TERRACE_DEV")) else {
        return;
    };
    let Some(dev) = std::str::from_utf8(dev).ok().and_then(|s| s.parse::<u64>().ok()).filter(|&d| d != 0)
    else {
        return;
    };
    if quiet::is_filtered() {
        return;
    }
    // SAFETY: all zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return;
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as std::ffi::c_char;
    }
    if let Some(large) =
        sys::variable(c"TERRACE_LARGE_FILE").and_then(|v| std::str::from_utf8(v).ok()?.parse().ok())
    {
        LARGE_FILE.store(large, Ordering::Relaxed);
    }
    // SAFETY: written before DEV makes anybody look at it.
    unsafe { (*ADDRESS.0.get()).write(address) };
    DEV.store(dev, Ordering::Release);
}

/// st_dev of the mount, if its daemon has to be told of things: also after the preload path has closed, for the descriptors
/// opened before are a client's all the same.
#[inline]
pub fn told_dev() -> Option<u64> {
    speaks_of().filter(|_| !directory::is_leased())
}

/// st_dev of the files, if the daemon may be spoken to.
#[inline]
fn speaks_of() -> Option<u64> {
    let dev = DEV.load(Ordering::Acquire);
    (dev != 0 && !quiet::is_silent()).then_some(dev)
}

/// st_dev of the mount, if the preload path is to be used at all.
#[inline]
pub fn mount_dev() -> Option<u64> {
    let dev = DEV.load(Ordering::Acquire);
    (dev != 0 && !OFF.load(Ordering::Relaxed)).then_some(dev)
}

/// The preload path closes for this process: it did something after which descriptors cannot be told apart, or we have a bug.
/// It is no client any more, so that the kernel caches for it what it opens from here on.
#[cold]
pub fn turn_off() {
    if DEV.load(Ordering::Relaxed) != 0 {
        OFF.store(true, Ordering::SeqCst);
        table::forget_range(0, u32::MAX);
        if !local().vforked()
            && let Some(held) = known().and_then(Held::try_take)
        {
            hang_up(held.0);
        }
    }
}

/// A filter of system calls comes into force, under which ours may be the program's death: from here on there are none.
/// Mappings can no longer be announced, so every file that may get one is announced now; what is opened later is opened
/// by no client.
#[cold]
pub fn fall_silent() {
    if speaks_of().is_none() {
        return quiet::be_silent();
    }
    if world().is_some() && told_dev().is_some() {
        (0..table::FDS_MAX as c_int).filter(|&fd| is_mappable(fd)).for_each(|fd| {
            mapped(fd);
        });
    }
    turn_off();
    quiet::be_silent();
}

/// True if a shared mapping of this descriptor can be written to.
pub fn is_mappable(fd: c_int) -> bool {
    let mode = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    mode >= 0
        && mode & libc::O_ACCMODE == libc::O_RDWR
        && sys::identity(fd).is_some_and(|(id, kind)| Some(id.dev) == told_dev() && kind == libc::S_IFREG)
}

/// The segment, if this process (or one that it was forked from) ever registered.
#[inline]
pub fn world() -> Option<&'static World> {
    // SAFETY: null or WORLD_PLACE, initialised before the pointer was published.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// Size from which a file makes the process that opens it a client, bytes (`TERRACE_LARGE_FILE`).
pub fn large_file() -> u64 {
    LARGE_FILE.load(Ordering::Relaxed)
}

/// The page, if this process (or one that it was forked from) ever asked the daemon anything.
#[inline]
fn known() -> Option<&'static Volatile> {
    // SAFETY: null or our page, which is never unmapped; all of it atomics and cells guarded by the lock.
    unsafe { VOLATILE.load(Ordering::Acquire).as_ref() }
}

/// The page, made if need be: most programs need none.
fn volatile() -> Option<&'static Volatile> {
    if known().is_none() && speaks_of().is_some() {
        let page = sys::map_anonymous(VOLATILE_BYTES);
        // SAFETY: a page of ours, which is published once it is as it should be.
        if page.is_null() || !unsafe { sys::madvise(page, VOLATILE_BYTES, libc::MADV_WIPEONFORK) } {
            return None;
        }
        // A page too many, of a thread that was as quick, stays untouched.
        let _ =
            VOLATILE.compare_exchange(std::ptr::null_mut(), page.cast(), Ordering::AcqRel, Ordering::Acquire);
    }
    known()
}

/// True if the daemon knows this process.
#[inline]
pub fn is_registered() -> bool {
    known().is_some_and(|v| v.ring.load(Ordering::Acquire) != 0)
}

/// Number of the ring of this process, if it is registered.
#[inline]
fn ring_number() -> Option<usize> {
    (known()?.ring.load(Ordering::Acquire) as usize).checked_sub(1)
}

/// The ring of this process, to count in.
#[inline]
pub fn ring() -> Option<&'static Ring> {
    ring_number().map(rings::at)
}

/// The ring of this process, to offer something.
#[inline]
pub fn hold_ring() -> Option<rings::Held> {
    ring_number().and_then(rings::hold)
}

/// The lock of a connection; freed on drop.
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
    /// For calls that may wait (open, mmap, sync): up to `ANSWER_MS`, unless this is a handler that interrupted the holder.
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

/// Registers this process unless it is, or was tried less than a second ago. True if it is registered now. An open waits
/// for another thread that is at it: what it opens is classified now or never. A read does not.
pub fn register(wait: bool) -> bool {
    let Some(v) = volatile() else { return false };
    if is_registered() {
        return true;
    }
    let held = if wait { Held::take(v) } else { Held::try_take(v) };
    held.is_some_and(|held| is_registered() || connect(&held).is_some())
}

/// Asks for the source of an open file. None: not now; the answer's descriptor is the caller's.
pub fn source(fd: c_int) -> Option<(Reply, Option<c_int>)> {
    let held = Held::try_take(volatile()?)?;
    let mut fds = [-1; HELLO_FDS];
    let reply = ask(&held, proto::SOURCE, Some(fd), &mut fds, ANSWER_MS)?;
    Some((reply, (fds[0] >= 0).then_some(fds[0])))
}

/// Has an open file taken into service, where there is no mount. The answer, which may be a no; None: not now.
pub fn serve(fd: c_int) -> Option<Reply> {
    let held = Held::try_take(volatile()?)?;
    ask(&held, proto::SERVE, Some(fd), &mut [-1; HELLO_FDS], ANSWER_MS)
}

/// Asks for target number `n` of the tiers on devices. None: not now. Its table and the target are the caller's; or there is none, or none for clients
/// (`EOPNOTSUPP`).
pub fn device(n: u32) -> Option<Result<[c_int; 2], c_int>> {
    let held = Held::try_take(volatile()?)?;
    let mut fds = [-1; HELLO_FDS];
    let reply = ask(&held, proto::target(n), None, &mut fds, ANSWER_MS)?;
    if reply.errno == 0 && fds[0] >= 0 && fds[1] >= 0 {
        return Some(Ok([fds[0], fds[1]]));
    }
    fds.into_iter().filter(|&fd| fd >= 0).for_each(sys::close);
    Some(Err(reply.errno as c_int))
}

/// Tells the daemon that `fd` gets a shared mapping which may be written, and waits until it knows. False: it cannot be
/// told, and would go on to give others what they stored before.
pub fn mapped(fd: c_int) -> bool {
    match insist(proto::MAPPED, Some(fd)) {
        Ok(reply) if reply.errno == 0 => true,
        // No client: the kernel caches what it opens, of which the daemon knows by itself; and it notices mappings of what was
        // handed down, if later. (A server's children that gave up its rights cannot reach the connection.)
        _ => !is_registered(),
    }
}

/// Has the daemon write everything back. Zero, or the errno of what went wrong.
pub fn flush() -> c_int {
    insist(proto::FLUSH, None).map_or(libc::EIO, |reply| reply.errno as c_int)
}

/// Asks until there is an answer, or nobody to give one: a daemon that is being restarted answers late, and the program
/// would wait for it in any other call as well. Asks on a connection of its own: others are not kept waiting by a slow
/// answer, and it is needed where the registered one is not (after a fork, in a handler that interrupted its holder).
fn insist(op: u32, fd: Option<c_int>) -> Result<Reply, c_int> {
    let v = volatile().ok_or(libc::ENOENT)?;
    let end = sys::now_ms() + PATIENCE_MS;
    let mut nap_ms = 1;
    loop {
        let why = match dial() {
            Ok(s) => match ask_apart(s, op, fd) {
                Some(reply) => return Ok(reply),
                None => libc::ECONNRESET,
            },
            // No descriptor left, another root directory, another user: the registered connection may be there still.
            Err(why) => match ask_registered(v, op, fd) {
                Some(reply) => return Ok(reply),
                None => why,
            },
        };
        let hopeless = matches!(why, libc::ENOENT | libc::ECONNREFUSED | libc::EACCES | libc::ENOTDIR);
        if hopeless && v.socket.get().is_none() || sys::now_ms() >= end {
            return Err(why);
        }
        sys::nap(nap_ms);
        nap_ms = (nap_ms * 2).min(64);
    }
}

fn ask_apart(s: c_int, op: u32, fd: Option<c_int>) -> Option<Reply> {
    // A vfork child shares our table with its parent, but not its descriptors.
    let kept = if local().vforked() { None } else { helper::lift(s) };
    let s = kept.map_or(s, |kept| kept.fd);
    let reply = exchange(s, op, fd, &mut [-1; HELLO_FDS], u64::MAX);
    match kept {
        Some(kept) => helper::lower(kept),
        None => sys::close(s),
    }
    reply
}

fn ask_registered(v: &'static Volatile, op: u32, fd: Option<c_int>) -> Option<Reply> {
    let held = Held::take(v)?;
    let reply = exchange(v.socket.get()?, op, fd, &mut [-1; HELLO_FDS], FLUSH_MS);
    if reply.is_none() {
        hang_up(held.0);
    }
    reply
}

/// Wakes the daemon, unless a thread of this process has just done so: until it runs, all of them find it asleep. Over the socket, whose
/// inode is its alone: a number that the program took from us and gave to an eventfd of its own could not be told from an eventfd of ours.
pub fn ring_bell() {
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let (now, last) = (sys::now_ns(), LAST_NS.load(Ordering::Relaxed));
    if now.saturating_sub(last) < BELL_NS
        || LAST_NS.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    if let Some(fd) = known().and_then(|v| v.socket.get()) {
        let bell = Request { op: proto::RING, version: LAYOUT_VERSION };
        tell(fd, bell.as_bytes());
    }
}

/// Tells the daemon what the program said of a span. Nobody waits, and what does not fit into the socket is lost.
pub fn hint(hint: &Hint) {
    if let Some(fd) = known().and_then(|v| v.socket.get()) {
        tell(fd, hint.as_bytes());
    }
}

/// Sends a message that has no answer, without waiting.
fn tell(fd: c_int, bytes: &[u8]) {
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    // SAFETY: reads the message, which outlives the call.
    unsafe { sys::raw(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags, 0, 0]) };
}

/// Called when no slot of the ring is free, at most once a second to some effect: if nobody drains it any more, or every
/// slot was left behind by threads that never came back, the next miss registers anew.
pub fn check_ring(leaked: bool) {
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

fn is_hung_up(socket: c_int) -> bool {
    let mut byte = 0_u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: one byte of this frame.
    let n = unsafe {
        sys::raw(libc::SYS_recvfrom, [socket as usize, &raw mut byte as usize, 1, flags as usize, 0, 0])
    };
    n != -(libc::EAGAIN as isize)
}

/// In the child of a fork.
pub fn forked() {
    local().holding.set(0);
    scratch::forked();
    quiet::forked();
    if !quiet::is_silent() {
        leave_parent();
    }
}

/// The inherited socket is the parent's, as are the rings.
fn leave_parent() {
    INHERITED.discard();
    rings::leave_parent();
}

/// One question and its answer, over the connection there is or a new one.
fn ask(held: &Held, op: u32, fd: Option<c_int>, fds: &mut [c_int; HELLO_FDS], wait_ms: u64) -> Option<Reply> {
    let socket = match held.0.socket.get() {
        Some(s) => s,
        None => connect(held)?,
    };
    let reply = exchange(socket, op, fd, fds, wait_ms);
    if reply.is_none() {
        // A late answer would be taken for that to the next question.
        hang_up(held.0);
    }
    reply
}

/// Connects, says hello, maps what comes. The socket, if all went well.
fn connect(held: &Held) -> Option<c_int> {
    let v = held.0;
    let now = sys::now_ms().max(1);
    let last = v.last_try_ms.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < RETRY_MS {
        return None;
    }
    mount_dev()?;
    // A fork that ran no handlers (a raw system call, clone) has what its parent left it.
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
    let Some(socket) = socket else {
        v.last_try_ms.store(sys::now_ms().max(1), Ordering::Relaxed);
        return None;
    };
    if done.is_none() {
        v.last_try_ms.store(sys::now_ms().max(1), Ordering::Relaxed);
        helper::lower(socket);
        return None;
    }
    v.socket.set(socket);
    INHERITED.set(socket);
    Some(socket.fd)
}

/// A new connection, or errno.
fn dial() -> Result<c_int, c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the address was written before DEV was set, which every caller has seen.
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

/// Takes what came with the answer to HELLO; descriptors that are kept are taken out of `fds`.
fn welcome(v: &'static Volatile, reply: &Reply, fds: &mut [c_int; HELLO_FDS]) -> Option<()> {
    if reply.errno != 0 || Some(reply.mount_dev) != mount_dev() || fds.contains(&-1) {
        return None;
    }
    let (segment, _) = sys::identity(fds[0])?;
    match world() {
        None => attach(segment, fds)?,
        Some(w) if w.identity == segment => {}
        // Another instance under the device number that we know: what the table says is about the old one.
        Some(_) => {
            turn_off();
            return None;
        }
    }
    // SAFETY: received descriptors, open until our caller closes them.
    let ring = rings::take(unsafe { BorrowedFd::borrow_raw(fds[2]) }, reply.ring_slots as usize)?;
    v.ring.store(ring as u32 + 1, Ordering::Release);
    Some(())
}

fn attach(identity: Identity, fds: &[c_int; HELLO_FDS]) -> Option<()> {
    // SAFETY: received descriptors, open until our caller closes them.
    let (segment, touches) = unsafe { (BorrowedFd::borrow_raw(fds[0]), BorrowedFd::borrow_raw(fds[1])) };
    let segment = Segment::attach(segment).ok()?;
    let touches = TouchTable::attach(touches, &segment.geometry()).ok()?;
    // SAFETY: the lock is held and nothing is published yet, so nobody else looks at the place.
    let place = unsafe { (*WORLD_PLACE.0.get()).write(World { segment, touches, identity }) };
    WORLD.store(place, Ordering::Release);
    Some(())
}
