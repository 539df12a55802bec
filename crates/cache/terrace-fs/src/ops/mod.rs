//! Requests of the kernel, as methods of [`Namespace`](crate::Namespace).

pub(crate) mod change;
mod creds;
pub(crate) mod dir;
pub(crate) mod file;
pub(crate) mod lookup;
mod make;
pub(crate) mod open_ahead;
mod passthrough;
pub(crate) mod place;
mod remove;
pub(crate) mod stage;
mod xattr;
