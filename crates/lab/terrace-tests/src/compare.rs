//! Comparison of two sides: both run one operation script, and their results must agree. A failing script is
//! minimised.

use crate::exec;
use crate::gen_ops::{Ops, interleave};
use crate::process::{self, helper};
use crate::rng::Rng;
use crate::test_dir::workspace;
use crate::test_mount::TestMount;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit of a script.
const SCRIPT_SECONDS_MAX: u64 = 300;
/// Time limit of minimising.
const MINIMISE_MAX: Duration = Duration::from_secs(120);

/// Command line of the driver.
#[derive(Clone, Debug, Default)]
pub struct Driver {
    /// Words before the driver's own (`terrace run ... --`).
    pub wrapper: Vec<String>,
    /// `--break` for the driver: a deliberate fault.
    pub fault: Option<String>,
}

/// Results of one run, and its directory.
#[derive(Debug)]
pub struct Run {
    /// Results, one line an operation.
    pub log: String,
    /// The directory, relative to the mount's.
    pub(crate) root: String,
}

/// Creates the file for `press` in the runs' directory of this mount.
pub fn prepare(mount: &TestMount) {
    exec::write_big(&mount.at().join("big")).expect("the big file can be written");
}

/// Runs a script in a fresh directory of a test mount.
pub fn run_script(mount: &TestMount, driver: &Driver, script: &str) -> Run {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let root = format!("r{n}");
    let path = mount.at().join(&root);
    std::fs::create_dir(&path).expect("a directory for the run");
    std::fs::hard_link(mount.at().join("big"), path.join("big")).expect("the big file can be linked");
    let file = mount.aside().join(format!("script-{n}"));
    std::fs::write(&file, script).expect("the script can be written");

    let mut command = match driver.wrapper.split_first() {
        Some((first, rest)) => {
            let mut command = mount.command(first);
            command.args(rest).arg(helper("opdriver"));
            command
        }
        None => mount.command(helper("opdriver")),
    };
    command.arg(&path).arg(&file);
    if let Some(fault) = &driver.fault {
        command.args(["--break", fault]);
    }
    let outcome = process::run(&mut command, SCRIPT_SECONDS_MAX);
    let mut log = outcome.stdout.clone();
    if !outcome.status.success() {
        log += &format!("the driver ended: {:?} {}\n", outcome.status, outcome.stderr);
    }
    std::fs::remove_file(path.join("big")).expect("the big file can be unlinked");
    let _ = std::fs::remove_file(file);
    Run { log, root }
}

/// Two sides that must agree.
#[derive(Debug)]
pub struct Pair<'a> {
    /// The plain directory.
    pub(crate) reference: &'a TestMount,
    /// The side under test.
    pub(crate) tested: &'a TestMount,
    /// How the driver runs on the tested side.
    pub(crate) driver: Driver,
    roots: std::cell::RefCell<Vec<(String, String)>>,
}

