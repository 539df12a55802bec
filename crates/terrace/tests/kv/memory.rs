//! Memory of a server while names of keys fill `--memory`: it stays within the limit, and further keys are
//! refused.

use terrace_testkit::process::{memory_files, private_memory};

use super::client::{Client, Reply};
use super::test_server::{Served, TestServer};

const LIMIT: u64 = 32 << 20;
/// Anonymous memory of a process that does not grow with keys: stacks, thread buffers, allocator overhead.
const OWN: u64 = 6 << 20;

/// Memory of the server by the kernel's count: the memory files, and its private pages.
fn resident(served: &Served) -> (u64, u64) {
    let pid = served.stat().instance.terraced;
    (memory_files(pid).values().sum(), private_memory(pid))
}

/// Asserts that memory is within the limit, by the server's own count and by the kernel's.
#[track_caller]
fn within_limit(served: &Served, when: &str) {
    let memory = served.stat().cache.memory;
    assert!(memory.used_bytes <= memory.limit_bytes, "{when}: {memory:?}");
    let (files, own) = resident(served);
    assert!(files + own <= LIMIT + OWN, "{when}: {files} bytes in memory files, {own} own; {memory:?}");
}

fn key(number: u64) -> String {
    format!("key:{number:012}")
}

const BATCH: u64 = 500;

/// Sets a batch of keys at once; returns how many were accepted.
fn set_batch(client: &mut Client, from: u64) -> u64 {
    let requests: Vec<_> = (from..from + BATCH).map(|i| ["SET".to_owned(), key(i), i.to_string()]).collect();
    client.send(&requests).unwrap();
    let mut taken = 0;
    for i in 0..BATCH {
        match client.reply().unwrap() {
            Reply::Status(_) if taken == i => taken += 1,
            // A later key may still fit into its table.
            Reply::Status(_) => {}
            Reply::Error(line) => {
                assert!(line.starts_with("OOM command not allowed when used memory > 'maxmemory'"), "{line}");
            }
            other => panic!("{other:?}"),
        }
    }
    taken
}

#[test]
fn keys_fill_memory_up_to_the_limit_and_are_then_refused() {
    let test = TestServer::new();
    let served = test.serve(&["--sync", "no"]);
    let mut client = test.client();
    let mut keys = 0;
    loop {
        let taken = set_batch(&mut client, keys);
        keys += taken;
        if taken < BATCH {
            break;
        }
        if keys % 20_000 == 0 {
            within_limit(&served, &format!("{keys} keys"));
        }
    }
    let stat = served.stat();
    println!("{keys} keys, {:?}, {:?} resident", stat.cache.memory, resident(&served));
    assert!(keys > 80_000, "{keys} keys");
    let tables = stat.cache.memory.tables_bytes;
    assert!(tables > LIMIT / 3, "names take {tables} bytes");
    within_limit(&served, "full");
    for i in (0..keys).step_by(997) {
        assert_eq!(client.say(&format!("GET {}", key(i))), i.to_string());
    }
    // Writes that need no more memory succeed.
    assert_eq!(client.say(&format!("SET {} {}", key(1), "v".repeat(5000))), "OK");
    within_limit(&served, "full and read");
    // The next server over the same keys.
    served.kill_server();
    let mut client = test.client();
    assert_eq!(client.say(&format!("GET {}", key(2))), "2");
    within_limit(&served, "after a kill");
    for i in 0..keys / 2 {
        assert_eq!(client.say(&format!("DEL {}", key(i))), "1");
    }
    assert_eq!(set_batch(&mut client, keys), BATCH);
    within_limit(&served, "half empty");
    served.stop();
}
