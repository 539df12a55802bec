//! `terrace serve kv`: a server of keys over a store, and the supervisor process that holds the store's
//! memory.
//!
//! ```text
//!   supervisor ──fork──► server ──SIGTERM, SHUTDOWN──► sync, end ──► clean up, end
//!     ▲                 │ killed, crashed
//!     └─────────────────┘ the next server opens the store over the same memory
//! ```
//! The supervisor holds the memory files and the listening sockets, opens nothing else, and has one thread.
//! Unlike the supervisor of a mount, it shares no descriptors with its child. So clients of a dead server
//! lose their connections, and the next server opens the store's files by name.
//!
//! | files | |
//! |---|---|
//! | [`setup`] | set-up before the first server: directory, password, map, sockets, memory |
//! | [`supervisor`] | starts servers, handles their messages and signals |
//! | [`server`] | one server, from the store's opening to its end |
//! | [`answers`] | its answers to `terrace stat` and other commands |

mod answers;
mod server;
mod setup;
mod supervisor;

use std::process::ExitCode;

use crate::cli;
use crate::error::Result;
use crate::sweep::sweep;

/// Serves until a stop is requested.
pub(crate) fn serve(what: cli::Serve) -> Result<ExitCode> {
    let cli::Serve::Kv(args) = what;
    sweep();
    let (setup, lock) = setup::prepare(args)?;
    supervisor::supervise(setup, lock).map(|()| ExitCode::SUCCESS)
}
