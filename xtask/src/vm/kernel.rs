//! Debian's kernel for virtual machines: the package is downloaded and unpacked, not installed.

use super::command::{output, wrong};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that depends on the newest kernel of Debian's release.
const NEWEST: &str = "linux-image-cloud-amd64";

#[derive(Debug)]
pub(super) struct Kernel {
    /// The kernel in QEMU's boot format.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The kernel in `dir`; downloads it first if needed.
    pub(super) fn get(dir: &Path) -> io::Result<Kernel> {
        let unpacked = dir.join("kernel");
        if first_in(&unpacked.join("boot"), "vmlinuz-").is_none() {
            fs::create_dir_all(dir)?;
            unpack(&package(NEWEST)?, dir, &unpacked)?;
        }
        let image = first_in(&unpacked.join("boot"), "vmlinuz-")
            .ok_or_else(|| wrong(format!("{}: the package holds no kernel", unpacked.display())))?;
        let modules = first_in(&unpacked.join("lib/modules"), "")
            .ok_or_else(|| wrong(format!("{}: the package holds no modules", unpacked.display())))?;
        Ok(Kernel { image, modules })
    }

    /// The files of these modules and their dependencies, in loading order.
    pub(super) fn modules(&self, names: &[&str]) -> io::Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        find_modules(&self.modules, &mut all);
        let mut order = Vec::new();
        for name in names {
            add_module(name, &all, &mut order)?;
        }
        Ok(order)
    }
}

/// The kernel's package that `meta` depends on.
fn package(meta: &str) -> io::Result<String> {
    let listed = output(Command::new("apt-cache").args(["depends", meta]))?;
    let depends = listed.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    depends
        .map(|rest| format!("linux-image-{rest}"))
        .ok_or_else(|| wrong(format!("apt-cache knows no {meta}; run `apt-get update` on a Debian system")))
}

fn unpack(package: &str, dir: &Path, to: &Path) -> io::Result<()> {
    terrace_output::error_line!("vm: downloading {package}");
    output(Command::new("apt-get").current_dir(dir).args(["download", package]))?;
    let file = first_in(dir, &format!("{package}_"))
        .ok_or_else(|| wrong(format!("apt-get download {package}: it left no file")))?;
    output(Command::new("dpkg-deb").arg("-x").arg(&file).arg(to))?;
    fs::remove_file(file)
}

/// The first file by name in a directory, among names that begin with `begin`.
fn first_in(dir: &Path, begin: &str) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(begin))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter().next()
}

fn find_modules(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find_modules(&path, out),
            _ if path.extension().is_some_and(|ending| ending == "ko") => out.push(path),
            _ => {}
        }
    }
}

/// File names of modules use `-` and `_` interchangeably.
fn same_module(path: &Path, name: &str) -> bool {
    path.file_stem().is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name.replace('-', "_"))
}

fn add_module(name: &str, all: &[PathBuf], order: &mut Vec<PathBuf>) -> io::Result<()> {
    let found = all.iter().find(|path| same_module(path, name));
    let path = found.ok_or_else(|| wrong(format!("the kernel's package has no module {name}")))?;
    if order.contains(path) {
        return Ok(());
    }
    for needed in needed_by(&fs::read(path)?) {
        add_module(&needed, all, order)?;
    }
    order.push(path.clone());
    Ok(())
}

/// Names in the entry `depends=a,b` of a module's information section: depmod's lists exist only after an
/// installation.
fn needed_by(module: &[u8]) -> Vec<String> {
    let entry = b"\0depends=";
    let Some(at) = module.windows(entry.len()).position(|window| window == entry) else { return Vec::new() };
    let text = &module[at + entry.len()..];
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&text[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_name_what_they_need() {
        assert_eq!(needed_by(b"x\0license=GPL\0depends=a_b,c\0name=d\0"), ["a_b", "c"]);
        assert!(needed_by(b"x\0depends=\0name=d\0").is_empty() && needed_by(b"nothing").is_empty());
    }

    #[test]
    fn needed_modules_are_loaded_first() {
        let dir = tempfile::tempdir().unwrap();
        let module = |name: &str, needs: &str| {
            fs::write(dir.path().join(name), format!("\0depends={needs}\0")).unwrap();
        };
        module("dm-cache.ko", "dm_bio_prison,dm-mod");
        module("dm-bio-prison.ko", "dm-mod");
        module("dm-mod.ko", "");
        let kernel = Kernel { image: PathBuf::new(), modules: dir.path().to_owned() };
        let names = |found: Vec<PathBuf>| {
            found
                .iter()
                .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        let found = names(kernel.modules(&["dm-cache", "dm-mod"]).unwrap());
        assert_eq!(found, ["dm-mod", "dm-bio-prison", "dm-cache"]);
        assert!(kernel.modules(&["absent"]).is_err());
    }
}
