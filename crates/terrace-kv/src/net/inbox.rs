//! Which thread a new client goes to.
//!
//! While clients are few each has a thread of its own: a request wakes it on the processor of the program that asked, and its answer wakes that program there.
//! Two clients of one thread are on two processors, and a wake-up across these costs more than the request. Many clients share one thread a processor:
//! of those that are ready in the same round each wake-up serves several, and their look-ups wait for memory together. So the spare threads give their
//! clients away when one more comes than there are threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use mio::Waker;

use super::connection::{Connection, Place};
use super::stream::Stream;
use crate::commands::Session;

/// A client on its way to its thread.
#[derive(Debug)]
pub enum Arrival {
    /// A new one.
    New(Stream, Session, Place),
    /// One that another thread has served.
    Moved(Box<Connection>),
}

/// How clients reach a thread.
#[derive(Debug, Clone)]
pub struct Inbox {
    arrivals: Sender<Arrival>,
    waker: Arc<Waker>,
    clients: Arc<AtomicUsize>,
}

impl Inbox {
    /// Of a thread that takes what comes by the other end of `arrivals`, when it is woken.
    pub fn new(arrivals: Sender<Arrival>, waker: Waker) -> Inbox {
        Inbox { arrivals, waker: Arc::new(waker), clients: Arc::default() }
    }

    /// Takes a client in.
    pub fn take(&self, stream: Stream, session: Session) {
        self.send(Arrival::New(stream, session, self.place()));
    }

    /// Takes in a client of another thread.
    pub fn take_over(&self, mut connection: Connection) {
        connection.place = self.place();
        self.send(Arrival::Moved(Box::new(connection)));
    }

    fn place(&self) -> Place {
        Place::among(&self.clients)
    }

    fn send(&self, arrival: Arrival) {
        if self.arrivals.send(arrival).is_ok() {
            let _ = self.wake();
        }
    }

    /// Has the thread look for clients that came, and for those that another has killed.
    ///
    /// # Errors
    /// Those of eventfd.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }

    fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }
}

/// Whether clients are too many for a thread each.
pub fn must_share(inboxes: &[Inbox]) -> bool {
    inboxes.iter().map(Inbox::clients).sum::<usize>() > inboxes.len()
}

/// The place among `clients` of threads, where the next client goes: an empty thread, else the emptiest of the first `sharing`.
fn next(clients: impl Iterator<Item = usize> + Clone, sharing: usize) -> usize {
    let empty = clients.clone().position(|n| n == 0);
    empty.unwrap_or_else(|| {
        let shared = clients.take(sharing).enumerate();
        shared.min_by_key(|(_, n)| *n).map_or(0, |(at, _)| at)
    })
}

/// The thread of the next client. The first `sharing` take any number, the others one client each.
pub fn for_next(inboxes: &[Inbox], sharing: usize) -> &Inbox {
    &inboxes[next(inboxes.iter().map(Inbox::clients), sharing)]
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use terrace_testkit::wait::holds_within;

    use super::*;
    use crate::keyspace::system_clock;
    use crate::net::{Listener, Running, start};
    use crate::testing::MemoryBlobs;
    use crate::{Config, Server};

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
        assert_eq!(come(&mut clients), 2, "its client has left");
        assert_eq!(come(&mut clients), 1);
    }

    fn serve() -> (Running, SocketAddr) {
        let config = Config { threads: 1, spare_threads: 2, ..Config::for_memory(1 << 30) };
        let server = Server::new(Arc::new(MemoryBlobs::default()), config, 16 << 20, system_clock());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (start(Arc::new(server), vec![Listener::Tcp(listener)]).unwrap(), address)
    }

    fn ask(client: &mut TcpStream, request: &str, reply: &str) {
        client.write_all(request.as_bytes()).unwrap();
        let mut got = vec![0; reply.len()];
        client.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), reply);
    }

    #[track_caller]
    fn threads_have(running: &Running, wanted: [usize; 3]) {
        let now = || running.inboxes.iter().map(Inbox::clients).collect::<Vec<_>>();
        assert!(holds_within(Duration::from_secs(10), || now() == wanted), "{:?}, wanted {wanted:?}", now());
    }

    #[test]
    fn clients_of_spare_threads_move_when_more_come() {
        let (running, address) = serve();
        let come = || {
            let mut client = TcpStream::connect(address).unwrap();
            ask(&mut client, "PING\r\n", "+PONG\r\n");
            client
        };
        let (mut first, mut second, mut third) = (come(), come(), come());
        threads_have(&running, [1, 1, 1]);
        // Half a request is waited for where it began.
        third.write_all(b"GET").unwrap();
        let mut fourth = come();
        ask(&mut second, "SET k v\r\n", "+OK\r\n");
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

    /// Pipelines of a client, which moves somewhere within them.
    #[test]
    fn replies_stay_in_order_while_a_client_moves() {
        let (running, address) = serve();
        for round in 0..30 {
            let mut clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
            let key = format!("n{round}");
            std::thread::scope(|scope| {
                let mut moving = clients.pop().unwrap();
                let key = &key;
                scope.spawn(move || {
                    for pipeline in 0..60 {
                        let numbers = (pipeline * 10 + 1)..=(pipeline * 10 + 10);
                        let replies: String = numbers.map(|n| format!(":{n}\r\n")).collect();
                        ask(&mut moving, &format!("INCR {key}\r\n").repeat(10), &replies);
                    }
                });
                std::thread::sleep(Duration::from_micros(100 * round));
                let mut more = TcpStream::connect(address).unwrap();
                ask(&mut more, "PING\r\n", "+PONG\r\n");
                clients.push(more);
            });
            drop(clients);
            threads_have(&running, [0, 0, 0]);
        }
    }
}
