//! A target in use: its medium, its table, and the only writer.

use crate::config::DeviceConfig;
use crate::device::format::{Filling, Geometry, TierId};
use crate::device::medium::Medium;
use crate::device::superblock::{self, Found, Superblock};
use crate::io::AlignedBuf;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use terrace_shm::DeviceTable;

/// A target in use.
#[derive(Debug)]
pub(crate) struct DeviceIo {
    pub medium: Arc<dyn Medium>,
    pub table: Arc<DeviceTable>,
    pub id: TierId,
    pub geometry: Geometry,
    /// Held while something is appended or a region is reclaimed.
    pub writer: Mutex<Writer>,
}

/// Where the log goes on. The regions themselves are in `state/device.rs`.
#[derive(Debug)]
pub(crate) struct Writer {
    pub superblock: Superblock,
    /// The region being filled, or filled last, and pages of its batches so far (0: this run has written nothing).
    pub filling: Filling,
    pub pages: u32,
    /// Room for a batch.
    pub buf: AlignedBuf,
}

impl DeviceIo {
    /// Begins to use a target, of which nothing is known but its superblock.
    ///
    /// # Errors
    /// The device's; `InvalidData` if the superblock is not the one of `config`.
    pub(crate) fn begin(
        config: &DeviceConfig,
        medium: Arc<dyn Medium>,
        table: Arc<DeviceTable>,
    ) -> io::Result<DeviceIo> {
        let geometry = Geometry::new(config.region_bytes as u32, config.regions);
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let geometry = geometry.ok_or_else(|| invalid("a target cannot be divided so"))?;
        let Found::Ours(found) = superblock::find(&*medium)? else {
            return Err(invalid("its superblock is gone"));
        };
        if found.id.0 != config.tier_id || found.geometry != geometry {
            return Err(invalid("its superblock is another tier's"));
        }
        // The scan tells the first one.
        let filling = Filling { lap: 1, before: None };
        let writer = Writer { superblock: found, filling, pages: 0, buf: AlignedBuf::default() };
        let device =
            DeviceIo { medium, table, id: TierId(config.tier_id), geometry, writer: Mutex::new(writer) };
        Ok(device)
    }
}
