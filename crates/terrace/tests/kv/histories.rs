//! Histories of three clients are linearizable (Herlihy, Wing, 1990): each command seems to happen at one
//! moment between its request and its reply, also across a kill of the server. A command without a reply may
//! happen at any later moment, or not at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use terrace_testkit::rng::{Rng, seed};
use todc_utils::{Action, History, Specification, WGLChecker};

use super::client::{Client, Reply};
use super::test_server::TestServer;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Get,
    Set(i64),
    SetNew(i64),
    Swap(i64),
    Increment,
    Delete,
}

/// A reply as a number; none: nil.
type Answer = Option<i64>;

impl Command {
    fn random(rng: &mut Rng, numbers: &AtomicI64) -> Command {
        // Values are unique, and far from those reached by increments.
        let value = numbers.fetch_add(1_000_000, Ordering::Relaxed);
        match rng.below(10) {
            0..4 => Command::Get,
            4..6 => Command::Set(value),
            6 => Command::SetNew(value),
            7 => Command::Swap(value),
            8 => Command::Increment,
            _ => Command::Delete,
        }
    }

    fn ask(self, client: &mut Client, key: &str) -> std::io::Result<Answer> {
        let reply = match self {
            Command::Get => client.ask(&["GET", key]),
            Command::Set(value) => client.ask(&["SET", key, &value.to_string()]),
            Command::SetNew(value) => client.ask(&["SET", key, &value.to_string(), "NX"]),
            Command::Swap(value) => client.ask(&["SET", key, &value.to_string(), "GET"]),
            Command::Increment => client.ask(&["INCR", key]),
            Command::Delete => client.ask(&["DEL", key]),
        };
        Ok(match reply? {
            Reply::Status(_) => Some(1),
            Reply::Int(number) => Some(number),
            Reply::Bulk(text) => text.map(|text| String::from_utf8(text).unwrap().parse().unwrap()),
            other => panic!("{self:?}: {other:?}"),
        })
    }

    /// The command's answer, and the key's value after it.
    fn apply(self, value: Answer) -> (Answer, Answer) {
        match self {
            Command::Get => (value, value),
            Command::Set(new) => (Some(1), Some(new)),
            Command::SetNew(new) if value.is_none() => (Some(1), Some(new)),
            Command::SetNew(_) => (None, value),
            Command::Swap(new) => (value, Some(new)),
            Command::Increment => {
                let new = Some(value.unwrap_or(0) + 1);
                (new, new)
            }
            Command::Delete => (Some(i64::from(value.is_some())), None),
        }
    }
}

/// A command, and its answer if there was one.
type Event = (Command, Option<Answer>);

struct Key;

impl Specification for Key {
    type State = Answer;
    type Operation = Event;

    fn init() -> Answer {
        None
    }

    fn apply((command, answer): &Event, value: &Answer) -> (bool, Answer) {
        let (expected, new) = command.apply(*value);
        match answer.is_none_or(|answer| answer == expected) {
            true => (true, new),
            false => (false, *value),
        }
    }
}

/// Requests and replies in the order of their time, each with its client.
type Recorded = Vec<(usize, Action<Event>)>;

/// Is there an order of the commands that explains all answers? Requests without a reply get one at the end.
fn is_linearizable(mut recorded: Recorded) -> bool {
    let mut open = std::collections::BTreeMap::new();
    for (client, action) in &recorded {
        match action {
            Action::Call((command, _)) => drop(open.insert(*client, *command)),
            Action::Response(_) => drop(open.remove(client)),
        }
    }
    recorded.extend(open.into_iter().map(|(client, command)| (client, Action::Response((command, None)))));
    recorded.is_empty() || WGLChecker::<Key>::is_linearizable(History::from_actions(recorded))
}

const KEYS: usize = 5;

/// Shared by the clients of a round.
#[derive(Default)]
struct Round {
    recorded: [Mutex<Recorded>; KEYS],
    clients: AtomicUsize,
    numbers: AtomicI64,
    is_over: AtomicBool,
}

impl Round {
    /// A client; after the end of its connection, it continues as a new client.
    fn work(&self, test: &TestServer, prefix: &str, rng: &mut Rng) {
        while !self.is_over.load(Ordering::Relaxed) {
            let (id, mut client) = (self.clients.fetch_add(1, Ordering::Relaxed), test.client());
            while !self.is_over.load(Ordering::Relaxed) {
                let (key, command) = (rng.index(KEYS), Command::random(rng, &self.numbers));
                let note = |action| self.recorded[key].lock().unwrap().push((id, action));
                note(Action::Call((command, None)));
                match command.ask(&mut client, &format!("{prefix}{key}")) {
                    Ok(answer) => note(Action::Response((command, Some(answer)))),
                    Err(_) => break,
                }
                std::thread::sleep(Duration::from_micros(rng.below(1000)));
            }
        }
    }
}

#[test]
fn histories_of_three_clients_are_linearizable() {
    let mut rng = Rng::new(seed("histories_of_three_clients_are_linearizable"));
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 200 } else { 8 };
    let test = TestServer::new();
    let served = test.serve(&["--sync", "no", "--threads", "3"]);
    let mut commands = 0;
    for number in 0..rounds {
        let (round, prefix) = (Round::default(), format!("{number}:"));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let mut rng = Rng::new(rng.next_u64());
                let (round, test, prefix) = (&round, &test, &prefix);
                scope.spawn(move || round.work(test, prefix, &mut rng));
            }
            std::thread::sleep(Duration::from_millis(50 + rng.below(100)));
            if number % 2 == 0 {
                served.kill_server();
                std::thread::sleep(Duration::from_millis(50 + rng.below(100)));
            }
            round.is_over.store(true, Ordering::Relaxed);
        });
        for (key, recorded) in round.recorded.into_iter().enumerate() {
            let recorded = recorded.into_inner().unwrap();
            commands += recorded.len() / 2;
            assert!(is_linearizable(recorded.clone()), "round {number}, key {key}: {recorded:?}");
        }
    }
    println!("{rounds} rounds, {commands} commands");
    assert!(commands > rounds * 50, "{commands} commands");
    served.stop();
}

#[test]
fn stale_answer_is_no_linearizable_history() {
    let call = |client, command| (client, Action::Call((command, None)));
    let reply = |client, command, answer| (client, Action::Response((command, Some(answer))));
    let (set, get) = (Command::Set(7), Command::Get);
    let done = vec![call(0, set), reply(0, set, Some(1)), call(1, get), reply(1, get, Some(7))];
    assert!(is_linearizable(done));
    let stale = vec![call(0, set), reply(0, set, Some(1)), call(1, get), reply(1, get, None)];
    assert!(!is_linearizable(stale));
    // Without a reply the command may happen at any later time, or not at all; but once seen, it stays.
    let late = vec![call(0, set), call(1, get), reply(1, get, None), call(1, get), reply(1, get, Some(7))];
    assert!(is_linearizable(late.clone()));
    let lost = [late, vec![call(2, get), reply(2, get, None)]].concat();
    assert!(!is_linearizable(lost));
}
