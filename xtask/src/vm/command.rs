//! Programs of this system: their output, and errors that name a missing program's remedy.

use std::io;
use std::process::Command;

/// The output of a command that must succeed.
pub(super) fn output(command: &mut Command) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let missing = |err| wrong(format!("{program}: {err}; `make packages-vm` installs it"));
    let done = command.output().map_err(missing)?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        return Err(wrong(format!("{command:?}: {}: {said}", done.status)));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// An error with this text.
pub(super) fn wrong(why: impl Into<String>) -> io::Error {
    io::Error::other(why.into())
}
