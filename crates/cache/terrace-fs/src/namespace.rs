//! One mount's namespace: its tables, their recovery, and the end of an inode.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use terrace_sync::MutexGuard;

use crate::attr::Kind;
use crate::coherence::RecentReads;
use crate::crossings::Crossings;
use crate::error::{Error, Result};
use crate::inode::durable::{Durable, DurableLayout, DurableRegion};
use crate::inode::handle::HandleTable;
use crate::inode::journal::{Journal, Op};
use crate::inode::place::Refused;
use crate::inode::possibly_mapped::PossiblyMapped;
use crate::inode::watch::Watches;
use crate::inode::{Inode, InodeTable, Life, ROOT};
use crate::kernel::{Caller, Kernel};
use crate::page_cache::{CachedFile, PageCache};
use crate::pressure::{Pressure, limits};

/// Options of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceConfig {
    /// Capacities of the durable tables.
    pub layout: DurableLayout,
    /// Lifetime of attributes in the kernel.
    pub attr_ttl: Duration,
    /// Lifetime of a name in the kernel.
    pub entry_ttl: Duration,
    /// Lifetime of a negative dentry in the kernel. Short: only changes behind the mount make it wrong, and
    /// those are mostly new files.
    pub negative_ttl: Duration,
    /// Whether the last close of a descriptor writes the file back, so that programs beside the mount see it.
    pub flush_on_close: bool,
    /// Descriptors below the limit that are reserved for other uses.
    pub descriptors_spared: u64,
    /// Whether the kernel itself reads and writes files (passthrough) for programs outside the preload path.
    /// The kernel and this process must support it.
    pub passthrough: bool,
    /// Whether the kernel checks permissions, with ACLs. Otherwise the source's answers to this daemon
    /// decide.
    pub acls: bool,
    /// Whether writes to a new file opened for writing only bypass the kernel's page cache of the mount. The
    /// kernel must drop the range of such a write from there itself, as Linux does since 6.6. See
    /// docs/design/burst.md, What a burst costs.
    pub direct_writes: bool,
}

impl Default for NamespaceConfig {
    fn default() -> Self {
        Self {
            layout: DurableLayout::default(),
            attr_ttl: Duration::from_secs(3600),
            entry_ttl: Duration::from_secs(3600),
            negative_ttl: Duration::from_secs(1),
            flush_on_close: true,
            descriptors_spared: 0,
            passthrough: false,
            acls: true,
            direct_writes: false,
        }
    }
}

/// The namespace of one mount over a source directory.
pub struct Namespace<C: PageCache> {
    pub(crate) cache: Arc<C>,
    pub(crate) config: NamespaceConfig,
    pub(crate) inodes: InodeTable<C::Object>,
    pub(crate) handles: HandleTable<C>,
    pub(crate) journal: Journal,
    pub(crate) durable: Arc<Durable>,
    pub(crate) kernel: OnceLock<Box<dyn Kernel>>,
    pub(crate) pressure: Pressure,
    pub(crate) recent_reads: RecentReads,
    pub(crate) possibly_mapped: PossiblyMapped,
    pub(crate) crossings: Crossings,
    pub(crate) refused: Refused,
    /// `None`: this kernel offers no watches to this user.
    pub(crate) watches: Option<Watches>,
    /// The watches no longer report changes.
    pub(crate) watch_failed: AtomicBool,
    /// Whether the modes of source files restrict this daemon.
    pub(crate) bound_by_modes: bool,
}

impl<C: PageCache> fmt::Debug for Namespace<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("inodes", &self.inodes.len()).finish_non_exhaustive()
    }
}

impl<C: PageCache> Namespace<C> {
    /// A namespace over the directory `root` (an O_PATH descriptor), with a zeroed region for its tables.
    pub fn new(cache: Arc<C>, root: OwnedFd, region: DurableRegion, config: NamespaceConfig) -> Result<Self> {
        let durable = Arc::new(Durable::create(region, config.layout)?);
        let inodes = InodeTable::create(durable.clone(), root)?;
        let handles = HandleTable::new(durable.clone());
        Ok(Self::assemble(cache, config, inodes, handles, durable))
    }

