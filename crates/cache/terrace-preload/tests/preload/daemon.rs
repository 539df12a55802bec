//! A small daemon for tests: one directory, a small segment, and behaviour chosen by the test.
//!
//! The "mount" is the plain directory, so the mount path is the kernel and always right. The preload path
//! must return the same. The segment has only what the test publishes.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recvmsg, sendmsg, socket_with,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use terrace_shm::entry::State;
use terrace_shm::index::Index;
use terrace_shm::layout::FLAG_SLOW;
use terrace_shm::map::{memfd, read_only_twin};
use terrace_shm::proto::{self, Reply, Request};
use terrace_shm::protocol::{publish, slot, withdraw};
use terrace_shm::ring::{Counters, NO_LEAF, Ring};
use terrace_shm::writes::{CLIENTS_BYTES, DAEMON_BYTES, Span, Writes};
use terrace_shm::{Entry, Geometry, PAGE_SIZE, Segment, TouchTable};

const RING_SLOTS: usize = 16;

#[derive(Debug)]
pub(crate) struct Manners {
    /// Whether SOURCE allows page fills.
    pub may_write: AtomicBool,
    /// Alignment in the answer to SOURCE; 0: no direct reads.
    pub align: AtomicU32,
    /// Drops every connection without an answer.
    pub mute: AtomicBool,
    /// Leaves page fills in the ring.
    pub lazy: AtomicBool,
    /// Hangs up after a SOURCE, as at a restart.
    pub hangs_up: AtomicBool,
    /// Errno of the answer to HELLO.
    pub hello_errno: AtomicU32,
    /// Errno of the answer to GIVE_UP.
    pub give_up_errno: AtomicU32,
    /// Errno of the answer to MAPPED.
    pub map_errno: AtomicU32,
    /// Number of FLUSHes for which each answer waits, together with a MAPPED; 0: answers at once.
    pub flush_waits: AtomicU32,
}

struct Core {
    index: Index,
    /// (slot, page) in each frame.
    frames: Vec<Option<(u32, u64)>>,
    hand: usize,
    rings: Vec<Arc<Ring>>,
    /// Finished records of announced writes, for each client page; and all of their spans.
    finished: Vec<u32>,
    spans: Vec<Span>,
}

pub(crate) struct Daemon {
    pub dir: PathBuf,
    pub socket: PathBuf,
    pub dev: u64,
    pub manners: Manners,
    pub segment: Arc<Segment>,
    pub sources_asked: AtomicU32,
    pub maps_told: AtomicU32,
    pub flushes: AtomicU32,
    /// FLUSHes after a timeout.
    pub flushes_alone: AtomicU32,
    pub rung: AtomicU32,
    /// HELLOs received while the file `new` did not exist.
    pub early: AtomicU32,
    pub keys_only: AtomicU64,
    /// GIVE_UPs.
    pub given_up: AtomicU32,
    /// Set: writes are announced. The counts and their two files.
    pub writes: OnceLock<(Writes, [OwnedFd; 2])>,
    core: Mutex<Core>,
    touches: TouchTable,
    fds: [OwnedFd; 2],
    stop: AtomicBool,
}

