//! A hostile client writes random data to its touch table, ring and socket, with read access to the files.
//! The daemon must not crash, or serve a wrong byte.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_engine::trace::Kind;
use terrace_engine::{AccessPath, Clock, Engine, EngineConfig, SegmentHandles, SystemClock};
use terrace_io::BlockingIo;
use terrace_shm::layout::LAYOUT_VERSION;
use terrace_shm::proto::{self, Hint, Reply, Request};
use terrace_shm::ring::Ring;
use terrace_shm::sync::Ordering;
use terrace_shm::trace::{LANE_RECORDS, Span};
use terrace_shm::{Mapping, Segment};
use terrace_testkit::rng::{Rng, seed};
use terrace_testkit::wait::holds_within;

/// Page `p` of the victim file: a repeated number that no hostile write produces.
fn content(p: u64) -> [u8; 4096] {
    let mut page = [0; 4096];
    for (i, w) in page.chunks_mut(8).enumerate() {
        w.copy_from_slice(&(p << 20 | i as u64 | 0x5afe << 48).to_le_bytes());
    }
    page
}

const PAGES: u64 = 8000;

fn call(socket: &OwnedFd, bytes: &[u8], show: Option<&OwnedFd>) -> Option<(Reply, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = show.iter().map(|f| f.as_fd()).collect();
    if !fds.is_empty() {
        ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, rustix::net::SendFlags::NOSIGNAL)
        .ok()?;
    let mut reply = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut reply)];
    let n =
        rustix::net::recvmsg(socket, &mut iov, &mut ancillary, rustix::net::RecvFlags::empty()).ok()?.bytes;
    let mut got = Vec::new();
    for m in ancillary.drain() {
        if let rustix::net::RecvAncillaryMessage::ScmRights(fds) = m {
            got.extend(fds);
        }
    }
    Some((Reply::from_bytes(&reply[..n])?, got))
}

fn listen(dir: &Path) -> (OwnedFd, std::path::PathBuf) {
    let path = dir.join("preload.sock");
    let s = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap();
    rustix::net::bind(&s, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&s, 64).unwrap();
    (s, path)
}

fn connect(path: &Path) -> OwnedFd {
    let s = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap();
    rustix::net::connect(&s, &SocketAddrUnix::new(path).unwrap()).unwrap();
    s
}

