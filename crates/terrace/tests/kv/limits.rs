//! A server's refusals: wrong settings, long values, second servers, full disks, missing passwords. Also its
//! statistics and metrics.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use terrace_testkit::exposition;
use terrace_testkit::rng::Rng;
use terrace_testkit::scrape::{get, scrape};
use terrace_testkit::wait::wait_until;

use super::client::{Client, Reply};
use super::test_server::{TestServer, refused, terrace};

#[test]
fn wrong_settings_are_one_line() {
    let test = TestServer::new();
    std::fs::write(test.path("file"), "").unwrap();
    std::fs::write(test.path("map"), "[[node]]\nhost = \"127.0.0.1\"\nport = 1\nslots = [\"0-1\"]\n")
        .unwrap();
    let (dir, file, map) = (test.text("keys"), test.text("file"), test.text("map"));
    let kv = |more: &[&str], part: &str| refused(&[&["serve", "kv", "--dir", &dir], more].concat(), part);
    refused(&["serve", "kv", "--dir", "/nonexistent/keys"], "No such file");
    refused(&["serve", "kv", "--dir", &file], "directory");
    kv(&["--bind", "0.0.0.0", "--port", "1"], "no password");
    kv(&["--password-file", "/nonexistent"], "No such file");
    kv(&["--unix", "/nonexistent/s"], "No such file");
    kv(&["--unix", &file], "no socket");
    kv(&["--unix", &test.text(&"s".repeat(107))], "107 bytes; choose a shorter one");
    let password = test.path("password");
    std::fs::write(&password, "secret").unwrap();
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).unwrap();
    kv(&["--bind", "192.0.2.1", "--password-file", &test.text("password")], "an address of this machine");
    kv(&["--port", "1", "--memcached", "1"], "a port of its own");
    kv(&["--cluster", &map, "--port", "1"], "no node has slot 2");
    kv(&["--cluster", &map, "--unix", &test.text("s")], "--port");
    kv(&["--memory", "1KiB"], "--memory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    kv(&["--port", &listener.local_addr().unwrap().port().to_string()], "--port");
}

#[test]
fn longest_value_that_is_taken_is_given() {
    let test = TestServer::new();
    let served = test.serve(&[]);
    let mut client = test.client();
    let Reply::Array(longest) = client.ask(&["CONFIG", "GET", "proto-max-bulk-len"]).unwrap() else {
        panic!("no setting")
    };
    let Reply::Bulk(Some(longest)) = &longest[1] else { panic!("no value") };
    let longest: usize = String::from_utf8_lossy(longest).parse().unwrap();
    let value = Rng::new(1).bytes(longest);
    assert_eq!(client.ask(&[b"SET".as_slice(), b"k", &value]).unwrap(), Reply::Status("OK".into()));
    assert!(client.ask(&["GET", "k"]).unwrap() == Reply::Bulk(Some(value)));
    served.stop();
}

#[test]
fn one_store_has_one_server() {
    let test = TestServer::new();
    let served = test.serve(&[]);
    let socket = test.text("other");
    refused(&["serve", "kv", "--dir", &test.text("keys"), "--unix", &socket], "end that program first");
    refused(
        &["serve", "kv", "--dir", &test.text("elsewhere"), "--unix", &test.text("s")],
        "another server listens there",
    );
    let mode = |name: &str| std::fs::metadata(test.path(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("s"), mode("keys/.kv.heap"), mode("keys/.kv.names")), (0o600, 0o600, 0o600));
    served.stop();
    assert!(!test.path("s").exists());
}

/// Runs `f` in a thread with a mount namespace of its own, also for its servers. It has a file system of
/// `bytes` at `keys`.
fn on_a_disk(bytes: u64, f: impl FnOnce(&TestServer) + Send) {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let test = TestServer::new();
    let keys = test.path("keys");
    std::fs::create_dir(&keys).unwrap();
    let run = || {
        // SAFETY: affects this thread only; it does not unshare descriptors.
        let unshared = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let mounted = unshared
            .and_then(|()| mount_change("/", private))
            .and_then(|()| mount("tmpfs", &keys, "tmpfs", MountFlags::empty(), Some(options.as_c_str())));
        match mounted {
            Ok(()) => f(&test),
            Err(err) => println!("not run: no file system can be mounted here: {err}"),
        }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap());
}

#[test]
fn full_disk_takes_deletes_and_has_room_again() {
    on_a_disk(24 << 20, |test| {
        let served = test.serve(&[]);
        let mut client = test.client();
        for field in 0..100 {
            let field = format!("field{field}");
            let asked = client.ask(&[b"HSET".as_slice(), b"hash", field.as_bytes(), &[7; 6000]]);
            assert_eq!(asked.unwrap(), Reply::Int(1));
        }
        let mut fill = |name: &str, bytes: usize| {
            let value = vec![7; bytes];
            let mut set = |n: &u32| client.ask(&[b"SET".as_slice(), format!("{name}{n}").as_bytes(), &value]);
            (0..).take_while(|n| matches!(set(n).unwrap(), Reply::Status(_))).count()
        };
        let (large, tiny) = (fill("k", 4096), fill("tiny", 1));
        assert!(large > 2000 && tiny > 1000, "{large} large values, {tiny} tiny ones");
        assert_eq!(client.ask(&["DEL", "hash"]).unwrap(), Reply::Int(1));
        for n in 0..large {
            assert_eq!(client.ask(&["DEL", &format!("k{n}")]).unwrap(), Reply::Int(1), "{n} of {large}");
        }
        wait_until("deleted values leave room", || client.say(&format!("SET k0 {:04096}", 0)) == "OK");
        assert_eq!(client.say("FLUSHALL"), "OK");
        let set = [b"SET".as_slice(), b"k1", &[7; 100_000]];
        wait_until("all values leave room", || matches!(client.ask(&set).unwrap(), Reply::Status(_)));
        served.stop();
    });
}

