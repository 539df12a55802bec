//! Announced writes of client processes (`terrace_shm::writes`): the drainer withdraws the pages of finished
//! writes, and repairs slots with lost records.
//!
//! Written pages that were in memory are read again at once, from the kernel's page cache, which has just got
//! them. A write that is under way at that time may tear the content. Its slot is unsettled until its own pages
//! are withdrawn, so no reader uses the torn content.
//!
//! A client page belongs to a process until the process has died, also after an exec or a lost connection. So
//! a write that is under way at that time keeps its record.

use crate::context::Context;
use crate::file::object::{Object, ObjectRef};
use crate::path::fetch;
use crate::state::State;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_shm::PAGE_SIZE;
use terrace_shm::writes::{GROUP_PAGES, Span, Writes, slot_of_file, slot_of_page};
use terrace_sync::Mutex;

const PAGE: u64 = PAGE_SIZE as u64;
/// Interval of looks for dead processes and lost records.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Groups of a file that a repair looks at one by one (128 GiB). All pages of a larger file are withdrawn.
const GROUPS_MAX: u64 = 1 << 20;
/// Pages of a longer write are dropped: the drainer holds the state lock while it reads.
const REREAD_MAX: u64 = 32;

/// A process with a client page.
#[derive(Debug)]
struct Writer {
    page: usize,
    pid: u32,
    /// None: the process cannot be watched. Its page stays for the rest of the run.
    process: Option<OwnedFd>,
    /// See [`Writes::apply`].
    finished: u32,
    /// The process has opened a watched file for writing without its library.
    opens_unseen: bool,
}

impl Writer {
    fn is_dead(&self) -> bool {
        !dead(std::slice::from_ref(self)).is_empty()
    }
}

/// The processes that announce writes.
#[derive(Debug)]
pub(crate) struct Writers {
    writes: Arc<Writes>,
    list: Mutex<List>,
}

#[derive(Debug)]
struct List {
    writers: Vec<Writer>,
    looked: Instant,
    /// Slots may lack a record.
    needs_repair: bool,
}

