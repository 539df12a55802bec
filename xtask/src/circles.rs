//! A check for import circles: files of one crate that import each other in a loop.
//!
//! A file imports another if it names an item of it: in a `use`, or by a path that begins with `crate`,
//! `super`, `self` or a child module. Re-exported names (`pub use` of items below) are followed to their
//! origin, and the re-export itself is no import. Tests do not count (`#[cfg(test)]`), nor do macros'
//! arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::Visit;

/// A module: of a file, or inline.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Re-exported names with their paths.
    handed_on: BTreeMap<String, Vec<String>>,
    imports: Vec<Vec<String>>,
}

#[derive(Debug, Default)]
struct Crate(Vec<Module>);

/// Whether an item is compiled for tests only.
pub(crate) fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| {
        a.path().is_ident("cfg") && a.parse_args::<syn::Path>().is_ok_and(|what| what.is_ident("test"))
    })
}

/// The source file of `mod name;` in a module of this file.
fn source_of(file: &Path, nested: &[String], item: &syn::ItemMod) -> Option<PathBuf> {
    let dir = file.parent()?;
    let given = item.attrs.iter().find_map(|a| match &a.meta {
        syn::Meta::NameValue(syn::MetaNameValue { path, value: syn::Expr::Lit(lit), .. })
            if path.is_ident("path") =>
        {
            match &lit.lit {
                syn::Lit::Str(text) => Some(dir.join(text.value())),
                _ => None,
            }
        }
        _ => None,
    });
    let stem = file.file_stem()?.to_str()?;
    let mut base = if ["mod", "lib", "main"].contains(&stem) { dir.to_owned() } else { dir.join(stem) };
    base.extend(nested);
    let name = item.ident.to_string();
    let usual = [base.join(format!("{name}.rs")), base.join(&name).join("mod.rs")];
    given.into_iter().chain(usual).find(|path| path.exists())
}

/// The leaves of a `use` tree: each path, and the name that it introduces (None: all of its names).
fn leaves(tree: &syn::UseTree, path: &mut Vec<String>, out: &mut Vec<(Vec<String>, Option<String>)>) {
    match tree {
        syn::UseTree::Path(p) => {
            path.push(p.ident.to_string());
            leaves(&p.tree, path, out);
            path.pop();
        }
        syn::UseTree::Name(n) if n.ident == "self" => out.push((path.clone(), path.last().cloned())),
        syn::UseTree::Name(n) => {
            let name = n.ident.to_string();
            out.push(([path.clone(), vec![name.clone()]].concat(), Some(name)));
        }
        syn::UseTree::Rename(r) => {
            out.push(([path.clone(), vec![r.ident.to_string()]].concat(), Some(r.rename.to_string())));
        }
        syn::UseTree::Glob(_) => out.push((path.clone(), None)),
        syn::UseTree::Group(g) => g.items.iter().for_each(|tree| leaves(tree, path, out)),
    }
}

/// Reads one module; inline modules in it become separate modules.
struct Reader<'a> {
    krate: &'a mut Crate,
    module: usize,
    /// Enclosing inline modules of the file.
    nested: Vec<String>,
    bad: &'a mut Vec<String>,
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs = match item {
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Use(i) => &i.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attrs) {
            syn::visit::visit_item(self, item);
        }
    }
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let (name, file) = (item.ident.to_string(), self.krate.0[self.module].file.clone());
        match &item.content {
            Some((_, items)) => {
                let module = self.krate.add(file, Some(self.module), &name);
                let nested = [self.nested.clone(), vec![name]].concat();
                let mut inner = Reader { krate: self.krate, module, nested, bad: self.bad };
                items.iter().for_each(|item| inner.visit_item(item));
            }
            None => match source_of(&file, &self.nested, item) {
                Some(source) => self.krate.read(source, Some(self.module), &name, self.bad),
                None => self.bad.push(format!("{}: no source of `mod {name}`", file.display())),
            },
        }
    }
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let (mut found, module) = (Vec::new(), &mut self.krate.0[self.module]);
        leaves(&item.tree, &mut Vec::new(), &mut found);
        for (path, name) in found {
            let handed_on = !matches!(item.vis, syn::Visibility::Inherited);
            if let Some(name) = name.filter(|_| handed_on) {
                module.handed_on.insert(name, path.clone());
            }
            module.imports.push(path);
        }
    }
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let path = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.krate.0[self.module].imports.push(path);
        }
        syn::visit::visit_path(self, path);
    }
}

