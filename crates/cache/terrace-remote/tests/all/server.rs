//! A real S3 server (versitygw) on the loopback interface, behind a relay that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use terrace_testkit::wait::wait_until;

/// Environment variable for another program than that of `make tools`.
const SERVER: &str = "TERRACE_S3_SERVER";
const KEY: &str = "terrace-test";
const SECRET: &str = "not-a-secret";
/// Delay of the slow relay for each piece of an answer.
const SLOW: Duration = Duration::from_millis(400);

/// A server with the bucket `tier`.
pub(crate) struct Server {
    program: PathBuf,
    dir: tempfile::TempDir,
    at: SocketAddr,
    child: Option<Child>,
    wire: Wire,
}

/// Starts a server. None, with a message: the program is missing.
pub(crate) fn server() -> Option<Server> {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../target/tools/bin/versitygw");
    let program = std::env::var_os(SERVER).map_or_else(|| usual.into(), PathBuf::from);
    if !program.exists() {
        terrace_testkit::skipped!("no S3 server at {}; `make s3-server` installs one", program.display());
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("data/tier")).unwrap();
    let keys = |secret| format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
    std::fs::write(dir.path().join("keys"), keys(SECRET)).unwrap();
    std::fs::write(dir.path().join("wrong"), keys("wrong")).unwrap();
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Server { program, dir, at, child: None, wire: Wire::to(at) };
    server.start();
    Some(server)
}

impl Server {
    pub(crate) fn start(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["--port", &self.at.to_string(), "posix"]).arg(self.dir.path().join("data"));
        command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        wait_until("the server", || TcpStream::connect(self.at).is_ok());
    }
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
    /// The path of a target. `keys`: the file with the right or the wrong keys.
    pub(crate) fn path(&self, bucket: &str, prefix: &str, keys: &str) -> String {
        let keys = self.dir.path().join(keys);
        let region = "region=us-east-1";
        format!(
            "s3://{bucket}/{prefix}?endpoint=http://{}&{region}&credentials={}",
            self.wire.at,
            keys.display()
        )
    }
    pub(crate) fn set(&self, mode: Mode) {
        self.wire.mode.store(mode as u8, Ordering::Release);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Behaviour of the relay.
#[derive(Clone, Copy)]
pub(crate) enum Mode {
    Good,
    Slow,
    /// Bytes are dropped, and connections stay open.
    Dead,
}

struct Wire {
    at: SocketAddr,
    mode: Arc<AtomicU8>,
}

impl Wire {
    fn to(server: SocketAddr) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, mode) = (listener.local_addr().unwrap(), Arc::new(AtomicU8::new(Mode::Good as u8)));
        let its = mode.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back) = (its.clone(), its.clone());
                std::thread::spawn(move || relay(client, server, &there, false));
                std::thread::spawn(move || relay(server2, client2, &back, true));
            }
        });
        Wire { at, mode }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, mode: &AtomicU8, is_answer: bool) {
    let _ = to.set_nodelay(true);
    let mut buf = vec![0; 64 << 10];
    while let Ok(n) = from.read(&mut buf) {
        let now = mode.load(Ordering::Acquire);
        if now == Mode::Slow as u8 && is_answer {
            std::thread::sleep(SLOW);
        }
        while mode.load(Ordering::Acquire) == Mode::Dead as u8 {
            std::thread::sleep(Duration::from_millis(10));
        }
        if n == 0 || to.write_all(&buf[..n]).is_err() {
            break;
        }
    }
    let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
}
