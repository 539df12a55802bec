//! `cargo xtask vm`: tests that need different hardware, in virtual machines. QEMU emulates it (TCG: no
//! /dev/kvm is needed) with Debian's kernel. The first process inside is the script `init.sh`. It starts this
//! program (`vm inside`), which runs the tests of `vm dax` or `vm numa` there.
//!
//! ```text
//!   kernel.rs   Debian's kernel and modules, unpacked once into target/vm
//!   image.rs    the initial file system: busybox, modules, programs with their libraries, plans
//!   machine.rs  QEMU: start, console, end
//!   pmem.rs     file systems on persistent memory
//!   dax/        a tier on persistent memory
//!   numa/       threads and memory nodes
//! ```
//! Times inside are meaningless: tests check behaviour and counters.

mod command;
mod dax;
mod image;
mod kernel;
mod machine;
mod numa;
mod pmem;

use std::io;
use std::path::Path;

const USAGE: &str = "usage: cargo xtask vm dax | cargo xtask vm numa [NODES]";

/// Runs `vm ARGUMENTS...`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> io::Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["numa"] => numa::run(root, None),
        ["numa", nodes] => numa::run(root, Some(nodes.parse().map_err(|_| command::wrong(USAGE))?)),
        ["dax"] => dax::run(root),
        ["inside", "dax"] => dax::inside::run(),
        ["inside", "dax-reader", path, seed] => dax::inside::reader(path, seed),
        ["inside", "numa", nodes] => numa::inside::run(nodes.parse().map_err(|_| command::wrong(USAGE))?),
        ["inside", "load", arguments @ ..] => numa::load::run(arguments),
        _ => Err(command::wrong(USAGE)),
    }
}
