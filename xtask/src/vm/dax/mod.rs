//! `vm dax`: a tier on a file of persistent memory (ext4 with DAX). Clients read it, terraced is killed, the
//! mount ends and starts again.

pub(super) mod inside;

use super::image::Image;
use super::kernel::Kernel;
use super::machine::{Machine, directory, told};
use std::io;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const MEMORY_MIB: u32 = 1024;
const PMEM_MIB: u32 = 192;
/// Reserve behind it: the firmware uses the last pages of memory.
const BEHIND_MIB: u32 = 128;

pub(super) fn run(root: &Path) -> io::Result<()> {
    let dir = directory(root);
    let kernel = Kernel::get(&dir)?;
    let image = Image::new(&dir.join("dax"), &kernel, &["fuse", "nd_pmem", "nd_e820"], "dax")?;
    image.add_terrace(root)?;
    image.add_program("mkfs.ext4")?;
    let at = u64::from(MEMORY_MIB - BEHIND_MIB - PMEM_MIB) << 20;
    let machine = Machine {
        kernel: kernel.image.clone(),
        initial: image.pack()?,
        hardware: ["-m", &format!("{MEMORY_MIB}M"), "-smp", "2"].map(str::to_owned).to_vec(),
        parameters: format!("memmap={PMEM_MIB}M!{at:#x}"),
        limit: LIMIT,
    };
    let lines = machine.run()?;
    terrace_output::print_line!("dax: {} checks passed", told(&lines, "ok").len())
}
