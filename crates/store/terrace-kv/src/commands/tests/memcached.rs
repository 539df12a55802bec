//! Tests of memcached's commands, and of their effects as seen by Redis clients.

use std::sync::atomic::Ordering;

use super::{BEGAN, Lab};
use crate::commands::{self, Session};
use crate::config::Config;
use crate::wire::request::{Progress, Request};
use crate::wire::{Incoming, Protocol};

/// Sends a text of requests. Returns the replies, lines joined by spaces.
fn say(lab: &mut Lab, text: &str) -> String {
    let text = text.replace('\n', "\r\n").into_bytes();
    let mut session = Session::new(lab.session.client.clone(), Protocol::Memcached, true);
    let mut incoming = Incoming::new(Protocol::Memcached, lab.server.config.limits());
    let (mut request, mut out, mut scratch, mut begin) = (Request::default(), Vec::new(), Vec::new(), 0);
    while begin < text.len() && !session.closes {
        let Ok(Progress::Complete(length)) = incoming.advance(&text[begin..], true) else { break };
        incoming.take(&mut request);
        let args = request.args(&text[begin..]);
        if let Some(name) = args.get(0) {
            let row = commands::find(Protocol::Memcached, name);
            commands::run(&lab.server, &mut session, row, args, &mut out, &mut scratch);
        }
        begin += length;
    }
    lab.session.closes = session.closes;
    String::from_utf8(out).unwrap().trim_end().replace("\r\n", " ")
}

fn check(lab: &mut Lab, talk: &[(&str, &str)]) {
    for (text, reply) in talk {
        assert_eq!(say(lab, &format!("{text}\n")), *reply, "{text}");
    }
}

