//! `terrace serve kv`: a server of keys over a store, and the keeper process that holds the store's memory.
//!
//! ```text
//!   keeper ──fork──► server ──SIGTERM, SHUTDOWN──► sync, end ──► clean up, end
//!     ▲                 │ killed, crashed
//!     └─────────────────┘ the next server opens the store over the same memory
//! ```
//! The keeper holds the memory files and the listening sockets, opens nothing else, and has one thread.
//! Unlike the supervisor of a mount, it shares no descriptors with its child. So clients of a dead server
//! lose their connections, and the next server opens the store's files by name.
//!
//! | files | |
//! |---|---|
//! | [`setup`] | set-up before the first server: directory, password, map, sockets, memory |
//! | [`keeper`] | starts servers, handles their messages and signals |
//! | [`server`] | one server, from the store's opening to its end |
//! | [`answers`] | its answers to `terrace stat` and other commands |

mod answers;
mod keeper;
mod server;
mod setup;

use std::process::ExitCode;

use crate::cli;
use crate::error::Result;
use crate::sweep::sweep;

/// Serves until a stop is requested.
pub(crate) fn serve(what: cli::Serve) -> Result<ExitCode> {
    let cli::Serve::Kv(args) = what;
    sweep();
    let (kept, lock) = setup::prepare(args)?;
    keeper::keep(kept, lock).map(|()| ExitCode::SUCCESS)
}
