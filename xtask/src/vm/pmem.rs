//! In the virtual machine: file systems on persistent memory, and files on them.

use super::command::{output, wrong};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use terrace_testkit::wait::holds_within;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Makes a file system with DAX on a device of persistent memory. Drivers are probed in the background.
pub(super) fn make_file_system(number: usize, dir: &str) -> io::Result<()> {
    let device = wait_for(number)?;
    fs::create_dir_all(dir)?;
    output(Command::new("mkfs.ext4").args(["-q", "-b", "4096", "-O", "^has_journal", &device]))?;
    output(Command::new("mount").args(["-t", "ext4", "-o", "dax=always", &device, dir])).map(drop)
}

/// Waits for the device; returns its path.
pub(super) fn wait_for(number: usize) -> io::Result<String> {
    let device = format!("/dev/pmem{number}");
    match holds_within(Duration::from_secs(20), || Path::new(&device).exists()) {
        true => Ok(device),
        false => Err(wrong(format!("{device} does not appear"))),
    }
}

/// Makes a file of pages that begin with their numbers.
pub(super) fn make_file(path: &str, pages: u64) -> io::Result<()> {
    let mut content = vec![0; pages as usize * PAGE];
    for (number, page) in content.chunks_mut(PAGE).enumerate() {
        page[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    fs::write(path, content)
}