#[test]
fn full_and_read_only_disks_are_one_line() {
    on_a_disk(24 << 20, |test| {
        let served = test.serve(&[]);
        let mut client = test.client();
        let value = |i: u64| Rng::new(i).bytes(500_000);
        let mut set = |i: u64| {
            let reply = client.ask(&[b"SET", format!("k{i}").as_bytes(), &value(i)]).unwrap();
            reply.text()
        };
        let (mut taken, mut said) = (0, set(0));
        while said == "OK" {
            taken += 1;
            said = set(taken);
        }
        assert!(taken > 20, "{taken} values were taken");
        assert!(said.starts_with("OOM") && said.contains("the store is full"), "{said}");
        let mut client = test.client();
        let check = |client: &mut Client, i: u64| {
            let found = client.ask(&["GET", &format!("k{i}")]).unwrap();
            assert_eq!(found, Reply::Bulk(Some(value(i))), "value {i}");
        };
        (0..taken).for_each(|i| check(&mut client, i));
        assert_eq!(client.say("DEL k0 k1 k2"), "3");
        wait_until("removed values leave room", || set(taken) == "OK");
        (3..=taken).for_each(|i| check(&mut client, i));
        served.stop();
        rustix::mount::mount_remount(test.path("keys"), rustix::mount::MountFlags::RDONLY, "").unwrap();
        refused(&["serve", "kv", "--dir", &test.text("keys"), "--unix", &test.text("s")], "writable");
    });
}

#[test]
fn password_file_keeps_others_out() {
    let test = TestServer::new();
    let file = test.text("password");
    std::fs::write(&file, "secret\nmore\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let served = test.serve(&["--password-file", &file]);
    let mut client = Client::unix(&test.path("s")).unwrap();
    assert_eq!(client.say("GET a"), "NOAUTH Authentication required.");
    assert!(client.say("AUTH wrong").starts_with("WRONGPASS"));
    assert_eq!([client.say("AUTH secret"), client.say("SET a 1")], ["OK", "OK"]);
    served.stop();
}

#[test]
fn commands_of_terrace_reach_a_server() {
    let test = TestServer::new();
    let served = test.serve(&["--clients-max", "3"]);
    let mut client = test.client();
    for i in 0..100 {
        client.say(&format!("SET k{i} {}", "v".repeat(5000)));
    }
    let stat = served.stat();
    let kv = stat.kv.unwrap();
    assert_eq!((kv.keys, stat.instance.kind.name()), (100, "kv"));
    assert!(kv.commands >= 100 && kv.clients >= 1 && kv.input_bytes > 500_000);
    assert!(stat.cache.memory.used_bytes <= stat.cache.memory.limit_bytes);
    let dir = test.text("keys");
    let told = |args: &[&str]| {
        let output = terrace(&[args, &[dir.as_str()]].concat()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    told(&["sync"]);
    told(&["drop-caches"]);
    assert!(told(&["check"]).contains("agree"));
    assert!(told(&["stat"]).contains("keys         100, 0 expired"));
    let resized = terrace(&["resize", &dir, "64MiB"]).output().unwrap();
    assert!(resized.status.success());
    assert_eq!(client.say("CONFIG GET maxmemory"), format!("maxmemory {}", 64 << 20));
    for args in ["resize DIR auto", "trace DIR -o /dev/null", "tier resize DIR ssd 1GiB"] {
        let args: Vec<&str> = args.split(' ').map(|word| if word == "DIR" { &dir } else { word }).collect();
        let no = terrace_testkit::command::told(terrace(&args));
        assert!(!no.err.contains("the log"), "{}", no.err);
        no.refused(&["a server of keys"]);
    }
    assert_eq!(client.say("GET k1").len(), 5000);
    served.stop();
}

#[test]
fn metrics_of_a_server_are_scraped_also_after_it_was_killed() {
    let test = TestServer::new();
    let served = test.serve(&["--metrics", "0"]);
    let address = served.stat().instance.metrics.expect("it is told where they are");
    let mut client = test.client();
    for words in ["SET a 1", "GET a", "GET b", "NONSENSE"] {
        client.say(words);
    }
    let page = scrape(&address);
    let value = |name: &str, label: &str| {
        let samples = &page[name].samples;
        samples
            .iter()
            .find(|s| label.is_empty() || s.labels.values().any(|text| text == label))
            .unwrap()
            .value
    };
    assert_eq!([value("terrace_keys", ""), value("terrace_key_command_errors_total", "")], [1.0, 1.0]);
    assert_eq!(
        [value("terrace_key_reads_total", "hit"), value("terrace_key_reads_total", "miss")],
        [1.0, 1.0]
    );
    assert_eq!(value("terrace_info", "kv"), 1.0);
    served.kill_server();
    wait_until("the next server tells that it was started again", || {
        let (head, body) = get(&address, "/metrics");
        let restarts = || exposition::parse(&body).unwrap()["terrace_daemon_restarts_total"].samples[0].value;
        head.starts_with("HTTP/1.1 200 ") && restarts() == 1.0
    });
    served.stop();
    assert!(std::net::TcpStream::connect(&address).is_err(), "nobody listens after the end");
}
