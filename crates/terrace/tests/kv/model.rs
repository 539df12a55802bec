//! Random writes and reads of keys, compared with a map across restarts and kills of the server.

use std::collections::BTreeMap;

use terrace_testkit::rng::{Rng, seed};

use super::client::{Client, Reply};
use super::test_server::TestServer;

fn step(client: &mut Client, rng: &mut Rng, model: &mut BTreeMap<String, Vec<u8>>) {
    let key = format!("key:{}", rng.below(200));
    let length = if rng.chance(5) { rng.index(200_000) } else { rng.index(3000) };
    let value = rng.bytes(length);
    let words = |name: &str| [name.as_bytes().to_vec(), key.clone().into_bytes(), value.clone()];
    let reply = match rng.below(6) {
        0..3 => {
            model.insert(key.clone(), value.clone());
            client.ask(&words("SET"))
        }
        3 => {
            model.entry(key.clone()).or_default().extend(&value);
            client.ask(&words("APPEND"))
        }
        4 => {
            model.remove(&key);
            client.ask(&["DEL", &key])
        }
        _ => {
            let found = client.ask(&["GET", &key]).unwrap();
            assert!(found == Reply::Bulk(model.get(&key).cloned()), "{key}");
            return;
        }
    };
    assert!(!matches!(reply.unwrap(), Reply::Error(_)));
}

/// Random writes and reads, with each kind of end in turn. `more`: options of the server.
fn check_over_restarts(seed: u64, rounds: u64, more: &[&str]) {
    let mut rng = Rng::new(seed);
    let (test, mut model) = (TestServer::new(), BTreeMap::new());
    let tier = format!("{}:64MiB", test.text("tier"));
    let with_tier: Vec<&str> = more.iter().map(|word| if *word == "TIER" { &*tier } else { *word }).collect();
    let serve = || test.serve(&[&["--sync", "always"], &*with_tier].concat());
    let mut served = serve();
    for round in 0..rounds {
        let mut client = test.client();
        for _ in 0..150 {
            step(&mut client, &mut rng, &mut model);
        }
        match round % 3 {
            0 => served.kill_server(),
            1 => {
                served.stop();
                served = serve();
            }
            _ => {
                served.kill_all();
                served = serve();
            }
        }
        let mut client = test.client();
        assert_eq!(client.say("DBSIZE"), model.len().to_string());
        for (key, value) in &model {
            assert!(client.ask(&["GET", key]).unwrap() == Reply::Bulk(Some(value.clone())), "{key}");
        }
    }
    served.stop();
}

fn rounds(quick: u64) -> u64 {
    if std::env::var_os("TERRACE_SOAK").is_some() { 10 * quick } else { quick }
}

#[test]
fn keys_are_those_of_a_map_over_restarts() {
    check_over_restarts(seed("keys_are_those_of_a_map_over_restarts"), rounds(6), &[]);
}

#[test]
fn keys_beside_a_tier_are_those_of_a_map() {
    check_over_restarts(seed("keys_beside_a_tier_are_those_of_a_map"), rounds(3), &["--tier", "TIER"]);
}