impl Writers {
    /// Takes over the client pages of a dead daemon's clients. Slots of records that it had taken need a
    /// repair.
    pub(crate) fn new(writes: Arc<Writes>) -> Writers {
        let mut writers = Vec::new();
        for (page, pid) in writes.clients() {
            let process = Pid::from_raw(pid as i32).ok_or(Errno::SRCH);
            match process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                Err(Errno::SRCH) => writes.release(page),
                process => writers.push(Writer {
                    page,
                    pid,
                    process: process.ok(),
                    finished: u32::MAX,
                    opens_unseen: false,
                }),
            }
        }
        let list = List { writers, looked: Instant::now(), needs_repair: true };
        Writers { writes, list: Mutex::new(list) }
    }

    /// A client page for a client, by number: the process's, or a new one. None: all are in use, and the client
    /// has no records.
    pub(crate) fn admit(&self, pid: u32, process: &OwnedFd) -> Option<usize> {
        let mut list = self.list.lock();
        if let Some(known) = list.writers.iter().find(|w| w.pid == pid && !w.is_dead()) {
            return Some(known.page);
        }
        let process = Some(rustix::io::dup(process).ok()?);
        let page = self.writes.admit(pid)?;
        list.writers.push(Writer { page, pid, process, finished: 0, opens_unseen: false });
        Some(page)
    }

    /// True if the library of this process announces an open that waits. Otherwise the process counts as one
    /// that does not announce its writes.
    pub(crate) fn announces_open(&self, pid: i32) -> bool {
        let mut list = self.list.lock();
        let Some(writer) = list.writers.iter_mut().find(|writer| writer.pid as i32 == pid) else {
            return false;
        };
        let page = self.writes.client(writer.page);
        writer.opens_unseen |= !page.is_opening();
        page.is_opening() && page.is_ready()
    }

    /// The processes that announce the writes of all their descriptors.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let list = self.list.lock();
        let dead = dead(&list.writers);
        let announce = |writer: &&Writer| {
            !writer.opens_unseen && !dead.contains(&writer.page) && self.writes.client(writer.page).is_ready()
        };
        list.writers.iter().filter(announce).map(|writer| writer.pid as i32).collect()
    }

    /// Withdraws the pages of finished writes. Returns the number of writes.
    pub(crate) fn drain(&self, cx: &Context) -> usize {
        let mut list = self.list.lock();
        let mut taken = 0;
        for writer in &mut list.writers {
            let page = self.writes.client(writer.page);
            taken += self.writes.apply(page, &mut writer.finished, |span| withdraw(cx, span));
        }
        if list.looked.elapsed() >= LOOK_EVERY {
            list.looked = Instant::now();
            self.release_dead(cx, &mut list);
            list.needs_repair |= self.writes.take_repair_flag();
            if list.needs_repair {
                list.needs_repair = self.repair(cx);
            }
        }
        taken
    }

    /// True if a write of the object may be under way, or not yet applied. A write without a record may be of any
    /// object, until its repair.
    pub(crate) fn is_written(&self, object: u64) -> bool {
        // A drain frees a record before it withdraws the pages.
        let list = self.list.lock();
        list.needs_repair || self.writes.lacks_records() || self.writes.is_written(object)
    }

    /// Frees the pages of dead processes. Their unfinished writes leave slots to repair.
    fn release_dead(&self, cx: &Context, list: &mut List) {
        let dead = dead(&list.writers);
        if dead.is_empty() {
            return;
        }
        list.needs_repair = true;
        list.writers.retain_mut(|writer| {
            if !dead.contains(&writer.page) {
                return true;
            }
            let page = self.writes.client(writer.page);
            writer.finished = writer.finished.wrapping_sub(1);
            self.writes.apply(page, &mut writer.finished, |span| withdraw(cx, span));
            self.writes.release(writer.page);
            false
        });
    }

    /// Settles slots with lost records. Returns whether unsettled slots remain.
    fn repair(&self, cx: &Context) -> bool {
        let found = self.writes.lost_slots();
        if !found.lost.is_empty() {
            let slots: HashSet<usize> = found.lost.iter().map(|&(slot, _)| slot).collect();
            let objects: Vec<ObjectRef> = cx.state.lock().objects.values().cloned().collect();
            objects.iter().for_each(|o| withdraw_slots(cx, o, &slots));
            found.lost.into_iter().for_each(|(slot, begun)| self.writes.settle(slot, begun));
        }
        found.others
    }
}

/// Client pages of dead processes.
fn dead(writers: &[Writer]) -> HashSet<usize> {
    let watched = || writers.iter().filter_map(|w| Some((w.page, w.process.as_ref()?)));
    let mut fds: Vec<_> = watched().map(|(_, process)| PollFd::new(process, PollFlags::IN)).collect();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if fds.is_empty() || poll(&mut fds, Some(&now)).is_err() {
        return HashSet::new();
    }
    let ended = fds.iter().zip(watched()).filter(|(fd, _)| !fd.revents().is_empty());
    ended.map(|(_, (page, _))| page).collect()
}

/// Withdraws the pages of a write.
fn withdraw(cx: &Context, span: Span) {
    let Some(o) = cx.lookup_object(span.object) else { return };
    let last = span.first.saturating_add(span.pages.saturating_sub(1));
    let end = last.saturating_add(1).saturating_mul(PAGE);
    let mut state = cx.state.lock();
    if span.pages <= REREAD_MAX && end <= o.size() {
        let read = |first, frames: &[u32]| fetch::read_cached(cx, &o, first, frames);
        state.reread_pages(&o, span.first, last, read);
        cx.wake_reclaim_if_low(&state);
    } else if span.pages > 0 {
        state.drop_pages(&o, span.first, last);
    }
    if span.is_whole || end > o.size() {
        update_size(&mut state, &o);
    }
}

