//! Tests of errors: missing commands, subcommands and settings, refused transactions, and writes while syncs
//! fail.

use std::sync::atomic::Ordering;

use super::{Lab, check};
use crate::cluster::Cluster;
use crate::config::Config;

#[test]
fn help_lists_the_subcommands_that_exist() {
    let map = "[[node]]\nhost = \"h1\"\nport = 1\nslots = [\"0-16383\"]";
    let cluster = Some(Cluster::parse(map, "h1", 1).unwrap());
    let mut lab = Lab::with(Config { cluster, ..Config::for_memory(1 << 30) }, 1 << 20);
    check(
        &mut lab,
        &[(
            "memory help",
            "*5 +MEMORY <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +USAGE key +    Bytes of a key and its value. \
             +HELP +    Prints this help.",
        )],
    );
    for command in ["CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "FUNCTION", "MEMORY", "OBJECT"] {
        let help = String::from_utf8(lab.raw(&[command, "HELP"])).unwrap();
        let lines: Vec<&str> = help.lines().collect();
        assert_eq!(lines[0], format!("*{}", lines.len() - 1));
        let names = lines[2..].iter().filter(|line| !line.starts_with("+ ") && !line.starts_with("+("));
        for name in names.map(|line| line[1..].split(' ').next().unwrap()) {
            let reply = lab.ask(&format!("{command} {name} 1 2 3 4 5 6 7"));
            assert!(!reply.contains("unknown subcommand"), "{command} {name}: {reply}");
        }
        let (reply, refused) = (
            lab.ask(&format!("{command} fly")),
            format!("-ERR unknown subcommand 'fly'. Try {command} HELP."),
        );
        assert_eq!(reply, refused);
    }
}

#[test]
fn subcommands_tell_how_many_arguments_they_take() {
    check(
        &mut Lab::new(),
        &[
            ("OBJECT", "-ERR wrong number of arguments for 'object' command"),
            ("OBJECT ENCODING", "-ERR wrong number of arguments for 'object|encoding' command"),
            ("OBJECT ENCODING a b", "-ERR wrong number of arguments for 'object|encoding' command"),
            ("OBJECT HELP a", "-ERR wrong number of arguments for 'object|help' command"),
            ("OBJECT fly a", "-ERR unknown subcommand 'fly'. Try OBJECT HELP."),
            ("OBJECT FREQ a", "$-1"),
            ("COMMAND COUNT X", "-ERR wrong number of arguments for 'command|count' command"),
            ("COMMAND INFO nosuch", "*1 $-1"),
            ("CLIENT ID 3", "-ERR wrong number of arguments for 'client|id' command"),
            ("CLIENT KILL", "-ERR wrong number of arguments for 'client|kill' command"),
            ("CONFIG SET a", "-ERR wrong number of arguments for 'config|set' command"),
            ("CONFIG SET a 1 b", "-ERR syntax error"),
            ("MEMORY USAGE", "-ERR wrong number of arguments for 'memory|usage' command"),
        ],
    );
}

#[test]
fn types_of_clients_that_do_not_exist_are_refused() {
    let mut lab = Lab::new();
    check(
        &mut lab,
        &[
            ("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'"),
            ("CLIENT KILL TYPE foo", "-ERR Unknown client type 'foo'"),
            ("CLIENT LIST TYPE", "-ERR syntax error"),
            ("CLIENT LIST TYPE normal x", "-ERR syntax error"),
            ("CLIENT LIST ID", "-ERR syntax error"),
            ("CLIENT LIST TYPE PubSub", "$0"),
            ("CLIENT KILL TYPE replica SKIPME no", ":0"),
        ],
    );
    assert!(lab.ask("CLIENT LIST TYPE normal").contains("addr=test:1"));
    assert_eq!((lab.ask("CLIENT KILL TYPE normal SKIPME no").as_str(), lab.closes()), (":1", true));
}

#[test]
fn settings_that_do_not_exist_are_refused() {
    check(
        &mut Lab::new(),
        &[
            ("CONFIG SET nosuch 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
            (
                "CONFIG SET MaxMemory 1",
                "-ERR CONFIG SET failed - 'MaxMemory' is set when the server starts; see `terrace serve kv --help`",
            ),
            ("CONFIG SET hash-max-listpack-entries 1", "+OK"),
        ],
    );
}

#[test]
fn absent_families_of_commands_are_named() {
    let mut lab = Lab::new();
    for (names, why) in [
        (
            "UNWATCH watch",
            "there are no transactions; send a pipeline without one (redis-py: pipeline(transaction=False))",
        ),
        ("eval EVALSHA SCRIPT FCALL", "there are no scripts and no functions"),
        ("SUBSCRIBE PSUBSCRIBE publish", "there are no channels, nothing is published"),
        (
            "LPUSH RPUSH SADD XADD sscan BLPOP",
            "there are no lists, sets and streams; use strings, hashes and sorted sets",
        ),
    ] {
        for name in names.split(' ') {
            assert_eq!(lab.ask(&format!("{name} a b")), format!("-ERR unknown command '{name}': {why}"));
        }
    }
}

#[test]
fn commands_of_a_refused_transaction_are_not_carried_out() {
    const REFUSED: &str =
        "-ERR the command is not carried out: its MULTI was refused; EXEC or DISCARD ends the transaction";
    const NO_MULTI: &str = "-ERR unknown command 'multi': there are no transactions; send a pipeline without one (redis-py: pipeline(transaction=False))";
    let mut lab = Lab::new();
    for (end, reply) in [
        ("exec", "-EXECABORT Transaction discarded because of previous errors."),
        ("DISCARD", "+OK"),
        ("RESET", "+RESET"),
    ] {
        check(
            &mut lab,
            &[
                ("SET k 1", "+OK"),
                ("multi", NO_MULTI),
                ("INCR k", REFUSED),
                ("GET k", REFUSED),
                ("MULTI", REFUSED),
                ("nosuch", REFUSED),
                ("HELLO 3", REFUSED),
                (end, reply),
                ("GET k", "$1 1"),
            ],
        );
    }
    check(&mut lab, &[("MULTI x", &NO_MULTI.replace("multi", "MULTI")), ("DEL k", REFUSED), ("QUIT", "+OK")]);
    assert!(lab.closes());
}

#[test]
fn writes_are_refused_while_syncs_fail() {
    let mut lab = Lab::new();
    check(&mut lab, &[("SET k 1", "+OK"), ("HSET h f v", ":1"), ("SET e 1 PX 10", "+OK")]);
    assert!(lab.ask("INFO persistence").contains("aof_last_write_status:ok"));
    lab.blobs.refuses_changes.store(true, Ordering::Relaxed);
    lab.pass(20);
    for write in ["SET k 2", "INCR k", "DEL k", "HSET h f w", "FLUSHDB"] {
        assert_eq!(lab.ask(write), "-MISCONF the disk is broken", "{write}");
    }
    check(&mut lab, &[("GET k", "$1 1"), ("HGET h f", "$1 v"), ("GET e", "$-1"), ("DBSIZE", ":3")]);
    let info = lab.ask("INFO persistence");
    assert!(info.contains("aof_last_write_status:err sync_failure:the disk is broken"), "{info}");
    lab.blobs.refuses_changes.store(false, Ordering::Relaxed);
    check(&mut lab, &[("SET k 2", "+OK"), ("DEL h", ":1")]);
}
