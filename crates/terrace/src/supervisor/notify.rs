//! Notifications for systemd units with `Type=notify`: datagrams to the socket in NOTIFY_SOCKET
//! (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The mount is served.
pub(super) const READY: &str = "READY=1";
/// The instance is writing back and unmounting.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Sends a notification if NOTIFY_SOCKET is set. On a failure, the manager reports its own timeout.
pub(super) fn say(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(err) = send(&socket, state) {
        tracing::warn!(
            "the service manager cannot be notified at NOTIFY_SOCKET {} ({err}): it may end this mount",
            socket.display()
        );
    }
}

/// A name with a leading `@` is in the abstract namespace.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_arrives_at_both_kinds_of_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("@terrace-notify-{}", std::process::id());
        let hidden = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        let listeners = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&hidden).unwrap()];
        for (socket, listener) in [path.as_os_str(), OsStr::new(&name)].iter().zip(listeners) {
            send(socket, READY).unwrap();
            let mut heard = [0; 16];
            let length = listener.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], READY.as_bytes());
        }
        assert!(send(OsStr::new("/nonexistent/notify"), READY).is_err());
    }
}