/// The attacker's process, started by the test below under another user ID.
#[test]
#[ignore = "run by a_hostile_client_changes_nothing"]
fn attacker() {
    let dir = std::env::var("HOSTILE_DIR").unwrap();
    let mut rng = Rng::new(std::env::var("HOSTILE_SEED").unwrap().parse().unwrap());
    let until = Instant::now() + Duration::from_millis(std::env::var("HOSTILE_MS").unwrap().parse().unwrap());
    let socket = connect(&Path::new(&dir).join("preload.sock"));
    let request = |op| Request { op, version: LAYOUT_VERSION };
    let (reply, fds) = call(&socket, request(proto::HELLO).as_bytes(), None).unwrap();
    assert_eq!((reply.errno, fds.len()), (0, 3));
    let seg = Segment::attach(&fds[0]).unwrap();
    assert!(Mapping::new(fds[0].as_fd(), 4096, true, 4096).is_err(), "the segment must not map writable");
    assert!(rustix::fs::ftruncate(&fds[1], 0).is_err(), "the touch table must not shrink");
    assert!(rustix::fs::ftruncate(&fds[2], 0).is_err(), "the ring must not shrink");
    let touch_len = rustix::fs::fstat(&fds[1]).unwrap().st_size as usize;
    let touch = Mapping::new(fds[1].as_fd(), touch_len, true, 4096).unwrap();
    let ring = Ring::attach(&fds[2], reply.ring_slots as usize).unwrap();
    let raw_ring = Mapping::new(fds[2].as_fd(), Ring::file_bytes(ring.slots()), true, 4096).unwrap();
    let file = OwnedFd::from(std::fs::File::open(Path::new(&dir).join("victim")).unwrap());
    let (source, mut source_fds) = call(&socket, request(proto::SOURCE).as_bytes(), Some(&file)).unwrap();
    assert_eq!((source.errno, source.may_write), (0, 0), "a reader must not become a filler of content");
    let source_fd = source_fds.pop().unwrap();
    assert!(rustix::io::write(&source_fd, b"x").is_err(), "the source descriptor must be read-only");
    let slot = seg.object(seg.find_object(source.object).unwrap());
    let victim_pages = slot.size.load(Ordering::Relaxed) / 4096;
    while Instant::now() < until {
        match rng.below(5) {
            // A perfect forgery: all fields are right, the content is false.
            0 | 1 => {
                let i = rng.below(ring.slots() as u64) as usize;
                let d = ring.fill(i);
                let page = rng.below(victim_pages);
                let Some(seen) = terrace_shm::client::snapshot(&seg, slot, page) else { continue };
                // SAFETY: the content page is mapped writable.
                unsafe { ring.content(i).write_bytes(0xee, 4096) };
                d.object.store(source.object, Ordering::Relaxed);
                d.page.store(page, Ordering::Relaxed);
                d.seen.store(seen.identity, Ordering::Relaxed);
                d.clock.store(u64::MAX, Ordering::Relaxed);
                d.len.store(4096, Ordering::Relaxed);
                d.state.store(2, Ordering::Release);
            }
            // Random data in ring and touch table.
            2 => {
                for _ in 0..200 {
                    let (m, len) = if rng.below(2) == 0 { (&raw_ring, 8192) } else { (&touch, touch_len) };
                    // SAFETY: in bounds of a writable mapping.
                    unsafe {
                        m.as_ptr()
                            .add(rng.below(len as u64 - 8) as usize)
                            .cast::<u64>()
                            .write_unaligned(rng.next_u64())
                    };
                }
            }
            // Hints with random numbers, for the victim and other objects.
            3 => {
                let object = [source.object, rng.next_u64()][rng.below(2) as usize];
                let hint = Hint {
                    op: proto::HINT,
                    version: LAYOUT_VERSION,
                    object,
                    offset: rng.next_u64() >> rng.below(64),
                    len: rng.next_u64() >> rng.below(64),
                    advice: rng.below(5) as u32,
                    reserved: 0,
                };
                let _ = rustix::net::send(&socket, hint.as_bytes(), rustix::net::SendFlags::DONTWAIT);
            }
            // Random messages on the socket.
            _ => {
                let noisy = connect(&Path::new(&dir).join("preload.sock"));
                let mut bytes = [0u8; 48];
                bytes.iter_mut().for_each(|b| *b = rng.next_u64() as u8);
                if rng.below(2) == 0 {
                    bytes[..8].copy_from_slice(request(rng.below(8) as u32).as_bytes());
                }
                let n = rng.below(48) as usize;
                let _ = rustix::net::send(&noisy, &bytes[..n], rustix::net::SendFlags::NOSIGNAL);
            }
        }
    }
}

