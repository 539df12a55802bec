//! Mixed load: git, tar, diff, a database, fio and find beside each other on one mount, with continuous
//! checks. In the long form the instance's memory must become stable.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use terrace_tests::memory::{Memory, OWN_KIB_MAX, descriptors};
use terrace_tests::process::{self, Background};
use terrace_tests::rng::{Rng, fill, seed};
use terrace_tests::tools::need;
use terrace_tests::{Side, TestMount, amount, is_root};

/// Each program is a loop that ends after a round in which the file `stop` exists. `$1`: the test's own
/// files, outside of the mount.
const GIT: &str = r#"
export HOME=$1 GIT_CONFIG_NOSYSTEM=1
until [ -e "$1/stop" ]; do
    rm -rf git git.tar untar
    git clone -q --no-local "$1/origin" git
    test -z "$(git -C git status --porcelain)"
    git -C git fsck --full --strict 2> /dev/null
    tar -cf git.tar git || [ $? = 1 ]
    mkdir untar
    tar -C untar -xf git.tar
    diff -r git untar/git
done
"#;

const ORIGIN: &str = r#"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t HOME=$1 GIT_CONFIG_NOSYSTEM=1
git config --global safe.directory '*'
git init -q -b main "$1/origin"
cp -r "$1/tree" "$1/origin/tree"
git -C "$1/origin" add -A
git -C "$1/origin" commit -q -m all
"#;

/// The kernel may keep attributes read by `find` before a change of the directory: tar then sees its times
/// change, and exits with 1.
const TREE: &str = r#"
until [ -e "$1/stop" ]; do
    rm -rf tree.$2 again.$2
    cp -r "$1/tree" tree.$2
    { tar -cf - tree.$2 || [ $? = 1 ]; } | tar -xf - --transform "s/^tree/again/"
    diff -r "$1/tree" again.$2
done
"#;

/// A file deleted during the walk is not an error.
const FIND: &str = r#"
until [ -e "$1/stop" ]; do
    find . -type f -newer "$1/tree" > /dev/null 2>&1 || true
done
"#;

const DATABASE: &str = r#"
import os, sqlite3, sys
stop = os.path.join(sys.argv[1], 'stop')
while not os.path.exists(stop):
    for name in ('db', 'db-wal', 'db-shm'):
        if os.path.exists(name): os.unlink(name)
    db = sqlite3.connect('db', isolation_level=None)
    db.execute('pragma journal_mode=wal')
    db.execute('create table t (a integer primary key, b blob)')
    for n in range(20):
        db.execute('begin')
        db.executemany('insert into t(b) values (?)', ((os.urandom(500),) for _ in range(500)))
        db.execute('delete from t where a % 3 = 0')
        db.execute('commit')
    said = db.execute('pragma integrity_check').fetchone()[0]
    assert said == 'ok', said
    db.close()
"#;

const FIO: &str = r#"
until [ -e "$1/stop" ]; do
    fio --name=v --filename=fio --size=$2m --rw=randrw --bs=4k-64k --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --ioengine=psync --rate_iops=2000 --verify_backlog=500 --verify_state_save=0 --minimal > "$1/fio.out"
done
"#;

/// A mount under mixed load.
struct Mixed {
    mount: TestMount,
    aside: PathBuf,
    programs: Vec<(&'static str, Background)>,
}

impl Mixed {
    fn start(mount: TestMount, seed: u64, files: u64) -> Mixed {
        for (program, package) in
            [("git", "git"), ("fio", "fio"), ("python3", "python3"), ("diff", "diffutils")]
        {
            need(program, package);
        }
        let aside = mount.aside();
        small_files(&aside.join("tree"), files, &mut Rng::new(seed));
        let origin = ["-euc", ORIGIN, "origin"];
        process::run(Command::new("/bin/bash").args(origin).arg(&aside), 600).expect_success();
        let mut mixed = Mixed { mount, aside, programs: Vec::new() };
        mixed.program("git", "/bin/bash", GIT, "");
        mixed.program("tree one", "/bin/bash", TREE, "1");
        mixed.program("tree two", "/bin/bash", TREE, "2");
        mixed.program("tree three", "/bin/bash", TREE, "3");
        mixed.program("find", "/bin/bash", FIND, "");
        mixed.program("database", "python3", DATABASE, "");
        mixed.program("fio", "/bin/bash", FIO, &amount("TERRACE_FIO_MIB", 16, 200).to_string());
        mixed
    }

    fn program(&mut self, name: &'static str, interpreter: &str, script: &str, argument: &str) {
        let log = std::fs::File::create(self.aside.join(name)).expect("a log");
        let mut command = self.mount.command(interpreter);
        if interpreter == "python3" {
            command.args(["-c", script]);
        } else {
            command.args(["-o", "pipefail", "-euc", script, name]);
        }
        command.arg(&self.aside).arg(argument).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a descriptor")).stderr(log);
        self.programs.push((name, Background::new(&mut command)));
    }

