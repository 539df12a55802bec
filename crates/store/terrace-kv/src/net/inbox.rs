//! Assignment of clients to threads: a new client goes to the inbox of a thread.
//!
//! **Few clients**: each client has its own thread as long as there are enough. On busy processors, client
//! and thread wake each other on one processor. (With two processors per client the thread may poll on the
//! second one: [`super::busy_poll`].) Two clients of one thread would run on two processors. A wake-up across
//! processors costs more than a request.
//!
//! **Many clients** share one thread per processor. One wake-up serves several ready clients, and one
//! prefetch covers their look-ups ([`super::pipeline`]). Once clients have outnumbered threads for 500 ms,
//! spare threads hand their clients to the shared threads ([`ThreadShedding`]). These clients do not return.
//! If possible, a client goes to the shared thread on its own processor ([`super::affinity`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender};
use std::time::{Duration, Instant};

use mio::Waker;

use super::affinity;
use super::connection::{Connection, Place};
use super::stream::Stream;
use crate::commands::Session;
use crate::config::Config;

/// Clients that outnumber threads for this time count as permanent.
const SHED_AFTER: Duration = Duration::from_millis(500);

/// A client on the way to its thread.
#[derive(Debug)]
pub(super) enum Arrival {
    New(Stream, Session, Place),
    /// A client that another thread has served.
    Moved(Box<Connection>),
}

/// Sends clients to a thread.
#[derive(Debug)]
pub(super) struct Inbox {
    arrivals: Sender<Arrival>,
    waker: Waker,
    clients: Arc<AtomicUsize>,
    /// Last known processor of the thread.
    processor: AtomicUsize,
}

impl Inbox {
    /// The inbox of a thread that receives `arrivals` when woken.
    pub(super) fn new(arrivals: Sender<Arrival>, waker: Waker) -> Inbox {
        Inbox { arrivals, waker, clients: Arc::default(), processor: AtomicUsize::new(usize::MAX) }
    }

    /// Sends a new client. Returns false if the thread has ended.
    pub(super) fn take(&self, stream: Stream, session: Session) -> bool {
        self.send(Arrival::New(stream, session, Place::among(&self.clients))).is_none()
    }

    /// Sends a client of another thread. Returns it if this thread has ended.
    pub(super) fn take_over(&self, mut connection: Connection) -> Option<Connection> {
        connection.place = Place::among(&self.clients);
        match self.send(Arrival::Moved(Box::new(connection))) {
            Some(Arrival::Moved(connection)) => Some(*connection),
            _ => None,
        }
    }

    /// Returns the arrival if the thread has ended.
    fn send(&self, arrival: Arrival) -> Option<Arrival> {
        if let Err(SendError(arrival)) = self.arrivals.send(arrival) {
            return Some(arrival);
        }
        self.wake();
        None
    }

    fn wake(&self) {
        let _ = self.waker.wake();
    }

    fn is_on(&self, processor: usize) -> bool {
        self.processor.load(Ordering::Relaxed) == processor
    }

    fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }
}

/// Since when clients outnumber threads.
#[derive(Debug, Default)]
pub(super) struct ThreadShedding(Option<Instant>);

impl ThreadShedding {
    /// Whether clients have outnumbered threads long enough for the spare threads to give theirs away.
    /// Short-lived clients, such as monitoring, have left by then.
    pub(super) fn lasts(&mut self, threads: &Threads) -> bool {
        if threads.all_clients() <= threads.inboxes.len() {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= SHED_AFTER
    }
}

/// All threads. The first `sharing` are shared, the others have one client each.
#[derive(Debug, Clone, Default)]
pub(super) struct Threads {
    inboxes: Arc<[Inbox]>,
    sharing: usize,
    busy_poll_clients: usize,
    pairing_clients: usize,
}

impl Threads {
    pub(super) fn new(inboxes: Vec<Inbox>, config: &Config) -> Threads {
        let sharing = config.all_threads() - config.spare_threads;
        Threads {
            inboxes: inboxes.into(),
            sharing,
            busy_poll_clients: config.busy_poll_clients,
            pairing_clients: config.pairing_clients.unwrap_or_else(|| affinity::pairing_clients(sharing)),
        }
    }

    /// Whether the thread is a spare one, for one client.
    pub(super) fn is_spare(&self, number: usize) -> bool {
        number >= self.sharing
    }

    /// Whether clients are few enough for busy polling.
    pub(super) fn may_busy_poll(&self) -> bool {
        self.all_clients() <= self.busy_poll_clients
    }