#[test]
fn a_hostile_client_changes_nothing() {
    let s = seed("engine-hostile");
    let served = Served::start(
        PAGES,
        EngineConfig { memory_bytes: 20 << 20, memory_max_bytes: Some(64 << 20), ..EngineConfig::default() },
    );
    let (dir, engine) = (served.dir.path(), &served.engine);
    let o = engine.lookup_object(served.id).unwrap();

    // A directory where the other user can execute it.
    let exe = dir.join("attacker");
    std::fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    std::fs::set_permissions(&exe, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ms = std::env::var("HOSTILE_MS").unwrap_or_else(|_| "3000".into());
    let root = rustix::process::getuid().is_root();
    let mut attackers: Vec<_> = (0..2)
        .map(|i| {
            let mut c = std::process::Command::new(&exe);
            c.args(["attacker", "--exact", "--ignored"]).current_dir(dir);
            c.env("HOSTILE_DIR", dir).env("HOSTILE_SEED", (s + i).to_string()).env("HOSTILE_MS", &ms);
            if root {
                c.uid(65534).gid(65534);
            }
            c.spawn().unwrap()
        })
        .collect();

    // Meanwhile other programs read, and write a second file.
    let mut rng = Rng::new(s);
    let mut buf = vec![0; 64 << 10];
    let mut reads = 0u64;
    let mut recorder = engine.record().unwrap();
    while attackers.iter_mut().any(|a| a.try_wait().unwrap().is_none()) {
        let first = rng.below(PAGES - 16);
        let n = engine.read(&o, first * 4096, &mut buf, AccessPath::FuseDirect).unwrap();
        for (i, page) in buf[..n].chunks(4096).enumerate() {
            assert!(page == content(first + i as u64), "page {} is not the file's", first + i as u64);
        }
        reads += 1;
        let mut pages = 0;
        let looked = recorder.look(&mut |access| {
            assert!(access.object == served.id && access.page < PAGES, "{access:?}");
            pages += 1;
            Ok(())
        });
        assert!(looked.is_ok() && pages < 1 << 24, "{pages} pages of one look");
    }
    drop(recorder);
    for mut a in attackers {
        assert!(a.wait().unwrap().success(), "an attack hit something that it should not have");
    }
    println!("{reads} reads verified");
    drop(o);
    let dir = served.end();
    assert_eq!(
        std::fs::read(dir.path().join("victim")).unwrap(),
        (0..PAGES).flat_map(content).collect::<Vec<u8>>()
    );
}

/// An engine over one file, `victim`, served at a socket for all users.
struct Served {
    dir: tempfile::TempDir,
    engine: Arc<Engine>,
    server: std::thread::JoinHandle<std::io::Result<()>>,
    path_fd: OwnedFd,
    id: u64,
}

impl Served {
    fn start(pages: u64, config: EngineConfig) -> Served {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, (0..pages).flat_map(content).collect::<Vec<u8>>()).unwrap();
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine =
            Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default())).unwrap();
        engine.serve().unwrap();
        let meta = std::fs::metadata(&victim).unwrap();
        engine.set_mount_dev(meta.dev());
        let path_fd = rustix::fs::open(&victim, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        engine.object(meta.ino(), path_fd.as_raw_fd(), meta.len()).unwrap();
        let (listener, socket_path) = listen(dir.path());
        std::fs::set_permissions(&socket_path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let server = {
            let e = engine.clone();
            std::thread::spawn(move || e.serve_preload(&listener))
        };
        Served { dir, engine, server, path_fd, id: meta.ino() }
    }
    fn small() -> Served {
        Served::start(64, EngineConfig { memory_bytes: 20 << 20, ..EngineConfig::default() })
    }
    fn victim(&self) -> std::path::PathBuf {
        self.dir.path().join("victim")
    }
    fn connect(&self) -> OwnedFd {
        connect(&self.dir.path().join("preload.sock"))
    }
    /// Page fills taken with their content, and those read again by the daemon.
    fn taken(&self) -> (u64, u64) {
        let via = self.engine.stats().preload;
        (via.fills_taken, via.fills_read)
    }
    /// Waits until `n` fills are handled.
    fn after(&self, n: u64) -> (u64, u64) {
        let (mut taken, mut read) = (0, 0);
        holds_within(Duration::from_secs(10), || {
            (taken, read) = self.taken();
            taken + read >= n
        });
        (taken, read)
    }
    /// Checks and stops the engine. Returns the directory with the final content of the file.
    fn end(self) -> tempfile::TempDir {
        let bad = self.engine.check();
        assert!(bad.is_empty(), "{bad:#?}");
        self.engine.shutdown().unwrap();
        self.server.join().unwrap().unwrap();
        self.dir
    }
}

fn request(op: u32) -> Request {
    Request { op, version: LAYOUT_VERSION }
}

/// A client of the preload path, like the library, with a grant for the victim.
struct Filler {
    socket: OwnedFd,
    segment: Segment,
    ring: Ring,
    object: u64,
}

impl Filler {
    fn new(socket: OwnedFd, victim: &Path) -> Filler {
        let (reply, fds) = call(&socket, request(proto::HELLO).as_bytes(), None).unwrap();
        assert_eq!((reply.errno, fds.len()), (0, 3));
        let segment = Segment::attach(&fds[0]).unwrap();
        let ring = Ring::attach(&fds[2], reply.ring_slots as usize).unwrap();
        let mut filler = Filler { socket, segment, ring, object: 0 };
        let reply = filler.ask(victim);
        assert_eq!((reply.errno, reply.may_write), (0, 1));
        filler.object = reply.object;
        filler
    }
    fn ask(&self, victim: &Path) -> Reply {
        let file = OwnedFd::from(std::fs::File::open(victim).unwrap());
        call(&self.socket, request(proto::SOURCE).as_bytes(), Some(&file)).unwrap().0
    }
    /// Sends a fill of `page` with recognizable content.
    fn fill(&self, slot: usize, page: u64) {
        let object = self.segment.object(self.segment.find_object(self.object).unwrap());
        let seen = terrace_shm::client::snapshot(&self.segment, object, page).unwrap();
        let d = self.ring.fill(slot);
        // SAFETY: the content page is mapped writable.
        unsafe { self.ring.content(slot).write_bytes(0xee, 4096) };
        d.object.store(self.object, Ordering::Relaxed);
        d.page.store(page, Ordering::Relaxed);
        d.seen.store(seen.identity, Ordering::Relaxed);
        d.clock.store(seen.clock, Ordering::Relaxed);
        d.len.store(4096, Ordering::Relaxed);
        d.state.store(2, Ordering::Release);
    }
}

