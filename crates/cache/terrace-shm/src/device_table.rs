//! The table by which clients read pages on a target: offsets of regions, and 16 bits of each page's
//! checksum.
//!
//! ```text
//! 0         head: magic, version, regions, pages of a region, first region
//! regions   u64 x regions              byte offset of each region on its target
//! checks    u16 x regions x pages      low bits of the crc32 of the slot's content
//! ```
//! Each target has one such memory file: the daemon writes it, clients map it read-only, and it outlives
//! terraced. Entries number regions over all targets. A table covers its target's regions, from its first one
//! on.

use crate::entry::DeviceSlot;
use crate::layout::{LAYOUT_VERSION, PAGE_SIZE};
use crate::mapping::Mapping;
use crate::sync::{AtomicU64, Ordering};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU16;

/// Maximum number of targets of an instance.
pub const TARGETS_MAX: usize = 8;

/// Maximum gap of device pages in a read of the source: 64 KiB more are as fast as a second request.
pub const GAP_MAX: usize = 16;

/// "terrdev1", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"terrdev1");

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Head {
    magic: u64,
    version: u32,
    regions: u32,
    region_pages: u32,
    first_region: u32,
}

/// The table as mapped by one process.
#[derive(Debug)]
pub struct DeviceTable {
    map: Mapping,
    regions: u32,
    region_pages: u32,
    first_region: u32,
}

fn checks_at(regions: u32) -> usize {
    PAGE_SIZE + (regions as usize * size_of::<u64>()).next_multiple_of(PAGE_SIZE)
}

fn is_sane(first_region: u32, regions: u32, region_pages: u32) -> bool {
    first_region.checked_add(regions).is_some_and(|end| end <= DeviceSlot::REGIONS_MAX)
        && (1..=DeviceSlot::REGION_PAGES).contains(&region_pages)
}

/// The check of a page's content: [`check_of`] its crc32.
#[inline]
pub fn check_of_page(content: &[u8]) -> u16 {
    check_of(crc32fast::hash(content))
}

/// The low bits of a page's checksum, which each read verifies.
pub fn check_of(crc: u32) -> u16 {
    crc as u16
}