    /// The namespace of an earlier daemon, from its region. Its descriptors must still be open. Call
    /// `finish_recovery` after the cache has recovered its pages as well.
    ///
    /// # Errors
    /// The tables are damaged, or the cache has no room. All descriptors then stay open, since the next
    /// daemon uses the same records.
    pub fn recover(cache: Arc<C>, region: DurableRegion, config: NamespaceConfig) -> Result<Self> {
        let durable = Arc::new(Durable::open(region, config.layout)?);
        let inodes = ManuallyDrop::new(InodeTable::recover(durable.clone())?);
        Self::reattach_objects(&inodes, &cache)?;
        let handles = HandleTable::recover(durable.clone(), &inodes, &*cache)?;
        let inodes = ManuallyDrop::into_inner(inodes);
        let namespace = Self::assemble(cache, config, inodes, handles, durable);
        for inode in namespace.inodes.all() {
            let mut life = inode.life.lock();
            if let Some(object) = life.object.clone() {
                namespace.pressure.note_object_made();
                if namespace.passes_through() {
                    // A mapping may outlive its closed handle.
                    life.kernel_writes.may_map |= object.is_slow();
                    // The cache has not recovered its pages yet, so they cannot be dropped here.
                    if life.unseen_writers == 0 && object.is_slow() {
                        namespace.possibly_mapped.push(inode.nodeid);
                    }
                    namespace.release_backing(&inode, &life);
                    continue;
                }
                object.set_slow(life.unseen_writers > 0);
                if life.writers == 0 {
                    object.set_mapped(false);
                }
            }
        }
        Ok(namespace)
    }

    fn reattach_objects(inodes: &InodeTable<C::Object>, cache: &C) -> Result<()> {
        for inode in inodes.all() {
            if inode.kind == Kind::File && inode.had_object() {
                let object = match cache.reattach(inode.nodeid, inode.shared_fd()) {
                    Some(object) => object,
                    // The daemon was killed between the record and the object.
                    None => cache.object(inode.nodeid, inode.shared_fd(), inode.stat()?.st_size as u64)?,
                };
                if inode.noted_writer() >= 0 {
                    // SAFETY: the number was recorded after the open and is removed before the close. The
                    // table owns it no longer.
                    object.source().adopt_writer(unsafe { OwnedFd::from_raw_fd(inode.noted_writer()) });
                }
                inode.life.lock().object = Some(object);
            } else {
                inode.forget_writer();
            }
        }
        Ok(())
    }

    /// Drops inodes that lost their last reference just before the crash. Closes descriptors that a last
    /// close would have closed.
    pub fn finish_recovery(&self) {
        for inode in self.inodes.all() {
            // Where modes restrict the daemon, a resent request may need it: `sweep` closes it later.
            if !self.bound_by_modes {
                inode.close_writer(&inode.life.lock());
            }
            if inode.nlookup() == 0 {
                self.retire_if_unused(&inode);
            }
        }
    }

    fn assemble(
        cache: Arc<C>,
        config: NamespaceConfig,
        inodes: InodeTable<C::Object>,
        handles: HandleTable<C>,
        durable: Arc<Durable>,
    ) -> Self {
        let descriptors_max = limits::descriptors_max().saturating_sub(config.descriptors_spared);
        let pressure = Pressure::new(inodes.max(), cache.objects_max(), descriptors_max);
        Self {
            cache,
            config,
            pressure,
            inodes,
            handles,
            journal: Journal::new(durable.clone()),
            recent_reads: RecentReads::new(),
            possibly_mapped: PossiblyMapped::default(),
            crossings: Crossings::default(),
            refused: Refused::default(),
            watches: Watches::new()
                .inspect_err(|err| tracing::debug!("names in the source are not watched: {err}"))
                .ok(),
            watch_failed: AtomicBool::new(false),
            durable,
            bound_by_modes: !rustix::process::geteuid().is_root(),
            kernel: OnceLock::new(),
        }
    }

    pub(crate) fn set_kernel(&self, kernel: Box<dyn Kernel>) {
        let _ = self.kernel.set(kernel);
    }

    /// Mounts of terrace that are not entered.
    pub fn crossings(&self) -> &Crossings {
        &self.crossings
    }

