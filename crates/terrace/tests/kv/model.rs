//! Keys beside a map, over restarts of every kind: what is there is what was written, and nothing else.

use std::collections::BTreeMap;

use terrace_testkit::rng::{Rng, seed};

use super::client::{Client, Reply};
use super::stage::Stage;

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

#[test]
fn keys_are_those_of_a_map_over_restarts() {
    let mut rng = Rng::new(seed("keys_are_those_of_a_map_over_restarts"));
    let (stage, mut model) = (Stage::new(), BTreeMap::new());
    let mut served = stage.serve(&["--sync", "always"]);
    for round in 0..if std::env::var_os("TERRACE_SOAK").is_some() { 60 } else { 6 } {
        let mut client = stage.client();
        for _ in 0..150 {
            step(&mut client, &mut rng, &mut model);
        }
        match round % 3 {
            0 => served.kill_server(),
            1 => {
                served.stop();
                served = stage.serve(&["--sync", "always"]);
            }
            _ => {
                served.kill_all();
                served = stage.serve(&["--sync", "always"]);
            }
        }
        let mut client = stage.client();
        while client.ask(&["DBSIZE"]).is_err() {
            client = stage.client();
        }
        assert_eq!(client.say("DBSIZE"), model.len().to_string());
        for (key, value) in &model {
            assert!(client.ask(&["GET", key]).unwrap() == Reply::Bulk(Some(value.clone())), "{key}");
        }
    }
    served.stop();
}
