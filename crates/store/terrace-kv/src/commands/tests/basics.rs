//! Tests of each family of Redis' commands, with errors, expiry, and limits of the store and of replies.

use std::sync::atomic::Ordering;

use super::{Lab, check};
use crate::cluster::Cluster;
use crate::config::Config;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn strings_are_written_and_read() {
    check(
        &mut Lab::new(),
        &[
            ("SET a 1", "+OK"),
            ("GET a", "$1 1"),
            ("GET b", "$-1"),
            ("SET a 2 NX", "$-1"),
            ("SET b 2 XX", "$-1"),
            ("SET a 2 XX GET", "$1 1"),
            ("SET a 3 NX XX", "-ERR syntax error"),
            ("SET a 3 EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET a 3 EX x", "-ERR value is not an integer or out of range"),
            ("SETNX a 5", ":0"),
            ("GETSET a 6", "$1 2"),
            ("APPEND a 78", ":3"),
            ("STRLEN a", ":3"),
            ("GETRANGE a 1 -1", "$2 78"),
            ("SETRANGE a 5 x", ":6"),
            ("GET a", "$6 678\0\0x"),
            ("GETDEL a", "$6 678\0\0x"),
            ("GETDEL a", "$-1"),
            ("MSET a 1 b 2", "+OK"),
            ("MGET a b c", "*3 $1 1 $1 2 $-1"),
            ("MSETNX c 1 a 2", ":0"),
            ("EXISTS a b c a", ":3"),
            ("INCR a", ":2"),
            ("DECRBY a 5", ":-3"),
            ("INCRBYFLOAT a 0.5", "$4 -2.5"),
            ("INCR a", "-ERR value is not an integer or out of range"),
            ("INCRBYFLOAT f 0.1", "$3 0.1"),
            ("INCRBYFLOAT f 0.2", "$3 0.3"),
            ("INCRBYFLOAT f 123456789012345678", "$20 123456789012345678.3"),
            ("INCRBYFLOAT f x", "-ERR value is not a valid float"),
            ("INCRBYFLOAT f inf", "-ERR increment would produce NaN or Infinity"),
            ("SET n 9223372036854775807", "+OK"),
            ("INCR n", "-ERR increment or decrement would overflow"),
            ("SETBIT bits 7 1", ":0"),
            ("SETBIT bits 7 0", ":1"),
            ("SETBIT bits 9 1", ":0"),
            ("GET bits", "$2 \0@"),
            ("GETBIT bits 9", ":1"),
        ],
    );
}

