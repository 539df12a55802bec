//! The table of Redis' commands, one line each: name, number of arguments, positions of keys, flags,
//! function.

use std::sync::LazyLock;

use hashbrown::HashMap;

use super::context::{Flags, Keys, Row};
use super::{client, cluster, counters, expire, hashes, info, keys, scan, server, strings, zrange, zsets};

const R: Flags = Flags::READ;
const RF: Flags = R.and(Flags::FAST);
/// Removes a value, or replaces it by one of the same size.
const W: Flags = Flags::WRITE;
const WF: Flags = W.and(Flags::FAST);
/// Adds data.
const A: Flags = W.and(Flags::DENY_OOM);
const AF: Flags = A.and(Flags::FAST);
/// Concerns the server or the connection.
const S: Flags = Flags::FAST;
const SN: Flags = S.and(Flags::NO_AUTH);

const NONE: Keys = Keys { first: 0, last: 0, step: 0 };
const ONE: Keys = Keys { first: 1, last: 1, step: 1 };
const TWO: Keys = Keys { first: 1, last: 2, step: 1 };
const ALL: Keys = Keys { first: 1, last: -1, step: 1 };
const PAIRS: Keys = Keys { first: 1, last: -1, step: 2 };
/// Positions of a collection's elements: one, all after the key, each before a value, or each after a score.
const ELEMENT: Keys = Keys { first: 2, last: 2, step: 1 };
const ELEMENTS: Keys = Keys { first: 2, last: -1, step: 1 };
const VALUED: Keys = Keys { first: 2, last: -1, step: 2 };
const SCORED: Keys = Keys { first: 3, last: -1, step: 2 };
/// The argument after a subcommand.
const SECOND: Keys = Keys { first: 2, last: 2, step: 1 };

macro_rules! rows {
    ($($name:ident $arity:literal $keys:ident $flags:ident $module:ident :: $run:ident $(($elements:ident))?)*) => {
        &[$(Row {
            name: stringify!($name), arity: $arity, keys: $keys, flags: $flags, elements: rows!(@ $($elements)?), run: $module::$run,
        }),*]
    };
    (@) => { NONE };
    (@ $elements:ident) => { $elements };
}

