//! Changes of names behind the mount: checks whether an inode is still at the place where the kernel found
//! it.
//!
//! The kernel caches names. Changes in the source are reported to it ([`Namespace::watch_loop`]), but a
//! program may be faster. So an operation that writes, or changes names, first checks that the whole path
//! still leads to the inode. If not, the answer is ESTALE. The kernel then looks up each name of the path
//! again and repeats the request: the program sees no error. A program that reaches the inode by a descriptor
//! and no name is refused once ([`crate::inode::place::Refused`]).

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::lookup::stat_name;
use crate::error::{Error, Result};
use crate::inode::identity::hash_of;
use crate::inode::node::{UNMARKABLE, UNMARKED};
use crate::inode::place::Place;
use crate::inode::watch::{SourceEvent, Wake};
use crate::inode::{Inode, ROOT};
use crate::{Caller, Kind, Namespace, PageCache};
use std::sync::atomic::Ordering;

/// At this error the kernel looks the name up again and opens the result as any other file.
pub(crate) const LOOK_AGAIN: Error = Error::Source(Errno::STALE);

/// Longest checked path in directories. For deeper inodes only the last name is checked.
const DEPTH_MAX: usize = 256;
/// Bytes of a path, at most (PATH_MAX).
const PATH_BYTES_MAX: usize = 4000;
/// Pause after a batch of events that this daemon caused alone.
const PAUSE: Duration = Duration::from_millis(10);
/// Inodes in one prune request to the kernel.
const PRUNED_MAX: usize = 512;

/// How a place is reached from the root.
enum PathFromRoot {
    Path(OsString),
    /// The path is too long, or one of its directories is unknown: only the last name is checked.
    Name,
    /// One of the path's directories has left its place.
    Lost,
}

/// The end of the path by which an inode was found.
#[derive(Clone, Copy, Eq, PartialEq)]
enum PathEnd {
    Itself,
    /// Another file, or none.
    Other,
    /// A directory of the path has left its place, or its server has forgotten it.
    Stale,
    /// The path cannot be checked.
    Unknown,
}

impl<C: PageCache> Namespace<C> {
    /// Refuses the request if the inode's last path leads to another inode, or to none.
    pub(crate) fn expect_in_place(&self, caller: &Caller, inode: &Inode<C::Object>) -> Result<()> {
        let in_place = self.is_in_place(inode) || self.recall_place(inode) && self.is_in_place(inode);
        match in_place || !self.refused.refuses(caller.tid, inode.nodeid) {
            true => Ok(()),
            false => Err(LOOK_AGAIN),
        }
    }

    /// Refuses a change of an inode that has left its place, and any after [`Namespace::give_up_changes`].
    pub(crate) fn expect_changeable(&self, caller: &Caller, inode: &Inode<C::Object>) -> Result<()> {
        self.expect_changes()?;
        self.expect_in_place(caller, inode)
    }

