//! Where the numbers come from: `terrace stat --json`, asked by a thread of its own, so that a daemon that hangs does not hang the screen;
//! and the kernel's own count of the device's reads.

use super::model::{Counter, Snapshot};
use serde_json::Value;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

/// Which instance is watched.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// The one that serves this directory.
    At(PathBuf),
    /// The only one there is.
    Only,
    /// One whose keeper was not there before.
    New(HashSet<u64>),
}

/// The program that is asked.
#[derive(Clone, Debug)]
pub struct Terrace(pub PathBuf);

impl Terrace {
    /// The one that was named, else the one beside this program, else the one in PATH.
    pub fn find(named: Option<&Path>) -> Terrace {
        let beside = || std::env::current_exe().ok().map(|exe| exe.with_file_name("terrace"));
        let found = named.map(Path::to_owned).or_else(|| beside().filter(|path| path.exists()));
        Terrace(found.unwrap_or_else(|| PathBuf::from("terrace")))
    }

    /// All instances of this user, or the one at `mnt`.
    ///
    /// # Errors
    /// In terrace's own words: nothing is served there.
    pub fn stat(&self, mnt: Option<&Path>) -> Result<Vec<Value>, String> {
        let mut command = Command::new(&self.0);
        command.arg("stat").args(mnt).arg("--json").stdin(Stdio::null());
        let told = command
            .output()
            .map_err(|e| format!("{}: {e} (build it, or name it with --terrace)", self.0.display()))?;
        if !told.status.success() {
            let why = String::from_utf8_lossy(&told.stderr);
            return Err(why.trim().trim_start_matches("terrace: ").to_owned());
        }
        let text = String::from_utf8_lossy(&told.stdout);
        let read =
            |line| serde_json::from_str(line).map_err(|e| format!("{}: no JSON: {e}", self.0.display()));
        text.lines().map(read).collect()
    }

    /// Keepers of all instances now.
    pub fn keepers(&self) -> HashSet<u64> {
        self.stat(None)
            .unwrap_or_default()
            .iter()
            .filter_map(|stat| stat["instance"]["pid"].as_u64())
            .collect()
    }

    /// One answer of the instance that is meant.
    fn answer(&self, which: &Which) -> Result<Snapshot, String> {
        let told = self.stat(match which {
            Which::At(mnt) => Some(mnt),
            _ => None,
        })?;
        let mut snapshot = Snapshot::parse(choose(which, &told)?)?;
        if let Some((reads, ms)) = device_reads(Path::new(&snapshot.src)) {
            snapshot.counters[Counter::DeviceReads as usize] = reads;
            snapshot.counters[Counter::DeviceReadMs as usize] = ms;
        }
        Ok(snapshot)
    }

    /// Asks again and again, as long as somebody listens.
    pub fn follow(self, which: Which, every: Duration) -> Receiver<(Instant, Result<Snapshot, String>)> {
        let (said, heard) = sync_channel(1);
        std::thread::spawn(move || {
            let mut next = Instant::now();
            while said.send((Instant::now(), self.answer(&which))).is_ok() {
                next = (next + every).max(Instant::now());
                std::thread::sleep(next - Instant::now());
            }
        });
        heard
    }
}

/// The one that is meant.
pub fn choose<'a>(which: &Which, told: &'a [Value]) -> Result<&'a Value, String> {
    let keeper = |stat: &Value| stat["instance"]["pid"].as_u64().unwrap_or(0);
    let found = match which {
        Which::New(old) => told.iter().find(|stat| !old.contains(&keeper(stat))),
        Which::Only if told.len() > 1 => {
            let all: Vec<&str> = told.iter().filter_map(|stat| stat["instance"]["mnt"].as_str()).collect();
            return Err(format!(
                "terrace serves {} directories (name one of {})",
                told.len(),
                all.join(", ")
            ));
        }
        Which::Only | Which::At(_) => told.first(),
    };
    found.ok_or_else(|| "terrace serves nothing yet".to_owned())
}

/// Reads of the block device below `dir` that are done, and the milliseconds that they took together; none without such a device.
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
    use serde_json::json;

    #[test]
    fn the_instance_that_is_meant() {
        let told: Vec<Value> = ["/a", "/b"]
            .iter()
            .zip(7..)
            .map(|(mnt, pid)| json!({"instance": {"mnt": mnt, "pid": pid}}))
            .collect();
        let pid =
            |which: &Which, told: &[Value]| choose(which, told).map(|stat| stat["instance"]["pid"].clone());
        assert_eq!(pid(&Which::New(HashSet::from([7])), &told).unwrap(), 8);
        assert!(pid(&Which::New(HashSet::from([7, 8])), &told).unwrap_err().contains("nothing yet"));
        assert_eq!(pid(&Which::Only, &told[..1]).unwrap(), 7);
        assert_eq!(
            pid(&Which::Only, &told).unwrap_err(),
            "terrace serves 2 directories (name one of /a, /b)"
        );
    }

    #[test]
    fn the_kernels_count_of_reads() {
        let stat = "   18211    2042  1245398    94131    99999 1 2 3 0 4 5\n";
        assert_eq!(parse_device(stat), Some((18_211, 94_131)));
        assert_eq!((parse_device(""), parse_device("1 2 3")), (None, None));
        assert_eq!(device_reads(Path::new("/proc")), None, "no disk");
    }

    #[test]
    fn a_missing_program_is_told_with_a_cure() {
        let why = Terrace("/nonexistent/terrace".into()).stat(None).unwrap_err();
        assert!(why.contains("name it with --terrace"), "{why}");
        assert_eq!(Terrace::find(Some(Path::new("x"))).0, Path::new("x"));
    }
}
