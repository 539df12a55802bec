//! Finds the preload library, and sets the environment for it and its program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Failure, Result};
use crate::instance::Instance;

/// The file's name.
const LIBRARY: &str = "libterrace_preload.so";

/// `TERRACE_PRELOAD`, else beside the program, else where packages put it.
pub fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("TERRACE_PRELOAD").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(named);
        return path.canonicalize().map_err(|_| {
            Failure::new(
                "TERRACE_PRELOAD",
                format!("{} does not exist", path.display()),
                "name the library, or unset it",
            )
        });
    }
    let program = std::env::current_exe().unwrap_or_default();
    let dir = program.parent().unwrap_or(Path::new("/"));
    let places = [dir.join(LIBRARY), dir.join("../lib/terrace").join(LIBRARY)];
    places.iter().find_map(|place| place.canonicalize().ok()).ok_or_else(|| {
        let why = format!("{LIBRARY} is neither in {} nor in ../lib/terrace", dir.display());
        Failure::new("preload path", why, "name it in TERRACE_PRELOAD, or use --no-preload")
    })
}

/// The variables for the program's environment. By the device number of the mount the library recognises
/// files that it may serve, before it sends any request.
pub fn environment(library: &Path, instance: &Instance, dir: &Path) -> Vec<(&'static str, OsString)> {
    let library = loadable(library, instance);
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut all =
        vec![("LD_PRELOAD", joined(&library, &before)), ("TERRACE_SOCKET", instance.preload_socket().into())];
    if let Ok(mount) = std::fs::metadata(dir) {
        all.push(("TERRACE_DEV", mount.dev().to_string().into()));
    }
    all
}

/// ld.so splits LD_PRELOAD at spaces and colons: a library below such a name gets another in the instance's directory.
fn loadable(library: &Path, instance: &Instance) -> PathBuf {
    if !library.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return library.to_owned();
    }
    let link = instance.path(LIBRARY);
    let _ = std::os::unix::fs::symlink(library, &link);
    link
}

/// Ours first: our calls fall through to the libraries after it.
fn joined(library: &Path, before: &std::ffi::OsStr) -> OsString {
    let mut all = library.as_os_str().to_owned();
    let others = before.as_bytes().split(|byte| b" :".contains(byte));
    for other in others.filter(|other| !other.is_empty() && *other != library.as_os_str().as_bytes()) {
        all.push(":");
        all.push(std::ffi::OsStr::from_bytes(other));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_libraries_stay() {
        let ours = Path::new("/lib/t.so");
        assert_eq!(joined(ours, "".as_ref()), "/lib/t.so");
        assert_eq!(joined(ours, "/lib/j.so /lib/t.so:x.so".as_ref()), "/lib/t.so:/lib/j.so:x.so");
    }
}
