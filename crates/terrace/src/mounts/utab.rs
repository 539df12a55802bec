//! libmount's own mount table, /run/mount/utab. umount(8) runs our helper only for mounts listed there.
//! Without an entry, umount(8) takes the type from statfs(2), which is `fuse` for every FUSE mount. It then
//! returns before the daemon has written its last pages.
//!
//! terrace changes the table by mount(8) and umount(8) with `--fake`: they take the table's lock, and do
//! nothing else.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::FSTYPE;

/// The helper, a link to `terrace`.
const HELPER: &str = "/sbin/umount.fuse.terrace";
const TABLE: &str = "/run/mount/utab";

/// Starts to add a mount, where root has installed the helper.
pub(crate) fn note(src: &Path, mnt: &Path) -> Option<Child> {
    let is_used = rustix::process::geteuid().is_root() && Path::new(HELPER).exists();
    is_used.then(|| spawn("mount", &["-t", FSTYPE, "-o", "uhelper=fuse.terrace"], &[src, mnt]))?
}

/// Removes a mount from the table.
pub(crate) fn forget(mnt: &Path) {
    let name = mnt.as_os_str().as_encoded_bytes();
    let is_noted = || std::fs::read(TABLE).is_ok_and(|table| table.windows(name.len()).any(|at| at == name));
    if rustix::process::geteuid().is_root() && is_noted() {
        let _ = spawn("umount", &[], &[mnt]).map(|mut child| child.wait());
    }
}

fn spawn(program: &str, options: &[&str], paths: &[&Path]) -> Option<Child> {
    let mut command = Command::new(program);
    command.args(["--fake", "--internal-only"]).args(options).arg("--");
    command.args(paths);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}
