//! I/O on a target with a time limit: a hanging device must not block programs that the source can serve.
//!
//! A call under way cannot be cancelled, so its memory has to outlive it. Each thread has its own ring and
//! buffer, and reads first go into this buffer. After a late call, ring and buffer stay aside until its end,
//! and the thread makes new ones. A thread submits and awaits its own calls.

use super::{AlignedBuf, IoVec, ReadOp, total};
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use terrace_sync::Mutex;

/// Maximum calls in flight on a thread's ring.
const DEPTH: usize = 32;
/// Maximum bytes in flight on a thread's ring: the longest request of a program.
const BYTES: usize = 1 << 20;

/// Time limit of calls on a target, and the number of late calls that have not ended.
#[derive(Debug, Clone)]
pub struct Limit {
    time: Duration,
    late: Arc<AtomicUsize>,
}

impl Limit {
    /// A limit of `time` for each call.
    pub fn new(time: Duration) -> Limit {
        Limit { time, late: Arc::default() }
    }
    /// Another time limit that shares the count of late calls.
    pub fn for_time(&self, time: Duration) -> Limit {
        Limit { time, late: self.late.clone() }
    }
    /// Whether a late call is still under way.
    pub fn is_passed(&self) -> bool {
        if self.late.load(Ordering::Acquire) == 0 {
            return false;
        }
        ABANDONED.lock().retain_mut(|abandoned| !abandoned.has_ended());
        self.late.load(Ordering::Acquire) > 0
    }
    /// The error of a late call, `TimedOut`.
    pub fn error(&self) -> io::Error {
        let why = format!("the device has not answered for {} s", self.time.as_secs_f64());
        io::Error::new(io::ErrorKind::TimedOut, why)
    }
}

static ABANDONED: Mutex<Vec<Abandoned>> = Mutex::new(Vec::new());

struct Abandoned {
    own: Own,
    /// Counters of the calls that have not ended.
    late: Vec<Option<Arc<AtomicUsize>>>,
}