pub(crate) static ROWS: &[Row] = rows! {
    append           3 ONE   AF strings::append
    get              2 ONE   RF strings::get
    getdel           2 ONE   WF strings::getdel
    getex           -2 ONE   WF strings::getex
    getrange         4 ONE   R  strings::getrange
    getset           3 ONE   AF strings::getset
    mget            -2 ALL   RF strings::mget
    mset            -3 PAIRS A  strings::mset
    msetnx          -3 PAIRS A  strings::msetnx
    psetex           4 ONE   A  strings::psetex
    set             -3 ONE   A  strings::set
    setex            4 ONE   A  strings::setex
    setnx            3 ONE   AF strings::setnx
    setrange         4 ONE   A  strings::setrange
    strlen           2 ONE   RF strings::strlen
    substr           4 ONE   R  strings::getrange

    decr             2 ONE   AF counters::decr
    decrby           3 ONE   AF counters::decrby
    getbit           3 ONE   RF counters::getbit
    incr             2 ONE   AF counters::incr
    incrby           3 ONE   AF counters::incrby
    incrbyfloat      3 ONE   AF counters::incrbyfloat
    setbit           4 ONE   A  counters::setbit

    copy            -3 TWO   A  keys::copy
    dbsize           1 NONE  RF keys::dbsize
    del             -2 ALL   W  keys::del
    exists          -2 ALL   RF keys::exists
    flushall        -1 NONE  W  keys::flushall
    flushdb         -1 NONE  W  keys::flushdb
    move             3 ONE   WF keys::move_key
    object          -2 SECOND R keys::object
    randomkey        1 NONE  R  keys::randomkey
    rename           3 TWO   W  keys::rename
    renamenx         3 TWO   WF keys::renamenx
    touch           -2 ALL   RF keys::exists
    type             2 ONE   RF keys::type_of
    unlink          -2 ALL   WF keys::del

    expire          -3 ONE   WF expire::expire
    expireat        -3 ONE   WF expire::expireat
    expiretime       2 ONE   RF expire::expiretime
    persist          2 ONE   WF expire::persist
    pexpire         -3 ONE   WF expire::pexpire
    pexpireat       -3 ONE   WF expire::pexpireat
    pexpiretime      2 ONE   RF expire::pexpiretime
    pttl             2 ONE   RF expire::pttl
    ttl              2 ONE   RF expire::ttl

    hscan           -3 ONE   R  scan::hscan
    keys             2 NONE  R  scan::keys
    scan            -2 NONE  R  scan::scan
    zscan           -3 ONE   R  scan::zscan

    hdel            -3 ONE   WF hashes::hdel (ELEMENTS)
    hexists          3 ONE   RF hashes::hexists (ELEMENT)
    hget             3 ONE   RF hashes::hget (ELEMENT)
    hgetall          2 ONE   R  hashes::hgetall
    hincrby          4 ONE   AF hashes::hincrby (ELEMENT)
    hincrbyfloat     4 ONE   AF hashes::hincrbyfloat (ELEMENT)
    hkeys            2 ONE   R  hashes::hkeys
    hlen             2 ONE   RF hashes::hlen
    hmget           -3 ONE   RF hashes::hmget (ELEMENTS)
    hmset           -4 ONE   AF hashes::hmset (VALUED)
    hrandfield      -2 ONE   R  hashes::hrandfield
    hset            -4 ONE   AF hashes::hset (VALUED)
    hsetnx           4 ONE   AF hashes::hsetnx (ELEMENT)
    hstrlen          3 ONE   RF hashes::hstrlen (ELEMENT)
    hvals            2 ONE   R  hashes::hvals

    zadd            -4 ONE   AF zsets::zadd (SCORED)
    zcard            2 ONE   RF zsets::zcard
    zincrby          4 ONE   AF zsets::zincrby (SCORED)
    zmscore         -3 ONE   RF zsets::zmscore (ELEMENTS)
    zpopmax         -2 ONE   WF zsets::zpopmax
    zpopmin         -2 ONE   WF zsets::zpopmin
    zrandmember     -2 ONE   R  zsets::zrandmember
    zrank           -3 ONE   RF zsets::zrank (ELEMENT)
    zrem            -3 ONE   WF zsets::zrem (ELEMENTS)
    zrevrank        -3 ONE   RF zsets::zrevrank
    zscore           3 ONE   RF zsets::zscore (ELEMENT)

    zcount           4 ONE   RF zrange::zcount
    zlexcount        4 ONE   RF zrange::zlexcount
    zrange          -4 ONE   R  zrange::zrange
    zrangebylex     -4 ONE   R  zrange::zrangebylex
    zrangebyscore   -4 ONE   R  zrange::zrangebyscore
    zremrangebylex   4 ONE   W  zrange::zremrangebylex
    zremrangebyrank  4 ONE   W  zrange::zremrangebyrank
    zremrangebyscore 4 ONE   W  zrange::zremrangebyscore
    zrevrange       -4 ONE   R  zrange::zrevrange
    zrevrangebylex  -4 ONE   R  zrange::zrevrangebylex
    zrevrangebyscore -4 ONE  R  zrange::zrevrangebyscore

    asking           1 NONE  S  cluster::ok
    cluster         -2 NONE  S  cluster::cluster
    readonly         1 NONE  S  cluster::ok
    readwrite        1 NONE  S  cluster::ok

    auth            -2 NONE  SN client::auth
    client          -2 NONE  S  client::client
    echo             2 NONE  S  client::echo
    hello           -1 NONE  SN client::hello
    ping            -1 NONE  S  client::ping
    quit            -1 NONE  SN client::quit
    reset            1 NONE  SN client::reset
    select           2 NONE  S  client::select

    command         -1 NONE  S  server::command
    config          -2 NONE  S  server::config
    debug           -2 NONE  S  server::debug
    function        -2 NONE  S  server::function
    info            -1 NONE  S  info::info
    lastsave         1 NONE  S  server::lastsave
    memory          -2 SECOND R server::memory
    save             1 NONE  S  server::save
    shutdown        -1 NONE  S  server::shutdown
    time             1 NONE  S  server::time
};

/// Maximum length of a name, bytes.
const NAME_MAX: usize = 32;

/// Finds the row of a name, ignoring case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Row> {
    static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Row, hashbrown::DefaultHashBuilder>> =
        LazyLock::new(|| ROWS.iter().map(|row| (row.name.as_bytes(), row)).collect());
    let mut lower = [0; NAME_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    BY_NAME.get(&*lower).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_once() {
        assert_eq!(find(b"GeT").unwrap().name, "get");
        assert!(find(b"").is_none() && find(&[b'x'; 100]).is_none());
        let mut names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        assert!(names.iter().all(|name| name.len() <= NAME_MAX));
    }
}
