//! A recorded trace as it reaches a device below memory.

use super::{lru, plan};
use crate::vm::command::wrong;
use std::io;
use std::path::Path;
use terrace_api::capture::{Options, Reader};

/// Memory and device, as shares of the different pages of a trace.
const MEMORY_SHARE: f64 = 0.05;
const DEVICE_SHARE: f64 = 0.20;
/// Pages of a MiB, the unit of a device's size.
const MIB_PAGES: u64 = 256;
/// Pages that a source may span. Keys beyond are hashes, and pages are numbered instead.
const SPAN_MAX: u64 = 1 << 26;

/// A trace as it reaches the device.
#[derive(Debug)]
pub struct Trace {
    /// The file's name without its endings.
    pub name: String,
    /// All requests.
    pub requests: u64,
    /// Pages of memory.
    pub memory: u64,
    /// Of the device.
    pub device: u64,
    /// Pages of the source.
    pub span: u64,
    /// Reads that memory does not answer.
    pub misses: Vec<u32>,
}

impl Trace {
    /// Reads a whole trace.
    pub fn load(path: &Path) -> io::Result<Trace> {
        let reader = Reader::open(path, &Options::default()).map_err(io::Error::other)?;
        let keys = reader.map(|access| access.map(|access| access.key));
        let keys: Vec<u64> = keys.collect::<Result<_, _>>().map_err(io::Error::other)?;
        let (pages, distinct) = plan::pages(&keys, SPAN_MAX);
        let memory = (distinct as f64 * MEMORY_SHARE) as u64;
        let device = (distinct as f64 * DEVICE_SHARE) as u64 / MIB_PAGES * MIB_PAGES;
        if device < plan::DEVICE_PAGES_MIN {
            let least = plan::DEVICE_PAGES_MIN as f64 / DEVICE_SHARE;
            return Err(wrong(format!(
                "{}: {distinct} different pages; give a trace of {least}",
                path.display()
            )));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_owned();
        let span = u64::from(pages.iter().copied().max().unwrap_or(0)) + 1;
        let misses = lru::misses(&pages, memory as usize);
        Ok(Trace { name, requests: pages.len() as u64, memory, device, span, misses })
    }
}
