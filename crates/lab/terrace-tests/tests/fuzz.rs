//! Mangled input of the commands: configuration, sizes and options, records of dead instances, requests,
//! traces. terrace may refuse all of it, in one line; it must not panic, hang, or stop serving. (For the
//! preload path's messages and segment see `hostile`, and `hostile` of terrace-engine.)

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use terrace_tests::process::{self, Outcome};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestDir, TestMount, amount, is_root, product, terrace, workspace};

fn rounds() -> u64 {
    amount("TERRACE_FUZZ_ROUNDS", 150, 3_000)
}

/// A text with a few defects: bytes of any value, pieces lost, duplicated and moved, numbers too large.
fn mangled(text: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut out = text.to_vec();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(out.len() as u64 + 1) as usize;
        let to = (at + rng.below(40) as usize).min(out.len());
        match rng.below(5) {
            0 => out.insert(at, rng.next_u64() as u8),
            1 => drop(out.drain(at..to)),
            2 => out.truncate(at),
            3 => drop(out.splice(at..at, out[at..to].to_vec())),
            _ => {
                let odd =
                    ["18446744073709551616", "-1", "[[", "\"\"", "1e999", "\0", "{}", "null", "\u{fffd}"];
                drop(out.splice(at..to, rng.pick(&odd).bytes()));
            }
        }
    }
    out
}

#[track_caller]
fn refused_or_done(outcome: &Outcome, input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    let sound = matches!(outcome.status.code(), Some(0..=2)) && !outcome.stderr.contains("panicked");
    assert!(sound, "{outcome}\n--- for\n{input}");
}

#[test]
fn configurations() {
    let mut rng = Rng::new(seed("fuzz-configurations"));
    let dir = TestDir::new("fuzz-configurations");
    let file = dir.path().join("terrace.toml");
    let sample = std::fs::read_to_string(workspace().join("docs/terrace.toml")).expect("docs/terrace.toml");
    // As documented, and with the keys uncommented.
    let set = sample.replace("\n# ", "\n").replace("\n#", "\n");
    for round in 0..rounds() {
        let text = mangled(if round % 2 == 0 { sample.as_bytes() } else { set.as_bytes() }, &mut rng);
        std::fs::write(&file, &text).expect("a file");
        refused_or_done(&process::run(mount("--config").arg(&file), 20), &text);
    }
}

/// A mount with this option. The source does not exist, so nothing is mounted.
fn mount(option: &str) -> Command {
    terrace(&["mount", "/nonexistent", "/nonexistent", option])
}

#[test]
fn sizes_and_options() {
    let mut rng = Rng::new(seed("fuzz-sizes"));
    for _ in 0..rounds() {
        let memory = mangled(rng.pick(&["1GiB", "64 MiB", "1.5G", "104857600"]).as_bytes(), &mut rng);
        let options =
            mangled(rng.pick(&["ro,noatime", "memory=1GiB,policy=lru", "allow_other"]).as_bytes(), &mut rng);
        let arg = |bytes: &[u8]| {
            let bytes: Vec<u8> = bytes.iter().copied().filter(|b| *b != 0).collect();
            <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes)
        };
        refused_or_done(&process::run(mount("--memory").arg(arg(&memory)), 20), &memory);
        refused_or_done(&process::run(mount("-o").arg(arg(&options)), 20), &options);
    }
}