/// The unique number in the reply of `gets`.
fn unique(lab: &mut Lab, key: &str) -> String {
    let reply = say(lab, &format!("gets {key}\n"));
    reply.split(' ').nth(4).unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[test]
fn items_are_stored_and_read() {
    let mut lab = Lab::new();
    check(
        &mut lab,
        &[
            ("get a", "END"),
            ("set a 5 0 3\nabc", "STORED"),
            ("get a b a", "VALUE a 5 3 abc VALUE a 5 3 abc END"),
            ("add a 0 0 1\nx", "NOT_STORED"),
            ("add b 0 0 0\n", "STORED"),
            ("get b", "VALUE b 0 0  END"),
            ("replace c 0 0 1\nx", "NOT_STORED"),
            ("replace a 4294967295 0 1\nx", "STORED"),
            ("get a", "VALUE a 4294967295 1 x END"),
            ("append a 1 1 2\nyz", "STORED"),
            ("prepend a 1 1 1\nw", "STORED"),
            ("get a", "VALUE a 4294967295 4 wxyz END"),
            ("append c 0 0 1\nx", "NOT_STORED"),
            ("prepend c 0 0 1\nx", "NOT_STORED"),
            ("delete a", "DELETED"),
            ("delete a", "NOT_FOUND"),
            ("delete b 0", "DELETED"),
            ("set n 7 0 20\n18446744073709551614", "STORED"),
            ("incr n 1", "18446744073709551615"),
            ("incr n 3", "2"),
            ("decr n 1", "1"),
            ("decr n 9", "0"),
            ("get n", "VALUE n 7 1 0 END"),
            ("incr m 1", "NOT_FOUND"),
            ("flush_all", "OK"),
            ("get n", "END"),
            ("flush_all 0", "OK"),
            ("verbosity 1", "OK"),
            ("version", "VERSION 1.5.22"),
        ],
    );
}

#[test]
fn noreply_is_answered_by_nothing() {
    let mut lab = Lab::new();
    check(
        &mut lab,
        &[
            ("set a 0 0 1 noreply\n1\nget a", "VALUE a 0 1 1 END"),
            ("add a 0 0 1 noreply\n2\nget a", "VALUE a 0 1 1 END"),
            ("incr a 4 noreply\ndecr a 1 noreply\nget a", "VALUE a 0 1 4 END"),
            ("incr x y noreply\ntouch a 9 noreply\nverbosity 1 noreply\nget a", "VALUE a 0 1 4 END"),
            ("set a 0 0 3000000000 noreply\nget a", "VALUE a 0 1 4 END"),
            ("delete a noreply\nget a", "END"),
            ("set a 0 0 1\n1\ndelete a 0 noreply\nget a", "STORED END"),
            ("set a 0 0 1\n1\nflush_all noreply\nflush_all 0 noreply\nget a", "STORED END"),
            // Keys named `noreply`, and data.
            ("set noreply 0 0 7\nnoreply\nget noreply", "STORED VALUE noreply 0 7 noreply END"),
            ("delete noreply", "DELETED"),
        ],
    );
}

#[test]
fn malformed_commands_are_refused() {
    let mut lab = Lab::with(Config { value_bytes_max: 1000, ..Config::for_memory(1 << 30) }, 1 << 20);
    let long = "k".repeat(251);
    let large = "x".repeat(1001);
    let bad = "CLIENT_ERROR bad command line format";
    for (text, reply) in [
        ("foo", "ERROR"),
        ("GEt a", "ERROR"),
        ("get", "ERROR"),
        ("gat 1", "ERROR"),
        ("touch a", "ERROR"),
        ("incr a", "ERROR"),
        ("stats foo", "ERROR"),
        ("mg a v", "ERROR"),
        ("set a 0 0", bad),
        ("set a x 0 1\nx", bad),
        ("set a 4294967296 0 1\nx", bad),
        ("set a 0 x 1\nx", bad),
        ("set a 0 0 -1", bad),
        ("set a 0 0 2147483647", bad),
        ("cas a 0 0 1\nx", bad),
        ("cas a 0 0 1 x\nx", bad),
        (&format!("get a {long}"), bad),
        (&format!("set {long} 0 0 1\nx"), bad),
        ("get a\tb", bad),
        ("set a 0 0 1\nabc", "CLIENT_ERROR bad data chunk"),
        (&format!("set a 0 0 1001\n{large}"), "SERVER_ERROR object too large for cache"),
        ("incr a x", "CLIENT_ERROR invalid numeric delta argument"),
        ("incr a -1", "CLIENT_ERROR invalid numeric delta argument"),
        ("touch a x", "CLIENT_ERROR invalid exptime argument"),
        ("gat x a", "CLIENT_ERROR invalid exptime argument"),
        ("delete a 5", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
        ("flush_all 5", "CLIENT_ERROR flush_all with a delay is not supported"),
        ("flush_all x", "CLIENT_ERROR invalid exptime argument"),
        ("verbosity x", bad),
        ("set t 0 0 2\nhi\nincr t 1", "STORED CLIENT_ERROR cannot increment or decrement non-numeric value"),
        (&format!("append t 0 0 999\n{}", "x".repeat(999)), "SERVER_ERROR object too large for cache"),
    ] {
        // The next command is parsed as a command.
        assert_eq!(say(&mut lab, &format!("{text}\nget q\n")), format!("{reply} END"), "{text}");
    }
    assert_eq!(lab.ask("DBSIZE"), ":1");
    assert!(!lab.closes());
    assert_eq!((say(&mut lab, "GET / HTTP/1.1\nset a 0 0 1\nx\n"), lab.closes()), (String::new(), true));
}

#[test]
fn cas_stores_unless_someone_has_written() {
    let mut lab = Lab::new();
    check(&mut lab, &[("cas a 0 0 1 1\nx", "NOT_FOUND"), ("set a 3 0 1\n1", "STORED")]);
    let cas = |lab: &mut Lab, unique: &str| say(lab, &format!("cas a 4 0 1 {unique}\n5\n"));
    let first = unique(&mut lab, "a");
    assert_eq!(first, unique(&mut lab, "a"));
    assert_eq!((cas(&mut lab, &first), cas(&mut lab, &first)), ("STORED".into(), "EXISTS".into()));
    // Any change of the item, by either protocol, changes the number.
    type Change = fn(&mut Lab) -> String;
    let changes: [Change; 9] = [
        |lab| say(lab, "set a 4 0 1\n5\n"),
        |lab| say(lab, "append a 0 0 1\n1\n"),
        |lab| say(lab, "prepend a 0 0 1\n1\n"),
        |lab| say(lab, "incr a 1\n"),
        |lab| say(lab, "delete a\nadd a 4 0 1\n5\n"),
        |lab| lab.ask("SET a 5"),
        |lab| lab.ask("INCR a"),
        |lab| lab.ask("SETRANGE a 0 1"),
        |lab| lab.ask("RENAME a b") + &lab.ask("RENAME b a"),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let before = unique(&mut lab, "a");
        let changed = change(&mut lab);
        assert_eq!(cas(&mut lab, &before), "EXISTS", "change {at}: {changed}");
        let now = unique(&mut lab, "a");
        assert_eq!(cas(&mut lab, &now), "STORED", "change {at}: {changed}");
    }
    // `gats` reports the number after the change.
    let cas_unique = say(&mut lab, "gats 100 a\n").split(' ').nth(4).unwrap().to_owned();
    assert_eq!(cas(&mut lab, &cas_unique), "STORED");
    assert!(cas_unique.parse::<u64>().unwrap() < 1 << 53);
}

#[test]
fn items_expire_when_they_should() {
    let mut lab = Lab::new();
    let absolute = BEGAN / 1000 + 40 * 86_400;
    check(
        &mut lab,
        &[
            ("set never 0 0 1\nx", "STORED"),
            ("set soon 9 10 1\nx", "STORED"),
            ("set wide 99999999 10 1\nx", "STORED"),
            ("set month 0 2592000 1\nx", "STORED"),
            (&format!("set late 0 {absolute} 1\nx"), "STORED"),
            ("set old 0 2592001 1\nx", "STORED"),
            ("set none 0 0 1\nx", "STORED"),
            ("set none 0 -1 1\ny", "STORED"),
            ("set n32 0 4294967295 1\nx", "STORED"),
            ("set n31 0 2147483648 1\nx", "STORED"),
            ("set far 0 2147483647 1\nx", "STORED"),
            ("set further 0 4294967296 1\nx", "STORED"),
            ("get old none n32 n31 far further", "VALUE far 0 1 x VALUE further 0 1 x END"),
            ("touch far 4294967295", "TOUCHED"),
            ("gat 4294967290 further", "VALUE further 0 1 x END"),
            ("get far further", "END"),
        ],
    );
    assert_eq!(lab.ask("PTTL soon"), ":10000");
    lab.pass(9_999);
    check(&mut lab, &[("get soon", "VALUE soon 9 1 x END"), ("touch soon 10", "TOUCHED")]);
    lab.pass(9_999);
    check(&mut lab, &[("get soon", "VALUE soon 9 1 x END"), ("gat 0 soon", "VALUE soon 9 1 x END")]);
    // With large flags the expiry time is stored in steps of four seconds.
    check(&mut lab, &[("get wide", "END"), ("touch wide 1", "NOT_FOUND")]);
    lab.pass(29 * 86_400_000);
    check(&mut lab, &[("get never soon month", "VALUE never 0 1 x VALUE soon 9 1 x VALUE month 0 1 x END")]);
    lab.pass(86_400_000);
    check(&mut lab, &[("get month", "END"), ("get late", "VALUE late 0 1 x END")]);
    lab.pass(10 * 86_400_000);
    check(&mut lab, &[("get late", "END"), ("gat -1 never", "VALUE never 0 1 x END"), ("get never", "END")]);
    check(&mut lab, &[("touch soon -5", "TOUCHED"), ("add soon 0 0 1\nx", "STORED")]);
    // The expiry list uses the stored time.
    check(&mut lab, &[("set w 70000 5 1\nx", "STORED"), ("touch w 7", "TOUCHED"), ("delete w", "DELETED")]);
    check(&mut lab, &[("flush_all", "OK")]);
    check(
        &mut lab,
        &[("set w 70000 5 1\nx", "STORED"), ("gat 7 w", "VALUE w 70000 1 x END"), ("delete w", "DELETED")],
    );
    assert_eq!(lab.server.keyspace.volatile(0), 0);
    // Active expiry needs no request for them.
    check(&mut lab, &[("set a 1 5 1\nx", "STORED"), ("set b 70000 5 1\nx", "STORED")]);
    lab.pass(10_000);
    assert_eq!((lab.server.keyspace.expire(), lab.blobs.changes.load(Ordering::Relaxed) > 0), (2, true));
}

#[test]
fn both_protocols_see_the_same_strings() {
    let mut lab = Lab::new();
    check(&mut lab, &[("set a 7 0 2\n41", "STORED")]);
    super::check(
        &mut lab,
        &[("GET a", "$2 41"), ("INCR a", ":42"), ("TYPE a", "+string"), ("PEXPIRE a 500", ":1")],
    );
    check(&mut lab, &[("get a", "VALUE a 7 2 42 END")]);
    super::check(
        &mut lab,
        &[("PTTL a", ":500"), ("COPY a b", ":1"), ("RENAME b c", "+OK"), ("PERSIST c", ":1")],
    );
    check(&mut lab, &[("get c", "VALUE c 7 2 42 END")]);
    super::check(
        &mut lab,
        &[("SET c new EX 5", "+OK"), ("SELECT 1", "+OK"), ("SET d 1", "+OK"), ("SELECT 0", "+OK")],
    );
    check(&mut lab, &[("get c d", "VALUE c 0 3 new END")]);
    // A hash is not an item: only commands that replace or remove keys affect it.
    super::check(&mut lab, &[("HSET h f v", ":1")]);
    check(
        &mut lab,
        &[
            ("get h", "END"),
            ("gat 100 h", "END"),
            ("add h 0 0 1\nx", "NOT_STORED"),
            ("append h 0 0 1\nx", "CLIENT_ERROR the key holds no string"),
            ("incr h 1", "CLIENT_ERROR the key holds no string"),
        ],
    );
    super::check(&mut lab, &[("HGET h f", "$1 v"), ("TTL h", ":-1")]);
    check(&mut lab, &[("set h 0 0 1\nx", "STORED"), ("get h", "VALUE h 0 1 x END")]);
}

#[test]
fn full_store_is_reported_to_memcached_clients() {
    let mut lab = Lab::new();
    check(&mut lab, &[("set a 0 0 1\nx", "STORED")]);
    lab.blobs.is_full.store(true, Ordering::Relaxed);
    check(
        &mut lab,
        &[
            ("set a 0 0 1\ny", "SERVER_ERROR out of memory storing object"),
            ("get a", "VALUE a 0 1 x END"),
            ("delete a", "DELETED"),
        ],
    );
}

#[test]
fn stats_count_what_was_asked() {
    let mut lab = Lab::new();
    say(
        &mut lab,
        "set a 0 0 1\n1\nget a b\ngets a\nincr a 1\ndecr b 1\ndelete b\ntouch a 0\ncas a 0 0 1 1\nx\n",
    );
    let stats = say(&mut lab, "stats\n");
    for stat in [
        "cmd_get 3",
        "get_hits 2",
        "get_misses 1",
        "cmd_set 2",
        "incr_hits 1",
        "decr_misses 1",
        "delete_misses 1",
        "cmd_touch 1",
        "touch_hits 1",
        "cas_badval 1",
        "curr_items 1",
        "bytes 1",
        "pointer_size 64",
        "curr_connections 1",
    ] {
        assert!(stats.contains(&format!("STAT {stat} ")), "{stat} in {stats}");
    }
    assert!(stats.ends_with(" END"));
    check(&mut lab, &[("stats reset", "RESET"), ("stats slabs", "END")]);
    assert!(say(&mut lab, "stats\n").contains("STAT cmd_get 0 "));
    assert!(say(&mut lab, "stats settings\n").contains("STAT item_size_max 1"));
}

#[test]
fn replies_that_are_too_long_are_refused_whole() {
    let mut lab = Lab::with(Config { buffers_bytes_max: 4000, ..Config::for_memory(1 << 30) }, 1 << 20);
    say(&mut lab, &format!("set a 0 0 900\n{}\n", "x".repeat(900)));
    let refused = say(&mut lab, "get a a a\nget b\n");
    assert!(refused.starts_with("SERVER_ERROR out of memory") && refused.ends_with(" END"), "{refused}");
}
