//! A model of a directory tree in memory: the result of each operation, and its effect. The model is exact
//! for the operations of [`super::names`], with Linux's order of error checks.

use crate::rng::hash;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Result of an operation: nothing, or an errno.
pub(crate) type Answer<T = ()> = Result<T, i32>;

/// Number of a node of the tree: a file may have several names.
pub(crate) type Id = u64;

/// The root directory of the model.
pub(crate) const ROOT: Id = 0;

/// A regular file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Its bytes.
    pub(crate) data: Vec<u8>,
    /// Its permissions.
    pub(crate) mode: u32,
    /// Its extended attributes.
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// The time set last, if no later operation changed it.
    pub(crate) mtime: Option<i64>,
    /// Once stored into through a mapping: the kernel changes its mtime at arbitrary times, so it is not set
    /// any more.
    pub(crate) mapped: bool,
}

#[derive(Clone, Debug)]
enum Node {
    File(Content),
    Dir(BTreeMap<String, Id>),
    Link(String),
}

/// Kind of the node at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link without a target.
    Link,
}

/// The whole tree.
#[derive(Debug)]
pub(crate) struct Model {
    nodes: BTreeMap<Id, Node>,
    next: Id,
    /// Open files, with their number of descriptors.
    held: BTreeMap<Id, u32>,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            nodes: BTreeMap::from([(ROOT, Node::Dir(BTreeMap::new()))]),
            next: ROOT + 1,
            held: BTreeMap::new(),
        }
    }
}

impl Model {
    fn dir(&self, id: Id) -> &BTreeMap<String, Id> {
        let Node::Dir(entries) = &self.nodes[&id] else { panic!("{id} is no directory") };
        entries
    }

    fn dir_mut(&mut self, id: Id) -> &mut BTreeMap<String, Id> {
        let Some(Node::Dir(entries)) = self.nodes.get_mut(&id) else { panic!("{id} is no directory") };
        entries
    }