    /// Refuses every change after [`Namespace::give_up_changes`].
    pub(crate) fn expect_changes(&self) -> Result<()> {
        if self.is_given_up() { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    /// Refuses to remove a name by which the kernel did not find the file: the kernel checked another file's
    /// permissions.
    pub(crate) fn expect_found(
        &self,
        caller: &Caller,
        parent: &Inode<C::Object>,
        name: &OsStr,
        links: u64,
        inode: Option<&Inode<C::Object>>,
    ) -> Result<()> {
        self.expect_changeable(caller, parent)?;
        let hash = hash_of(parent.nodeid, name);
        // Of several names only the last one found is recorded.
        let found =
            inode.is_some_and(|inode| inode.was_found_at(hash) || inode.kind != Kind::Directory && links > 1);
        match found || !self.refused.refuses(caller.tid, hash) {
            true => Ok(()),
            false => Err(LOOK_AGAIN),
        }
    }

    /// True if the path of the last lookup leads to the inode, or cannot be checked.
    pub(crate) fn is_in_place(&self, inode: &Inode<C::Object>) -> bool {
        matches!(self.end_of_path(inode), PathEnd::Itself | PathEnd::Unknown)
    }

    /// True if the path of the last lookup certainly leads to another file, or to none. A failing server does
    /// not count.
    fn has_lost_its_place(&self, inode: &Inode<C::Object>) -> bool {
        self.end_of_path(inode) == PathEnd::Other
    }

    /// Finds the name under which an earlier daemon found the inode, in the recorded directory. The descriptor
    /// of a hard link shows one name only. A refusal for want of the name could be the second in one system
    /// call, and the kernel repeats a call once.
    fn recall_place(&self, inode: &Inode<C::Object>) -> bool {
        // The descriptor of a directory shows its present name.
        if inode.kind == Kind::Directory || inode.place().is_some() {
            return false;
        }
        let Ok(parent) = self.inode(inode.recorded_parent()) else { return false };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent.fd(), ".", flags, Mode::empty());
        let Ok(entries) = opened.and_then(rustix::fs::Dir::new) else { return false };
        let mut names =
            entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        let name = names.find(|name| inode.was_found_at(hash_of(parent.nodeid, name)));
        name.inspect(|name| inode.found_at(parent.nodeid, name)).is_some()
    }

    fn end_of_path(&self, inode: &Inode<C::Object>) -> PathEnd {
        let (true, Ok(root)) = (inode.nodeid != ROOT, self.inode(ROOT)) else { return PathEnd::Unknown };
        let Some(place) = self.place_of(inode) else { return PathEnd::Stale };
        match self.path_to(place.clone()) {
            PathFromRoot::Path(path) => end_of(root.fd(), &path, inode),
            PathFromRoot::Name => self
                .inode(place.parent)
                .map_or(PathEnd::Stale, |parent| end_of(parent.fd(), &place.name, inode)),
            PathFromRoot::Lost => PathEnd::Stale,
        }
    }

    /// Whether the file has no name left.
    pub(crate) fn is_deleted(&self, inode: &Inode<C::Object>) -> bool {
        match inode.stat() {
            // Some servers do not count links.
            Ok(stat) => stat.st_nlink == 0 && (inode.pins_file() || self.has_lost_its_place(inode)),
            Err(_) => inode.is_lost() && self.has_lost_its_place(inode),
        }
    }

    /// The last place of the inode. An earlier daemon leaves only its hash: if the present place has another
    /// hash, the file has moved.
    fn place_of(&self, inode: &Inode<C::Object>) -> Option<Place> {
        if let Some(place) = inode.place() {
            return Some(place);
        }
        let (parent, name) = self.name_of(&*self.inode(ROOT).ok()?, inode.nodeid)?;
        if !inode.was_found_at(hash_of(parent, &name)) {
            return None;
        }
        inode.found_at(parent, &name);
        inode.place()
    }

    fn path_to(&self, mut place: Place) -> PathFromRoot {
        let mut names = Vec::new();
        loop {
            let Ok(parent) = self.inode(place.parent) else { return PathFromRoot::Name };
            if self.crossings.leads(parent.fd(), &place.name) {
                return PathFromRoot::Lost; // A look there would wait for this daemon.
            }
            if place.parent == ROOT {
                break;
            }
            let Some(above) = self.place_of(&parent) else { return PathFromRoot::Lost };
            names.push(std::mem::replace(&mut place, above).name);
            if names.len() > DEPTH_MAX {
                return PathFromRoot::Name;
            }
        }
        let mut path = OsString::from(place.name);
        for name in names.iter().rev() {
            path.push("/");
            path.push(name);
        }
        if path.len() <= PATH_BYTES_MAX { PathFromRoot::Path(path) } else { PathFromRoot::Name }
    }

    /// Marks this directory. Returns whether others' changes of its names are reported from now on.
    pub(crate) fn watch_names_of(&self, dir: &Inode<C::Object>) -> bool {
        if self.watch_failed.load(Ordering::Relaxed) {
            return false;
        }
        let Some(watches) = self.watches.as_ref().filter(|_| dir.pins_file()) else { return false };
        match dir.marked.load(Ordering::Acquire) {
            UNMARKABLE => return false,
            UNMARKED => {}
            _ => return true,
        }
        let mark = watches.mark(dir.fd(), dir.nodeid).unwrap_or(UNMARKABLE);
        let noted = dir.marked.compare_exchange(UNMARKED, mark, Ordering::AcqRel, Ordering::Acquire);
        // Another thread has marked the directory too, or the directory has left the table.
        let _ = noted.inspect_err(|_| watches.forget(mark, dir.nodeid));
        noted.err().unwrap_or(mark) > UNMARKABLE
    }

    /// A directory has left the table. A later inode of it, if found meanwhile, has its own count among the
    /// marks.
    pub(crate) fn unwatch(&self, dir: &Inode<C::Object>) {
        let mark = dir.marked.swap(UNMARKABLE, Ordering::AcqRel);
        if let Some(watches) = self.watches.as_ref().filter(|_| mark > UNMARKABLE) {
            watches.forget(mark, dir.nodeid);
        }
    }

    /// Reports names changed by others to the kernel, until [`Namespace::end_watching`].
    pub(crate) fn watch_loop(&self) {
        let Some(watches) = &self.watches else { return };
        self.look_again();
        let mut buffer = Vec::new();
        loop {
            match watches.wait(&mut buffer, |event| self.report_event(&event)) {
                Ok(Wake::Event) => {}
                Ok(Wake::Own) => std::thread::sleep(PAUSE),
                Ok(Wake::End) => return,
                Err(err) => {
                    tracing::warn!(
                        "the watch of the source fails ({err}): names changed beside the mount are seen up to a second late"
                    );
                    self.watch_failed.store(true, Ordering::Relaxed);
                    return self.report_event(&SourceEvent::Lost);
                }
            }
        }
    }

    pub(crate) fn end_watching(&self) {
        self.watches.iter().for_each(|watches| watches.end());
    }

    fn report_event(&self, event: &SourceEvent<'_>) {
        let Some(kernel) = self.kernel.get() else { return };
        match event {
            SourceEvent::Name(dirs, name) => dirs.iter().for_each(|dir| {
                kernel.expire_name(*dir, name);
                // The directory's times and its number of links change with its names.
                self.invalidate_watched(*dir);
            }),
            SourceEvent::Itself(dirs) => dirs.iter().for_each(|dir| self.invalidate_watched(*dir)),
            SourceEvent::Lost => {
                let places = self.inodes.all().into_iter().filter_map(|inode| inode.place());
                places.for_each(|place| kernel.expire_name(place.parent, &place.name));
            }
        }
    }

    /// Invalidates a directory's attributes. The kernel drops an answer that an invalidation overtakes. For
    /// the root's first answer it would refuse the program (EACCES), so the root is spared until its first
    /// lookup.
    fn invalidate_watched(&self, dir: u64) {
        if dir != ROOT || self.inode(ROOT).is_ok_and(|root| root.watched.load(Ordering::Relaxed)) {
            self.invalidate_attributes(dir);
        }
    }

    /// After a crash: marks the directories that the kernel knows, and prunes inodes that have left their
    /// place meanwhile.
    fn look_again(&self) {
        let (mut moved, inodes) = (Vec::new(), self.inodes.all());
        for dir in inodes.iter().filter(|inode| inode.kind == Kind::Directory) {
            let watched = self.watch_names_of(dir);
            if dir.nodeid == ROOT && inodes.len() > 1 {
                dir.watched.store(watched, Ordering::Relaxed);
            }
        }
        for inode in inodes.iter().filter(|inode| inode.place().is_none() && inode.nodeid != ROOT) {
            match self.is_in_place(inode) {
                true => {
                    let parent = inode.place().and_then(|place| self.inode(place.parent).ok());
                    inode
                        .watched
                        .store(parent.is_some_and(|dir| self.watch_names_of(&dir)), Ordering::Relaxed);
                }
                false => moved.push(inode.nodeid),
            }
        }
        if let Some(kernel) = self.kernel.get() {
            for nodeids in moved.chunks(PRUNED_MAX) {
                kernel.prune(nodeids);
            }
        }
    }
}

fn end_of<O>(dir: BorrowedFd<'_>, path: &OsStr, inode: &Inode<O>) -> PathEnd {
    match stat_name(dir, path) {
        Ok(stat) if inode.is_at(dir, path, &stat) => PathEnd::Itself,
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => PathEnd::Other,
        Err(Errno::LOOP | Errno::STALE) => PathEnd::Stale,
        Err(_) => PathEnd::Unknown,
    }
}