    /// Lets the programs work for `lasts`. About every `pause`, runs `terrace check` and checks memory and
    /// descriptors. Returns the processes' private memory each time, KiB.
    #[track_caller]
    fn work(&mut self, lasts: Duration, pause: Duration, mut also: impl FnMut()) -> Vec<u64> {
        let (start, terraced) = (Instant::now(), self.mount.terraced());
        let mut own = Vec::new();
        while start.elapsed() < lasts {
            let next = Instant::now() + pause;
            while Instant::now() < next {
                std::thread::sleep(Duration::from_millis(200));
                also();
                self.expect_running();
            }
            self.mount.check();
            assert_eq!(self.mount.terraced(), terraced, "terraced fell: see its log");
            let memory = Memory::of(&self.mount);
            println!(
                "{:4} s: {memory:?} KiB, {} descriptors",
                start.elapsed().as_secs(),
                descriptors(terraced)
            );
            own.push(memory.own);
        }
        own
    }

    #[track_caller]
    fn expect_running(&mut self) {
        for (name, program) in &mut self.programs {
            if let Some(status) = program.wait(Duration::ZERO) {
                panic!("{name} ended with {status}: {}", said(&self.aside, name));
            }
        }
    }

    /// Each program ends its round, and must have found no fault.
    #[track_caller]
    fn stop(mut self) {
        std::fs::write(self.aside.join("stop"), "").expect("our own directory");
        for (name, mut program) in std::mem::take(&mut self.programs) {
            let status = program.wait(Duration::from_secs(600));
            assert!(status.is_some_and(|s| s.success()), "{name}: {status:?}: {}", said(&self.aside, name));
        }
        self.mount.finish();
    }
}

fn said(aside: &Path, name: &str) -> String {
    let text = std::fs::read(aside.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(4000)..]).into_owned()
}

/// Makes `count` files of 100 to 9,000 bytes in 40 directories.
fn small_files(dir: &Path, count: u64, rng: &mut Rng) {
    for n in 0..40 {
        std::fs::create_dir_all(dir.join(format!("d{n}"))).expect("our own directory");
    }
    for n in 0..count {
        let mut bytes = vec![0; 100 + rng.below(8900) as usize];
        fill(&mut bytes, rng.next_u64() >> 33);
        std::fs::write(dir.join(format!("d{}/f{n}", n % 40)), bytes).expect("our own directory");
    }
}

#[test]
fn mixed_load_passes_every_check_and_keeps_its_memory() {
    let test = "mixed";
    let seed = seed(test);
    let mount = TestMount::new(test, Side::Mount, "64MiB");
    let mut mixed = Mixed::start(mount, seed, amount("TERRACE_FILES", 300, 2600));
    let (lasts, pause) = (amount("TERRACE_MIXED_SECONDS", 5, 720), amount("TERRACE_MIXED_PAUSE", 2, 30));
    let own = mixed.work(Duration::from_secs(lasts), Duration::from_secs(pause), || ());
    let (most, last_half) = (own.iter().max().expect("seen once"), &own[own.len() / 2..]);
    println!("most: {most} KiB; in the second half: {last_half:?}");
    assert!(*most <= OWN_KIB_MAX, "{most} KiB of the processes: {own:?}");
    mixed.stop();
}

/// The kernel drops inodes and pages all the time, while they are in use and recreated.
#[test]
fn mixed_load_passes_while_the_kernel_forgets() {
    if !is_root() {
        return;
    }
    let test = "mixed-forgotten";
    let seed = seed(test);
    let mount = TestMount::of(test, Side::Mount, &["--memory", "128MiB"], None, 20_000);
    let mut mixed = Mixed::start(mount, seed, amount("TERRACE_FILES", 300, 2600));
    let lasts = Duration::from_secs(amount("TERRACE_MIXED_SECONDS", 5, 180));
    let mut last = Instant::now();
    mixed.work(lasts, Duration::from_secs(5), || {
        if last.elapsed() > Duration::from_secs(1) {
            // Drops dentries and inodes, not pages, so that other programs on this machine keep theirs.
            std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may do so");
            last = Instant::now();
        }
    });
    mixed.stop();
}

/// An instance with fewer descriptors than there are files: no program meets EMFILE.
#[test]
fn mixed_load_passes_with_few_descriptors() {
    let test = "mixed-few";
    let seed = seed(test);
    let mount =
        TestMount::of(test, Side::Mount, &["--memory", "64MiB"], None, amount("TERRACE_NOFILE", 400, 4096));
    let mut mixed = Mixed::start(mount, seed, amount("TERRACE_FILES", 600, 2600));
    let lasts = Duration::from_secs(amount("TERRACE_MIXED_SECONDS", 5, 180));
    mixed.work(lasts, Duration::from_secs(5), || ());
    mixed.stop();
}