    /// The directory of a path's last name, and that name.
    fn parent<'a>(&self, path: &'a str) -> Answer<(Id, &'a str)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = ROOT;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            let next = *self.dir(at).get(part).ok_or(libc::ENOENT)?;
            at = match self.nodes[&next] {
                Node::Dir(_) => next,
                Node::File(_) => return Err(libc::ENOTDIR),
                Node::Link(_) => return Err(libc::ENOENT),
            };
        }
        Ok((at, name))
    }

    fn find(&self, path: &str) -> Answer<Id> {
        let (dir, name) = self.parent(path)?;
        self.dir(dir).get(name).copied().ok_or(libc::ENOENT)
    }

    /// The kind of file at a path.
    pub(crate) fn kind(&self, path: &str) -> Kind {
        match self.find(path).map(|id| &self.nodes[&id]) {
            Err(_) => Kind::None,
            Ok(Node::File(_)) => Kind::File,
            Ok(Node::Dir(_)) => Kind::Dir,
            Ok(Node::Link(_)) => Kind::Link,
        }
    }

    fn add(&mut self, path: &str, node: Node) -> Answer<Id> {
        let (dir, name) = self.parent(path)?;
        if self.dir(dir).contains_key(name) {
            return Err(libc::EEXIST);
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.dir_mut(dir).insert(name.to_owned(), id);
        Ok(id)
    }

    /// O_CREAT and O_EXCL.
    pub(crate) fn create(&mut self, path: &str, mode: u32) -> Answer<Id> {
        self.add(path, Node::File(Content { mode, ..Content::default() }))
    }

    pub(crate) fn mkdir(&mut self, path: &str) -> Answer {
        self.add(path, Node::Dir(BTreeMap::new())).map(|_| ())
    }

    pub(crate) fn symlink(&mut self, target: &str, path: &str) -> Answer {
        self.add(path, Node::Link(target.to_owned())).map(|_| ())
    }

    pub(crate) fn readlink(&self, path: &str) -> Answer<String> {
        match &self.nodes[&self.find(path)?] {
            Node::Link(target) => Ok(target.clone()),
            _ => Err(libc::EINVAL),
        }
    }

    /// open with O_NOFOLLOW, to read and write.
    pub(crate) fn open(&self, path: &str) -> Answer<Id> {
        let id = self.find(path)?;
        match self.nodes[&id] {
            Node::File(_) => Ok(id),
            Node::Dir(_) => Err(libc::EISDIR),
            Node::Link(_) => Err(libc::ELOOP),
        }
    }

    /// The result of a call that follows links.
    pub(crate) fn followed(&self, path: &str) -> Answer<Id> {
        let id = self.find(path)?;
        if matches!(self.nodes[&id], Node::Link(_)) { Err(libc::ENOENT) } else { Ok(id) }
    }

    pub(crate) fn unlink(&mut self, path: &str) -> Answer {
        let (dir, name) = self.parent(path)?;
        let id = self.find(path)?;
        if matches!(self.nodes[&id], Node::Dir(_)) {
            return Err(libc::EISDIR);
        }
        self.dir_mut(dir).remove(name);
        self.forget(id);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, path: &str) -> Answer {
        let (dir, name) = self.parent(path)?;
        let id = self.find(path)?;
        match &self.nodes[&id] {
            Node::Dir(entries) if entries.is_empty() => {}
            Node::Dir(_) => return Err(libc::ENOTEMPTY),
            _ => return Err(libc::ENOTDIR),
        }
        self.dir_mut(dir).remove(name);
        self.nodes.remove(&id);
        Ok(())
    }

    pub(crate) fn link(&mut self, old: &str, new: &str) -> Answer {
        let id = self.find(old)?;
        let (dir, name) = self.parent(new)?;
        if self.dir(dir).contains_key(name) {
            return Err(libc::EEXIST);
        }
        if matches!(self.nodes[&id], Node::Dir(_)) {
            return Err(libc::EPERM);
        }
        self.dir_mut(dir).insert(name.to_owned(), id);
        Ok(())
    }

    /// renameat2 with no flag, RENAME_NOREPLACE or RENAME_EXCHANGE.
    pub(crate) fn rename(&mut self, old: &str, new: &str, flags: u32) -> Answer {
        let ((from, a), (to, b)) = (self.parent(old)?, self.parent(new)?);
        let source = *self.dir(from).get(a).ok_or(libc::ENOENT)?;
        let target = self.dir(to).get(b).copied();
        match (target, flags) {
            (Some(_), libc::RENAME_NOREPLACE) => return Err(libc::EEXIST),
            (None, libc::RENAME_EXCHANGE) => return Err(libc::ENOENT),
            _ => {}
        }
        let exchange = flags == libc::RENAME_EXCHANGE;
        if self.is_above(source, to) {
            return Err(libc::EINVAL);
        }
        if target.is_some_and(|target| self.is_above(target, from)) {
            return Err(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        match target {
            Some(target) if target == source => return Ok(()),
            Some(target) if exchange => {
                self.dir_mut(from).insert(a.to_owned(), target);
            }
            Some(target) => {
                self.may_replace(source, target)?;
                self.dir_mut(from).remove(a);
            }
            None => {
                self.dir_mut(from).remove(a);
            }
        }
        self.dir_mut(to).insert(b.to_owned(), source);
        if let Some(target) = target.filter(|_| !exchange) {
            self.forget(target);
        }
        Ok(())
    }

    fn may_replace(&self, source: Id, target: Id) -> Answer {
        match (&self.nodes[&source], &self.nodes[&target]) {
            (Node::Dir(_), Node::Dir(entries)) if entries.is_empty() => Ok(()),
            (Node::Dir(_), Node::Dir(_)) => Err(libc::ENOTEMPTY),
            (Node::Dir(_), _) => Err(libc::ENOTDIR),
            (_, Node::Dir(_)) => Err(libc::EISDIR),
            _ => Ok(()),
        }
    }

    /// Whether a directory is `below` itself, or an ancestor of it.
    fn is_above(&self, id: Id, below: Id) -> bool {
        match &self.nodes[&id] {
            Node::Dir(entries) => id == below || entries.values().any(|entry| self.is_above(*entry, below)),
            _ => false,
        }
    }

    /// Number of names of a node.
    pub(crate) fn links(&self, id: Id) -> u64 {
        let of = |node: &Node| match node {
            Node::Dir(entries) => entries.values().filter(|entry| **entry == id).count() as u64,
            _ => 0,
        };
        self.nodes.values().map(of).sum()
    }

    /// Drops a node without names and descriptors.
    fn forget(&mut self, id: Id) {
        if self.links(id) == 0 && !self.held.contains_key(&id) {
            self.nodes.remove(&id);
        }
    }

    /// Opens a file.
    pub(crate) fn hold(&mut self, id: Id) {
        *self.held.entry(id).or_default() += 1;
    }

    /// Closes a file.
    pub(crate) fn release(&mut self, id: Id) {
        let count = self.held.get_mut(&id).expect("it is held");
        *count -= 1;
        if *count == 0 {
            self.held.remove(&id);
            self.forget(id);
        }
    }

    /// The content of a regular file.
    pub(crate) fn content(&self, id: Id) -> Option<&Content> {
        match &self.nodes[&id] {
            Node::File(content) => Some(content),
            _ => None,
        }
    }

    /// The mutable content of a regular file.
    pub(crate) fn content_mut(&mut self, id: Id) -> Option<&mut Content> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(content)) => Some(content),
            _ => None,
        }
    }

    /// The names in a directory, with their kinds.
    pub(crate) fn readdir(&self, path: &str) -> Answer<Vec<(String, Kind)>> {
        let id = if path.is_empty() { ROOT } else { self.followed(path)? };
        let Node::Dir(entries) = &self.nodes[&id] else { return Err(libc::ENOTDIR) };
        let kind = |id: &Id| match self.nodes[id] {
            Node::File(_) => Kind::File,
            Node::Dir(_) => Kind::Dir,
            Node::Link(_) => Kind::Link,
        };
        Ok(entries.iter().map(|(name, id)| (name.clone(), kind(id))).collect())
    }

    /// The paths of all regular files.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.walk(ROOT, "", &mut |path, id| {
            if matches!(self.nodes[&id], Node::File(_)) {
                out.push(path.to_owned());
            }
        });
        out
    }

    fn walk(&self, dir: Id, path: &str, each: &mut impl FnMut(&str, Id)) {
        for (name, id) in self.dir(dir) {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            each(&path, *id);
            if matches!(self.nodes[id], Node::Dir(_)) {
                self.walk(*id, &path, each);
            }
        }
    }

    /// The tree, in the format of [`super::names::tree`] for real directories.
    pub(crate) fn tree(&self) -> String {
        let (mut out, mut groups) = (String::new(), BTreeMap::new());
        self.walk(ROOT, "", &mut |path, id| {
            let new = groups.len();
            let group = *groups.entry(id).or_insert(new);
            match &self.nodes[&id] {
                Node::Dir(_) => writeln!(out, "{path} directory"),
                Node::Link(target) => {
                    writeln!(out, "{path} link {} to {target}, node {group}", self.links(id))
                }
                Node::File(content) => writeln!(out, "{path} {}, node {group}", self.describe(id, content)),
            }
            .expect("a string takes all");
        });
        out
    }

    fn describe(&self, id: Id, content: &Content) -> String {
        describe(content.mode, self.links(id), &content.data, content.mtime, &content.xattrs)
    }

    /// Writes bytes into a file, and extends it if needed.
    pub(crate) fn write(content: &mut Content, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if content.data.len() < at + bytes.len() {
            content.data.resize(at + bytes.len(), 0);
        }
        content.data[at..at + bytes.len()].copy_from_slice(bytes);
        content.mtime = None;
    }
}

