//! Data for `terrace top`. A separate thread requests the statistics, so that a hanging daemon does not block
//! the screen. It also reads the kernel's statistics of the block device.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::model::{Counter, Snapshot};
use crate::error::{EXIT_NEGATIVE, Failure, Result};
use crate::{commands, instance, stat};

/// Time to wait for keys and answers.
pub(super) const TICK: Duration = Duration::from_millis(50);
/// Consecutive failed requests after which the mount counts as gone. One failure may be a restart of the
/// daemon.
pub(super) const SILENCE_MAX: u32 = 2;

/// Chooses the mount: the given one, or the only one.
pub(super) fn choose(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(mnt) = named {
        return commands::find(mnt).map(|(_, info)| info.mnt);
    }
    let all: Vec<PathBuf> = instance::living().into_iter().map(|(_, info)| info.mnt).collect();
    match &all[..] {
        [mnt] => Ok(mnt.clone()),
        [] => {
            let cure = "start with `terrace mount SRC MNT` or `terrace run --on DIR -- CMD`";
            Err(Failure::new("top", "terrace serves nothing for this user", cure).with_code(EXIT_NEGATIVE))
        }
        many => {
            let names: Vec<String> = many.iter().map(|mnt| mnt.display().to_string()).collect();
            let why = format!("terrace serves {} directories", many.len());
            Err(Failure::new("top", why, format!("name one of {}", names.join(", "))))
        }
    }
}

/// Requests statistics at intervals, until the receiver is dropped.
pub(super) fn follow(mnt: PathBuf, every: Duration) -> Receiver<(Instant, Result<Snapshot>)> {
    let (said, heard) = sync_channel(1);
    std::thread::spawn(move || {
        let mut next = Instant::now();
        while said.send((Instant::now(), answer(&mnt))).is_ok() {
            next = (next + every).max(Instant::now());
            std::thread::sleep(next - Instant::now());
        }
    });
    heard
}

fn answer(mnt: &Path) -> Result<Snapshot> {
    let (instance, info) = commands::find(mnt)?;
    let mut snapshot = Snapshot::of(&stat::read(&instance, &info)?);
    if let Some((reads, ms)) = device_reads(Path::new(&snapshot.src)) {
        snapshot.counters[Counter::DeviceReads as usize] = reads;
        snapshot.counters[Counter::DeviceReadMs as usize] = ms;
    }
    Ok(snapshot)
}

/// Completed reads of the block device below `dir`, and their total time in milliseconds; none without such a
/// device.
fn device_reads(dir: &Path) -> Option<(u64, u64)> {
    let dev = std::fs::metadata(dir).ok()?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", libc::major(dev), libc::minor(dev));
    parse_device(&std::fs::read_to_string(path).ok()?)
}

/// Fields of Documentation/block/stat.rst: reads, merged, sectors, milliseconds.
fn parse_device(stat: &str) -> Option<(u64, u64)> {
    let mut fields = stat.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.nth(2)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_of_reads() {
        let stat = "   18211    2042  1245398    94131    99999 1 2 3 0 4 5\n";
        assert_eq!(parse_device(stat), Some((18_211, 94_131)));
        assert_eq!((parse_device(""), parse_device("1 2 3")), (None, None));
        assert_eq!(device_reads(Path::new("/proc")), None, "no disk");
    }
}