impl Abandoned {
    /// Reaps completions. True: all calls have ended.
    fn has_ended(&mut self) -> bool {
        for ended in self.own.ring.completion() {
            if let Some(late) = self.late.get_mut(ended.user_data() as usize).and_then(Option::take) {
                late.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.late.iter().all(Option::is_none)
    }
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

struct Own {
    ring: IoUring,
    /// Used by the kernel until all calls of the ring have ended.
    memory: AlignedBuf,
}

impl Own {
    fn new() -> io::Result<Own> {
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32);
        let ring = ring.or_else(|_| IoUring::new(DEPTH as u32))?;
        match ring.params().is_feature_ext_arg() {
            true => Ok(Own { ring, memory: AlignedBuf::default() }),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Does calls until all have ended or `time` has passed. Returns their results in order. None: under way.
    /// EAGAIN: never begun, and still queued in the ring.
    ///
    /// # Safety
    /// The memory of the calls lives until they have ended.
    unsafe fn run(&mut self, calls: &[squeue::Entry], time: Duration) -> Vec<Option<i32>> {
        let mut ended = vec![None; calls.len()];
        for (n, call) in calls.iter().enumerate() {
            let call = call.clone().user_data(n as u64);
            // SAFETY: the caller's promise; the queue has room for all.
            unsafe { self.ring.submission().push(&call).expect("no more calls than the ring is deep") };
        }
        let (mut left, began) = (calls.len(), Instant::now());
        while left > 0 {
            let Some(rest) = time.checked_sub(began.elapsed()) else { break };
            let time = types::Timespec::from(rest);
            let args = types::SubmitArgs::new().timespec(&time);
            let waited = self.ring.submitter().submit_with_args(left, &args);
            for call in self.ring.completion() {
                ended[call.user_data() as usize] = Some(call.result());
                left -= 1;
            }
            match waited.map_err(|err| err.raw_os_error()) {
                Ok(_) | Err(Some(libc::ETIME | libc::EINTR)) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        // The kernel takes calls in order: the last ones of the queue have not begun.
        let begun = calls.len() - self.ring.submission().len();
        ended[begun..].fill(Some(-libc::EAGAIN));
        ended
    }
}

/// Does calls on the thread's ring with `len` bytes of its buffer. Missing result: late. None: no ring.
///
/// # Safety
/// The memory of the calls lives until they have ended, late or not.
unsafe fn run(
    len: usize,
    calls: impl FnOnce(*mut u8) -> Vec<squeue::Entry>,
    limits: &[&Limit],
    use_memory: impl FnOnce(*const u8, &[Option<i32>]),
) -> Option<Vec<Option<i32>>> {
    OWN.with_borrow_mut(|slot| {
        let mut own = match slot.take() {
            Some(own) => own,
            None => Own::new().ok()?,
        };
        let memory = own.memory.slice(len).as_mut_ptr();
        let calls = calls(memory);
        // SAFETY: the caller's promise; memory of the thread is put aside with the ring.
        let ended = unsafe { own.run(&calls, limits[0].time) };
        use_memory(memory, &ended);
        if ended.iter().all(Option::is_some) {
            // A ring with queued calls is closed: it would begin them with the next ones.
            if own.ring.submission().is_empty() {
                own.memory.shrink();
                *slot = Some(own);
            }
            return Some(ended);
        }
        let late = ended.iter().zip(limits).map(|(ended, limit)| {
            ended.is_none().then(|| {
                limit.late.fetch_add(1, Ordering::AcqRel);
                limit.late.clone()
            })
        });
        let late = late.collect();
        ABANDONED.lock().push(Abandoned { own, late });
        Some(ended)
    })
}

/// Part of a read: index of the operation, offset in it, length.
struct Part {
    of: usize,
    from: usize,
    len: usize,
}

/// Does reads in order, each within its limit. Returns their bytes read or errors. None: no ring.
///
/// # Safety
/// As [`super::Io::read`], for each operation.
pub(super) unsafe fn read(ops: &[ReadOp], limits: &[&Limit]) -> Option<Vec<io::Result<usize>>> {
    let mut done: Vec<io::Result<usize>> = ops.iter().map(|_| Ok(0)).collect();
    let mut parts = Vec::new();
    for (of, op) in ops.iter().enumerate() {
        let len = total(&op.bufs);
        parts.extend((0..len).step_by(BYTES).map(|from| Part { of, from, len: BYTES.min(len - from) }));
    }
    let mut rest = parts.as_slice();
    while !rest.is_empty() {
        let fits = |n: &usize| rest[..*n].iter().map(|part| part.len).sum::<usize>() <= BYTES;
        let n = (1..=rest.len().min(DEPTH)).take_while(fits).last().unwrap_or(1);
        let (now, later) = rest.split_at(n);
        rest = later;
        if now.iter().any(|part| limits[part.of].is_passed()) {
            now.iter().for_each(|part| done[part.of] = Err(limits[part.of].error()));
            continue;
        }
        let its: Vec<&Limit> = now.iter().map(|part| limits[part.of]).collect();
        // SAFETY: reads go to the thread's memory.
        let ended = unsafe {
            let len = now.iter().map(|part| part.len).sum();
            run(len, |memory| reads(ops, now, memory), &its, |memory, ended| copy(ops, now, memory, ended))
        }?;
        for (part, ended) in now.iter().zip(ended) {
            let before = done[part.of].as_ref().ok().copied();
            done[part.of] = match (ended, before) {
                (None, _) => Err(limits[part.of].error()),
                // An earlier part of the same read has failed, or was short.
                (_, before) if before != Some(part.from) => continue,
                // The following plain call would hang.
                (Some(n), _) if n == -libc::EAGAIN && limits[part.of].is_passed() => {
                    Err(limits[part.of].error())
                }
                (Some(n), _) if n < 0 => Err(io::Error::from_raw_os_error(-n)),
                (Some(n), _) => Ok(part.from + n as usize),
            };
        }
    }
    Some(done)
}

/// Reads for parts, adjacent in memory.
fn reads(ops: &[ReadOp], parts: &[Part], memory: *mut u8) -> Vec<squeue::Entry> {
    let mut at = 0;
    let call = |part: &Part| {
        let to = memory.wrapping_add(at);
        at += part.len;
        let op = &ops[part.of];
        opcode::Read::new(types::Fd(op.fd), to, part.len as u32).offset(op.offset + part.from as u64).build()
    };
    parts.iter().map(call).collect()
}

/// Copies the results to the buffers of the operations.
fn copy(ops: &[ReadOp], parts: &[Part], memory: *const u8, ended: &[Option<i32>]) {
    let mut at = 0;
    for (part, ended) in parts.iter().zip(ended) {
        let mut from = memory.wrapping_add(at);
        at += part.len;
        let mut left = ended.map_or(0, |n| n.max(0) as usize);
        for IoVec { ptr, len } in super::advance(&ops[part.of].bufs, part.from) {
            let n = len.min(left);
            // SAFETY: the caller of `read` vouches for the buffers; the ended call left as many bytes in the
            // thread's memory.
            unsafe { std::ptr::copy_nonoverlapping(from, ptr, n) };
            (from, left) = (from.wrapping_add(n), left - n);
        }
    }
}

/// Writes a buffer, within its limit. Returns the bytes written. None: no ring.
///
/// The kernel may read the buffer of a late call, and write its later content. Checksums detect this.
///
/// # Safety
/// `buf` is valid for reads until the call returns.
pub(super) unsafe fn write(fd: RawFd, offset: u64, buf: IoVec, limit: &Limit) -> Option<io::Result<usize>> {
    if limit.is_passed() {
        return Some(Err(limit.error()));
    }
    let call = opcode::Write::new(types::Fd(fd), buf.ptr, buf.len as u32).offset(offset).build();
    // SAFETY: the kernel checks the addresses of a late read of the buffer.
    let ended = unsafe { run(0, |_| vec![call], &[limit], |_, _| ()) }?;
    Some(result(ended[0], limit))
}

/// fdatasync, within its limit. None: no ring.
pub(super) fn sync(fd: RawFd, limit: &Limit) -> Option<io::Result<()>> {
    if limit.is_passed() {
        return Some(Err(limit.error()));
    }
    let call = opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build();
    // SAFETY: the call has no memory.
    let ended = unsafe { run(0, |_| vec![call], &[limit], |_, _| ()) }?;
    Some(result(ended[0], limit).map(drop))
}

fn result(ended: Option<i32>, limit: &Limit) -> io::Result<usize> {
    match ended {
        None => Err(limit.error()),
        Some(n) if n < 0 => Err(io::Error::from_raw_os_error(-n)),
        Some(n) => Ok(n as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    fn op(fd: RawFd, offset: u64, bufs: &mut [Vec<u8>]) -> ReadOp {
        let bufs = bufs.iter_mut().map(|buf| IoVec { ptr: buf.as_mut_ptr(), len: buf.len() }).collect();
        ReadOp { fd, offset, bufs, result: Ok(0) }
    }

    #[test]
    fn long_and_scattered_reads_come_whole() {
        let file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..3 * BYTES as u32 / 4).flat_map(u32::to_le_bytes).collect();
        file.write_all_at(&content, 0).unwrap();
        let limit = Limit::new(Duration::from_secs(60));
        let (mut long, mut short) =
            (vec![vec![0; 5000], vec![0; 2 * BYTES]], vec![vec![0; 100], vec![0; 9000]]);
        let mut end = vec![vec![0; 8192]];
        let fd = file.as_raw_fd();
        let ops =
            [op(fd, 4096, &mut long), op(fd, 8192, &mut short), op(fd, content.len() as u64 - 100, &mut end)];
        // SAFETY: the buffers outlive the call.
        let done = unsafe { read(&ops, &[&limit; 3]) }.unwrap();
        let done: Vec<usize> = done.into_iter().map(Result::unwrap).collect();
        assert_eq!(done, [5000 + 2 * BYTES, 9100, 100]);
        assert!(long.concat() == content[4096..][..done[0]] && short.concat() == content[8192..][..9100]);
        assert!(end[0][..100] == content[content.len() - 100..] && !limit.is_passed());
    }

    #[test]
    fn reads_of_several_extents_are_under_way_at_once() {
        let (pipes, mut sinks): (Vec<_>, Vec<_>) = (0..4).map(|_| io::pipe().unwrap()).unzip();
        let limit = Limit::new(Duration::from_secs(60));
        let mut bufs: Vec<_> = pipes.iter().map(|_| vec![vec![0; 256 << 10]]).collect();
        let ops: Vec<_> =
            pipes.iter().zip(&mut bufs).map(|(pipe, buf)| op(pipe.as_raw_fd(), 0, buf)).collect();
        // The first descriptor gets its data after all others.
        let answers = std::thread::spawn(move || {
            sinks.iter_mut().rev().for_each(|sink| {
                sink.write_all(b"x").unwrap();
                while rustix::io::ioctl_fionread(&*sink).unwrap() > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        });
        // SAFETY: the buffers outlive the call.
        let done = unsafe { read(&ops, &[&limit; 4]) }.unwrap();
        assert_eq!(done.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [1; 4]);
        answers.join().unwrap();
    }

    #[test]
    fn read_that_never_began_is_not_late() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        let at_once = Limit::new(Duration::ZERO);
        let (mut none, mut all) = (vec![vec![1; 4096]], vec![vec![1; 4096]]);
        // SAFETY: the buffers outlive the call.
        let done = unsafe { read(&[op(file.as_raw_fd(), 0, &mut none)], &[&at_once]) }.unwrap();
        assert_eq!(done[0].as_ref().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert!(!at_once.is_passed() && none[0] == [1; 4096]);
        let limit = Limit::new(Duration::from_secs(60));
        // SAFETY: as above.
        let done = unsafe { read(&[op(file.as_raw_fd(), 0, &mut all)], &[&limit]) }.unwrap();
        assert_eq!((done[0].as_ref().unwrap(), &all[0]), (&4096, &vec![7; 4096]), "by another ring");
    }

    #[test]
    fn late_read_leaves_its_target_alone_until_it_ends() {
        let (source, mut sink) = io::pipe().unwrap();
        let (limit, other) = (Limit::new(Duration::from_millis(50)), Limit::new(Duration::from_millis(50)));
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        let (mut hung, mut well) = (vec![vec![1; 1]], vec![vec![1; 4096]]);
        let ops = [op(source.as_raw_fd(), 0, &mut hung), op(file.as_raw_fd(), 0, &mut well)];
        // SAFETY: the buffers outlive the call.
        let done = unsafe { read(&ops, &[&limit, &other]) }.unwrap();
        let kind = |done: &io::Result<usize>| done.as_ref().map_err(io::Error::kind).copied();
        assert_eq!(kind(&done[0]), Err(io::ErrorKind::TimedOut));
        assert_eq!((kind(&done[1]), &well[0]), (Ok(4096), &vec![7; 4096]), "beside a device that hangs");
        assert!(limit.is_passed() && !other.is_passed());
        // SAFETY: as above.
        let again = unsafe { read(&ops[..1], &[&limit]) }.unwrap();
        assert_eq!(kind(&again[0]), Err(io::ErrorKind::TimedOut), "at once");
        sink.write_all(b"x").unwrap();
        let began = Instant::now();
        while limit.is_passed() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!limit.is_passed() && hung[0] == [1], "what comes late goes nowhere");
    }
}
