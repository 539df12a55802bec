//! Four servers with one keyspace: a client that follows redirections, and a server that is killed and
//! restarted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::TcpListener;

use super::client::{Client, Reply};
use super::test_server::{Served, TestServer};

/// A client of all servers, which follows redirections.
struct Routing {
    clients: HashMap<u16, Client>,
    /// Server of each key seen so far.
    slots: HashMap<String, u16>,
    first: u16,
    moved: usize,
}

impl Routing {
    fn new(first: u16) -> Routing {
        Routing { clients: HashMap::new(), slots: HashMap::new(), first, moved: 0 }
    }

    fn ask(&mut self, words: &[&str]) -> std::io::Result<Reply> {
        let mut port = *self.slots.get(words[1]).unwrap_or(&self.first);
        loop {
            let client = match self.clients.entry(port) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(place) => place.insert(Client::tcp(port)?),
            };
            let reply = client.ask(words);
            match reply {
                Ok(Reply::Error(line)) if line.starts_with("MOVED ") => {
                    port = line.rsplit(':').next().unwrap().parse().unwrap();
                    self.moved += 1;
                }
                Ok(reply) => {
                    self.slots.insert(words[1].to_owned(), port);
                    return Ok(reply);
                }
                Err(err) => {
                    self.clients.remove(&port);
                    return Err(err);
                }
            }
        }
    }
}

/// Ports that are free now.
fn free_ports() -> Vec<u16> {
    let listeners: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

fn start(test: &TestServer, ports: &[u16], at: usize) -> Served {
    let (dir, port, map) = (test.text(&format!("keys{at}")), ports[at].to_string(), test.text("nodes.toml"));
    let args = ["--dir", &dir, "--port", &port, "--cluster", &map, "--sync", "always", "--threads", "1"];
    let mut served = Served::start(&args, test.path(&format!("keys{at}")));
    served.wait("the server serves", || Client::tcp(ports[at]).is_ok_and(|mut c| c.ask(&["PING"]).is_ok()));
    served
}

#[test]
fn four_servers_share_the_keys() {
    let (test, ports) = (TestServer::new(), free_ports());
    let node = |(at, port): (usize, &u16)| {
        format!(
            "[[node]]\nhost = \"127.0.0.1\"\nport = {port}\nslots = [\"{}-{}\"]\n",
            at * 4096,
            at * 4096 + 4095
        )
    };
    std::fs::write(test.path("nodes.toml"), ports.iter().enumerate().map(node).collect::<String>()).unwrap();
    let mut served: Vec<Option<Served>> = (0..4).map(|at| Some(start(&test, &ports, at))).collect();
    let mut client = Routing::new(ports[0]);
    for i in 0..400 {
        assert_eq!(client.ask(&["SET", &format!("key:{i}"), &i.to_string()]).unwrap().text(), "OK");
    }
    assert!(client.moved > 200, "{} of 400 keys were elsewhere", client.moved);
    let sizes: Vec<u64> =
        ports.iter().map(|port| Client::tcp(*port).unwrap().say("DBSIZE").parse().unwrap()).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 400);
    assert!(sizes.iter().all(|size| *size > 50), "{sizes:?}");
    // All servers show the same map.
    let nodes = |port: u16| Client::tcp(port).unwrap().say("CLUSTER NODES").replace("myself,", "");
    assert!(ports.iter().all(|port| nodes(*port) == nodes(ports[0])));
    let own = Client::tcp(ports[0]).unwrap().say("CLUSTER MYID");
    assert!(Client::tcp(ports[1]).unwrap().say("CLUSTER SLOTS").contains(&own));
    // One server dies with its supervisor: the others serve on, and nothing is lost.
    served[2].take().unwrap().kill_all();
    let (mut here, mut missing) = (0, 0);
    for i in 0..400 {
        match client.ask(&["GET", &format!("key:{i}")]) {
            Ok(reply) => {
                assert_eq!(reply.text(), i.to_string());
                here += 1;
            }
            Err(_) => missing += 1,
        }
    }
    assert_eq!((here, missing), (400 - sizes[2], sizes[2]));
    served[2] = Some(start(&test, &ports, 2));
    for i in 0..400 {
        assert_eq!(client.ask(&["GET", &format!("key:{i}")]).unwrap().text(), i.to_string());
    }
    served.into_iter().flatten().for_each(Served::stop);
}
