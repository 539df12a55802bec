//! A page of one slot, with the source's page cache, clients and the daemon.
//!
//! The page cache has the least order of a kernel: relaxed. A content is twice the number of writes before it,
//! plus one amid a write. Another page shares the slot.

use super::super::queue::{is_there, publish as fill_place, release, reserve};
use super::super::*;
use crate::entry::State;
use loom::sync::Arc;
use loom::thread;

/// A step that is left out, or made in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The record is pushed before the program's call.
    EarlyRecord,
    /// `seq` is loaded before `applied`.
    SeqFirst,
    /// The counts have no order before the call.
    BeginWithoutFence,
    /// The read of the source has no order before the next read.
    ReadWithoutFence,
    /// `applied` is loaded without an order.
    AppliedRelaxed,
    /// The record is counted before the entry is withdrawn.
    EarlyApply,
    /// The entry is withdrawn without an order after the record.
    ApplyWithoutFence,
    /// A fill reads the source of an unsettled slot.
    NoFirstLook,
    /// A fill is published though a write began during its read.
    NoSecondLook,
    /// The second look does not compare the guard.
    SecondLookWithoutGuard,
    /// The entry of an absent page keeps its version when it is withdrawn.
    AbsentKeepsVersion,
    /// A rebase waits for no writer.
    NoGrace,
    /// A rebase waits for the writers of one count.
    OneFlip,
    /// A writer enters without a fence.
    EnterWithoutFence,
    /// A rebase withdraws no page of an unsettled slot.
    LostPagesStay,
    /// The old board's records are counted twice after a restart, and its unsettled slots' pages withdrawn.
    CountedTwice,
    /// A board serves again without a renewal.
    BoardNotRenewed,
    /// Flags and board lie in two words, and the reader loads the flags first.
    FlagsApart,
}

/// The steps of a write after which a client dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Death {
    Entered,
    Begun,
    InCall,
    Called,
    Reserved,
    Pushed,
    Never,
}

/// The program's own call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// A write of the page.
    Whole,
    /// A write of the page in two steps.
    Halves,
    /// A write of the other page in the slot.
    OtherPage,
}

const SLOW: u8 = 1;
const BOARDS: usize = 3;
const CLIENTS: usize = 2;
/// Places of a queue.
const PLACES: usize = 1;

/// What a client shares with the daemon.
pub(super) struct Client {
    pub(super) writing: [AtomicU32; 2],
    pub(super) head: AtomicU64,
    pub(super) tail: AtomicU64,
    /// Sequence number of each place of the queue, and its record: board and page.
    pub(super) places: Vec<(AtomicU64, AtomicU32)>,
}

pub(super) struct World {
    pub(super) fault: Fault,
    /// A writer dies amid its call: half of a write is the content, then.
    pub(super) ends_torn: bool,
    /// Writers enter grace periods. Models without a rebase are smaller so.
    pub(super) rebases: bool,
    pub(super) guard: AtomicU32,
    /// The flags, for `Fault::FlagsApart` alone.
    pub(super) flags: AtomicU32,
    /// `seq` and `applied` of the slot, and the note of an overflow.
    pub(super) boards: [(AtomicU64, AtomicU64, AtomicU32); BOARDS],
    pub(super) generation: AtomicU32,
    pub(super) clients: [Client; CLIENTS],
    pub(super) entry: AtomicU64,
    pub(super) frame: AtomicU64,
    pub(super) source: AtomicU64,
    /// The newest version that an answered write or an ended read had.
    pub(super) floor: AtomicU64,
}