/// Publishes the size after a write.
fn update_size(state: &mut State, o: &Object) {
    let Ok(st) = o.source().stat() else { return };
    let (size, before) = (st.st_size as u64, o.size());
    if size == before {
        return;
    }
    // The last page ends in zeros beyond the smaller size. It is withdrawn before the new size is visible, and
    // after it: a fill with the old size must not be published.
    let first = size.min(before) / PAGE;
    state.drop_pages(o, first, u64::MAX);
    o.slot().size.store(size, Ordering::Release);
    state.drop_pages(o, first, u64::MAX);
}

/// Withdraws the pages of an object that lie in some slots.
fn withdraw_slots(cx: &Context, o: &Object, slots: &HashSet<usize>) {
    let mut state = cx.state.lock();
    update_size(&mut state, o);
    let groups = o.size().div_ceil(PAGE * GROUP_PAGES);
    if slots.contains(&slot_of_file(o.id())) || groups > GROUPS_MAX {
        return state.drop_pages(o, 0, u64::MAX);
    }
    for first in (0..groups).map(|group| group * GROUP_PAGES) {
        if slots.contains(&slot_of_page(o.id(), first)) {
            state.drop_pages(o, first, first + GROUP_PAGES - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AccessPath, Engine, EngineConfig, ObjectId, SegmentHandles, SystemClock};
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::process::{Child, Command};
    use terrace_io::BlockingIo;

    const PAGES: u64 = 40;

    /// An engine, a file with cached pages, and a process that announces writes.
    struct Fixture {
        engine: Arc<Engine>,
        writes: Arc<Writes>,
        file: File,
        object: ObjectRef,
        process: Child,
        page: usize,
    }

    fn fixture() -> Fixture {
        let config =
            EngineConfig { memory_bytes: 16 << 20, announced_writes: true, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let writes = handles.writes.as_ref().unwrap().writes.clone();
        let io = Arc::new(BlockingIo::default());
        let engine = Engine::start(config, handles, Arc::new(SystemClock), io).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; PAGES as usize * PAGE_SIZE], 0).unwrap();
        let id: ObjectId = file.metadata().unwrap().ino();
        let object = engine.object(id, file.as_raw_fd(), PAGES * PAGE).unwrap();
        let process = Command::new("sleep").arg("60").spawn().unwrap();
        let handle = pidfd_open(Pid::from_raw(process.id() as i32).unwrap(), PidfdFlags::empty()).unwrap();
        let page = engine.clients.writers.as_ref().unwrap().admit(process.id(), &handle).unwrap();
        let fixture = Fixture { engine, writes, file, object, process, page };
        assert!(fixture.read().iter().all(|&byte| byte == 1));
        // A new engine begins with a repair.
        fixture.drain_and_look();
        fixture
    }

    impl Fixture {
        fn writers(&self) -> &Writers {
            self.engine.clients.writers.as_ref().unwrap()
        }
        /// All of the file, through the cache.
        fn read(&self) -> Vec<u8> {
            let mut all = vec![0; 2 * PAGES as usize * PAGE_SIZE];
            let n = self.engine.read(&self.object, 0, &mut all, AccessPath::Preload).unwrap();
            all.truncate(n);
            all
        }
        fn is_settled(&self) -> bool {
            self.writes.is_settled(self.object.id(), 0, PAGES as usize * PAGE_SIZE)
        }
        /// Drains until a look for dead processes and lost records was made.
        fn drain_and_look(&self) -> usize {
            std::thread::sleep(2 * LOOK_EVERY);
            self.writers().drain(&self.engine.cx)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn an_announced_write_withdraws_its_pages() {
        let w = fixture();
        let page = w.writes.client(w.page);
        let record = w.writes.begin(Some(page), Span::of(w.object.id(), PAGE, 2 * PAGE)).unwrap();
        w.file.write_all_at(&[2; 2 * PAGE_SIZE], PAGE).unwrap();
        assert!(!w.is_settled() && w.writers().is_written(w.object.id()));
        assert_eq!(w.writers().drain(&w.engine.cx), 0, "the write is under way");
        page.finish(record);
        assert_eq!(w.writers().drain(&w.engine.cx), 1);
        assert!(w.is_settled() && !w.writers().is_written(w.object.id()));
        let all = w.read();
        assert!(all[..PAGE_SIZE].iter().all(|&byte| byte == 1));
        assert!(all[PAGE_SIZE..3 * PAGE_SIZE].iter().all(|&byte| byte == 2));
    }

    #[test]
    fn a_written_page_in_memory_is_read_again() {
        let w = fixture();
        let page = w.writes.client(w.page);
        let resident = || {
            let state = w.engine.cx.state.lock();
            (0..PAGES).filter(|&page| state.pages.frame_of(&w.object, page).is_some()).count()
        };
        let write = |first: u64, pages: u64, byte: u8| {
            let span = Span::of(w.object.id(), first * PAGE, pages * PAGE);
            let record = w.writes.begin(Some(page), span).unwrap();
            w.file.write_all_at(&vec![byte; (pages * PAGE) as usize], first * PAGE).unwrap();
            page.finish(record);
            w.writers().drain(&w.engine.cx);
            assert_eq!(w.engine.check(), Vec::<String>::new());
        };
        write(3, 2, 2);
        assert_eq!(resident(), PAGES as usize);
        w.engine.cx.state.lock().drop_pages(&w.object, 8, 8);
        write(7, 3, 3);
        assert_eq!(resident(), PAGES as usize - 1, "a page that was not in memory is not read");
        let all = w.read();
        let byte = |page: usize| all[page * PAGE_SIZE];
        assert_eq!([2, 3, 4, 5, 7, 8, 9, 10].map(byte), [1, 2, 2, 1, 3, 3, 3, 1]);
    }

    /// The last page of a file ends in zeros, which are content once the file has grown.
    #[test]
    fn an_announced_write_sets_the_size() {
        let w = fixture();
        let page = w.writes.client(w.page);
        for (size, byte) in [(5 * PAGE + 100, 3), (9 * PAGE + 7, 4), (100, 5), (PAGES * PAGE, 6)] {
            let record = w.writes.begin(Some(page), Span::all(w.object.id())).unwrap();
            w.file.set_len(size).unwrap();
            w.file.write_all_at(&vec![byte; size as usize], 0).unwrap();
            page.finish(record);
            w.writers().drain(&w.engine.cx);
            let all = w.read();
            assert_eq!((all.len() as u64, w.object.size()), (size, size));
            assert!(all.iter().all(|&found| found == byte), "{size} bytes");
        }
    }

    #[test]
    fn a_dead_writer_leaves_no_old_page() {
        let mut w = fixture();
        let page = w.writes.client(w.page);
        w.writes.begin(Some(page), Span::of(w.object.id(), 0, PAGE)).unwrap();
        w.file.write_all_at(&[7; PAGE_SIZE], 0).unwrap();
        w.drain_and_look();
        assert!(!w.is_settled(), "the process lives");
        w.process.kill().unwrap();
        w.process.wait().unwrap();
        w.drain_and_look();
        assert!(w.is_settled());
        assert!(w.read()[..PAGE_SIZE].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_writer_without_a_record_leaves_no_old_page() {
        let w = fixture();
        assert!(w.writes.begin(None, Span::of(w.object.id(), 0, PAGE)).is_none());
        w.file.write_all_at(&[8; PAGE_SIZE], 0).unwrap();
        w.drain_and_look();
        assert!(!w.is_settled(), "the writer is inside its call");
        w.writes.finish_bare(None);
        w.drain_and_look();
        assert!(w.is_settled());
        assert!(w.read()[..PAGE_SIZE].iter().all(|&byte| byte == 8));
    }

    #[test]
    fn a_process_has_one_page() {
        let w = fixture();
        let pid = Pid::from_raw(w.process.id() as i32).unwrap();
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert_eq!(w.writers().admit(w.process.id(), &handle), Some(w.page));
    }
}
