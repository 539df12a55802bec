//! `terrace-bench probe` as a user runs it: what it prints and writes, what it refuses, that it leaves nothing behind.

mod command;

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use command::{bench, done, refused};
use tempfile::TempDir;
use terrace_api::device_profile::{DeviceProfile, Kind, Op, RAM};

/// A directory on a disk: /tmp may be memory.
fn place() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_and_the_memory() {
    let dir = place();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let text = done(dir.path(), "probe data --ram --quick --data-mib 4 --millis 20 --out p.toml");
    assert_eq!(files(dir.path()), ["data", "p.toml"]);
    assert_eq!(files(&dir.path().join("data")), Vec::<String>::new());

    let probe = DeviceProfile::parse(&std::fs::read_to_string(dir.path().join("p.toml")).unwrap()).unwrap();
    let name = dir.path().canonicalize().unwrap().join("data").to_str().unwrap().to_owned();
    assert_eq!(probe.device.keys().collect::<Vec<_>>(), [&name, RAM]);
    for (name, device) in &probe.device {
        // Both directions; 4 and 64 KiB for one process and one a core, 1 MiB too, where 4 blocks are enough.
        let of =
            |op: Op, kib: u64| device.cells.iter().filter(|c| (c.op, c.transfer_kib) == (op, kib)).count();
        for op in [Op::Get, Op::Put] {
            assert!(of(op, 4) >= 1 && of(op, 4) == of(op, 64) && of(op, 1024) >= 1, "{device:?}");
        }
        assert!(device.cells.iter().all(|c| c.ops > 0 && c.data_mib == 4 && c.mib_s > 0.0), "{device:?}");
        let four = device.cells.iter().find(|c| (c.op, c.processes) == (Op::Get, 1)).unwrap();
        assert_eq!(device.get_latency_us, four.latency_us);
        assert!(four.latency_us_p50 <= four.latency_us_p99);
        assert_eq!(device.kind == Kind::Ram, name == RAM || device.file_system == "tmpfs");
        assert!(device.measured.starts_with("20") && device.measured.ends_with('Z'));
    }
    assert!(text.contains(&format!("{name}: ")) && text.contains("memory: copied"), "{text}");
    assert!(text.contains("4 MiB get      4 KiB |"), "{text}");
}

#[test]
fn json_is_the_same_without_a_table() {
    let dir = place();
    let text = done(dir.path(), "probe --ram --quick --data-mib 4 --millis 10 --json");
    let profile: DeviceProfile = serde_json::from_str(&text).unwrap();
    assert_eq!(profile.schema, "terrace.probe.v1");
    assert_eq!(profile.device[RAM].kind, Kind::Ram);
    assert!(profile.device[RAM].cells[0].mib_s > 0.0);
}

#[test]
fn impossible_request_fails_in_one_line() {
    let dir = place();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (args, what) in [
        ("probe", "name a directory, or give --ram"),
        ("probe missing", "name a directory that exists"),
        ("probe file", "not a directory"),
        ("probe . --out missing/p.toml", "name a file in a directory of yours"),
        ("probe . --data-mib 0", "--data-mib"),
        ("probe /proc", "/proc: "),
    ] {
        refused(dir.path(), args, what);
    }
    assert_eq!(files(dir.path()), ["file"]);
}

/// Whether it has started measuring processes: from then on it has a file, and catches signals.
fn measures(child: &mut Child) -> bool {
    assert!(child.try_wait().unwrap().is_none(), "it ended before it measured");
    !std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap().is_empty()
}

/// No signal leaves anything, not even SIGKILL: the file never has a name, and the processes end by themselves.
#[test]
fn signals_leave_nothing() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let dir = place();
        let mut command = bench(dir.path(), "probe . --data-mib 8 --millis 2000 --out p.toml");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while !measures(&mut child) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // `env` has become the program. SAFETY: plain integers; the child was not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let start = Instant::now();
        // Returns when nobody holds the pipes any more: the measuring processes have ended, too.
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        // All of it takes a minute, also on an idle machine.
        assert!(start.elapsed() < Duration::from_secs(30), "signal {signal}");
        assert!(stdout.is_empty(), "signal {signal}");
        if signal != libc::SIGKILL {
            let stderr = String::from_utf8_lossy(&stderr);
            assert_eq!((status.code(), stderr.lines().count()), (Some(2), 1), "signal {signal}: {stderr}");
            assert!(stderr.contains("interrupted"), "{stderr}");
        }
        assert_eq!(files(dir.path()), Vec::<String>::new(), "signal {signal}");
    }
}
