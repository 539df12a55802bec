//! `terrace serve kv`: a server of keys over a store, and the process that keeps the store's memory for it.
//!
//! ```text
//!   keeper ──fork──► server ──SIGTERM, SHUTDOWN──► sync, end ──► clean up, end
//!     ▲                 │ killed, crashed
//!     └─────────────────┘ the next server opens the store over the same memory
//! ```
//! The keeper holds the memory files and the listening sockets, opens nothing else, and has one thread. Unlike the supervisor of a mount it shares no
//! descriptors with its child: clients of a dead server see their connections end, and the store's files are opened anew by name.
//!
//! | files | |
//! |---|---|
//! | [`setup`] | what is made once: directory, password, map, sockets, memory |
//! | [`keeper`] | starts servers, listens to them and to signals |
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

/// Serves until it is told to end.
pub fn serve(what: cli::Serve) -> Result<ExitCode> {
    let cli::Serve::Kv(args) = what;
    sweep();
    let (kept, lock) = setup::prepare(args)?;
    keeper::keep(kept, lock).map(|()| ExitCode::SUCCESS)
}
