//! The preload library of `terrace run`: its search, and the environment for it and the command.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use terrace_opens::program::{self, LIBRARY};

use crate::error::{Failure, Result};
use crate::instance::Instance;

/// Environment variable of the dynamic loader.
const PRELOAD: &str = "LD_PRELOAD";

/// `TERRACE_PRELOAD`, or next to this program, or where packages install it.
pub(crate) fn find() -> Result<PathBuf> {
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

/// The command's environment variables. The library compares the mount's device number to recognise files
/// that it may serve, before it sends any request.
pub(super) fn environment(library: &Path, instance: &Instance, dir: &Path) -> Vec<(&'static str, OsString)> {
    let library = loadable(library, instance);
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let mut all =
        vec![(PRELOAD, joined(&library, &before)), ("TERRACE_SOCKET", instance.preload_socket().into())];
    if let Ok(mount) = std::fs::metadata(dir) {
        all.push(("TERRACE_DEV", mount.dev().to_string().into()));
    }
    all
}

/// The variables for a given program: without the library if the program cannot load it, or would print a
/// warning. Its children then run without it as well.
pub(super) fn for_program(
    command: &OsStr,
    variables: Vec<(&'static str, OsString)>,
) -> Vec<(&'static str, Option<OsString>)> {
    let loads = || {
        let name = CString::new(command.as_bytes()).ok()?;
        let path = std::env::var_os("PATH");
        let loads = |at: &CStr| Some(program::loads_libraries(rustix::fs::CWD, at));
        program::search(&name, path.as_deref().map(OsStrExt::as_bytes), loads)
    };
    let has_library = variables.iter().any(|(name, _)| *name == PRELOAD);
    if !has_library || loads().unwrap_or(true) {
        return variables.into_iter().map(|(name, value)| (name, Some(value))).collect();
    }
    let others = |value: OsString| {
        let words = value.as_bytes().split(|byte| b" :".contains(byte));
        let kept: Vec<&[u8]> = words.filter(|word| !word.is_empty() && !program::is_library(word)).collect();
        (!kept.is_empty()).then(|| OsString::from_vec(kept.join(&b':')))
    };
    let kept = |(name, value)| if name == PRELOAD { (name, others(value)) } else { (name, Some(value)) };
    variables.into_iter().map(kept).collect()
}

/// ld.so splits LD_PRELOAD at spaces and colons. A library with such a path gets a symbolic link in the
/// instance's directory.
fn loadable(library: &Path, instance: &Instance) -> PathBuf {
    if !library.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return library.to_owned();
    }
    let link = instance.path(LIBRARY);
    let _ = std::os::unix::fs::symlink(library, &link);
    link
}

/// Puts our library first: its calls fall through to the libraries after it.
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
    fn program_that_cannot_load_the_library_is_started_without() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("of-32-bits");
        let mut elf = b"\x7fELF\x01\x01\x01".to_vec();
        elf.resize(64, 0);
        std::fs::write(&program, elf).unwrap();
        let variables = |list: &str| vec![(PRELOAD, OsString::from(list)), ("TERRACE_DEV", "7".into())];
        let of = |list| for_program(program.as_os_str(), variables(list));
        assert_eq!(of("/lib/libterrace_preload.so:/lib/j.so")[0].1, Some("/lib/j.so".into()));
        assert_eq!(of("/lib/libterrace_preload.so"), [(PRELOAD, None), ("TERRACE_DEV", Some("7".into()))]);
        let loads = for_program("sh".as_ref(), variables("/lib/libterrace_preload.so"));
        assert_eq!(loads[0].1, Some("/lib/libterrace_preload.so".into()));
    }

    #[test]
    fn other_libraries_stay() {
        let ours = Path::new("/lib/t.so");
        assert_eq!(joined(ours, "".as_ref()), "/lib/t.so");
        assert_eq!(joined(ours, "/lib/j.so /lib/t.so:x.so".as_ref()), "/lib/t.so:/lib/j.so:x.so");
    }
}
