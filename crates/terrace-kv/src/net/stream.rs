//! TCP and sockets in the file system alike.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt::socket_incoming_cpu;

use crate::wire::Protocol;

/// Where clients come in; bound already, so that it outlives a server that dies.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixListener),
    /// TCP, for clients of memcached. They give no password and follow no map of several servers.
    Memcached(TcpListener),
}

impl Listener {
    /// The same, for one more server.
    ///
    /// # Errors
    /// No descriptors.
    pub fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
            Listener::Unix(listener) => Listener::Unix(listener.try_clone()?),
            Listener::Memcached(listener) => Listener::Memcached(listener.try_clone()?),
        })
    }
}

/// A listener that does not block.
#[derive(Debug)]
pub enum Acceptor {
    /// TCP.
    Tcp(mio::net::TcpListener, Protocol),
    /// A socket in the file system.
    Unix(mio::net::UnixListener),
}

impl Acceptor {
    /// Over a listener.
    ///
    /// # Errors
    /// It is none.
    pub fn new(listener: Listener) -> io::Result<Acceptor> {
        let tcp = |listener: TcpListener, protocol| {
            listener.set_nonblocking(true)?;
            Ok(Acceptor::Tcp(mio::net::TcpListener::from_std(listener), protocol))
        };
        Ok(match listener {
            Listener::Tcp(listener) => return tcp(listener, Protocol::Resp),
            Listener::Memcached(listener) => return tcp(listener, Protocol::Memcached),
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Acceptor::Unix(mio::net::UnixListener::from_std(listener))
            }
        })
    }

    /// The next client: its stream, its address and ours.
    ///
    /// # Errors
    /// `WouldBlock`: there is none.
    pub fn accept(&self) -> io::Result<(Stream, String, String)> {
        match self {
            Acceptor::Tcp(listener, _) => {
                let (stream, address) = listener.accept()?;
                // A reply that waits for the client's acknowledgement takes 40 ms.
                let _ = stream.set_nodelay(true);
                let local = stream.local_addr();
                let is_local = local
                    .as_ref()
                    .is_ok_and(|local| local.ip() == address.ip() || address.ip().is_loopback());
                let local = local.map(|local| local.to_string()).unwrap_or_default();
                Ok((Stream::Tcp { stream, is_local }, address.to_string(), local))
            }
            Acceptor::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), "unix:0".to_owned(), "unix:0".to_owned()))
            }
        }
    }

    /// What its clients speak.
    pub fn protocol(&self) -> Protocol {
        match self {
            Acceptor::Tcp(_, protocol) => *protocol,
            Acceptor::Unix(_) => Protocol::Resp,
        }
    }

    /// Its source of events.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Acceptor::Tcp(listener, _) => listener,
            Acceptor::Unix(listener) => listener,
        }
    }
}

/// A client's stream.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp {
        /// The connection.
        stream: mio::net::TcpStream,
        /// To a program of this machine.
        is_local: bool,
    },
    /// A socket in the file system.
    Unix(mio::net::UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp { stream, .. } => stream,
            Stream::Unix(stream) => stream,
        }
    }

    /// The processor on which its client sent the last bytes; none: not known, as of another machine or network namespace, and of a socket in the file system.
    pub fn client_processor(&self) -> Option<usize> {
        match self {
            Stream::Tcp { stream, is_local: true } => {
                socket_incoming_cpu(stream).ok().map(|cpu| cpu as usize)
            }
            _ => None,
        }
    }

    /// Registers these events, with one notification for each change (edge-triggered).
    ///
    /// # Errors
    /// Those of epoll.
    pub fn register(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        registry.register(self.source(), token, interest)
    }
    /// Asks for no more events.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(self.source())
    }
    /// Registers other events; a condition that already holds causes one at once.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn watch(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
        registry.reregister(self.source(), token, interest)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp { stream, .. } => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
