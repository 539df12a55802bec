//! The touch table counts the reads of frames and compressed pages.

use crate::layout::{Geometry, PAGE_SIZE, ZSPAGE_TOUCHES};
use crate::mapping::Mapping;
use crate::part::{FirstItems, Part, Parts};
use crate::sync::{AtomicU8, Ordering};
use crate::zobject::Handle;
use std::io;
use std::os::fd::AsFd;

/// One saturating count a frame and some for each zspage. Clients increment them with a plain store.
#[derive(Debug)]
pub struct TouchTable {
    frames: Part<AtomicU8>,
    zspages: Part<[AtomicU8; ZSPAGE_TOUCHES]>,
    /// The daemon's mapping of the whole table.
    _map: Option<Mapping>,
}

/// Maximum touch count of a frame.
pub const TOUCH_MAX: u8 = 3;
/// Maximum touch count of a compressed page.
pub const ZTOUCH_MAX: u8 = 64;

impl TouchTable {
    /// Daemon: maps the table.
    pub fn create(fd: impl AsFd, geometry: &Geometry) -> io::Result<TouchTable> {
        let len = checked(&fd, geometry)?;
        let map = Mapping::new(fd.as_fd(), len, true, PAGE_SIZE)?;
        // SAFETY: the mapping is kept.
        let table = unsafe { TouchTable::of(&map, geometry)? };
        Ok(TouchTable { _map: Some(map), ..table })
    }
    /// Client: maps the table as far as it is used.
    pub fn attach(fd: impl AsFd, geometry: &Geometry) -> io::Result<TouchTable> {
        let len = checked(&fd, geometry)?;
        // SAFETY: no whole mapping.
        FirstItems::find(fd.as_fd(), len, true, |base| unsafe { TouchTable::of(base, geometry) })
    }
    /// # Safety
    /// As [`Parts::part`].
    unsafe fn of(parts: &impl Parts, geometry: &Geometry) -> io::Result<TouchTable> {
        // SAFETY: the caller's promise.
        let (frames, zspages) = unsafe {
            let zspages_at = geometry.frame_table_bytes();
            (parts.part(0, geometry.frames_max)?, parts.part(zspages_at, geometry.zspages_max)?)
        };
        Ok(TouchTable { frames, zspages, _map: None })
    }
    /// The count of frame `i`. For the daemon.
    #[inline]
    pub fn count(&self, i: u32) -> &AtomicU8 {
        self.frame(i).expect("a frame's count")
    }
    #[inline]
    fn frame(&self, i: u32) -> Option<&AtomicU8> {
        // SAFETY: bytes shared with other processes are only accessed as atomics.
        self.frames.get(i).map(|count| unsafe { count.as_ref() })
    }
    /// Records an access. A saturated count costs no store, so that processors share hot lines.
    #[inline]
    pub fn touch(&self, i: u32) {
        let Some(c) = self.frame(i) else { return };
        let n = c.load(Ordering::Relaxed);
        if n < TOUCH_MAX {
            c.store(n + 1, Ordering::Relaxed);
        }
    }
    /// The count of a compressed page, for the daemon. A hint: slots of small objects share it.
    pub fn zcount(&self, handle: Handle) -> &AtomicU8 {
        self.zobject(handle).expect("a compressed page's count")
    }
    fn zobject(&self, handle: Handle) -> Option<&AtomicU8> {
        // SAFETY: as in `frame`.
        let counts = self.zspages.get(handle.zspage()).map(|counts| unsafe { counts.as_ref() });
        counts.map(|counts| &counts[handle.slot() as usize % ZSPAGE_TOUCHES])
    }
    /// Records an access to a compressed page. Returns the count before.
    pub fn ztouch(&self, handle: Handle) -> u8 {
        let Some(c) = self.zobject(handle) else { return 0 };
        let n = c.load(Ordering::Relaxed);
        if n < ZTOUCH_MAX {
            c.store(n + 1, Ordering::Relaxed);
        }
        n
    }
}

/// The table's length, if the file is long enough.
fn checked(fd: impl AsFd, geometry: &Geometry) -> io::Result<usize> {
    let len = geometry.touch_bytes();
    match (rustix::fs::fstat(fd)?.st_size as usize) < len {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "touch table: too small")),
        false => Ok(len),
    }
}
