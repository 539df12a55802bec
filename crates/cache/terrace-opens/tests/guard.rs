//! Open files as fanotify and /proc show them to root.

#[path = "guard/holders.rs"]
mod holders;
#[path = "guard/listener.rs"]
mod listener;
#[path = "guard/processes.rs"]
mod processes;
