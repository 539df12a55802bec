//! The mount path of terraced: the namespace over the engine, and the connection to the kernel.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use terrace_api::schedule::{self, Schedule};
use terrace_engine::source::times_of;
use terrace_engine::{Engine, ObjectRef, ScheduledFiles};
use terrace_fs::{DurableLayout, DurableRegion, Namespace, NamespaceConfig, fuse};

use super::{crossings, reserve, thread};
use crate::config::{Config, Durable};
use crate::doctor::kernel;
use crate::handover::Shared;

pub(super) struct MountPath {
    namespace: ManuallyDrop<Arc<Namespace<Engine>>>,
    fuse: OwnedFd,
    mount_dev: Option<u64>,
    threads: usize,
    recovering: bool,
}

/// Creates the namespace over the source, or takes over that of a dead terraced.
///
/// On an error, namespace and engine are not dropped. Their descriptors stay open in the shared table, where
/// the next terraced finds them by the records.
pub(super) fn connect(
    shared: &Shared,
    fuse: &OwnedFd,
    engine: &Arc<Engine>,
    recovering: bool,
) -> io::Result<MountPath> {
    let mount_dev = shared.mount_dev.map(|(major, minor)| rustix::fs::makedev(major, minor));
    if let Some(dev) = mount_dev {
        engine.set_mount_dev(dev);
    }
    if let Err(err) = engine.set_source_root(shared.place.src_fd.as_fd()) {
        tracing::warn!(
            "{}: the source cannot be opened for syncfs ({err}); each file is synced separately, which takes longer",
            shared.place.src.display()
        );
    }
    let acls = !shared.place.is_checked_by_source();
    let config = NamespaceConfig { acls, ..namespace_config(&shared.config) };
    let region = namespace_region(shared);
    let namespace = if recovering {
        let namespace = Namespace::recover(engine.clone(), region, config).map_err(failed)?;
        tracing::warn!("restarted terraced took over the cache: {:?}", engine.recover_pages());
        namespace.finish_recovery();
        namespace
    } else {
        let root = shared.place.src_fd.try_clone()?;
        Namespace::new(engine.clone(), root, region, config).map_err(failed)?
    };
    let namespace = ManuallyDrop::new(Arc::new(namespace));
    // Before any descriptor of a predecessor is closed.
    let fuse = fuse::connect(&namespace, fuse.as_fd(), recovering)?;
    let counted = Arc::downgrade(&namespace);
    engine.count_also(move || counted.upgrade().map_or(0, |namespace| namespace.bytes()));
    Ok(MountPath { namespace, fuse, mount_dev, threads: shared.config.fuse.threads as usize, recovering })
}

fn namespace_region(shared: &Shared) -> DurableRegion {
    let (base, bytes) = shared.memory.user_region();
    // SAFETY: a mapping of the supervisor, inherited and never unmapped; only the namespace uses it; zeroed
    // when new.
    unsafe { DurableRegion::new(base, bytes) }
}

/// Descriptors named in the tables of a dead terraced.
pub(super) fn descriptors_named(shared: &Shared) -> io::Result<HashSet<RawFd>> {
    let layout = namespace_config(&shared.config).layout;
    terrace_fs::descriptors_named(namespace_region(shared), layout).map_err(failed)
}

impl MountPath {
    pub(super) fn files_of(&self, schedule: &Schedule) -> Box<dyn ScheduledFiles> {
        Box::new(Files {
            namespace: Arc::downgrade(&self.namespace),
            recorded: schedule.files.clone(),
            opened: HashMap::new(),
        })
    }

    /// Returns a function that refuses further changes of the source; false: a program has a file open for
    /// writing.
    pub(super) fn give_up_changes(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        let namespace = Arc::downgrade(&self.namespace);
        Box::new(move || namespace.upgrade().is_none_or(|namespace| namespace.give_up_changes()))
    }

    /// Answers the kernel until the mount is gone. Calls `begun` once the set-up is done.
    pub(super) fn run(&self, begun: impl FnOnce()) -> io::Result<()> {
        if let Some(table) = crossings::look(&self.namespace) {
            let namespace = Arc::downgrade(&self.namespace);
            thread("mounts", move || crossings::follow(&namespace, &table))?;
        }
        let fuse = self.fuse.try_clone()?;
        fuse::serve(Arc::clone(&self.namespace), fuse, self.mount_dev, self.threads, self.recovering, begun)
    }

    /// Closes the namespace at the end of the instance.
    pub(super) fn close(self) {
        drop(ManuallyDrop::into_inner(self.namespace));
    }
}

/// The files of a schedule, held by the namespace while it exists.
struct Files {
    namespace: Weak<Namespace<Engine>>,
    recorded: Vec<schedule::File>,
    /// Node ids of the held files.
    opened: HashMap<u32, u64>,
}

impl ScheduledFiles for Files {
    fn open(&mut self, file: u32) -> Option<ObjectRef> {
        let recorded = self.recorded.get(file as usize)?;
        let namespace = self.namespace.upgrade()?;
        let opened = namespace.open_ahead(&recorded.path).ok()?;
        if !recorded.is_same(opened.stat.st_size as u64, times_of(&opened.stat).0) {
            namespace.forget(opened.nodeid, 1);
            return None;
        }
        self.opened.insert(file, opened.nodeid);
        Some(opened.object)
    }

    fn release(&mut self, file: u32) {
        if let (Some(nodeid), Some(namespace)) = (self.opened.remove(&file), self.namespace.upgrade()) {
            namespace.forget(nodeid, 1);
        }
    }
}

fn failed(err: terrace_fs::Error) -> io::Error {
    io::Error::other(err.to_string())
}

/// The namespace's view of the configuration.
fn namespace_config(config: &Config) -> NamespaceConfig {
    let layout = DurableLayout {
        inodes_max: config.limits.inodes_max,
        handles_max: config.limits.handles_max,
        ..DurableLayout::default()
    };
    NamespaceConfig {
        layout,
        descriptors_spared: reserve::size(),
        passthrough: config.wants_passthrough(),
        direct_writes: config.dirty.durable == Durable::Tier && kernel::drops_written(),
        ..NamespaceConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_limits_are_the_namespaces() {
        assert_eq!(namespace_config(&Config::default()).layout, DurableLayout::default());
    }
}