    /// Begins a request that changes names or lookup counts. Drop the result after the answer.
    pub(crate) fn begin(&self, caller: Caller) -> Op<'_> {
        self.journal.begin(caller)
    }

    /// Records that the kernel resends the requests that the earlier daemon left unanswered.
    pub fn note_resend_requested(&self) {
        self.journal.note_resend_requested();
        self.recent_reads.note_restart();
    }

    /// Records that the connection to the kernel is about to be initialised.
    pub(crate) fn note_initialised(&self) {
        self.durable.header.initialised.store(1, Ordering::Release);
    }

    pub(crate) fn is_initialised(&self) -> bool {
        self.durable.header.initialised.load(Ordering::Acquire) != 0
    }

    /// Records that passthrough is agreed on with the kernel.
    pub(crate) fn note_passthrough(&self) {
        self.durable.header.passthrough.store(1, Ordering::Release);
    }

    pub(crate) fn passes_through(&self) -> bool {
        self.durable.header.passthrough.load(Ordering::Acquire) != 0
    }

    pub(crate) fn config(&self) -> &NamespaceConfig {
        &self.config
    }

    #[cfg(test)]
    pub(crate) fn inodes_known(&self) -> usize {
        self.inodes.len()
    }

    /// Memory of the tables, on the heap and in the durable region.
    pub fn bytes(&self) -> u64 {
        (self.inodes.bytes() + self.handles.bytes() + self.durable.bytes()) as u64
    }

    /// Refuses changes from now on (EROFS), also by later daemons. Returns false, and refuses nothing, if a
    /// file is open for writing.
    pub fn give_up_changes(&self) -> bool {
        let given_up = &self.durable.header.given_up;
        if self.handles.writers() > 0 {
            return false;
        }
        given_up.store(1, Ordering::SeqCst);
        // Opens check this flag after they are counted.
        let is_unused = self.handles.writers() == 0;
        if !is_unused {
            given_up.store(0, Ordering::SeqCst);
        }
        is_unused
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.durable.header.given_up.load(Ordering::SeqCst) != 0
    }

    #[cfg(test)]
    pub(crate) fn handles_open(&self) -> usize {
        self.handles.len()
    }

    /// Calls `act` with the O_PATH descriptor of the source directory.
    pub(crate) fn with_root<T>(&self, act: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        act(self.inode(ROOT)?.fd())
    }

    pub(crate) fn inode(&self, nodeid: u64) -> Result<Arc<Inode<C::Object>>> {
        self.inodes.get(nodeid)
    }

    /// The object of a regular file, made on first use. The caller holds the inode's `life`, so this does not
    /// wait for room.
    pub(crate) fn object_of(
        &self,
        inode: &Inode<C::Object>,
        life: &mut Life<C::Object>,
    ) -> Result<C::Object> {
        if let Some(object) = &life.object {
            return Ok(object.clone());
        }
        if inode.kind != Kind::File {
            return Err(Error::WrongKind);
        }
        if life.retired {
            return Err(Error::UnknownNode(inode.nodeid));
        }
        inode.note_object(true);
        let size = inode.stat()?.st_size as u64;
        let object = self.cache.object(inode.nodeid, inode.shared_fd(), size)?;
        life.object = Some(object.clone());
        self.pressure.note_object_made();
        Ok(object)
    }

    /// Retires an inode that neither the kernel nor a handle refers to, unless some of its content is cached.
    pub(crate) fn retire_if_unused(&self, inode: &Inode<C::Object>) {
        let life = inode.life.lock();
        if !inode.is_forgotten(&life)
            || (!self.pressure.is_filling(self.inodes.len()) && self.rest(inode, &life))
        {
            return;
        }
        self.retire(inode, life);
    }

    /// Lets a forgotten inode rest: it keeps its pages and shadows, and the next lookup finds it. The next
    /// open compares the source with this moment's. Returns false if nothing is to be kept.
    pub(crate) fn rest(&self, inode: &Inode<C::Object>, life: &Life<C::Object>) -> bool {
        let Some(object) = &life.object else { return false };
        if !self.cache.remembers(object) || self.cache.flush(object, 0..u64::MAX).is_err() {
            return false;
        }
        // The last look is kept: the next open must detect changes since then.
        let stat = if inode.is_unseen() { inode.look(object).map(|look| look.stat) } else { inode.stat() };
        stat.is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Drops a forgotten inode with its cached content. Returns false if writeback failed.
    pub(crate) fn retire(&self, inode: &Inode<C::Object>, mut life: MutexGuard<'_, Life<C::Object>>) -> bool {
        if let Some(object) = &life.object {
            if self.is_deleted(inode) {
                self.cache.discard_object(inode.nodeid);
            } else if self.cache.forget_object(inode.nodeid).is_err() {
                // Pages stay after a failed writeback, with the inode, until a later forget or the end.
                inode.note_writer(object.source());
                return false;
            }
            inode.forget_writer();
            life.object = None;
            inode.note_object(false);
            self.pressure.note_object_dropped();
        }
        self.inodes.retire(inode, &mut life);
        if life.retired {
            self.unwatch(inode);
        }
        true
    }

    pub(crate) fn invalidate_attributes(&self, nodeid: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.invalidate_attributes(nodeid);
        }
    }
}
