//! A file read by bare `pread`, with checks of its pages: the common part of the read loops.

use crate::buffer::Buffer;
use crate::content::Content;
use crate::pages::{self, DATA_SEED, PAGE};
use clap::Args;
use fastrand::Rng;
use serde::Serialize;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Options of all loops.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Seed of the offsets.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Seed of the file's content.
    #[arg(long, default_value_t = DATA_SEED)]
    pub(crate) data_seed: u64,
    /// Content of the file's pages.
    #[arg(long, default_value = "incompressible")]
    pub(crate) content: Content,
}

impl Common {
    /// For a file of the matrix.
    pub(crate) fn of(seed: u64, content: Content) -> Common {
        Common { seed, data_seed: DATA_SEED, content }
    }
}

/// Latencies of single reads.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    /// Their mean.
    pub(crate) mean_us: f64,
    /// Their median.
    pub(crate) p50_us: f64,
    /// Their 99th percentile.
    pub(crate) p99_us: f64,
}

impl Latency {
    /// Computes the latencies from one or more times in nanoseconds.
    pub(crate) fn of(mut ns: Vec<u32>) -> Latency {
        ns.sort_unstable();
        let at = |q: f64| f64::from(ns[((ns.len() - 1) as f64 * q) as usize]) / 1000.0;
        let mean = ns.iter().map(|&ns| f64::from(ns)).sum::<f64>() / ns.len() as f64;
        Latency { mean_us: mean / 1000.0, p50_us: at(0.5), p99_us: at(0.99) }
    }
}

/// `ops` distinct pages of a range, in random order.
pub(crate) fn order(pages: std::ops::Range<u64>, ops: u64, seed: u64) -> io::Result<Vec<u32>> {
    let of = pages.end.saturating_sub(pages.start);
    if ops > of {
        return Err(io::Error::other(format!("{ops} reads, but there are only {of} pages")));
    }
    let mut order: Vec<u32> = pages.map(|page| page as u32).collect();
    Rng::with_seed(seed).shuffle(&mut order);
    order.truncate(ops as usize);
    Ok(order)
}

/// An error if reads returned wrong pages.
pub(crate) fn refuse(wrong: u64) -> io::Result<()> {
    if wrong == 0 { Ok(()) } else { Err(io::Error::other(format!("WRONG DATA in {wrong} reads"))) }
}

/// An open file, read by bare `pread`.
#[derive(Debug)]
pub(crate) struct Reader {
    fd: OwnedFd,
    /// Size of the file, bytes.
    pub(crate) size: u64,
}

impl Reader {
    /// Opens a file; `direct` bypasses the page cache.
    pub(crate) fn open(path: &Path, direct: bool) -> io::Result<Reader> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | if direct { libc::O_DIRECT } else { 0 };
        // SAFETY: `name` is a C string that outlives the call.
        let fd = unsafe { libc::open(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(terrace_output::named(path)(io::Error::last_os_error()));
        }
        // SAFETY: open returned this descriptor, which is owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = std::fs::metadata(path)?.len();
        Ok(Reader { fd, size })
    }

    /// Number of whole pages.
    pub(crate) fn pages(&self) -> u64 {
        self.size / PAGE as u64
    }

    /// Advises random reads, as fio does. Not for files that are filled sequentially: the kernel would then
    /// read single pages.
    pub(crate) fn expect_random(&self) {
        self.advise(libc::POSIX_FADV_RANDOM);
    }

    /// posix_fadvise for the whole file.
    pub(crate) fn advise(&self, advice: i32) {
        // SAFETY: takes a descriptor and numbers only.
        unsafe { libc::posix_fadvise(self.fd.as_raw_fd(), 0, 0, advice) };
    }

    /// Reads all of `buf` from `offset`.
    #[inline]
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        // SAFETY: the buffer is valid for its length during the call.
        let n =
            unsafe { libc::pread(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), offset as i64) };
        if n == buf.len() as isize { Ok(()) } else { Err(read_failed(n, offset)) }
    }

    /// Reads the whole file in order, in large pieces. Checks each page's number, and one page of each piece
    /// in full.
    pub(crate) fn fill(&self, common: &Common, buf: &mut Buffer) -> io::Result<()> {
        let mut offset = 0;
        while offset < self.size {
            let n = buf.len().min((self.size - offset) as usize);
            self.read(&mut buf[..n], offset)?;
            let first = offset / PAGE as u64;
            common.content.check(common.data_seed, first, &buf[..PAGE]).map_err(io::Error::other)?;
            let wrong =
                (first..).zip(buf[..n].chunks(PAGE)).filter(|(page, data)| !pages::looks_right(*page, data));
            refuse(wrong.count() as u64)?;
            offset += n as u64;
        }
        Ok(())
    }

    /// Reads these pages and checks each byte; returns their number.
    pub(crate) fn check_pages(&self, common: &Common, pages: impl Iterator<Item = u64>) -> io::Result<u64> {
        let mut buf = Buffer::new(PAGE);
        let mut checked = 0;
        for page in pages {
            self.read(&mut buf[..PAGE], page * PAGE as u64)?;
            common
                .content
                .check(common.data_seed, page, &buf[..PAGE])
                .map_err(|e| io::Error::other(format!("WRONG DATA: {e}")))?;
            checked += 1;
        }
        Ok(checked)
    }

    /// [`Reader::check_pages`] for `pages` random pages.
    pub(crate) fn check_sample(&self, common: &Common, pages: u64) -> io::Result<u64> {
        let mut rng = Rng::with_seed(common.seed ^ 0x5a5a);
        let all = self.pages();
        self.check_pages(common, (0..pages).map(|_| rng.u64(..all)))
    }
}

#[cold]
fn read_failed(n: isize, offset: u64) -> io::Error {
    if n < 0 {
        io::Error::last_os_error()
    } else {
        io::Error::other(format!("short read of {n} bytes at {offset}"))
    }
}