impl World {
    pub(super) fn new(fault: Fault, rebases: bool, board: Option<u32>) -> World {
        let client = || Client {
            writing: Default::default(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            places: (0..PLACES).map(|_| Default::default()).collect(),
        };
        let flags = if board.is_none() { SLOW } else { 0 };
        World {
            fault,
            ends_torn: false,
            rebases,
            guard: AtomicU32::new(Guard::new(flags, board).0),
            flags: AtomicU32::new(u32::from(flags)),
            boards: Default::default(),
            generation: AtomicU32::new(0),
            clients: [client(), client()],
            entry: AtomicU64::new(Entry::present(0, 1).0),
            frame: AtomicU64::new(0),
            source: AtomicU64::new(0),
            floor: AtomicU64::new(0),
        }
    }
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// A write of client `i`. False: the client has died.
    pub(super) fn write(&self, i: usize, call: Call, death: Death) -> bool {
        let client = &self.clients[i];
        let at = match self.fault {
            _ if !self.rebases => None,
            Fault::EnterWithoutFence => {
                let at = self.generation.load(Ordering::Relaxed) as usize & 1;
                client.writing[at].fetch_add(1, Ordering::Relaxed);
                Some(at)
            }
            _ => Some(enter(&self.generation, &client.writing)),
        };
        let board = guard(&self.guard).board();
        if death == Death::Entered {
            return false;
        }
        let seq = board.map(|n| &self.boards[n as usize].0);
        match seq {
            Some(seq) if self.has(Fault::BeginWithoutFence) => {
                seq.fetch_add(1, Ordering::Relaxed);
            }
            _ => begin(seq),
        }
        if self.has(Fault::EarlyRecord) {
            self.push(i, board, call, death);
        }
        let Some(version) = self.call(call, death) else { return false };
        if !self.has(Fault::EarlyRecord) {
            self.push(i, board, call, death);
        }
        if death != Death::Never {
            return false;
        }
        if let Some(at) = at {
            leave(&client.writing, at);
        }
        self.floor.fetch_max(version, Ordering::Release);
        true
    }
    /// The program's own call: the version that it makes, unless the client dies.
    pub(super) fn call(&self, call: Call, death: Death) -> Option<u64> {
        let steps: &[u64] = match call {
            Call::Whole => &[2],
            Call::Halves => &[1, 1],
            Call::OtherPage => &[],
        };
        let mut content = 0;
        for step in steps.iter().filter(|_| death != Death::Begun) {
            content = self.source.fetch_add(*step, Ordering::Relaxed) + step;
            if death == Death::InCall {
                return None;
            }
        }
        (death > Death::Called).then_some(content / 2)
    }
    pub(super) fn push(&self, i: usize, board: Option<u32>, call: Call, death: Death) {
        let Some(board) = board else { return };
        let Client { head, tail, places, .. } = &self.clients[i];
        let Some(at) = reserve(head, tail, places.len() as u64) else {
            return note_overflow(&self.boards[board as usize].2);
        };
        if death != Death::Reserved {
            let (seq, record) = &places[at as usize % places.len()];
            record.store(board << 1 | u32::from(call == Call::OtherPage), Ordering::Relaxed);
            fill_place(seq, at);
        }
    }

    pub(super) fn is_settled(&self, board: u32) -> bool {
        let (seq, applied, _) = &self.boards[board as usize];
        match self.fault {
            Fault::SeqFirst => {
                let begun = seq.load(Ordering::Acquire);
                applied.load(Ordering::Acquire) == begun
            }
            Fault::AppliedRelaxed => applied.load(Ordering::Relaxed) == seq.load(Ordering::Relaxed),
            _ => is_settled(seq, applied),
        }
    }
    pub(super) fn hit(&self) -> Option<u64> {
        let flags = self.has(Fault::FlagsApart).then(|| self.flags.load(Ordering::Acquire) as u8);
        let guard = guard(&self.guard);
        if flags.unwrap_or(guard.flags()) != 0 || !self.is_settled(guard.board()?) {
            return None;
        }
        let e = look(&self.entry);
        if e.state() != State::Present {
            return None;
        }
        let content = self.frame.load(Ordering::Relaxed);
        unchanged(&self.entry, e).then_some(content)
    }
    pub(super) fn read_source(&self) -> u64 {
        let content = self.source.load(Ordering::Relaxed);
        if !self.has(Fault::ReadWithoutFence) {
            source_read();
        }
        content
    }
    /// A read of the page by any thread: the hit, or the kernel's.
    pub(super) fn read(&self) -> u64 {
        self.check(|| {
            let hit = self.hit();
            assert!(hit.is_none_or(|content| content % 2 == 0 || self.ends_torn), "a hit amid a write");
            hit.unwrap_or_else(|| self.read_source())
        })
    }
    /// A read by the kernel alone.
    pub(super) fn read_plain(&self) -> u64 {
        self.check(|| self.read_source())
    }
    pub(super) fn check(&self, content: impl FnOnce() -> u64) -> u64 {
        let floor = self.floor.load(Ordering::Acquire);
        let version = content() / 2;
        assert!(version >= floor, "a read is older than an answered write or an ended read");
        self.floor.fetch_max(version, Ordering::Release);
        version
    }

    /// The fill of a client or of the daemon: the version of the entry, and the content.
    pub(super) fn look_for_fill(&self) -> Option<(u64, u64)> {
        let guard = guard(&self.guard);
        let (seq, applied, _) = &self.boards[guard.board()? as usize];
        let at = match self.has(Fault::NoFirstLook) {
            true => Some(seq.load(Ordering::Acquire)),
            false => settled_at(seq, applied),
        }?;
        let seen = look(&self.entry);
        if guard.flags() != 0 || seen.state() != State::Absent {
            return None;
        }
        let content = self.source.load(Ordering::Relaxed);
        let is_whole = match self.fault {
            Fault::NoSecondLook => true,
            Fault::SecondLookWithoutGuard => {
                source_read();
                seq.load(Ordering::Relaxed) == at
            }
            _ => is_unbegun(&self.guard, guard, seq, at),
        };
        is_whole.then_some((seen.identity(), content))
    }
}

/// The daemon's own state.
pub(super) struct Daemon {
    pub(super) w: Arc<World>,
    pub(super) clock: u64,
    pub(super) cursors: [u64; CLIENTS],
    pub(super) is_dead: [bool; CLIENTS],
}

impl Daemon {
    pub(super) fn new(w: &Arc<World>) -> Daemon {
        Daemon { w: w.clone(), clock: 1, cursors: [0; CLIENTS], is_dead: [false; CLIENTS] }
    }
    pub(super) fn entry(&self) -> Entry {
        Entry(self.w.entry.load(Ordering::Relaxed))
    }
    pub(super) fn withdraw(&mut self) {
        if self.w.has(Fault::AbsentKeepsVersion) && self.entry().state() == State::Absent {
            return;
        }
        self.clock += 1;
        withdraw(&self.w.entry, Entry::absent(0, self.clock));
    }
    /// Takes the records that are there. Those of board `uncounted` only withdraw.
    pub(super) fn take(&mut self, uncounted: Option<u32>) {
        for i in 0..CLIENTS {
            while self.take_one(i, uncounted, true) {}
        }
    }
    pub(super) fn take_one(&mut self, i: usize, uncounted: Option<u32>, is_released: bool) -> bool {
        let w = self.w.clone();
        let Client { tail, places, .. } = &w.clients[i];
        let (seq, record) = &places[self.cursors[i] as usize % places.len()];
        if !is_there(seq, self.cursors[i]) {
            return false;
        }
        let record = record.load(Ordering::Relaxed);
        let (board, is_other) = (record >> 1, record & 1 == 1);
        let count = || {
            if uncounted != Some(board) {
                apply(&w.boards[board as usize].1);
            }
        };
        if w.has(Fault::EarlyApply) {
            count();
        }
        if !w.has(Fault::ApplyWithoutFence) {
            begin_apply();
        }
        if !is_other {
            self.withdraw();
        }
        if !w.has(Fault::EarlyApply) {
            count();
        }
        if is_released {
            self.cursors[i] += 1;
            release(tail, self.cursors[i]);
        }
        true
    }
    pub(super) fn publish(&mut self, (identity, content): (u64, u64)) {
        if self.entry().identity() != identity || self.entry().state() != State::Absent {
            return;
        }
        assert!(content % 2 == 0 || self.w.ends_torn, "a fill amid a write");
        self.clock += 2;
        withdraw(&self.w.entry, Entry::busy(0, self.clock - 1));
        self.w.frame.store(content, Ordering::Relaxed);
        publish(&self.w.entry, Entry::present(0, self.clock));
    }
    pub(super) fn fill(&mut self) {
        if let Some(found) = self.w.look_for_fill() {
            self.publish(found);
        }
    }
    pub(super) fn set_guard(&self, flags: u8, board: u32) {
        if self.w.has(Fault::FlagsApart) {
            self.w.flags.store(u32::from(flags), Ordering::Release);
        }
        set_guard(&self.w.guard, Guard::new(flags, Some(board)));
    }
    /// `restarted`: the old counts prove nothing.
    pub(super) fn rebase(&mut self, fresh: u32, restarted: bool) {
        let w = self.w.clone();
        let old = Guard(w.guard.load(Ordering::Relaxed)).board();
        let (seq, applied, overflow) = &w.boards[fresh as usize];
        if !w.has(Fault::BoardNotRenewed) {
            renew(seq, applied);
        }
        overflow.store(0, Ordering::Relaxed);
        self.set_guard(SLOW, fresh);
        let flips = match w.fault {
            Fault::NoGrace => 0,
            Fault::OneFlip => 1,
            _ => 2,
        };
        for _ in 0..flips {
            let i = flip(&w.generation);
            for client in (0..CLIENTS).filter(|&n| !self.is_dead[n]) {
                while !is_quiet(&w.clients[client].writing, i) {
                    thread::yield_now();
                }
            }
        }
        let counted_twice = w.has(Fault::CountedTwice);
        self.take(old.filter(|_| restarted && !counted_twice));
        let is_lost = |n: u32| !w.is_settled(n);
        let all = restarted && !counted_twice;
        if (all || old.is_none_or(is_lost)) && !w.has(Fault::LostPagesStay) {
            self.withdraw();
        }
        self.set_guard(0, fresh);
    }
    /// All writers are done: the slot is settled after the last record, and a fill makes the page a hit.
    pub(super) fn check_end(&mut self) {
        self.take(None);
        self.fill();
        let source = self.w.source.load(Ordering::Relaxed);
        let board = guard(&self.w.guard).board().expect("a board");
        assert!(self.w.is_settled(board), "the slot is settled again");
        assert_eq!(self.w.hit(), Some(source), "the page is served again");
        self.w.read();
    }
}
