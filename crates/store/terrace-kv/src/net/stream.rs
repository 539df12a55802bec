//! TCP and Unix sockets behind one interface: listeners, accepted connections.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;

use mio::event::Source;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt::socket_incoming_cpu;

use crate::wire::Protocol;

/// A bound listener. It can outlive a server that dies.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
    /// TCP for memcached clients. They support neither passwords nor cluster maps.
    Memcached(TcpListener),
}

impl Listener {
    /// Duplicates the listener for another server.
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

#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(mio::net::TcpListener, Protocol),
    Unix(mio::net::UnixListener),
}

impl Acceptor {
    /// Makes a listener non-blocking.
    ///
    /// # Errors
    /// The system call fails.
    pub(super) fn new(listener: Listener) -> io::Result<Acceptor> {
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

    /// Accepts the next client: its stream, its address and the server's.
    ///
    /// # Errors
    /// `WouldBlock`: no client waits.
    pub(super) fn accept(&self) -> io::Result<(Stream, String, String)> {
        match self {
            Acceptor::Tcp(listener, _) => {
                let (stream, address) = listener.accept()?;
                // Nagle's algorithm delays a reply until the client's acknowledgement, up to 40 ms.
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

    pub(super) fn protocol(&self) -> Protocol {
        match self {
            Acceptor::Tcp(_, protocol) => *protocol,
            Acceptor::Unix(_) => Protocol::Resp,
        }
    }

    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            Acceptor::Tcp(listener, _) => listener,
            Acceptor::Unix(listener) => listener,
        }
    }
}

#[derive(Debug)]
pub(super) enum Stream {
    Tcp { stream: mio::net::TcpStream, is_local: bool },
    Unix(mio::net::UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp { stream, .. } => stream,
            Stream::Unix(stream) => stream,
        }
    }

    /// The processor where the client sent its last bytes. None: unknown, for other machines and network
    /// namespaces, and for Unix sockets.
    pub(super) fn client_processor(&self) -> Option<usize> {
        match self {
            Stream::Tcp { stream, is_local: true } => {
                socket_incoming_cpu(stream).ok().map(|cpu| cpu as usize)
            }
            _ => None,
        }
    }

    /// Registers for these events, edge-triggered.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn register(
        &mut self,
        registry: &Registry,
        token: Token,
        interest: Interest,
    ) -> io::Result<()> {
        registry.register(self.source(), token, interest)
    }
    /// Deregisters from all events.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(self.source())
    }
    /// Changes the registered events. A condition that already holds raises an event at once.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn watch(&mut self, registry: &Registry, token: Token, interest: Interest) -> io::Result<()> {
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