    /// Whether clients are enough for pairing, see [`super::affinity`].
    pub(super) fn may_pair(&self) -> bool {
        self.all_clients() >= self.pairing_clients
    }

    pub(super) fn seen_on(&self, number: usize, processor: usize) {
        let inbox = &self.inboxes[number];
        if !inbox.is_on(processor) {
            inbox.processor.store(processor, Ordering::Relaxed);
        }
    }

    /// Whether a thread may move between processors: not if `to` has more threads with clients, or if each
    /// has one.
    pub(super) fn may_move(&self, from: usize, to: usize) -> bool {
        let on = |processor: usize| {
            self.inboxes.iter().filter(|inbox| inbox.clients() > 0 && inbox.is_on(processor)).count()
        };
        let (there, here) = (on(to), on(from));
        there < here || (there == here && here > 1)
    }

    /// A shared thread on this processor for a client of the thread `number`. The shared thread has at most
    /// as many clients as that thread.
    pub(super) fn sharing_on(&self, processor: usize, number: usize) -> Option<usize> {
        let clients = self.inboxes[number].clients();
        let is_fit = |at: &usize| {
            let inbox = &self.inboxes[*at];
            *at != number && inbox.is_on(processor) && inbox.clients() <= clients
        };
        (0..self.sharing).filter(is_fit).min_by_key(|at| self.inboxes[*at].clients())
    }

    /// The thread for the next new client.
    pub(super) fn for_next(&self) -> &Inbox {
        &self.inboxes[next(self.clients(), self.sharing)]
    }

    /// The shared thread for a client of a spare thread.
    pub(super) fn for_moved(&self) -> usize {
        emptiest(self.clients().take(self.sharing))
    }

    pub(super) fn inbox(&self, number: usize) -> &Inbox {
        &self.inboxes[number]
    }

    /// Wakes all threads to check for new and for killed clients.
    pub(super) fn wake(&self) {
        self.inboxes.iter().for_each(Inbox::wake);
    }

    fn all_clients(&self) -> usize {
        self.clients().sum()
    }