impl<'a> Pair<'a> {
    /// A pair; both mounts must be prepared.
    pub fn new(reference: &'a TestMount, tested: &'a TestMount, driver: Driver) -> Pair<'a> {
        Pair { reference, tested, driver, roots: Default::default() }
    }

    /// Runs the sequences interleaved on both sides. A difference is minimised and reported.
    pub fn check(&self, sequences: &[Ops], rng: &mut Rng) -> Result<(), String> {
        let script = interleave(sequences, rng);
        let Some(difference) = self.differ(&script) else { return Ok(()) };
        Err(self.explain(&script, &difference))
    }

    fn differ(&self, script: &str) -> Option<Difference> {
        let reference = run_script(self.reference, &Driver::default(), script);
        let tested = run_script(self.tested, &self.driver, script);
        let difference = Difference::find(&reference.log, &tested.log);
        self.roots.borrow_mut().push((reference.root, tested.root));
        difference
    }

    /// Compares the trees left by all runs so far, as the source file system shows them. Call after umount.
    pub fn check_sources(&self) -> Result<(), String> {
        for (left, right) in self.roots.borrow_mut().drain(..) {
            let (left, right) = (self.reference.src().join(left), self.tested.src().join(right));
            let tree = |path: &PathBuf| {
                process::run(std::process::Command::new(helper("opdriver")).arg("--tree").arg(path), 120)
                    .expect_success()
            };
            if let Some(d) = Difference::find(&tree(&left), &tree(&right)) {
                return Err(format!("the sources differ after umount: {}\n{d}", right.display()));
            }
            for path in [left, right] {
                std::fs::remove_dir_all(path).expect("a run's directory can be removed");
            }
        }
        Ok(())
    }

    fn explain(&self, script: &str, difference: &Difference) -> String {
        let kept = keep(script);
        let mut text = format!("{difference}\nthe whole script: {}\n", kept.display());
        match self.minimise(script) {
            Some((script, difference)) => text += &format!("the least that differs:\n{script}\n{difference}"),
            None => text += "a second time, the script does not differ\n",
        }
        text
    }

    /// Removes sequences, then operations, while the two sides still differ.
    fn minimise(&self, script: &str) -> Option<(String, Difference)> {
        let mut tries = 0;
        let mut difference = None;
        let end = Instant::now() + MINIMISE_MAX;
        let mut differs = |lines: &[Line]| {
            tries += 1;
            if tries > 400 || Instant::now() > end {
                return false;
            }
            let found = self.differ(&render(lines));
            let is_one = found.is_some();
            difference = found.or(difference.take());
            is_one
        };
        let mut lines = parse(script);
        if !differs(&lines) {
            return None;
        }
        let mut sequences: Vec<usize> = lines.iter().map(|l| l.0).collect();
        sequences.sort_unstable();
        sequences.dedup();
        shrink(&mut sequences, |left| differs(&only(&lines, left)));
        lines = only(&lines, &sequences);
        shrink(&mut lines, &mut differs);
        Some((render(&lines), difference?))
    }
}

/// The index of a sequence, and an operation of it.
type Line = (usize, String);

fn parse(script: &str) -> Vec<Line> {
    let mut now = 0;
    let mut lines = Vec::new();
    for line in script.lines() {
        match line.strip_prefix('@') {
            Some(n) => now = n.parse().expect("the number of a sequence"),
            None => lines.push((now, line.to_owned())),
        }
    }
    lines
}

fn render(lines: &[Line]) -> String {
    let mut script = String::new();
    let mut now = usize::MAX;
    for (n, op) in lines {
        if *n != now {
            script += &format!("@{n}\n");
            now = *n;
        }
        script += op;
        script.push('\n');
    }
    script
}

fn only(lines: &[Line], sequences: &[usize]) -> Vec<Line> {
    lines.iter().filter(|l| sequences.contains(&l.0)).cloned().collect()
}

/// Removes ever smaller parts while `fails` still holds without them.
fn shrink<T: Clone>(items: &mut Vec<T>, mut fails: impl FnMut(&[T]) -> bool) {
    let mut chunk = items.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < items.len() {
            let mut candidate = items.clone();
            candidate.drain(at..(at + chunk).min(items.len()));
            if !candidate.is_empty() && fails(&candidate) {
                *items = candidate;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
}

fn keep(script: &str) -> PathBuf {
    let dir = workspace().join("target/test-failures");
    std::fs::create_dir_all(&dir).expect("target can be written");
    let path = dir.join(format!("script-{:x}", crate::rng::hash(script.as_bytes())));
    std::fs::write(&path, script).expect("target can be written");
    path
}

/// First difference of two logs.
#[derive(Debug)]
pub(crate) struct Difference {
    text: String,
}

impl Difference {
    /// The first differing line of two logs, with the lines before it.
    pub(crate) fn find(reference: &str, tested: &str) -> Option<Difference> {
        if reference == tested {
            return None;
        }
        let (left, right): (Vec<&str>, Vec<&str>) = (reference.lines().collect(), tested.lines().collect());
        let at = left.iter().zip(&right).position(|(l, r)| l != r).unwrap_or(left.len().min(right.len()));
        let line = |lines: &[&str]| lines.get(at).map_or("(nothing)".to_owned(), |l| l.to_string());
        let own = left.get(at).or(right.get(at)).and_then(|l| l.split(' ').next()?.parse::<usize>().ok());
        let mine = |l: &&&str| own.is_some_and(|n| l.starts_with(&format!("{n} ")));
        let before: Vec<&&str> = left[..at].iter().filter(mine).collect();
        let mut text = String::new();
        for l in before.iter().rev().take(25).rev() {
            text += &format!("          {l}\n");
        }
        text += &format!("reference {}\ntested    {}\n", line(&left), line(&right));
        Some(Difference { text })
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
