//! Random commands compared with a model, a plain map: each reply, and all keys at the end. Collections
//! often cross the limit between compact and log.

use std::collections::BTreeMap;

use terrace_testkit::rng::{Rng, seed};

use super::{BEGAN, Lab};
use crate::config::Config;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    String(Vec<u8>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    Zset(BTreeMap<Vec<u8>, i64>),
}

/// The expected values and expiry times.
#[derive(Default)]
struct Model {
    keys: BTreeMap<Vec<u8>, (Value, Option<u64>)>,
    now: u64,
}

const WRONG: &[u8] = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";

fn bulk(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

fn int(number: impl std::fmt::Display) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

fn null() -> Vec<u8> {
    b"$-1\r\n".to_vec()
}

impl Model {
    fn expire(&mut self) {
        let now = self.now;
        self.keys.retain(|_, (_, expires)| expires.is_none_or(|expires| expires > now));
    }

    /// Applies a command. Returns the expected reply.
    fn run(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        self.expire();
        let (name, key) = (std::str::from_utf8(&words[0]).unwrap(), words[1].clone());
        let found = self.keys.get_mut(&key);
        match (name, found) {
            ("SET", _) => {
                self.keys.insert(key, (Value::String(words[2].clone()), None));
                b"+OK\r\n".to_vec()
            }
            ("GET", None) | ("HGET", None) | ("ZSCORE", None) => null(),
            ("GET", Some((Value::String(text), _))) => bulk(text),
            ("APPEND", None) => {
                self.keys.insert(key, (Value::String(words[2].clone()), None));
                int(words[2].len())
            }
            ("APPEND", Some((Value::String(text), _))) => {
                text.extend(&words[2]);
                int(text.len())
            }
            ("DEL", found) => {
                let there = found.is_some();
                self.keys.remove(&key);
                int(u8::from(there))
            }
            ("PEXPIRE", None) => int(0),
            ("PEXPIRE", Some((_, expires))) => {
                *expires = Some(self.now + std::str::from_utf8(&words[2]).unwrap().parse::<u64>().unwrap());
                int(1)
            }
            ("RENAME", None) => b"-ERR no such key\r\n".to_vec(),
            ("RENAME", Some(_)) => {
                let moved = self.keys.remove(&key).unwrap();
                self.keys.insert(words[2].clone(), moved);
                b"+OK\r\n".to_vec()
            }
            (name, found) if name.starts_with('H') => match found {
                None => self.hash(name, key, words),
                Some((Value::Hash(_), _)) => self.hash(name, key, words),
                Some(_) => WRONG.to_vec(),
            },
            (name, found) if name.starts_with('Z') => match found {
                None => self.zset(name, key, words),
                Some((Value::Zset(_), _)) => self.zset(name, key, words),
                Some(_) => WRONG.to_vec(),
            },
            _ => WRONG.to_vec(),
        }
    }

    fn hash(&mut self, name: &str, key: Vec<u8>, words: &[Vec<u8>]) -> Vec<u8> {
        let (value, _) = self.keys.entry(key.clone()).or_insert((Value::Hash(BTreeMap::new()), None));
        let Value::Hash(hash) = value else { unreachable!() };
        let reply = match name {
            "HSET" => int(u8::from(hash.insert(words[2].clone(), words[3].clone()).is_none())),
            "HGET" => hash.get(&words[2]).map_or_else(null, |value| bulk(value)),
            "HDEL" => int(u8::from(hash.remove(&words[2]).is_some())),
            _ => int(hash.len()),
        };
        if hash.is_empty() {
            self.keys.remove(&key);
        }
        reply
    }

    fn zset(&mut self, name: &str, key: Vec<u8>, words: &[Vec<u8>]) -> Vec<u8> {
        let (value, _) = self.keys.entry(key.clone()).or_insert((Value::Zset(BTreeMap::new()), None));
        let Value::Zset(zset) = value else { unreachable!() };
        let number = |word: &[u8]| std::str::from_utf8(word).unwrap().parse::<i64>().unwrap();
        let reply = match name {
            "ZADD" => int(u8::from(zset.insert(words[3].clone(), number(&words[2])).is_none())),
            "ZSCORE" => zset.get(&words[2]).map_or_else(null, |score| bulk(score.to_string().as_bytes())),
            "ZREM" => int(u8::from(zset.remove(&words[2]).is_some())),
            _ => {
                let (min, max) = (number(&words[2]), number(&words[3]));
                let mut inside: Vec<_> =
                    zset.iter().filter(|(_, score)| (min..=max).contains(*score)).collect();
                inside.sort_by_key(|(member, score)| (**score, (*member).clone()));
                let members: Vec<u8> = inside.iter().flat_map(|(member, _)| bulk(member)).collect();
                [format!("*{}\r\n", inside.len()).into_bytes(), members].concat()
            }
        };
        if zset.is_empty() {
            self.keys.remove(&key);
        }
        reply
    }
}

fn random_command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let key = format!("key{}", rng.below(12));
    let (field, score) = (format!("f{}", rng.below(40)), rng.below(20));
    let length = if rng.chance(10) { rng.index(2000) } else { rng.index(60) };
    let value = rng.bytes(length);
    let words: Vec<&[u8]> = match rng.below(20) {
        0 => vec![b"SET", b"KEY", &value],
        1 => vec![b"GET", b"KEY"],
        2 => vec![b"APPEND", b"KEY", &value],
        3 if rng.chance(30) => vec![b"DEL", b"KEY"],
        4 => vec![b"PEXPIRE", b"KEY", if rng.chance(50) { b"20" } else { b"900" }],
        5 => vec![b"RENAME", b"KEY", if rng.chance(50) { b"key1" } else { b"key2" }],
        6..10 => vec![b"HSET", b"KEY", field.as_bytes(), &value],
        10 => vec![b"HGET", b"KEY", field.as_bytes()],
        11 => vec![b"HDEL", b"KEY", field.as_bytes()],
        12 => vec![b"HLEN", b"KEY"],
        13..16 => vec![b"ZADD", b"KEY", b"SCORE", field.as_bytes()],
        16 => vec![b"ZSCORE", b"KEY", field.as_bytes()],
        17 => vec![b"ZREM", b"KEY", field.as_bytes()],
        18 => vec![b"ZRANGEBYSCORE", b"KEY", b"5", b"SCORE"],
        _ => vec![b"GET", b"KEY"],
    };
    let fill = |word: &[u8]| match word {
        b"KEY" => key.clone().into_bytes(),
        b"SCORE" => score.to_string().into_bytes(),
        word => word.to_vec(),
    };
    words.into_iter().map(fill).collect()
}

#[test]
fn random_commands_answer_as_a_plain_map() {
    let mut rng = Rng::new(seed("random_commands_answer_as_a_plain_map"));
    for _ in 0..20 {
        // Little memory for decoded collections, so that they are often dropped.
        let mut lab = Lab::with(Config::for_memory(1 << 30), 120_000);
        let mut model = Model { now: BEGAN, ..Model::default() };
        for _ in 0..1500 {
            let words = random_command(&mut rng);
            let wanted = model.run(&words);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(
                text(&lab.raw(&words)),
                text(&wanted),
                "{:?}",
                words.iter().map(|w| text(w)).collect::<Vec<_>>()
            );
            if rng.chance(5) {
                let passes = rng.below(30);
                model.now += passes;
                lab.pass(passes);
            }
            if rng.chance(2) {
                lab.server.keyspace.expire();
            }
        }
        model.expire();
        let keys: Vec<Vec<u8>> = model.keys.keys().cloned().collect();
        let there = keys.iter().filter(|key| lab.raw(&[b"EXISTS", key.as_slice()]) == int(1)).count();
        assert_eq!((there, lab.ask("KEYS *").matches("key").count()), (keys.len(), keys.len()));
    }
}