    fn clients(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.inboxes.iter().map(Inbox::clients)
    }
}

/// The index of the thread for the next client: any while clients are few, else one of the first `sharing`.
/// The emptiest one wins.
fn next(clients: impl ExactSizeIterator<Item = usize> + Clone, sharing: usize) -> usize {
    let are_few = clients.clone().sum::<usize>() < clients.len();
    let candidates = if are_few { clients.len() } else { sharing };
    emptiest(clients.take(candidates))
}

fn emptiest(clients: impl Iterator<Item = usize>) -> usize {
    clients.enumerate().min_by_key(|(_, n)| *n).map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::AtomicBool;

    use rustix::thread::{Pid, sched_setaffinity};
    use terrace_testkit::wait::holds_within;

    use super::*;
    use crate::Server;
    use crate::keyspace::system_clock;
    use crate::net::affinity::set_of;
    use crate::net::affinity::tests::{bind_to, processors};
    use crate::net::{Listener, Running, start};
    use crate::testing::MemoryBlobs;

    #[test]
    fn few_clients_have_threads_of_their_own_and_many_share() {
        let mut clients = [0; 4];
        let come = |clients: &mut [usize; 4]| {
            let at = next(clients.iter().copied(), 2);
            clients[at] += 1;
            at
        };
        let order: Vec<_> = (0..7).map(|_| come(&mut clients)).collect();
        assert_eq!((order, clients), (vec![0, 1, 2, 3, 0, 1, 0], [3, 2, 1, 1]));
        clients[2] = 0;
        assert_eq!(come(&mut clients), 1, "its client has left, but there are more than threads");
        clients = [1, 1, 0, 1];
        assert_eq!(come(&mut clients), 2);
    }

    fn serve() -> (Running, SocketAddr) {
        serve_as(Config { threads: 1, spare_threads: 2, busy_poll_clients: 2, ..unpaired() })
    }

    fn unpaired() -> Config {
        Config { pairing_clients: Some(usize::MAX), ..Config::for_memory(1 << 30) }
    }

    fn serve_as(config: Config) -> (Running, SocketAddr) {
        let server = Server::new(Arc::new(MemoryBlobs::default()), config, 16 << 20, system_clock());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (start(Arc::new(server), vec![Listener::Tcp(listener)]).unwrap(), address)
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let client = TcpStream::connect(address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client
    }

    fn ask(client: &mut TcpStream, request: &str, reply: &str) {
        client.write_all(request.as_bytes()).unwrap();
        let mut got = vec![0; reply.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), reply);
    }

    fn ping(client: &mut TcpStream) {
        ask(client, "PING\r\n", "+PONG\r\n");
    }

    /// Connects a client, and waits until it has a thread.
    fn come(address: SocketAddr) -> TcpStream {
        let mut client = connect(address);
        ping(&mut client);
        client
    }

    #[track_caller]
    fn threads_have<const N: usize>(running: &Running, wanted: [usize; N]) {
        let now = || running.threads.clients().collect::<Vec<_>>();
        assert!(holds_within(Duration::from_secs(10), || now() == wanted), "{:?}, wanted {wanted:?}", now());
    }

    #[test]
    fn threads_poll_while_clients_are_few() {
        let (running, address) = serve();
        let mut clients: Vec<_> = (0..2).map(|_| come(address)).collect();
        threads_have(&running, [1, 1, 0]);
        assert!(running.threads.may_busy_poll());
        clients.push(come(address));
        assert!(!running.threads.may_busy_poll());
        clients.pop();
        threads_have(&running, [1, 1, 0]);
        assert!(running.threads.may_busy_poll());
        // Quick requests, for which threads poll, and a late one.
        for pause in [0; 1000].into_iter().chain([20]) {
            std::thread::sleep(Duration::from_millis(pause));
            ping(&mut clients[1]);
        }
        let address = clients[1].local_addr().unwrap();
        ask(&mut clients[0], &format!("CLIENT KILL {address}\r\n"), "+OK\r\n");
        assert_eq!(clients[1].read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn clients_of_spare_threads_move_when_more_come() {
        let (running, address) = serve();
        let come = || come(address);
        let (mut first, mut second, mut third) = (come(), come(), come());
        threads_have(&running, [1, 1, 1]);
        let mut fourth = come();
        threads_have(&running, [2, 1, 1]);
        std::thread::sleep(SHED_AFTER);
        // The first request begins the crowd's time, a later one ends it. The rest of an incomplete request
        // arrives at its first thread.
        let received = || running.server.counters.input_bytes.load(Ordering::Relaxed);
        let before = received();
        third.write_all(b"GET").unwrap();
        assert!(holds_within(Duration::from_secs(10), || received() == before + 3));
        ask(&mut second, "SET k v\r\n", "+OK\r\n");
        std::thread::sleep(SHED_AFTER);
        ask(&mut second, "SET k v\r\n", "+OK\r\n");
        threads_have(&running, [3, 0, 1]);
        ask(&mut third, " k\r\n", "$1\r\nv\r\n");
        threads_have(&running, [4, 0, 0]);
        third.write_all(b"CLIENT ID\r\n").unwrap();
        let mut id = [0; 4];
        third.read_exact(&mut id).unwrap();
        let id = String::from_utf8_lossy(&id).trim_matches([':', '\r', '\n']).to_owned();
        ask(&mut fourth, &format!("CLIENT KILL ID {id}\r\n"), ":1\r\n");
        assert_eq!(third.read(&mut [0]).unwrap(), 0);
        drop((second, fourth));
        threads_have(&running, [1, 0, 0]);
        let _fifth = come();
        threads_have(&running, [1, 1, 0]);
        ask(&mut first, "GET k\r\n", "$1\r\nv\r\n");
    }

    #[test]
    fn threads_spread_over_processors() {
        let (running, address) = serve_as(Config { threads: 2, spare_threads: 3, ..unpaired() });
        let threads = &running.threads;
        let seen_on = |processors: [usize; 5]| {
            processors.iter().enumerate().for_each(|(at, on)| threads.seen_on(at, *on))
        };
        let mut clients: Vec<_> = (0..4).map(|_| come(address)).collect();
        threads_have(&running, [1, 1, 1, 1, 0]);
        seen_on([5, 5, 6, 6, 6]);
        assert!(threads.may_move(5, 6) && threads.may_move(6, 5) && threads.may_move(5, 7));
        seen_on([5, 6, 6, 6, 5]);
        assert!(!threads.may_move(5, 6) && threads.may_move(6, 5));
        seen_on([5, 6, 7, 8, 5]);
        assert!(!threads.may_move(5, 6) && threads.may_move(5, 9));
        assert_eq!((threads.sharing_on(6, 0), threads.sharing_on(5, 1)), (Some(1), Some(0)));
        assert_eq!(
            (threads.sharing_on(7, 0), threads.sharing_on(5, 0)),
            (None, None),
            "a spare one, and itself"
        );
        clients.extend((0..2).map(|_| come(address)));
        threads_have(&running, [2, 1, 1, 1, 1]);
        assert_eq!(
            (threads.sharing_on(6, 0), threads.sharing_on(5, 1)),
            (Some(1), None),
            "it has more clients"
        );
    }

    /// Binds the threads of this name to one processor. Threads of other tests may end at any time.
    fn bind(name: &str, processor: usize) {
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
            if std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name) {
                let _ = sched_setaffinity(tid.and_then(Pid::from_raw), &set_of([processor]));
            }
        }
    }

    /// Two processors. None: the machine has only one.
    fn two_processors() -> Option<[usize; 2]> {
        let two = processors().first_chunk().copied();
        if two.is_none() {
            eprintln!("not tested: there is one processor");
        }
        two
    }

    fn serve_paired(pairing_clients: usize) -> (Running, SocketAddr) {
        let (busy_poll_clients, pairing_clients) = (0, Some(pairing_clients));
        let default = Config::for_memory(1 << 30);
        serve_as(Config { threads: 2, spare_threads: 0, busy_poll_clients, pairing_clients, ..default })
    }

    /// Two threads, each bound to its own processor, and three clients.
    fn serve_three(processors: [usize; 2]) -> (Running, Vec<TcpStream>) {
        let (running, address) = serve_paired(3);
        let clients = (0..3).map(|_| come(address)).collect();
        threads_have(&running, [2, 1]);
        bind("kv-0", processors[0]);
        bind("kv-1", processors[1]);
        (running, clients)
    }

    /// Clients send requests from one processor, then from the other.
    #[test]
    fn clients_move_to_the_thread_of_their_processor() {
        let Some(processors) = two_processors() else { return };
        let (running, mut clients) = serve_three(processors);
        let now = || running.threads.clients().collect::<Vec<_>>();
        for (at, wanted) in [(1, [1, 2]), (0, [2, 1]), (1, [1, 2])] {
            bind_to(processors[at]);
            let has_moved = holds_within(Duration::from_secs(10), || {
                clients.iter_mut().for_each(ping);
                now() == wanted
            });
            assert!(has_moved, "{:?}, wanted {wanted:?}", now());
        }
    }

    /// A thread with one client follows it to any processor.
    #[test]
    fn thread_follows_its_client() {
        let Some(processors) = two_processors() else { return };
        let (running, address) = serve_paired(1);
        let mut client = come(address);
        for processor in processors.repeat(3) {
            bind_to(processor);
            let has_followed = holds_within(Duration::from_secs(10), || {
                ping(&mut client);
                running.threads.inbox(0).is_on(processor)
            });
            assert!(has_followed, "not seen on {processor}");
        }
    }

    /// Clients change processors repeatedly, until one of them kills another.
    #[test]
    fn replies_stay_in_order_while_clients_are_paired() {
        let Some(processors) = two_processors() else { return };
        let (running, mut clients) = serve_three(processors);
        let mut moving = clients.remove(0);
        let its_address = moving.local_addr().unwrap();
        let mut sides = Vec::new();
        for pipeline in 0..2000 {
            bind_to(processors[pipeline / 100 % 2]);
            let replies: String = (1..=10).map(|n| format!(":{}\r\n", pipeline * 10 + n)).collect();
            ask(&mut moving, &"INCR n\r\n".repeat(10), &replies);
            // A thread without requests has no known processor.
            clients.iter_mut().for_each(ping);
            sides.push(running.threads.inbox(0).clients());
        }
        assert!(sides.contains(&1) && sides.contains(&2), "it has not moved");
        ask(&mut clients[0], &format!("CLIENT KILL {its_address}\r\n"), "+OK\r\n");
        assert_eq!(moving.read(&mut [0]).unwrap(), 0);
        drop(clients);
        threads_have(&running, [0, 0]);
    }

    /// A client sends pipelines, and moves between two of them or within one.
    #[test]
    fn replies_stay_in_order_while_a_client_moves() {
        let (running, address) = serve();
        for round in 0..3 {
            let mut clients: Vec<_> = (0..3).map(|_| come(address)).collect();
            let (mut moving, has_moved) = (clients.pop().unwrap(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for pipeline in 0.. {
                        let numbers = (pipeline * 10 + 1)..=(pipeline * 10 + 10);
                        let replies: String = numbers.map(|n| format!(":{n}\r\n")).collect();
                        ask(&mut moving, &format!("INCR n{round}\r\n").repeat(10), &replies);
                        if has_moved.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                });
                clients.push(connect(address));
                threads_have(&running, [3, 1, 0]);
                has_moved.store(true, Ordering::Relaxed);
            });
            drop((clients, moving));
            threads_have(&running, [0, 0, 0]);
        }
    }
}