/// Process of the test below, which gives up its rights.
#[test]
#[ignore = "run by a_right_to_write_ends_with_its_reason"]
fn fallen() {
    let dir = std::path::PathBuf::from(std::env::var("HOSTILE_DIR").unwrap());
    let filler = Filler::new(connect(&dir.join("preload.sock")), &dir.join("victim"));
    rustix::thread::set_thread_groups(&[]).unwrap();
    // SAFETY: changes this process alone.
    assert_eq!(unsafe { libc::setuid(65534) }, 0);
    filler.fill(0, 3);
    // Waits until the fill was drained.
    holds_within(Duration::from_secs(10), || filler.ring.fill(0).state.load(Ordering::Acquire) == 0);
}

/// The daemon takes content only from a process that may write the file now. Not after a drop of privileges,
/// a change of the file's mode, or for another file of the same number.
#[test]
fn a_right_to_write_ends_with_its_reason() {
    let served = Served::small();
    let victim = served.victim();
    let filler = Filler::new(served.connect(), &victim);
    filler.fill(0, 0);
    assert_eq!(served.after(1), (1, 0), "the owner's content is taken");

    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o444)).unwrap();
    filler.fill(0, 1);
    assert_eq!(served.after(2), (1, 1), "the mode has changed");
    if rustix::process::getuid().is_root() {
        assert_eq!(filler.ask(&victim).may_write, 1);
        filler.fill(0, 2);
        assert_eq!(served.after(3), (2, 1), "root may write all the same, and has asked anew");
    } else {
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(filler.ask(&victim).may_write, 1);
        filler.fill(0, 2);
        assert_eq!(served.after(3), (2, 1));
    }

    served.engine.forget_object(served.id).unwrap();
    let o = served.engine.object(served.id, served.path_fd.as_raw_fd(), 64 * 4096).unwrap();
    filler.fill(0, 4);
    assert_eq!(served.after(4), (2, 2), "another object under the same number");

    if rustix::process::getuid().is_root() {
        let mut fallen = std::process::Command::new(std::env::current_exe().unwrap());
        fallen.args(["fallen", "--exact", "--ignored"]).env("HOSTILE_DIR", served.dir.path());
        assert!(fallen.status().unwrap().success());
        assert_eq!(served.after(5), (2, 3), "root's right is not that of the user it became");
    }
    let mut page = [0; 4096];
    served.engine.read(&o, 3 * 4096, &mut page, AccessPath::FuseDirect).unwrap();
    assert!(page == content(3));
    served.end();
}

/// A recording contains no record of unknown files or pages, and no old record. An impossible head of a lane
/// does not affect others.
#[test]
fn claims_of_a_lane_are_checked() {
    let served = Served::small();
    let filler = Filler::new(served.connect(), &served.victim());
    let span = |object, page, pages, at_ns| Span { object, page, pages, miss: true, at_ns, thread: 5 };
    let now = || SystemClock.now_ns();
    let lane = filler.ring.lane(3);
    lane.push(span(filler.object, 1, 1, now()));
    let recorder = served.engine.record().unwrap();
    lane.push(span(filler.object, 2, 1, 0));
    lane.push(span(filler.object + 1, 3, 1, now() + 1_000_000));
    lane.push(span(filler.object, 62, 5, now() + 1_000_000));
    lane.push(span(filler.object, 1 << 39, u16::MAX, now()));
    let forged = filler.ring.lane(4);
    forged.ends.head.store(u64::MAX / 2, Ordering::Relaxed);
    let mut got = Vec::new();
    let lost = recorder
        .finish(&mut |access| {
            got.push((access.object, access.page, access.kind));
            Ok(())
        })
        .unwrap();
    assert_eq!(got, [62, 63].map(|page| (filler.object, page, Kind::PreloadMiss)));
    assert_eq!(lost.unclear, 1 + 3 + u64::from(u16::MAX) + LANE_RECORDS as u64);
    served.end();
}