impl Crate {
    fn add(&mut self, file: PathBuf, parent: Option<usize>, name: &str) -> usize {
        let at = self.0.len();
        let (children, handed_on) = (BTreeMap::new(), BTreeMap::new());
        self.0.push(Module { file, parent, children, handed_on, imports: Vec::new() });
        if let Some(parent) = parent {
            self.0[parent].children.insert(name.to_owned(), at);
        }
        at
    }
    /// Reads the crate with this root file.
    fn of(root: &Path, bad: &mut Vec<String>) -> Crate {
        let mut krate = Crate::default();
        krate.read(root.to_owned(), None, "", bad);
        krate
    }
    /// Reads the module with the source `file`, and all modules below it.
    fn read(&mut self, file: PathBuf, parent: Option<usize>, name: &str, bad: &mut Vec<String>) {
        let parsed = std::fs::read_to_string(&file).map_err(|e| e.to_string());
        match parsed.and_then(|text| syn::parse_file(&text).map_err(|e| e.to_string())) {
            Ok(parsed) => {
                let module = self.add(file, parent, name);
                Reader { krate: self, module, nested: Vec::new(), bad }.visit_file(&parsed);
            }
            Err(e) => bad.push(format!("{}: {e}", file.display())),
        }
    }

    /// The module of a path that module `from` uses; None: outside of the crate. `hops`: maximum number of
    /// re-exports to follow.
    fn resolve(&self, from: usize, path: &[String], hops: u32) -> Option<usize> {
        let (mut at, mut rest) = (from, path);
        match path.first()?.as_str() {
            "crate" => {
                while let Some(parent) = self.0[at].parent {
                    at = parent;
                }
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {}
            first if self.0[from].children.contains_key(first) => {}
            _ => return None,
        }
        while let Some((name, after)) = rest.split_first() {
            let module = &self.0[at];
            at = match (name.as_str(), module.children.get(name), module.handed_on.get(name)) {
                ("super", ..) => module.parent?,
                (_, Some(&child), _) => child,
                (_, None, Some(source)) if hops > 0 => {
                    let further = [source, after].concat();
                    return self.resolve(at, &further, hops - 1).or(Some(at));
                }
                _ => break,
            };
            rest = after;
        }
        Some(at)
    }

    fn is_below(&self, mut module: usize, above: usize) -> bool {
        while let Some(parent) = self.0[module].parent {
            if parent == above {
                return true;
            }
            module = parent;
        }
        false
    }

    /// The imports of each file.
    fn arrows(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut arrows: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (from, module) in self.0.iter().enumerate() {
            let handed_on: BTreeSet<&Vec<String>> = module.handed_on.values().collect();
            for path in &module.imports {
                let Some(to) = self.resolve(from, path, 8) else { continue };
                let hands_on = handed_on.contains(path) && self.is_below(to, from);
                if !hands_on && self.0[to].file != module.file {
                    arrows.entry(&module.file).or_default().insert(&self.0[to].file);
                }
            }
        }
        arrows
    }
}

/// The shortest import path from a file back to itself.
fn way_back<'a>(arrows: &BTreeMap<&'a Path, BTreeSet<&'a Path>>, start: &'a Path) -> Option<Vec<&'a Path>> {
    let mut before: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(file) = queue.pop_front() {
        for &next in arrows.get(file).into_iter().flatten() {
            if next == start {
                let mut way = vec![file];
                while let Some(&previous) = before.get(way[way.len() - 1]) {
                    way.push(previous);
                }
                way.reverse();
                return Some(way);
            }
            if next != start && !before.contains_key(next) {
                before.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

/// The import circles of the crate with this root file, each by its shortest path.
pub(crate) fn of_crate(root: &Path, bad: &mut Vec<String>) -> Vec<Vec<PathBuf>> {
    let krate = Crate::of(root, bad);
    let arrows = krate.arrows();
    let mut circles: BTreeMap<BTreeSet<&Path>, Vec<&Path>> = BTreeMap::new();
    for &file in arrows.keys() {
        if let Some(way) = way_back(&arrows, file) {
            circles.entry(way.iter().copied().collect()).or_insert(way);
        }
    }
    circles.into_values().map(|way| way.into_iter().map(Path::to_owned).collect()).collect()
}

/// Which file imports which, in the crate with this root file.
pub(crate) fn arrows_of(root: &Path, bad: &mut Vec<String>) -> Vec<(PathBuf, PathBuf)> {
    let krate = Crate::of(root, bad);
    let arrows = krate.arrows();
    let pairs =
        arrows.iter().flat_map(|(from, to)| to.iter().map(|to| (from.to_path_buf(), to.to_path_buf())));
    pairs.collect()
}

/// The import circles of the crates in `dirs`.
pub(crate) fn all(workspace: &Path, dirs: &[PathBuf]) -> Vec<String> {
    let mut bad = Vec::new();
    for dir in dirs {
        for root in ["src/lib.rs", "src/main.rs"].map(|root| dir.join(root)).iter().filter(|r| r.exists()) {
            for circle in of_crate(root, &mut bad) {
                let files: Vec<String> = circle
                    .iter()
                    .map(|f| f.strip_prefix(workspace).unwrap_or(f).display().to_string())
                    .collect();
                bad.push(format!("import circle: {} -> {}", files.join(" -> "), files[0]));
            }
        }
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut bad = Vec::new();
        let found = of_crate(&dir.path().join("lib.rs"), &mut bad);
        assert_eq!(bad, Vec::<String>::new());
        let short = |f: &PathBuf| f.strip_prefix(dir.path()).unwrap().display().to_string();
        found.iter().map(|circle| circle.iter().map(short).collect()).collect()
    }

    #[test]
    fn circle_of_files_is_found_with_its_shortest_way() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { super::c::f() }"),
            ("c.rs", "use crate::{a::A, d}; pub fn f() { d::g(); }"),
            ("d.rs", "pub fn g() {}"),
        ];
        assert_eq!(circles(&files), [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn facade_that_hands_names_on_makes_no_circle() {
        let files = [
            ("lib.rs", "mod io; pub use io::{Io, Real}; mod user;"),
            ("io/mod.rs", "mod real; pub use real::Real; pub trait Io {}"),
            ("io/real.rs", "use super::Io; pub struct Real; impl Io for Real {}"),
            ("user.rs", "use crate::{Io, Real}; fn f(_: &dyn Io, _: Real) {}"),
        ];
        assert_eq!(circles(&files), Vec::<Vec<String>>::new());
        // A file that uses a name that it re-exports imports it.
        let files = [
            ("lib.rs", "mod io;"),
            ("io/mod.rs", "mod real; pub use real::Real; pub trait Io {} fn f() { real::make(); }"),
            ("io/real.rs", "use super::Io; pub struct Real; impl Io for Real {} pub fn make() {}"),
        ];
        assert_eq!(circles(&files), [["io/mod.rs", "io/real.rs"]]);
    }

    #[test]
    fn tests_do_not_make_a_circle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "#[cfg(test)] mod tests { use crate::b::B; } #[cfg(test)] use crate::b::B; pub struct A;",
            ),
            ("b.rs", "use crate::a::A; pub struct B(A);"),
        ];
        assert_eq!(circles(&files), Vec::<Vec<String>>::new());
    }

    #[test]
    fn inline_modules_belong_to_their_file() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub mod inner { use crate::b::B; pub struct A(B); }"),
            ("b.rs", "use crate::a::inner::A; pub struct B; fn f(_: A) {}"),
        ];
        assert_eq!(circles(&files), [["a.rs", "b.rs"]]);
    }
}
