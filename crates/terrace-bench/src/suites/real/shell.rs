//! What all loads of real programs share: data that each run gets a copy of, users, a directory for sockets, scripts.

use crate::steps::{Outcome, Step};
use crate::system::{self, Places, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Data made once on the plain directory.
#[derive(Debug)]
pub struct Tree {
    name: &'static str,
    kept: PathBuf,
    linked: bool,
}

impl Tree {
    /// Makes the data: `steps` leave it in `{dir}/NAME`, without a limit and without terrace.
    pub fn make(places: &Places, name: &'static str, steps: Vec<Step>) -> Result<Tree, String> {
        let kept = places.scratch.join(name);
        let here = Copy { at: places.data.join(name) };
        here.remove();
        eprintln!("{name}: making the data ...");
        system::run(places, &System::Kernel, None, |_| steps).map_err(|why| format!("{name}: {why}"))?;
        fs::rename(&here.at, &kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        Ok(Tree { name, kept, linked: false })
    }

    /// The copy for one run, removed when dropped.
    pub fn fresh(&self, places: &Places) -> Result<Copy, String> {
        let copy = Copy { at: self.at(places) };
        copy.remove();
        let how = if self.linked { "-al" } else { "-a" };
        tool("cp", [how.as_ref(), self.kept.as_os_str(), copy.at.as_os_str()])?;
        Ok(copy)
    }

    /// Where the data are kept: what is put there is in each copy.
    pub fn kept(&self) -> &Path {
        &self.kept
    }

    /// Of files that nobody writes, a copy is links.
    pub fn linked(mut self) -> Tree {
        self.linked = true;
        self
    }

    /// Where that copy is, as the plain file system has it.
    pub fn at(&self, places: &Places) -> PathBuf {
        places.data.join(self.name)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.kept);
    }
}

/// Data of one run.
#[derive(Debug)]
pub struct Copy {
    at: PathBuf,
}

impl Copy {
    fn remove(&self) {
        let _ = fs::remove_dir_all(&self.at);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A directory for a server's socket and log, at a short path (a socket's has 107 bytes); removed when dropped.
///
/// Servers do not run as root, and terrace serves the fast door to its own user only. So ours runs in a user namespace in which root
/// has the name of the server's user: everybody is the same to the system, and the server is content.
#[derive(Debug)]
pub struct Home {
    user: &'static str,
    at: PathBuf,
}

impl Home {
    /// The directory for a server that wants to be `user`.
    pub fn make(user: &'static str) -> Result<Home, String> {
        let at = PathBuf::from(format!("/tmp/terrace-bench-{user}-{}", std::process::id()));
        fs::create_dir_all(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        Ok(Home { user, at })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// A step that runs a script as this user, with `$home`.
    pub fn step(&self, name: &str, script: &str) -> Step {
        let script = format!("home={}; {script}", self.at.display());
        let words = self.as_user().into_iter().chain(["bash".into(), "-euc".into(), script]);
        Step::new(name, words)
    }

    /// Runs a tool as this user, outside of all measuring.
    pub fn tool(&self, program: &Path, args: &[&str]) -> Result<String, String> {
        let words = self.as_user();
        let program = program.to_string_lossy();
        let rest = words[1..].iter().map(String::as_str).chain([&*program]).chain(args.iter().copied());
        tool(&words[0], rest)
    }

    fn as_user(&self) -> Vec<String> {
        let user = self.user;
        let map = [format!("--map-user={user}"), format!("--map-group={user}")];
        ["unshare".to_string(), "--user".into()].into_iter().chain(map).collect()
    }

    /// The last lines of the server's log, to be told behind a failure.
    pub fn log(&self) -> String {
        let text = fs::read_to_string(self.at.join("log")).unwrap_or_default();
        let mut last: Vec<&str> = text.lines().rev().take(3).collect();
        last.reverse();
        if last.is_empty() { String::new() } else { format!("; the server's log: {}", last.join(" | ")) }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.at);
    }
}

/// Runs a tool outside of all measuring; what it says when it fails.
pub fn tool<S: AsRef<std::ffi::OsStr>>(
    program: impl AsRef<std::ffi::OsStr>,
    args: impl IntoIterator<Item = S>,
) -> Result<String, String> {
    let program = program.as_ref();
    let name = program.to_string_lossy().into_owned();
    let told = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{name}: {e}; install what `make bench-real` installs"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    match told.status.success() {
        true => Ok(text(&told.stdout)),
        false => Err(format!("{name}: {}: {}", told.status, text(&told.stderr).replace('\n', " | "))),
    }
}

/// A program that is there under one of these patterns' directories, or in PATH.
pub fn find(program: &str, beside: &[PathBuf], package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = beside.iter().cloned().chain(std::env::split_paths(&path));
    all.find(|dir| dir.join(program).is_file()).map(|dir| dir.join(program)).ok_or_else(|| {
        format!("{program} is not there: install {package}, or run `make bench-real`, which does")
    })
}

/// The 95th percentile; `None` of nothing.
pub fn p95(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() * 95).div_ceil(100);
    values.get(rank.checked_sub(1)?).copied()
}

/// The number behind `label` in a program's output.
pub fn number_after(outcome: &Outcome, label: &str) -> Result<f64, String> {
    let line = outcome.output.lines().find_map(|line| line.trim_start().strip_prefix(label));
    let word = line
        .and_then(|rest| rest.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())));
    let digits = |word: &str| word.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    word.and_then(digits).ok_or_else(|| format!("{}: no {label:?} in what it printed", outcome.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_by_rank() {
        assert_eq!(p95((1..=100).map(f64::from).collect()), Some(95.0));
        assert_eq!(p95((1..=20).rev().map(f64::from).collect()), Some(19.0));
        assert_eq!(p95(vec![7.0]), Some(7.0));
        assert_eq!(p95(Vec::new()), None);
    }

    #[test]
    fn numbers_of_programs() {
        let mut o: Outcome = serde_json::from_value(serde_json::json!({
            "name": "x", "status": 0, "wall_ns": 1, "cpu_ns": null, "read_bytes": null,
            "machine_busy_ns": 0, "machine_steal_ns": 0, "memory": null
        }))
        .unwrap();
        o.output = "latency average = 0.812 ms\ntps = 1234.5 (without)\n    transactions:    3456   (57.59 per sec.)\n"
            .into();
        assert_eq!(number_after(&o, "tps ="), Ok(1234.5));
        assert_eq!(number_after(&o, "latency average ="), Ok(0.812));
        assert_eq!(number_after(&o, "transactions:"), Ok(3456.0));
        assert!(number_after(&o, "queries").is_err());
    }

    #[test]
    fn a_tool_that_fails_says_why() {
        assert_eq!(tool("echo", ["a"]), Ok("a".into()));
        assert!(tool("sh", ["-c", "echo no >&2; exit 3"]).unwrap_err().contains("no"));
        assert!(tool("/no/such/tool", [""]).unwrap_err().contains("make bench-real"));
        assert!(find("no-such-program", &[], "some").unwrap_err().contains("install some"));
    }
}