#[test]
fn keys_expire_when_their_time_comes() {
    let mut lab = Lab::new();
    check(
        &mut lab,
        &[
            ("SET a 1 EX 10", "+OK"),
            ("TTL a", ":10"),
            ("PTTL a", ":10000"),
            ("SET a 2 KEEPTTL", "+OK"),
            ("TTL a", ":10"),
            ("EXPIRE a 5 GT", ":0"),
            ("EXPIRE a 5 LT", ":1"),
            ("EXPIRE a 5 NX", ":0"),
            ("EXPIRE a 5 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
            ("PEXPIRETIME a", ":1000000005000"),
            ("TTL b", ":-2"),
            ("SET b 1", "+OK"),
            ("TTL b", ":-1"),
            ("PERSIST b", ":0"),
            ("HSET h f v", ":1"),
            ("PEXPIRE h 4000", ":1"),
            ("EXPIRE b -1", ":1"),
            ("EXISTS b", ":0"),
            ("DBSIZE", ":2"),
        ],
    );
    lab.pass(4000);
    check(&mut lab, &[("EXISTS h", ":0"), ("GET a", "$1 2"), ("DBSIZE", ":1"), ("PERSIST a", ":1")]);
    lab.pass(4000);
    check(&mut lab, &[("GET a", "$1 2"), ("GETEX a PX 10", "$1 2")]);
    lab.pass(10);
    check(&mut lab, &[("DBSIZE", ":1"), ("GET a", "$-1"), ("DBSIZE", ":0")]);
}

#[test]
fn expired_keys_leave_without_being_asked_for() {
    let mut lab = Lab::new();
    for i in 0..1000 {
        lab.ask(&format!("SET key:{i} x PX {}", 10 + i % 5));
    }
    lab.ask("SET stays x");
    lab.pass(12);
    assert_eq!((lab.server.keyspace.expire(), lab.ask("DBSIZE").as_str()), (600, ":401"));
    lab.ask("DEBUG SET-ACTIVE-EXPIRE 0");
    lab.pass(10);
    assert_eq!((lab.server.keyspace.expire(), lab.ask("DBSIZE").as_str()), (0, ":401"));
    assert!(lab.server.keyspace.memory_bytes() > 0);
    lab.ask("FLUSHALL");
    assert_eq!(lab.server.keyspace.memory_bytes(), 0);
}

#[test]
fn key_that_never_expires_in_effect_leaves_nothing() {
    let mut lab = Lab::new();
    let latest = format!(":{}", crate::keyspace::word::EXPIRES_MAX);
    for line in ["SET a x PXAT 9223372036854775807", "PEXPIREAT a 9223372036854775807"] {
        lab.ask("SET a x");
        lab.ask(line);
        assert_eq!(
            (lab.ask("PEXPIRETIME a"), lab.server.keyspace.volatile(0)),
            (latest.clone(), 1),
            "{line}"
        );
        lab.ask("DEL a");
        let keyspace = &lab.server.keyspace;
        assert_eq!((keyspace.volatile(0), keyspace.memory_bytes()), (0, 0), "{line}");
    }
}

#[test]
fn keys_of_an_earlier_server_expire_too() {
    let mut lab = Lab::new();
    lab.ask("SET a x PX 10");
    lab.ask("SET b x");
    // Another server over the same store does not have them.
    let (blobs, clock) = (lab.blobs.clone(), lab.clock.clone());
    let now = std::sync::Arc::new(move || clock.load(Ordering::Relaxed));
    let next = crate::keyspace::Keyspace::new(blobs, 1 << 20, now);
    (0..32).for_each(|_| assert_eq!(next.expire(), 0));
    assert_eq!((next.volatile(0), next.len(0)), (1, 2));
    lab.pass(10);
    assert_eq!((next.expire(), next.len(0)), (1, 1));
}

#[test]
fn hashes_are_written_and_read() {
    check(
        &mut Lab::new(),
        &[
            ("HSET h a 1 b 2", ":2"),
            ("HSET h a 3 c 4", ":1"),
            ("HSET h a", "-ERR wrong number of arguments for 'hset' command"),
            ("HSET h a 1 b", "-ERR wrong number of arguments for 'hset' command"),
            ("HGET h a", "$1 3"),
            ("HGET h x", "$-1"),
            ("HMGET h a x c", "*3 $1 3 $-1 $1 4"),
            ("HGETALL h", "*6 $1 a $1 3 $1 b $1 2 $1 c $1 4"),
            ("HLEN h", ":3"),
            ("HKEYS h", "*3 $1 a $1 b $1 c"),
            ("HVALS h", "*3 $1 3 $1 2 $1 4"),
            ("HEXISTS h a", ":1"),
            ("HSTRLEN h a", ":1"),
            ("HSETNX h a 9", ":0"),
            ("HINCRBY h a 5", ":8"),
            ("HINCRBYFLOAT h a 0.5", "$3 8.5"),
            ("HINCRBY h a 1", "-ERR hash value is not an integer"),
            ("HINCRBYFLOAT h a 1e17", "$20 100000000000000008.5"),
            ("HINCRBYFLOAT h a inf", "-ERR value is NaN or Infinity"),
            ("HDEL h a b x", ":2"),
            ("HSCAN h 0", "*2 $1 0 *2 $1 c $1 4"),
            ("HDEL h c", ":1"),
            ("EXISTS h", ":0"),
            ("HGETALL h", "*0"),
            ("HGET h a", "$-1"),
        ],
    );
}

#[test]
fn sorted_sets_are_written_and_read() {
    check(
        &mut Lab::new(),
        &[
            ("ZADD z 1 a 2 b 3 c", ":3"),
            ("ZADD z XX CH 5 a 9 x", ":1"),
            ("ZADD z NX 7 a", ":0"),
            ("ZADD z GT CH 4 a", ":0"),
            ("ZADD z INCR 1 a", "$1 6"),
            ("ZADD z 1", "-ERR wrong number of arguments for 'zadd' command"),
            ("ZADD z x a", "-ERR value is not a valid float"),
            ("ZADD z 1 a b", "-ERR syntax error"),
            ("ZRANGE z 0 -1 WITHSCORES", "*6 $1 b $1 2 $1 c $1 3 $1 a $1 6"),
            ("ZRANGE z 0 0 REV", "*1 $1 a"),
            ("ZREVRANGE z 0 1", "*2 $1 a $1 c"),
            ("ZRANGEBYSCORE z (2 +inf LIMIT 0 1", "*1 $1 c"),
            ("ZREVRANGEBYSCORE z 6 (2 WITHSCORES", "*4 $1 a $1 6 $1 c $1 3"),
            ("ZRANGE z 6 2 BYSCORE REV LIMIT 1 5", "*2 $1 c $1 b"),
            (
                "ZRANGE z 0 1 LIMIT 0 1",
                "-ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ),
            ("ZRANGEBYSCORE z x 1", "-ERR min or max is not a float"),
            ("ZCOUNT z 2 3", ":2"),
            ("ZRANK z c", ":1"),
            ("ZREVRANK z c", ":1"),
            ("ZRANK z x", "$-1"),
            ("ZSCORE z a", "$1 6"),
            ("ZMSCORE z a x", "*2 $1 6 $-1"),
            ("ZINCRBY z -4 a", "$1 2"),
            ("ZRANGE z 0 -1", "*3 $1 a $1 b $1 c"),
            ("ZREM z a x", ":1"),
            ("ZPOPMAX z", "*2 $1 c $1 3"),
            ("ZCARD z", ":1"),
            ("ZREMRANGEBYSCORE z -inf +inf", ":1"),
            ("EXISTS z", ":0"),
            ("ZADD l 0 a 0 b 0 c 0 d", ":4"),
            ("ZRANGEBYLEX l [b (d", "*2 $1 b $1 c"),
            ("ZREVRANGEBYLEX l + [c", "*2 $1 d $1 c"),
            ("ZLEXCOUNT l - +", ":4"),
            ("ZREMRANGEBYLEX l - (c", ":2"),
            ("ZREMRANGEBYRANK l 0 0", ":1"),
            ("ZRANGE l 0 -1", "*1 $1 d"),
        ],
    );
}

#[test]
fn commands_of_another_type_are_refused() {
    let mut lab = Lab::new();
    check(&mut lab, &[("SET s 1", "+OK"), ("HSET h f 1", ":1"), ("ZADD z 1 m", ":1")]);
    for line in [
        "GET h",
        "APPEND z x",
        "INCR h",
        "HGET s f",
        "HSET z f v",
        "ZADD s 1 a",
        "ZRANGE h 0 1",
        "STRLEN h",
        "HGETALL z",
    ] {
        assert_eq!(lab.ask(line), WRONG, "{line}");
    }
    check(
        &mut lab,
        &[("MGET s h", "*2 $1 1 $-1"), ("SET h x", "+OK"), ("TYPE h", "+string"), ("TYPE z", "+zset")],
    );
}

#[test]
fn keys_are_renamed_copied_moved() {
    check(
        &mut Lab::new(),
        &[
            ("SET a 1 EX 100", "+OK"),
            ("RENAME a b", "+OK"),
            ("TTL b", ":100"),
            ("RENAME a b", "-ERR no such key"),
            ("SET a 2", "+OK"),
            ("RENAMENX a b", ":0"),
            ("RENAME a b", "+OK"),
            ("TTL b", ":-1"),
            ("RENAME b b", "+OK"),
            ("COPY b c", ":1"),
            ("COPY b c", ":0"),
            ("COPY b c REPLACE DB 3", ":1"),
            ("MOVE b 3", ":1"),
            ("EXISTS b c", ":1"),
            ("SELECT 3", "+OK"),
            ("MGET b c", "*2 $1 2 $1 2"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("DBSIZE", ":2"),
            ("FLUSHDB", "+OK"),
            ("RANDOMKEY", "$-1"),
            ("SELECT 0", "+OK"),
            ("RANDOMKEY", "$1 c"),
            ("DEL c x", ":1"),
        ],
    );
}

#[test]
fn walks_beside_changes_do_not_make_a_full_collection_fail() {
    // The kept rest of a scan does not fit beside the hash, and must not block its changes.
    let mut lab = Lab::with(Config::for_memory(1 << 30), 320_000);
    let mut fields = 0;
    while lab.ask(&format!("HSET hash field:{fields} v")) == ":1" {
        fields += 1;
    }
    lab.ask("HDEL hash field:0 field:1 field:2");
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    for step in 0.. {
        let reply = lab.ask(&format!("HSCAN hash {cursor} COUNT 20"));
        let words: Vec<&str> = reply.split(' ').collect();
        cursor = words[2].to_owned();
        seen.extend(
            words[4..].iter().skip(1).step_by(2).filter(|w| w.starts_with('f')).map(|w| (*w).to_owned()),
        );
        assert!(lab.server.keyspace.memory_bytes() > 100_000, "it stays decoded");
        assert_eq!(lab.ask(&format!("HSET hash field:3 {step}")), ":0");
        if cursor == "0" {
            break;
        }
    }
    assert_eq!((seen.len(), lab.ask("HLEN hash")), (fields - 3, format!(":{}", fields - 3)));
}

#[test]
fn walks_meet_every_key_and_element() {
    let mut lab = Lab::new();
    for i in 0..500 {
        lab.ask(&format!("SET key:{i} x"));
        lab.ask(&format!("HSET hash field:{i} value:{i}"));
        lab.ask(&format!("ZADD zset {i} member:{i}"));
    }
    for (line, wanted) in
        [("SCAN % COUNT 7 MATCH key:*", 500), ("HSCAN hash %", 1000), ("ZSCAN zset % COUNT 100", 1000)]
    {
        let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
        loop {
            let reply = lab.ask(&line.replace('%', &cursor));
            let words: Vec<&str> = reply.split(' ').collect();
            cursor = words[2].to_owned();
            seen.extend(words[4..].iter().skip(1).step_by(2).map(|word| (*word).to_owned()));
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), wanted, "{line}");
    }
    check(
        &mut lab,
        &[
            ("SCAN 0 COUNT 1000 TYPE zset", "*2 $1 0 *1 $4 zset"),
            ("SCAN 0 COUNT 0", "-ERR syntax error"),
            ("SCAN x", "-ERR invalid cursor"),
            ("KEYS key:49[89]x", "*0"),
        ],
    );
    assert!(lab.ask("KEYS key:49[89]").starts_with("*2 "));
}

#[test]
fn full_store_is_reported_and_changes_nothing() {
    let mut lab = Lab::new();
    check(&mut lab, &[("SET a 1", "+OK"), ("HSET h f 1", ":1")]);
    lab.blobs.is_full.store(true, Ordering::Relaxed);
    for line in ["SET a 2", "APPEND a 2", "HSET h f 2", "ZADD z 1 m", "MSET b 1"] {
        assert!(lab.ask(line).starts_with("-OOM "), "{line}");
    }
    check(&mut lab, &[("GET a", "$1 1"), ("HGET h f", "$1 1"), ("DBSIZE", ":2"), ("DEL a", ":1")]);
}

#[test]
fn decoded_collections_keep_their_limit() {
    let mut lab = Lab::with(Config::for_memory(1 << 30), 100_000);
    let value = "v".repeat(2000);
    for key in ["a", "b", "c", "d"] {
        for field in 0..20 {
            assert_eq!(lab.ask(&format!("HSET {key} f{field} {value}")), ":1");
        }
        assert!(lab.server.keyspace.memory_bytes() <= 100_000);
    }
    // The collection exceeds the limit for decoded collections.
    let refused = (20..100).find(|field| lab.ask(&format!("HSET a f{field} {value}")).starts_with("-OOM "));
    assert!(refused.is_some_and(|field| field > 40), "{refused:?}");
    assert_eq!(lab.ask("HGET a f0"), format!("$2000 {value}"));
    assert_eq!(lab.ask("HDEL a f0"), ":1");
}

#[test]
fn password_is_asked_for_first() {
    let config = Config { password: Some("secret".to_owned()), ..Config::for_memory(1 << 30) };
    check(
        &mut Lab::with(config, 1 << 20),
        &[
            ("GET a", "-NOAUTH Authentication required."),
            ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("AUTH other secret", "-WRONGPASS invalid username-password pair or user is disabled."),
            ("PING", "-NOAUTH Authentication required."),
            ("AUTH secret", "+OK"),
            ("GET a", "$-1"),
            ("RESET", "+RESET"),
            ("GET a", "-NOAUTH Authentication required."),
        ],
    );
}

#[test]
fn greeting_chooses_the_protocol() {
    let mut lab = Lab::new();
    assert!(lab.ask("HELLO 3 SETNAME me").starts_with("%7 $6 server"));
    check(
        &mut lab,
        &[
            ("GET a", "_"),
            ("CLIENT GETNAME", "$2 me"),
            ("ZADD z 1.5 m", ":1"),
            ("ZSCORE z m", ",1.5"),
            ("ZRANGE z 0 -1 WITHSCORES", "*1 *2 $1 m ,1.5"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ],
    );
    assert!(lab.ask("HELLO 2").starts_with("*14 "));
    check(&mut lab, &[("GET a", "$-1"), ("CLIENT REPLY SKIP", ""), ("PING", ""), ("PING", "+PONG")]);
    check(&mut lab, &[("CLIENT REPLY OFF", ""), ("PING", ""), ("CLIENT REPLY ON", "+OK")]);
}

#[test]
fn names_of_clients_have_a_longest_length() {
    let mut lab = Lab::new();
    let (longest, longer) = ("n".repeat(128), "n".repeat(129));
    for command in ["CLIENT SETNAME", "CLIENT SETINFO LIB-NAME", "CLIENT SETINFO LIB-VER", "HELLO 2 SETNAME"]
    {
        assert!(!lab.ask(&format!("{command} {longest}")).starts_with('-'), "{command}");
        let refused = lab.ask(&format!("{command} {longer}"));
        assert_eq!(refused, "-ERR Client names cannot be longer than 128 bytes.", "{command}");
    }
    assert_eq!(lab.ask("CLIENT GETNAME"), format!("$128 {longest}"));
}

#[test]
fn keys_of_other_servers_are_sent_on() {
    let map = "[[node]]\nhost = \"h1\"\nport = 1\nslots = [\"0-8191\"]\n[[node]]\nhost = \"h2\"\nport = 2\nslots = [\"8192-16383\"]";
    let cluster = Some(Cluster::parse(map, "h1", 1).unwrap());
    let mut lab = Lab::with(Config { cluster, ..Config::for_memory(1 << 30) }, 1 << 20);
    check(
        &mut lab,
        &[
            ("SET bar 1", "+OK"),
            ("SET foo 1", "-MOVED 12182 h2:2"),
            ("MGET foo bar", "-CROSSSLOT Keys in request don't hash to the same slot"),
            ("MSET {bar}1 x {bar}2 y", "+OK"),
            ("MSET {bar}1 foo {bar}2 hello", "+OK"),
            ("SELECT 1", "-ERR SELECT is not allowed in cluster mode"),
            ("CLUSTER KEYSLOT foo", ":12182"),
            ("CLUSTER COUNTKEYSINSLOT 5061", ":3"),
            ("CLUSTER COUNTKEYSINSLOT 5062", ":0"),
            ("CLUSTER GETKEYSINSLOT 5061 0", "*0"),
            ("CLUSTER COUNTKEYSINSLOT 16384", "-ERR Invalid slot"),
            ("PING", "+PONG"),
        ],
    );
    for (wanted, found) in [(2, 2), (9, 3)] {
        let reply = lab.ask(&format!("CLUSTER GETKEYSINSLOT 5061 {wanted}"));
        assert!(reply.starts_with(&format!("*{found} $")), "{reply}");
    }
    assert!(lab.ask("CLUSTER SLOTS").starts_with("*2 *3 :0 :8191 *4 $2 h1 :1 $40 "));
    assert!(lab.ask("CLUSTER SHARDS").starts_with("*2 *4 $5 slots *2 :0 :8191 $5 nodes *1 *14 $2 id"));
    assert!(lab.ask("CLUSTER INFO").contains("cluster_state:ok"));
}

#[test]
fn unknown_commands_are_named() {
    check(
        &mut Lab::new(),
        &[
            ("FLY a b", "-ERR unknown command 'FLY', with args beginning with: 'a' 'b'"),
            (
                "EXEC",
                "-ERR unknown command 'EXEC': there are no transactions; send a pipeline without one (redis-py: pipeline(transaction=False))",
            ),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("CONFIG FLY", "-ERR unknown subcommand 'FLY'. Try CONFIG HELP."),
            ("COMMAND COUNT", &format!(":{}", crate::commands::table::ROWS.len())),
            ("COMMAND INFO get", "*1 *10 $3 get :2 *2 +readonly +fast :1 :1 :1 *0 *0 *0 *0"),
            ("COMMAND GETKEYS mset a 1 b 2", "*2 $1 a $1 b"),
            ("CONFIG GET maxclients", "*2 $10 maxclients $5 10000"),
            (
                "CONFIG SET maxclients 1",
                "-ERR CONFIG SET failed - 'maxclients' is set when the server starts; see `terrace serve kv --help`",
            ),
        ],
    );
}

#[test]
fn server_ends_where_it_is_told_to() {
    for (line, reply, ends) in [
        ("SHUTDOWN", "", true),
        ("SHUTDOWN nosave NOW force", "", true),
        ("SHUTDOWN SAVE", "", true),
        ("SHUTDOWN ABORT", "-ERR No shutdown in progress.", false),
        ("SHUTDOWN NOW ABORT", "-ERR syntax error", false),
        ("SHUTDOWN SAVE NOSAVE", "-ERR syntax error", false),
        ("SHUTDOWN NOW please", "-ERR syntax error", false),
    ] {
        let mut lab = Lab::new();
        assert_eq!(lab.ask(line), reply, "{line}");
        let stops = lab.server.is_stopping.load(Ordering::Relaxed);
        assert_eq!((lab.closes(), stops), (ends, ends), "{line}");
    }
}

#[test]
fn http_is_no_command() {
    let mut lab = Lab::new();
    assert_eq!((lab.ask("POST / HTTP/1.1").as_str(), lab.closes()), ("", true));
}

#[test]
fn long_replies_are_refused_whole() {
    let mut lab = Lab::with(Config { buffers_bytes_max: 1 << 20, ..Config::for_memory(1 << 30) }, 1 << 20);
    let value = "v".repeat(100_000);
    lab.ask(&format!("SET a {value}"));
    assert!(
        lab.ask(&format!("MGET{}", " a".repeat(10)))
            .starts_with("-ERR the reply is longer than 524288 bytes")
    );
    assert!(lab.ask(&format!("MGET{}", " a".repeat(5))).starts_with("*5 "));
}

#[test]
fn walk_ends_where_its_reply_is_too_long() {
    let mut lab = Lab::with(Config { buffers_bytes_max: 2000, ..Config::for_memory(1 << 30) }, 1 << 20);
    for i in 0..3000 {
        lab.ask(&format!("SET key:{i} x"));
    }
    assert!(lab.ask("KEYS key:29[0-4]").starts_with("*5 "));
    let hits = |lab: &Lab| lab.server.keyspace.counters().hits.load(Ordering::Relaxed);
    let before = hits(&lab);
    assert!(lab.ask("KEYS *").starts_with("-ERR the reply is longer than 1000 bytes"));
    let seen = hits(&lab) - before;
    assert!((50..200).contains(&seen), "{seen} keys were looked at");
}
