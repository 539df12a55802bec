//! Acknowledged writes survive the death of the server, and with `--sync always` the death of all processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_testkit::rng::{Rng, seed};
use terrace_testkit::wait::wait_until;

use super::client::{Client, Reply};
use super::test_server::TestServer;

/// Kills of each kind, in a quick run and in a soak.
fn rounds() -> u64 {
    let set = std::env::var("TERRACE_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok());
    set.unwrap_or(if std::env::var_os("TERRACE_SOAK").is_some() { 500 } else { 15 })
}

/// Keys of each writer.
const KEYS: u64 = 20;

/// The value of a key's version: of various lengths, and recognisable. Values of hash fields are large, so
/// that the hash is stored in pieces.
fn value(key: u64, version: u64) -> Vec<u8> {
    let least = if key.is_multiple_of(3) { 45_000 } else { 10 };
    let length = least + (key * 131 + version * 977) as usize % 6000;
    let stamp = format!("{key}:{version}:");
    stamp.bytes().cycle().take(length.max(stamp.len())).collect()
}

/// For each key of a writer: the last acknowledged version, and the last one sent.
type Versions = Vec<(u64, u64)>;

/// Writes until its connection ends or `over`.
fn write(test: &TestServer, writer: u64, mut versions: Versions, over: &AtomicBool) -> Versions {
    let mut client = test.client();
    let from = versions.iter().map(|(_, sent)| *sent).max().unwrap_or(0);
    for step in 0.. {
        let (key, version) = (step % KEYS, from + 1 + step / KEYS);
        let known = &mut versions[key as usize];
        known.1 = version;
        let (name, field) = (format!("{writer}:{key}"), format!("f{key}"));
        let (hash, zset) = (format!("h{writer}"), format!("z{writer}"));
        let asked = match key % 3 {
            0 => client.ask(&[b"HSET".as_slice(), hash.as_bytes(), field.as_bytes(), &value(key, version)]),
            1 => client.ask(&["ZADD", &zset, &version.to_string(), &field]),
            _ => client.ask(&[b"SET".as_slice(), name.as_bytes(), &value(key, version)]),
        };
        match asked {
            Ok(Reply::Error(line)) => panic!("{line}"),
            Ok(_) => known.0 = version,
            Err(_) => break,
        }
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
    versions
}

/// Checks that each key holds an acknowledged version, or one sent after it; returns the versions found.
fn check(client: &mut Client, writer: u64, versions: &Versions) -> Versions {
    let mut found = Versions::new();
    for (key, &(acknowledged, sent)) in (0..).zip(versions) {
        let (name, field) = (format!("{writer}:{key}"), format!("f{key}"));
        let reply = match key % 3 {
            0 => client.ask(&["HGET", &format!("h{writer}"), &field]),
            1 => client.ask(&["ZSCORE", &format!("z{writer}"), &field]),
            _ => client.ask(&["GET", &name]),
        };
        let Reply::Bulk(there) = reply.unwrap() else { panic!("no value") };
        let is = |version: &u64| match (&there, key % 3) {
            (None, _) => *version == 0,
            (Some(there), 1) => *there == version.to_string().into_bytes(),
            (Some(there), _) => *there == value(key, *version),
        };
        let version = (acknowledged..=sent).find(is);
        let text =
            there.as_ref().map(|text| String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned());
        let version = version.unwrap_or_else(|| {
            panic!("writer {writer}, key {key}: {text:?} is not of versions {acknowledged} to {sent}")
        });
        found.push((version, version));
    }
    found
}

/// Rounds of writers, each ended by `kill`, which returns once clients can connect again.
fn write_and_kill(test: &TestServer, rounds: u64, seed: u64, mut kill: impl FnMut()) {
    let mut rng = Rng::new(seed);
    let mut known = [vec![(0, 0); KEYS as usize], vec![(0, 0); KEYS as usize]];
    for _ in 0..rounds {
        let over = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let (over, known) = (&over, &known);
            let writers = [0, 1]
                .map(|writer| scope.spawn(move || write(test, writer, known[writer as usize].clone(), over)));
            std::thread::sleep(Duration::from_millis(50 + rng.below(300)));
            kill();
            // For a writer that has already reached the next server.
            over.store(true, Ordering::Relaxed);
            writers.map(|writer| writer.join().unwrap())
        });
        let mut client = test.client();
        known = [0, 1].map(|writer: usize| check(&mut client, writer as u64, &written[writer]));
    }
    let acknowledged: u64 = known.iter().flatten().map(|(version, _)| version).sum();
    println!("{rounds} kills, about {acknowledged} writes acknowledged, none lost");
    assert!(acknowledged > rounds, "{acknowledged} writes");
}

#[test]
fn acknowledged_writes_survive_kill_of_the_server() {
    let seed = seed("acknowledged_writes_survive_kill_of_the_server");
    let test = TestServer::new();
    let served = test.serve(&["--sync", "no"]);
    let rounds = rounds();
    write_and_kill(&test, rounds, seed, || served.kill_server());
    // The last server may answer before info.json names it.
    wait_until("every restart is on record", || u64::from(served.stat().instance.restarts) == rounds);
    assert!(served.stat().instance.last_death.unwrap().contains("killed by signal 9"));
    served.stop();
    // An orderly end, too.
    let served = test.serve(&[]);
    assert!(test.client().say("DBSIZE").parse::<u64>().unwrap() > 10);
    served.stop();
}

#[test]
fn acknowledged_writes_survive_a_kill_at_the_end() {
    let test = TestServer::new();
    let served = test.serve(&["--sync", "no"]);
    let mut client = test.client();
    for number in 0..500 {
        assert_eq!(client.say(&format!("SET k{number} value")), "OK");
    }
    served.kill_server_as_it_stops();
    let served = test.serve(&[]);
    assert_eq!(test.client().say("DBSIZE"), "500");
    served.stop();
}

#[test]
fn writes_survive_kill_of_everything() {
    let seed = seed("writes_survive_kill_of_everything");
    for sync in ["always", "1s", "no"] {
        let test = TestServer::new();
        let mut served = Some(test.serve(&["--sync", sync]));
        write_and_kill(&test, rounds(), seed, || {
            served.take().unwrap().kill_all();
            // A start that is killed at once, or ends in order, leaves all data to the next.
            let first = test.serve(&["--sync", sync]);
            if seed.is_multiple_of(2) {
                first.kill_all()
            } else {
                first.stop()
            }
            served = Some(test.serve(&["--sync", sync]));
        });
        served.unwrap().stop();
    }
}

#[test]
fn server_goes_on_when_its_supervisor_is_killed() {
    let test = TestServer::new();
    let served = test.serve(&[]);
    let mut client = test.client();
    assert_eq!(client.say("SET a 1"), "OK");
    let supervisor = rustix::process::Pid::from_raw(served.stat().instance.pid).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    assert_eq!(client.say("GET a"), "1");
    terrace_testkit::wait::wait_until("stat tells of it", || !served.stat().instance.supervisor_lives);
    // A server without a supervisor cleans up itself.
    let _ = client.ask(&["SHUTDOWN"]);
    terrace_testkit::wait::wait_until("the socket is gone", || !test.path("s").exists());
    drop(served);
    let served = test.serve(&[]);
    assert_eq!(test.client().say("GET a"), "1");
    served.stop();
}
