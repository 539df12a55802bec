//! Data of a running command: its context (server, session, arguments, reply), and its row in the command
//! table.

use std::sync::Arc;

use crate::blobs::Db;
use crate::clients::Client;
use crate::error::Outcome;
use crate::keyspace::Keyspace;
use crate::server::Server;
use crate::wire::{Args, Protocol, Reply};

/// Replies that a client wants (CLIENT REPLY).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// All but the next command's.
    SkipNext,
    /// All but this one's.
    Skip,
}

/// The state of a connection that commands use.
#[derive(Debug)]
pub(crate) struct Session {
    /// The client's entry for other connections.
    pub(crate) client: Arc<Client>,
    pub(crate) protocol: Protocol,
    pub(crate) db: Db,
    pub(crate) resp3: bool,
    /// The password was given, or none is required.
    pub(crate) is_known: bool,
    /// Replies that the client wants.
    pub(crate) replies: Replies,
    /// MULTI was refused. All commands are refused until EXEC or DISCARD.
    pub(crate) refuses_transaction: bool,
    /// The connection is to be closed after the reply.
    pub(crate) closes: bool,
}

impl Session {
    pub(crate) fn new(client: Arc<Client>, protocol: Protocol, is_known: bool) -> Session {
        let replies = Replies::On;
        Session {
            client,
            protocol,
            db: 0,
            resp3: false,
            is_known,
            replies,
            refuses_transaction: false,
            closes: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) server: &'a Server,
    pub(crate) session: &'a mut Session,
    /// Arguments, the command's name first.
    pub(crate) args: Args<'a>,
    pub(crate) reply: Reply<'a>,
    /// Reusable buffer for values.
    pub(crate) scratch: &'a mut Vec<u8>,
    pub(crate) rows: &'static [Row],
}

impl<'a> Context<'a> {
    pub(crate) fn keyspace(&self) -> &'a Keyspace {
        &self.server.keyspace
    }
    pub(crate) fn db(&self) -> Db {
        self.session.db
    }
    pub(crate) fn key(&self) -> &'a [u8] {
        self.args.at(1)
    }
}

/// Properties of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    /// The command changes nothing.
    pub(crate) const READ: Flags = Flags(1);
    /// The command may change something.
    pub(crate) const WRITE: Flags = Flags(2);
    /// The duration does not depend on the value's size.
    pub(crate) const FAST: Flags = Flags(4);
    /// The command needs no password.
    pub(crate) const NO_AUTH: Flags = Flags(8);
    /// The command may need more room.
    pub(crate) const DENY_OOM: Flags = Flags(16);

    pub(super) const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
    /// Whether all of `other` are set.
    pub(crate) const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all = [
            (Flags::READ, "readonly"),
            (Flags::WRITE, "write"),
            (Flags::DENY_OOM, "denyoom"),
            (Flags::FAST, "fast"),
            (Flags::NO_AUTH, "no_auth"),
        ];
        all.into_iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, name)| name).collect()
    }
}

/// Positions of the keys among the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The first. 0: there are no keys.
    pub(crate) first: i8,
    /// The last. Negative: counted from the end.
    pub(crate) last: i8,
    /// Distance between two keys.
    pub(crate) step: i8,
}

impl Keys {
    pub(crate) fn of<'a>(self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        let last =
            if self.last < 0 { args.len() as i64 + i64::from(self.last) } else { i64::from(self.last) };
        let count = if self.first == 0 { 0 } else { (last + 1 - i64::from(self.first)).max(0) as usize };
        args.from(self.first as usize).take(count).step_by(self.step.max(1) as usize)
    }
}

#[derive(Debug)]
pub(crate) struct Row {
    /// Its name, in lower case.
    pub(crate) name: &'static str,
    /// Number of arguments including the name. Negative: the minimum.
    pub(crate) arity: i32,
    pub(crate) keys: Keys,
    pub(crate) flags: Flags,
    /// Positions of the elements (fields or members) of the collection in the first key.
    pub(crate) elements: Keys,
    pub(crate) run: fn(&mut Context<'_>) -> Outcome,
}

impl Row {
    /// Whether the command only reads the values of its keys.
    pub(crate) fn reads(&self) -> bool {
        self.flags.contains(Flags::READ)
    }
    pub(crate) fn accepts(&self, count: usize) -> bool {
        let (count, least) = (count as i64, i64::from(self.arity.abs()));
        if self.arity < 0 { count >= least } else { count == least }
    }
}
