//! The slot table of a target and its memory files.

use crate::config::DeviceConfig;
use crate::format::DATA_AT;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use terrace_shm::map::{memfd, read_only_twin};
use terrace_shm::{DeviceTable, PAGE_SIZE};

/// The slot table of a target.
#[derive(Debug)]
pub struct TargetTable {
    table: Arc<DeviceTable>,
    fd: OwnedFd,
    read_only: OwnedFd,
}

impl TargetTable {
    /// Creates a table.
    ///
    /// # Errors
    /// Out of memory or of address space.
    pub fn create(config: &DeviceConfig) -> io::Result<TargetTable> {
        let pages = (config.region_bytes / PAGE_SIZE as u64) as u32;
        let fd = memfd("terrace-device", DeviceTable::bytes(config.regions, pages))?;
        let table = DeviceTable::create(&fd, config.first_region, config.regions, pages)?;
        for region in 0..config.regions {
            table.set_region(region, DATA_AT + u64::from(region) * config.region_bytes);
        }
        let read_only = read_only_twin(fd.as_fd())?;
        Ok(TargetTable { table: Arc::new(table), fd, read_only })
    }
    /// Takes over the table of a dead engine.
    ///
    /// # Errors
    /// It is no such table, or that of another target.
    pub fn take_over(config: &DeviceConfig, fd: OwnedFd, read_only: OwnedFd) -> io::Result<TargetTable> {
        let table = DeviceTable::take_over(&fd)?;
        let pages = (config.region_bytes / PAGE_SIZE as u64) as u32;
        if (table.first_region(), table.region_pages()) != (config.first_region, pages) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let taken_over = TargetTable { table: Arc::new(table), fd, read_only };
        if taken_over.table.regions() == config.regions {
            return Ok(taken_over);
        }
        // The engine died before it announced the target's new size. The supervisor may use the old table's
        // descriptors by number, so they stay open.
        let new = taken_over.resized(config);
        std::mem::forget(taken_over);
        new
    }
    /// The table, writable.
    pub fn table(&self) -> &Arc<DeviceTable> {
        &self.table
    }
    /// Its memory file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    /// The memory file opened read-only, for clients.
    pub fn read_only(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }
    /// Frees the table's memory. Clients that map it find zeros; no entry names one of its slots any more.
    pub fn release(&self) {
        use rustix::fs::{FallocateFlags, fallocate, fstat};
        let checks = PAGE_SIZE as u64;
        let bytes = fstat(&self.fd).map_or(0, |stat| (stat.st_size as u64).saturating_sub(checks));
        let _ = fallocate(&self.fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, checks, bytes);
    }
    /// A table for the same target with another number of regions.
    ///
    /// # Errors
    /// As [`TargetTable::create`].
    pub fn resized(&self, config: &DeviceConfig) -> io::Result<TargetTable> {
        let new = TargetTable::create(config)?;
        new.table.copy_checks(&self.table);
        Ok(new)
    }
}