/// One line of [`Model::tree`] for a file.
pub(crate) fn describe(
    mode: u32,
    links: u64,
    data: &[u8],
    mtime: Option<i64>,
    xattrs: &BTreeMap<String, Vec<u8>>,
) -> String {
    let mut out = format!("file {mode:o} {links} of {} bytes {:x}", data.len(), hash(data));
    if let Some(mtime) = mtime {
        write!(out, " mtime {mtime}").expect("a string takes all");
    }
    for (name, value) in xattrs {
        write!(out, " {name}={:x}", hash(value)).expect("a string takes all");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let mut model = Model::default();
        model.mkdir("d").unwrap();
        model.mkdir("d/e").unwrap();
        model.create("d/e/f", 0o644).unwrap();
        model.symlink("nowhere", "l").unwrap();
        model
    }

    #[test]
    fn paths_are_resolved_as_linux_does() {
        let mut model = model();
        assert_eq!(model.mkdir("d"), Err(libc::EEXIST));
        assert_eq!(model.mkdir("x/y"), Err(libc::ENOENT));
        assert_eq!(model.mkdir("d/e/f/y"), Err(libc::ENOTDIR));
        assert_eq!(model.mkdir("l/y"), Err(libc::ENOENT));
        assert_eq!(model.open("l"), Err(libc::ELOOP));
        assert_eq!(model.rmdir("d"), Err(libc::ENOTEMPTY));
        assert_eq!(model.unlink("d"), Err(libc::EISDIR));
    }

    #[test]
    fn renames_never_detach_a_tree() {
        let mut model = model();
        let exchange = libc::RENAME_EXCHANGE;
        assert_eq!(model.rename("d", "d/e/g", 0), Err(libc::EINVAL));
        assert_eq!(model.rename("d/e/f", "d", 0), Err(libc::ENOTEMPTY));
        assert_eq!(model.rename("d/e", "d", exchange), Err(libc::EINVAL));
        assert_eq!(model.rename("l", "d/e", libc::RENAME_NOREPLACE), Err(libc::EEXIST));
        assert_eq!(model.rename("l", "d/e", 0), Err(libc::EISDIR));
        assert_eq!(model.rename("l", "d/e", exchange), Ok(()));
        assert_eq!((model.kind("l/f"), model.kind("d/e")), (Kind::File, Kind::Link));
    }

    #[test]
    fn an_open_file_outlives_its_names() {
        let mut model = model();
        let id = model.open("d/e/f").unwrap();
        model.link("d/e/f", "g").unwrap();
        model.hold(id);
        model.unlink("g").unwrap();
        model.rename("l", "d/e/f", 0).unwrap();
        assert_eq!(model.links(id), 0);
        Model::write(model.content_mut(id).unwrap(), 3, b"abc");
        assert_eq!(model.content(id).unwrap().data, b"\0\0\0abc");
        model.release(id);
        assert!(model.content_mut(id).is_none());
    }
}
