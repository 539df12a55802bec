//! Writers wait while too much is unwritten, as in the kernel's balance_dirty_pages: dirty pages, those under writeback and
//! unstable ones count, for none of their frames can be had for anything else.
//!
//! A file that cannot be written is its own writers' trouble: it counts against them and against no others, until such
//! files alone are over the limit. Nobody is told of a failure before a whole pass of writeback was waited for.

use crate::engine::Engine;
use crate::file::object::Object;
use crate::state::Core;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a writer that nobody wakes looks again.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What a waiting writer still hopes for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hope {
    /// The pass of writeback that it waits for.
    pass: u64,
    /// What had arrived before.
    arrived: u64,
}

impl Hope {
    fn new(core: &Core) -> Hope {
        // A pass that has begun already may be past what this writer needs.
        Hope { pass: core.dirt.passes_begun + 1, arrived: core.dirt.arrived }
    }
}

impl Engine {
    /// Pages above which writers wait.
    pub(crate) fn dirty_limit(&self) -> u64 {
        u64::from(self.pool_frames()) * u64::from(self.config.dirty_percent) / 100
    }

    /// Waits until `pages` more of the object may become dirty.
    pub(crate) fn throttle(&self, o: &Object, pages: u64) -> io::Result<()> {
        let mut core = self.core.lock();
        if self.admits(&core, o, pages) {
            return Ok(());
        }
        self.counts.throttled.fetch_add(1, Ordering::Relaxed);
        let mut hope = Hope::new(&core);
        while !self.admits(&core, o, pages) && !self.stopping.load(Ordering::Relaxed) {
            self.still_hoping(&core, o, &mut hope)?;
            self.wait_for_writeback(&mut core);
        }
        Ok(())
    }

    /// Waits a while for frames that writeback is to make clean. `hope` is the caller's for the whole of its waiting.
    pub(crate) fn wait_for_frames(&self, o: &Object, hope: &mut Option<Hope>) -> io::Result<()> {
        let mut core = self.core.lock();
        let hope = hope.get_or_insert_with(|| Hope::new(&core));
        self.still_hoping(&core, o, hope)?;
        if self.stopping.load(Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        self.wait_for_writeback(&mut core);
        Ok(())
    }

    fn admits(&self, core: &Core, o: &Object, pages: u64) -> bool {
        let (totals, limit) = (core.dirt.totals, self.dirty_limit());
        let counted = if o.failing().is_some() { totals.all() } else { totals.all() - totals.failing };
        // With nothing unwritten, a single write may be as large as it likes.
        totals.failing <= limit && (counted == 0 || counted + pages <= limit)
    }

    /// An error if waiting is of no use.
    fn still_hoping(&self, core: &Core, o: &Object, hope: &mut Hope) -> io::Result<()> {
        if core.dirt.passes_ended < hope.pass {
            return Ok(());
        }
        let blocked = core.dirt.arrived == hope.arrived && core.dirt.totals.failing > self.dirty_limit();
        let others = Some(core.dirt.failing_errno()).filter(|&errno| blocked && errno != 0);
        if let Some(errno) = o.failing().or(others) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        *hope = Hope::new(core);
        Ok(())
    }

    fn wait_for_writeback(&self, core: &mut parking_lot::MutexGuard<'_, Core>) {
        self.writeback_bell.ring();
        core.dirt.waiting += 1;
        self.dirty_done.wait_for(core, LOOK_EVERY);
        core.dirt.waiting -= 1;
    }
}