impl DeviceTable {
    /// Bytes of a table with this many regions and pages of a region (sparse).
    pub fn bytes(regions: u32, region_pages: u32) -> usize {
        let checks = regions as usize * region_pages as usize * size_of::<u16>();
        checks_at(regions) + checks.next_multiple_of(PAGE_SIZE)
    }
    /// Daemon: creates the table of the regions from `first_region` on in `fd`, which must be empty and of
    /// [`DeviceTable::bytes`].
    ///
    /// # Errors
    /// Out of address space.
    ///
    /// # Panics
    /// If entries cannot name that many regions, or pages of one.
    pub fn create(
        fd: impl AsFd,
        first_region: u32,
        regions: u32,
        region_pages: u32,
    ) -> io::Result<DeviceTable> {
        let sane = is_sane(first_region, regions, region_pages);
        assert!(sane, "{regions} regions of {region_pages} pages, the first {first_region}");
        let map = Mapping::new(fd.as_fd(), Self::bytes(regions, region_pages), true, PAGE_SIZE)?;
        // SAFETY: the mapping is writable, page aligned, longer than a head, and not shared yet.
        unsafe {
            map.as_ptr().cast::<Head>().write(Head {
                magic: MAGIC,
                version: LAYOUT_VERSION,
                regions,
                region_pages,
                first_region,
            });
        }
        Ok(DeviceTable { map, regions, region_pages, first_region })
    }
    /// Client: maps the table read-only and validates its head.
    ///
    /// # Errors
    /// `InvalidData` if the file is not such a table of this version.
    pub fn attach(fd: impl AsFd) -> io::Result<DeviceTable> {
        DeviceTable::map(fd, false)
    }
    /// Daemon: maps the table of a dead daemon.
    ///
    /// # Errors
    /// As [`DeviceTable::attach`]; the file must be open for writing.
    pub fn take_over(fd: impl AsFd) -> io::Result<DeviceTable> {
        DeviceTable::map(fd, true)
    }
    fn map(fd: impl AsFd, writable: bool) -> io::Result<DeviceTable> {
        let bytes = rustix::fs::fstat(fd.as_fd())?.st_size as usize;
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("device table: {what}"));
        if bytes < PAGE_SIZE || !bytes.is_multiple_of(PAGE_SIZE) {
            return Err(bad("too small"));
        }
        let map = Mapping::new(fd.as_fd(), bytes, writable, PAGE_SIZE)?;
        // SAFETY: the first page is mapped, and any bytes are a valid `Head`.
        let head = unsafe { map.as_ptr().cast::<Head>().read() };
        if head.magic != MAGIC || head.version != LAYOUT_VERSION {
            return Err(bad("other version"));
        }
        let Head { regions, region_pages, first_region, .. } = head;
        if !is_sane(first_region, regions, region_pages) || Self::bytes(regions, region_pages) > bytes {
            return Err(bad("bad geometry"));
        }
        Ok(DeviceTable { map, regions, region_pages, first_region })
    }
    /// The number of the table's first region.
    pub fn first_region(&self) -> u32 {
        self.first_region
    }
    /// Number of regions.
    pub fn regions(&self) -> u32 {
        self.regions
    }
    /// Pages of a region.
    pub fn region_pages(&self) -> u32 {
        self.region_pages
    }
    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.regions as usize * self.region_pages as usize
    }
    /// The index of a slot in the table. None: the table has no such slot.
    #[inline]
    pub fn index(&self, slot: DeviceSlot) -> Option<usize> {
        let region = slot.region().checked_sub(self.first_region)?;
        let known = region < self.regions && slot.page() < self.region_pages;
        known.then(|| region as usize * self.region_pages as usize + slot.page() as usize)
    }
    /// Byte offset on the target of the table's region `n`.
    fn region(&self, n: u32) -> &AtomicU64 {
        assert!(n < self.regions);
        // SAFETY: in bounds; accessed as atomics only.
        unsafe { AtomicU64::from_ptr(self.map.as_ptr().add(PAGE_SIZE).cast::<u64>().add(n as usize)) }
    }
    /// Daemon: sets the byte offset on the target of the table's region `n`.
    pub fn set_region(&self, n: u32, at: u64) {
        self.region(n).store(at, Ordering::Relaxed);
    }
    /// Byte offset of a slot on its target. None: the table has no such slot.
    #[inline]
    pub fn offset(&self, slot: DeviceSlot) -> Option<u64> {
        self.index(slot)?;
        let region = self.region(slot.region() - self.first_region).load(Ordering::Relaxed);
        Some(region + u64::from(slot.page()) * PAGE_SIZE as u64)
    }
    /// Daemon: copies the checks of another table of the same target, for slots that both have.
    pub fn copy_checks(&self, from: &DeviceTable) {
        debug_assert_eq!((self.first_region, self.region_pages), (from.first_region, from.region_pages));
        for region in self.first_region..self.first_region + self.regions.min(from.regions) {
            for page in 0..self.region_pages {
                let slot = DeviceSlot::new(region, page);
                if let (Some(to), Some(from)) = (self.check(slot), from.check(slot)) {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
    }
    /// The check of a slot's content, see [`check_of`]. None: the table has no such slot.
    #[inline]
    pub fn check(&self, slot: DeviceSlot) -> Option<&AtomicU16> {
        let i = self.index(slot)?;
        // SAFETY: in bounds; accessed as atomics only.
        unsafe {
            Some(AtomicU16::from_ptr(self.map.as_ptr().add(checks_at(self.regions)).cast::<u16>().add(i)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{memfd, read_only_twin};
    use std::os::fd::OwnedFd;

    fn table(first: u32, regions: u32, pages: u32) -> (OwnedFd, DeviceTable) {
        let fd = memfd("terrace-test", DeviceTable::bytes(regions, pages)).unwrap();
        let table = DeviceTable::create(&fd, first, regions, pages).unwrap();
        (fd, table)
    }

    #[test]
    fn client_reads_what_the_daemon_wrote() {
        let (fd, ours) = table(10, 5, 256);
        let slot = DeviceSlot::new(14, 255);
        ours.set_region(4, 7 << 20);
        ours.check(slot).unwrap().store(0xabcd, Ordering::Relaxed);
        let theirs = DeviceTable::attach(read_only_twin(fd.as_fd()).unwrap()).unwrap();
        assert_eq!((theirs.first_region(), theirs.regions(), theirs.region_pages()), (10, 5, 256));
        assert_eq!((theirs.slots(), theirs.index(slot)), (1280, Some(1279)));
        assert_eq!(theirs.offset(slot), Some((7 << 20) + 255 * 4096));
        assert_eq!(theirs.check(slot).unwrap().load(Ordering::Relaxed), 0xabcd);
        for beyond in [DeviceSlot::new(15, 0), DeviceSlot::new(9, 0), DeviceSlot::new(10, 256)] {
            assert_eq!((theirs.offset(beyond), theirs.index(beyond)), (None, None));
            assert!(theirs.check(beyond).is_none());
        }
    }

    #[test]
    fn other_files_are_refused() {
        let empty = memfd("terrace-test", 1 << 20).unwrap();
        assert!(DeviceTable::attach(&empty).is_err());
        let short = memfd("terrace-test", 100).unwrap();
        assert!(DeviceTable::attach(&short).is_err());
    }
}