/// info.json and dirty.json of dead instances, in a runtime directory that only this test uses.
#[test]
fn records_of_dead_instances() {
    if !is_root() {
        return;
    }
    let mut rng = Rng::new(seed("fuzz-records"));
    let dir = TestDir::new("fuzz-records");
    let (runtime, dead) = (dir.sub("runtime"), dir.sub("runtime/4711"));
    let info = format!(
        r#"{{"schema":"terrace.instance.v1","pid":4711,"terraced":4712,"restarts":0,"kind":"mount","src":"{0}","mnt":"{0}","memory_bytes":67108864,"policy":"strata","version":"0.1.0"}}"#,
        dir.path().display()
    );
    let dirty =
        r#"{"schema":"terrace.dirty.v1","bytes":8192,"at":1700000000,"files":[["a/b",4096],["c",4096]]}"#;
    for _ in 0..rounds() / 3 {
        let (info, dirty) = (mangled(info.as_bytes(), &mut rng), mangled(dirty.as_bytes(), &mut rng));
        std::fs::create_dir_all(&dead).expect("a directory");
        for (name, text) in [("info.json", &info), ("dirty.json", &dirty), ("lock", &Vec::new())] {
            std::fs::write(dead.join(name), text).expect("a file");
        }
        for asked in ["stat", "umount", "mount /nonexistent"] {
            let script = "mkdir -p /run/terrace; mount --bind \"$0\" /run/terrace; exec \"$@\"";
            let mut command = Command::new("unshare");
            command.args(["-m", "--propagation", "private", "sh", "-euc", script]).arg(&runtime);
            command.arg(product("terrace")).args(asked.split(' '));
            if asked != "stat" {
                command.arg(dir.path().join("mnt"));
            }
            refused_or_done(&process::run(&mut command, 20), &[info.as_slice(), b"\n", &dirty].concat());
        }
    }
}

/// terrace-api fuzzes the reader of each format; this test the commands above them.
#[test]
fn traces() {
    let mut rng = Rng::new(seed("fuzz-traces"));
    let dir = TestDir::new("fuzz-traces");
    let file = dir.path().join("trace");
    let keys: Vec<u64> = (0..400).map(|_| rng.below(90)).collect();
    let binary: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
    let csv: String = keys.iter().map(|key| format!("1,{key},4096\n")).collect();
    // The header of a capture, followed by records of consecutive pages.
    let head = b"\x89TRACE\r\n\x01\0\x20\0\0\x10\0\0\0\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0";
    let capture = [head.as_slice(), &[0x10; 400]].concat();
    let sound: [&[u8]; 4] = [&binary, text.as_bytes(), csv.as_bytes(), &capture];
    for _ in 0..rounds() / 3 {
        let bytes = mangled(sound[rng.below(4) as usize], &mut rng);
        std::fs::write(&file, &bytes).expect("a file");
        let asked =
            rng.pick(&["sim --policy strata,opt --size 5%,10 --csv --trace", "mrc --exact --csv --trace"]);
        let mut command = Command::new(product("terrace-bench"));
        command.args(asked.split(' ')).arg(&file);
        if rng.chance(60) {
            command.arg("--format").arg(rng.pick(&["u64", "oracle", "text", "csv", "terrace"]));
        }
        refused_or_done(&process::run(&mut command, 20), &bytes);
    }
}

#[test]
fn requests() {
    let mut rng = Rng::new(seed("fuzz-requests"));
    let mount = TestMount::new("fuzz-requests", Side::Mount, "16MiB");
    let (place, info) = mount.instance();
    // Without `stop`, which would be obeyed.
    let sound = [
        r#"{"cmd":"stat"}"#,
        r#"{"cmd":"check"}"#,
        r#"{"cmd":"drop-caches"}"#,
        r#"{"cmd":"resize","bytes":16777216}"#,
        r#"{"cmd":"mrc"}"#,
        r#"{"cmd":"lru"}"#,
        r#"{"cmd":"age"}"#,
        r#"{"cmd":"evict","seq":1,"pages":100}"#,
        r#"{"cmd":"trace"}"#,
    ];
    for _ in 0..rounds() {
        let mut request = mangled(rng.pick(&sound).as_bytes(), &mut rng);
        request.retain(|b| *b != b'\n');
        request.push(b'\n');
        let mut stream = UnixStream::connect(place.join("control.sock")).expect("the instance listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        // The client may disconnect in the middle, even within a line.
        let whole = rng.chance(80);
        let part = if whole { request.len() } else { rng.below(request.len() as u64) as usize };
        if stream.write_all(&request[..part]).is_err() || !whole {
            continue;
        }
        let mut answer = String::new();
        // A recording that has begun ends when its reader disconnects.
        BufReader::new(stream).read_line(&mut answer).expect("an answer, or the end");
        let request = String::from_utf8_lossy(&request);
        assert!(answer.is_empty() || answer.contains("\"ok\":"), "{request} was answered {answer}");
    }
    assert_eq!(info.terraced, mount.terraced(), "terraced fell and was started again");
    mount.finish();
}
