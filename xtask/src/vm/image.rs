//! The initial file system of a virtual machine, packed by busybox's `cpio`.

use super::command::{output, wrong};
use super::kernel::Kernel;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The preload library, in `bin`.
pub(super) const PRELOAD: &str = "libterrace_preload.so";
/// The script of the first process.
const INIT: &str = include_str!("init.sh");

/// A file system under construction.
#[derive(Debug)]
pub(super) struct Image {
    dir: PathBuf,
}

impl Image {
    /// Starts with busybox, these modules, and this program, which the script calls as
    /// `xtask vm inside SCENARIO`.
    pub(super) fn new(dir: &Path, kernel: &Kernel, modules: &[&str], scenario: &str) -> io::Result<Image> {
        match fs::remove_dir_all(dir) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
            _ => fs::create_dir_all(dir.join("modules"))?,
        }
        let image = Image { dir: dir.to_owned() };
        image.add_program("busybox")?;
        image.add_text("init", INIT)?;
        fs::set_permissions(dir.join("init"), fs::Permissions::from_mode(0o755))?;
        image.add_text("scenario", scenario)?;
        let mut names = String::new();
        for module in kernel.modules(modules)? {
            let name = module.file_name().expect("a module has a name").to_string_lossy().into_owned();
            fs::copy(&module, dir.join("modules").join(&name))?;
            names += &format!("{name}\n");
        }
        image.add_text("modules/order", &names)?;
        image.add_program_at(&std::env::current_exe()?, "bin/xtask")?;
        Ok(image)
    }

    pub(super) fn add_text(&self, name: &str, text: &str) -> io::Result<()> {
        self.add(name, text.as_bytes())
    }

    pub(super) fn add(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.dir.join(name);
        fs::create_dir_all(path.parent().expect("it lies in the image"))?;
        fs::write(path, content)
    }

    /// Adds a program of this system to `bin`, with its libraries.
    pub(super) fn add_program(&self, name: &str) -> io::Result<()> {
        let dirs = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|dir| Path::new(dir).join(name));
        let found = dirs.iter().find(|path| path.exists());
        let path =
            found.ok_or_else(|| wrong(format!("{name} is missing; `make packages-vm` installs it")))?;
        self.add_program_at(path, &format!("bin/{name}"))
    }

    /// Adds a program or library under another name, with its libraries.
    pub(super) fn add_program_at(&self, from: &Path, name: &str) -> io::Result<()> {
        let to = self.dir.join(name);
        fs::create_dir_all(to.parent().expect("it lies in the image"))?;
        fs::copy(from, &to).map_err(|err| wrong(format!("{}: {err}", from.display())))?;
        // Symbols are half of the file, and the machine holds it in memory twice.
        let _ = Command::new("strip").arg("-g").arg(&to).status();
        // For a static program ldd fails: it has no libraries.
        let listed = output(Command::new("ldd").arg(from)).unwrap_or_default();
        for library in libraries(&listed) {
            let to = self.dir.join(library.trim_start_matches('/'));
            if !to.exists() {
                fs::create_dir_all(to.parent().expect("it lies in the image"))?;
                fs::copy(library, to)?;
            }
        }
        Ok(())
    }

    /// Adds the terrace command with its preload library beside it.
    pub(super) fn add_terrace(&self, root: &Path) -> io::Result<()> {
        let built = root.join("target/release");
        ["terrace", PRELOAD].iter().try_for_each(|name| {
            if !built.join(name).exists() {
                return Err(wrong(format!(
                    "{} is missing; `make build` builds it",
                    built.join(name).display()
                )));
            }
            self.add_program_at(&built.join(name), &format!("bin/{name}"))
        })
    }

    /// Packs it into a file, which replaces the directory.
    pub(super) fn pack(self) -> io::Result<PathBuf> {
        let file = self.dir.with_extension("cpio");
        let pack =
            format!("cd '{}' && find . | busybox cpio -o -H newc > '{}'", self.dir.display(), file.display());
        output(Command::new("sh").arg("-c").arg(pack))?;
        fs::remove_dir_all(&self.dir)?;
        Ok(file)
    }
}

/// Paths in ldd's output: `name => /path (0x...)`, and the loader's `/path (0x...)`.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
}

#[cfg(test)]
mod tests {
    #[test]
    fn libraries_are_found_in_the_list() {
        let listed = "\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld-linux.so.2 (0x7f)\n";
        assert_eq!(super::libraries(listed).collect::<Vec<_>>(), ["/lib/libc.so.6", "/lib64/ld-linux.so.2"]);
    }
}