/// A process is a client until its connection closes, also by an exec: at once, before the server notices.
#[test]
fn disconnected_peer_is_no_client() {
    let served = Served::small();
    let pid = std::process::id();
    for _ in 0..200 {
        assert!(!served.engine.is_client(pid));
        let socket = served.connect();
        let (reply, _) = call(&socket, request(proto::HELLO).as_bytes(), None).unwrap();
        if reply.errno == 0 {
            assert!(served.engine.is_client(pid));
        }
    }
    served.end();
}

/// A silent client, or one with a slow request, does not delay others. A shortage of descriptors does not
/// make the server spin.
#[test]
fn many_connections_delay_no_client() {
    let served = Served::small();
    // More than the limit: the last ones wait in the backlog.
    let crowd: Vec<OwnedFd> = (0..500).map(|_| served.connect()).collect();
    for socket in &crowd {
        for _ in 0..2 {
            rustix::net::send(socket, request(proto::FLUSH).as_bytes(), rustix::net::SendFlags::NOSIGNAL)
                .unwrap();
        }
    }
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads < 64, "{threads} threads");
    let (reply, _) = call(&served.connect(), request(proto::HELLO).as_bytes(), None).unwrap();
    assert_eq!(reply.errno, 0);
    drop(crowd);
    // Refused while the crowd's syncs wait for the device.
    let mut answered = None;
    holds_within(Duration::from_secs(60), || {
        answered = call(&served.connect(), request(proto::FLUSH).as_bytes(), None);
        answered.is_some()
    });
    let (reply, _) = answered.expect("the crowd is gone, and a flush is still refused");
    assert_eq!(reply.errno, 0);
    served.end();
}

/// Descriptors on other file systems are refused, and closed by another thread.
#[test]
fn a_strange_descriptor_is_refused() {
    let served = Served::small();
    let strange = OwnedFd::from(std::fs::File::open("/proc/self/status").unwrap());
    for _ in 0..200 {
        let (reply, _) = call(&served.connect(), request(proto::MAPPED).as_bytes(), Some(&strange)).unwrap();
        let expected = [rustix::io::Errno::XDEV, rustix::io::Errno::INVAL];
        assert!(expected.map(|e| e.raw_os_error() as u32).contains(&reply.errno), "errno {}", reply.errno);
    }
    let file = OwnedFd::from(std::fs::File::open(served.victim()).unwrap());
    let (reply, _) = call(&served.connect(), request(proto::MAPPED).as_bytes(), Some(&file)).unwrap();
    assert_eq!(reply.errno, 0);
    served.end();
}

/// A client can map the largest ring that the configuration accepts; larger ones are refused.
#[test]
fn rings_of_every_size_can_be_mapped() {
    let config = |ring_slots| EngineConfig { memory_bytes: 20 << 20, ring_slots, ..EngineConfig::default() };
    for slots in [1, terrace_engine::RING_SLOTS_MAX] {
        let served = Served::start(64, config(slots));
        let filler = Filler::new(served.connect(), &served.victim());
        assert_eq!(filler.ring.slots(), slots);
        filler.fill(slots - 1, 5);
        assert_eq!(served.after(1), (1, 0));
        served.end();
    }
    for slots in [0, terrace_engine::RING_SLOTS_MAX + 1] {
        let handles = Arc::new(SegmentHandles::create(&config(slots)).unwrap());
        let engine =
            Engine::start(config(slots), handles, Arc::new(SystemClock), Arc::new(BlockingIo::default()));
        assert_eq!(engine.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
}

/// A message sent right after the connect carries its sender's credentials. SO_PASSCRED on each accepted
/// socket came too late for a few in a thousand.
#[test]
fn every_quick_hello_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { memory_bytes: 20 << 20, ..EngineConfig::default() };
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    let engine =
        Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default())).unwrap();
    let (listener, path) = listen(dir.path());
    let server = {
        let e = engine.clone();
        std::thread::spawn(move || e.serve_preload(&listener))
    };
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for i in 0..2000 {
                    let hello = Request { op: proto::HELLO, version: LAYOUT_VERSION };
                    let (reply, _) = call(&connect(&path), hello.as_bytes(), None).unwrap();
                    // Too many clients, because the server has not seen the hang-ups yet.
                    let ok = [0, rustix::io::Errno::USERS.raw_os_error() as u32].contains(&reply.errno);
                    assert!(ok, "hello {i}: errno {}", reply.errno);
                }
            });
        }
    });
    engine.shutdown().unwrap();
    server.join().unwrap().unwrap();
}