/// A running daemon; stops when dropped.
pub(crate) struct Running {
    pub daemon: Arc<Daemon>,
    threads: Vec<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl std::ops::Deref for Running {
    type Target = Daemon;
    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.daemon.stop.store(true, Ordering::SeqCst);
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}

impl Running {
    /// A daemon with `frames` frames over a new directory.
    pub(crate) fn start(frames: u32) -> Running {
        // Not /tmp: its file system may not support direct reads.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("files");
        std::fs::create_dir(&path).unwrap();
        let geometry = Geometry { objects_max: 1024, ..Geometry::for_frames(frames) };
        let fd = memfd("terrace-segment", geometry.segment_bytes()).unwrap();
        let segment = Arc::new(Segment::create(&fd, geometry).unwrap());
        let touch = memfd("terrace-touch", geometry.touch_bytes()).unwrap();
        let dev = std::fs::metadata(&path).unwrap().dev();
        segment.header().mount_dev.store(dev, Ordering::SeqCst);
        segment.header().serving.store(1, Ordering::SeqCst);
        let daemon = Arc::new(Daemon {
            socket: dir.path().join("connection"),
            dir: path,
            dev,
            manners: Manners {
                may_write: AtomicBool::new(true),
                align: AtomicU32::new(PAGE_SIZE as u32),
                mute: AtomicBool::new(false),
                lazy: AtomicBool::new(false),
                hangs_up: AtomicBool::new(false),
                hello_errno: AtomicU32::new(0),
                give_up_errno: AtomicU32::new(0),
                map_errno: AtomicU32::new(0),
                flush_waits: AtomicU32::new(0),
            },
            sources_asked: AtomicU32::new(0),
            maps_told: AtomicU32::new(0),
            flushes: AtomicU32::new(0),
            flushes_alone: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            early: AtomicU32::new(0),
            keys_only: AtomicU64::new(0),
            given_up: AtomicU32::new(0),
            writes: OnceLock::new(),
            core: Mutex::new(Core {
                index: Index::new(segment.clone()),
                frames: vec![None; frames as usize],
                hand: 0,
                rings: Vec::new(),
                finished: Vec::new(),
                spans: Vec::new(),
            }),
            touches: TouchTable::create(&touch, &geometry).unwrap(),
            fds: [read_only_twin(fd.as_fd()).unwrap(), touch],
            segment,
            stop: AtomicBool::new(false),
        });
        let (connection, drainer) = (daemon.clone(), daemon.clone());
        let listener = connection.listen();
        let threads = vec![
            std::thread::spawn(move || connection.serve(&listener)),
            std::thread::spawn(move || {
                while !drainer.stop.load(Ordering::SeqCst) {
                    drainer.drain();
                    std::thread::sleep(Duration::from_millis(1));
                }
            }),
        ];
        Running { daemon, threads, _dir: dir }
    }
}

impl Daemon {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap()
    }
    /// Creates and publishes a file with `content`. Returns its object slot.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> u32 {
        let path = self.dir.join(name);
        std::fs::write(&path, content).unwrap();
        let st = std::fs::metadata(&path).unwrap();
        let slot = self.segment.free_slot(st.ino());
        let object = self.segment.object(slot.unwrap());
        object.size.store(st.len(), Ordering::SeqCst);
        object.id.store(st.ino(), Ordering::SeqCst);
        slot.unwrap()
    }
    pub(crate) fn slow(&self, object: u32, slow: bool) {
        self.segment.object(object).flags.store(if slow { FLAG_SLOW } else { 0 }, Ordering::SeqCst);
    }

    /// Makes a page present with `content` (padded with zeroes).
    pub(crate) fn fill(&self, object: u32, page: u64, content: &[u8]) {
        let mut core = self.core();
        let place = core.index.ensure(object, page).unwrap();
        if core.index.get(place).state() == State::Absent {
            let frame = self.claim(&mut core);
            self.set_frame(frame, content);
            self.insert(&mut core, object, page, frame);
        }
    }
    pub(crate) fn evict(&self, object: u32, page: u64) {
        self.evict_locked(&mut self.core(), object, page);
    }
    fn evict_locked(&self, core: &mut Core, object: u32, page: u64) {
        let Some(place) = core.index.find(object, page) else { return };
        let Some(frame) = core.index.get(place).frame() else { return };
        let now = core.index.tick();
        withdraw(core.index.entry(place), Entry::absent(0, now));
        core.index.count_present(place, -1);
        core.frames[frame as usize] = None;
    }
    fn claim(&self, core: &mut Core) -> u32 {
        core.hand = (core.hand + 1) % core.frames.len();
        if let Some((object, page)) = core.frames[core.hand] {
            self.evict_locked(core, object, page);
        }
        core.hand as u32
    }
    fn insert(&self, core: &mut Core, object: u32, page: u64, frame: u32) {
        let place = core.index.ensure(object, page).unwrap();
        let now = core.index.tick();
        publish(core.index.entry(place), Entry::present(frame, now));
        core.index.count_present(place, 1);
        core.frames[frame as usize] = Some((object, page));
    }
    fn set_frame(&self, frame: u32, content: &[u8]) {
        // SAFETY: frames are written under the state lock, after their entry was withdrawn.
        unsafe {
            let at = self.segment.frame(frame);
            at.copy_from(content.as_ptr(), content.len());
            at.add(content.len()).write_bytes(0, PAGE_SIZE - content.len());
        }
    }

    /// A write as in the engine: the page becomes busy, then everything changes, then it is present.
    pub(crate) fn write(&self, object: u32, file: &File, page: u64, content: &[u8; PAGE_SIZE]) {
        let mut core = self.core();
        let place = core.index.ensure(object, page).unwrap();
        if core.index.get(place).state() == State::Absent {
            let frame = self.claim(&mut core);
            let now = core.index.tick();
            publish(core.index.entry(place), Entry::busy(frame, now));
            core.index.count_present(place, 1);
            core.frames[frame as usize] = Some((object, page));
        }
        let frame = core.index.get(place).frame().unwrap();
        let now = core.index.tick();
        withdraw(core.index.entry(place), Entry::busy(frame, now));
        self.segment.object(object).write_clock.store(now, Ordering::SeqCst);
        file.write_all_at(content, page * PAGE_SIZE as u64).unwrap();
        self.set_frame(frame, content);
        let now = core.index.tick();
        publish(core.index.entry(place), Entry::present(frame, now));
    }

    /// Announces writes from here on.
    pub(crate) fn announce_writes(&self) {
        let clients = memfd("terrace-clients", CLIENTS_BYTES).unwrap();
        let applied = memfd("terrace-applied", DAEMON_BYTES).unwrap();
        let all = Writes::create(&clients, &applied).unwrap();
        assert!(self.writes.set((all, [clients, read_only_twin(applied.as_fd()).unwrap()])).is_ok());
    }
    /// The finished writes since the last call.
    pub(crate) fn finished_writes(&self) -> Vec<Span> {
        self.take_writes(&mut self.core());
        std::mem::take(&mut self.core().spans)
    }
    fn take_writes(&self, core: &mut Core) {
        let Some((all, _)) = self.writes.get() else { return };
        for (i, seen) in core.finished.iter_mut().enumerate() {
            all.apply(all.client(i), seen, |span| core.spans.push(span));
        }
    }

    /// Sum of a counter over all clients, also former ones.
    pub(crate) fn total(&self, of: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.core().rings.iter().map(|r| r.sum(&of)).sum()
    }
    pub(crate) fn clients(&self) -> usize {
        self.core().rings.len()
    }
    /// Pages received through the newest ring.
    pub(crate) fn fills_of_the_last(&self) -> u64 {
        self.core().rings.last().unwrap().sum(|c| &c.fills)
    }
    pub(crate) fn touched(&self) -> usize {
        (0..self.core().frames.len() as u32)
            .filter(|&f| self.touches.count(f).load(Ordering::Relaxed) > 0)
            .count()
    }

    /// Consumes page fills, and checks their versions.
    fn drain(&self) {
        if self.manners.lazy.load(Ordering::SeqCst) {
            return;
        }
        let mut core = self.core();
        self.take_writes(&mut core);
        for ring in core.rings.clone() {
            for i in (0..ring.slots()).filter(|&i| slot::is_ready(&ring.fill(i).state)) {
                let d = ring.fill(i);
                let (id, page) = (d.object.load(Ordering::Relaxed), d.page.load(Ordering::Relaxed));
                let (seen, len) = (d.seen.load(Ordering::Relaxed), d.len.load(Ordering::Relaxed) as usize);
                let object = self.segment.find_object(id).expect("fill of a known object");
                let now = core.index.find(object, page).map_or(NO_LEAF, |p| core.index.get(p).identity());
                let clock = d.clock.load(Ordering::Relaxed);
                let written = self.segment.object(object).write_clock.load(Ordering::Relaxed) > clock;
                if len == 0 {
                    self.keys_only.fetch_add(1, Ordering::Relaxed);
                } else if (now == seen || now == NO_LEAF || Entry(now).state() == State::Absent) && !written {
                    let frame = self.claim(&mut core);
                    // SAFETY: the slot is the daemon's while it is ready.
                    let content = unsafe { std::slice::from_raw_parts(ring.content(i), len) };
                    self.set_frame(frame, content);
                    self.insert(&mut core, object, page, frame);
                }
                slot::free(&d.state);
            }
        }
    }

    fn listen(&self) -> OwnedFd {
        let s = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let s = s.unwrap();
        bind(&s, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        listen(&s, 64).unwrap();
        s
    }
    fn serve(self: &Arc<Daemon>, listener: &OwnedFd) {
        while !self.stop.load(Ordering::SeqCst) {
            if let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) {
                let me = self.clone();
                std::thread::spawn(move || {
                    loop {
                        if me.manners.mute.load(Ordering::SeqCst) || me.answer(&socket).is_none() {
                            return;
                        }
                    }
                });
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    fn answer(&self, socket: &OwnedFd) -> Option<()> {
        let mut bytes = [0; 64];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
            .ok()?;
        let request = Request::from_bytes(&bytes[..got.bytes])?;
        let shown = control.drain().find_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let mut reply = Reply::default();
        let mut made: Vec<OwnedFd> = Vec::new();
        match request.op {
            proto::HELLO if self.manners.hello_errno.load(Ordering::SeqCst) != 0 => {
                reply.errno = self.manners.hello_errno.load(Ordering::SeqCst);
            }
            proto::HELLO => {
                self.early.fetch_add(u32::from(!self.dir.join("new").exists()), Ordering::SeqCst);
                let ring = memfd("test-ring", Ring::file_bytes(RING_SLOTS)).unwrap();
                self.core().rings.push(Arc::new(Ring::attach(&ring, RING_SLOTS).unwrap()));
                let mut writes = Vec::new();
                if let Some((all, fds)) = self.writes.get() {
                    let mut core = self.core();
                    core.finished.push(0);
                    reply.object = all.admit(1).unwrap() as u64 + 1;
                    writes.extend(fds.iter().map(|fd| fd.try_clone().unwrap()));
                }
                reply = Reply { ring_slots: RING_SLOTS as u32, mount_dev: self.dev, ..reply };
                let twin = |fd: &OwnedFd| fd.try_clone().unwrap();
                made = vec![twin(&self.fds[0]), twin(&self.fds[1]), ring];
                made.append(&mut writes);
            }
            proto::SOURCE => {
                self.sources_asked.fetch_add(1, Ordering::SeqCst);
                let st = rustix::fs::fstat(shown.as_ref()?).unwrap();
                let path = std::fs::read_dir(&self.dir).unwrap().map(|e| e.unwrap().path());
                let path =
                    path.into_iter().find(|p| std::fs::metadata(p).is_ok_and(|m| m.ino() == st.st_ino))?;
                made.push(open_direct(&path).into());
                reply.object = st.st_ino;
                reply.may_write = u32::from(self.manners.may_write.load(Ordering::SeqCst));
                reply.direct_align = self.manners.align.load(Ordering::SeqCst);
            }
            proto::MAPPED => {
                let st = rustix::fs::fstat(shown.as_ref()?).unwrap();
                reply.errno = self.manners.map_errno.load(Ordering::SeqCst);
                self.slow(self.segment.find_object(st.st_ino)?, reply.errno == 0);
                self.maps_told.fetch_add(1, Ordering::SeqCst);
            }
            proto::GIVE_UP => {
                self.given_up.fetch_add(1, Ordering::SeqCst);
                reply.errno = self.manners.give_up_errno.load(Ordering::SeqCst);
            }
            proto::RING => {
                self.rung.fetch_add(1, Ordering::SeqCst);
                return Some(());
            }
            _ => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
                self.wait_for_company();
            }
        }
        let fds: Vec<BorrowedFd<'_>> = made.iter().map(|f| f.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(socket, &[IoSlice::new(reply.as_bytes())], &mut control, SendFlags::NOSIGNAL).ok()?;
        let goes_on = request.op != proto::SOURCE || !self.manners.hangs_up.load(Ordering::SeqCst);
        goes_on.then_some(())
    }
    fn wait_for_company(&self) {
        let wanted = self.manners.flush_waits.load(Ordering::SeqCst);
        let end = Instant::now() + Duration::from_secs(4);
        let missed =
            || self.flushes.load(Ordering::SeqCst) < wanted || self.maps_told.load(Ordering::SeqCst) == 0;
        while wanted > 0 && missed() {
            if Instant::now() > end {
                self.flushes_alone.fetch_add(1, Ordering::SeqCst);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn open_direct(path: &Path) -> File {
    File::options().read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path).unwrap()
}
