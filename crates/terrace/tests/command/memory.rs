//! A mount under the limit of a control group: the reports, and the size of the cache.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use terrace_api::stats::{Bound, Mode};
use terrace_system::cgroup::{self, Version};
use terrace_testkit::wait::holds_within;

use crate::test_mount::{Outcome, TestMount, alive, kill, terrace, text, told, wait_until, write_apart};

const MIB: u64 = 1 << 20;

/// A control group with a memory limit; removed once its processes have ended.
struct Group(cgroup::Group);

impl Group {
    fn with_limit(name: &str, mib: u64) -> Option<Group> {
        let trees = [(Version::V1, "/sys/fs/cgroup/memory"), (Version::V2, "/sys/fs/cgroup")];
        let made = trees.into_iter().find_map(|(version, tree)| {
            let _ = fs::write(Path::new(tree).join("cgroup.subtree_control"), "+memory");
            let dir = Path::new(tree).join(format!("terrace-{name}.{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let group = Group(cgroup::Group { version, dir });
            let limit = group.0.file("memory.limit_in_bytes", "memory.max");
            (limit.exists() && fs::write(limit, (mib * MIB).to_string()).is_ok()).then_some(group)
        });
        if made.is_none() {
            terrace_testkit::skipped!("no control group with a limit of memory can be made");
        }
        made
    }

    /// Starts the command inside the group.
    fn run(&self, command: &mut Command) -> Child {
        let procs = fs::File::options().write(true).open(self.0.dir.join("cgroup.procs")).unwrap();
        // SAFETY: between fork and exec; a write is async-signal-safe.
        unsafe { command.pre_exec(move || Ok(rustix::io::write(&procs, b"0").map(drop)?)) };
        command.spawn().unwrap()
    }

    fn mount(&self, test: &TestMount, memory: &str) -> Outcome {
        self.mount_with(test, &["--memory", memory])
    }

    fn mount_with(&self, test: &TestMount, more: &[&str]) -> Outcome {
        let mut command = terrace(["mount"]);
        command.args(more);
        let log = fs::File::create(test.file("err")).unwrap();
        let status = self.run(command.args([&test.src, &test.mnt]).stderr(log)).wait().unwrap();
        let err = fs::read_to_string(test.file("err")).unwrap();
        Outcome { code: status.code(), out: String::new(), whole_err: err.clone(), err }
    }

    fn kills(&self) -> u64 {
        self.0.kills().unwrap().expect("the kernel counts those it kills")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        holds_within(std::time::Duration::from_secs(10), || fs::remove_dir(&self.0.dir).is_ok());
    }
}

/// Reads a file twice, past the kernel's page cache.
fn read_twice(path: &Path) {
    for _ in 0..2 {
        let mut dd = Command::new("dd");
        told({
            dd.arg(format!("if={}", text(path))).args([
                "of=/dev/null",
                "bs=1M",
                "iflag=direct",
                "status=none",
            ]);
            dd
        })
        .fine();
    }
}

#[test]
fn mount_in_a_small_group_tells_and_keeps_within() {
    let Some(test) = TestMount::new() else { return };
    let Some(group) = Group::with_limit("small", 72) else { return };
    let old: Vec<u8> = (0..96 * MIB).map(|at| (at / 4096) as u8).collect();
    fs::write(test.src.join("old"), &old).unwrap();
    let mounted = group.mount(&test, "64MiB");
    assert_eq!((mounted.code, mounted.err.lines().count()), (Some(0), 1), "{}", mounted.err);
    for part in
        [text(&group.0.dir), "72.0 MiB cannot hold --memory 64MiB", "24.0 MiB", "lower --memory to 48MiB"]
    {
        assert!(mounted.err.contains(part), "`{part}` is not in: {}", mounted.err);
    }
    read_twice(&test.mnt.join("old"));
    assert!(write_apart(&test.mnt.join("new"), &old[..(32 * MIB) as usize]));
    let stat = test.stat();
    assert_eq!(stat.cache.memory.limit_bytes, 64 * MIB);
    assert!(stat.cache.memory.ceiling_bytes.is_some_and(|bytes| bytes <= 48 * MIB), "{stat:?}");
    assert!(test.ask("stat", &[]).fine().out.contains("there is no more memory"));
    let log = fs::read_to_string(test.instances()[0].join("terraced.log")).unwrap();
    assert!(log.contains("cannot hold --memory 64MiB"), "{log}");
    assert_eq!((group.kills(), stat.instance.restarts), (0, 0));
    test.ask("check", &[]).fine();
    test.finish();
    assert!(fs::read(test.src.join("new")).unwrap() == old[..(32 * MIB) as usize]);
}

#[test]
fn memory_is_chosen_without_a_limit_and_told() {
    let Some(test) = TestMount::new() else { return };
    let Some(group) = Group::with_limit("auto", 128) else { return };
    fs::write(test.src.join("old"), vec![3; (160 * MIB) as usize]).unwrap();
    group.mount_with(&test, &[]).fine();
    read_twice(&test.mnt.join("old"));
    let memory = test.stat().cache.memory;
    let sizing = memory.sizing.clone().unwrap();
    assert_eq!(sizing.mode, Mode::Auto);
    assert!(sizing.bound != Bound::Limit && sizing.bound_by.is_some(), "{sizing:?}");
    assert!(memory.used_bytes > 48 * MIB && memory.used_bytes < 120 * MIB, "{memory:?}");
    assert_eq!(memory.ceiling_bytes, Some(sizing.target_bytes));
    let page = test.ask("stat", &[]).fine().out;
    assert!(page.contains("auto: ") && page.contains(text(&group.0.dir)), "{page}");
    // Resized by command, and back.
    test.ask("resize", &["32MiB"]).fine();
    // Metadata of files being read may grow before the pool shrinks for them.
    wait_until("the new limit holds", || {
        let memory = test.stat().cache.memory;
        assert_eq!(memory.limit_bytes, 32 * MIB);
        memory.used_bytes <= 32 * MIB
    });
    wait_until("fixed", || test.stat().cache.memory.sizing.unwrap().mode == Mode::Fixed);
    test.ask("resize", &["auto"]).fine();
    wait_until("auto again", || test.stat().cache.memory.sizing.unwrap().mode == Mode::Auto);
    wait_until("grown", || {
        read_twice(&test.mnt.join("old"));
        test.stat().cache.memory.used_bytes > 48 * MIB
    });
    assert_eq!((group.kills(), test.stat().instance.restarts), (0, 0));
    test.ask("check", &[]).fine();
    test.finish();
}

/// The cache fills the group; then a program in it allocates half of it within half a second.
#[test]
fn program_that_takes_memory_gets_it_and_nothing_is_killed() {
    let Some(test) = TestMount::new() else { return };
    let Some(group) = Group::with_limit("taken", 192) else { return };
    fs::write(test.src.join("old"), vec![3; (192 * MIB) as usize]).unwrap();
    group.mount_with(&test, &[]).fine();
    let used = || test.stat().cache.memory.used_bytes;
    wait_until("full", || {
        read_twice(&test.mnt.join("old"));
        used() > 128 * MIB
    });
    let mut hog = Command::new("python3");
    let takes = "[(time.sleep(.02), b'x' * (4 << 20)) for i in range(24)]";
    hog.args([
        "-c",
        &format!("import sys, time; b = {takes}; print('has it', flush=True); sys.stdin.read()"),
    ]);
    let mut hog = group.run(hog.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(hog.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), group.kills()), ("has it\n", 0));
    wait_until("less", || used() < 72 * MIB);
    wait_until("told", || test.stat().cache.memory.sizing.unwrap().yielded_bytes > 16 * MIB);
    drop(hog.stdin.take());
    hog.wait().unwrap();
    let least = used();
    wait_until("grown again", || {
        read_twice(&test.mnt.join("old"));
        used() > least + 8 * MIB
    });
    assert_eq!((group.kills(), test.stat().instance.restarts), (0, 0));
    test.ask("check", &[]).fine();
    test.finish();
}

/// A program of the group allocates so fast that the kernel kills: first terraced, as the largest, then
/// perhaps that program.
#[test]
fn terraced_killed_for_want_of_memory_names_it_and_serves() {
    let Some(test) = TestMount::new() else { return };
    let Some(group) = Group::with_limit("hog", 120) else { return };
    fs::write(test.src.join("old"), vec![3; (96 * MIB) as usize]).unwrap();
    group.mount(&test, "64MiB").fine();
    read_twice(&test.mnt.join("old"));
    let mut writer = Command::new("sh");
    writer.args(["-c", &format!("exec > '{}'; printf %0100000d 7; read end", text(&test.mnt.join("new")))]);
    let mut writer = writer.stdin(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("written", || fs::metadata(test.mnt.join("new")).is_ok_and(|meta| meta.len() == 100_000));
    let (supervisor, terraced) = test.processes();
    // Stopped, so that it cannot free memory in time.
    kill(terraced, libc::SIGSTOP);
    let mut hog = Command::new("python3");
    hog.args(["-c", "b = b'x' * (56 << 20); input()"]);
    let mut hog = group.run(hog.stdin(std::process::Stdio::piped()));
    wait_until("killed", || !alive(terraced));
    assert!(group.kills() > 0);
    assert!(alive(supervisor), "the supervisor has little, and counts less");

    wait_until("told of", || test.stat().instance.restarts > 0);
    let stat = test.stat();
    let death = stat.instance.last_death.as_deref().unwrap();
    assert!(
        death.contains("for lack of memory in its control group") && death.contains(text(&group.0.dir)),
        "{death}"
    );
    assert!(stat.cache.memory.ceiling_bytes.is_some_and(|bytes| bytes < 64 * MIB), "{stat:?}");
    assert!(test.ask("stat", &[]).fine().out.contains("last death"));
    let log = fs::read_to_string(test.instances()[0].join("terraced.log")).unwrap();
    assert!(log.contains("for lack of memory") && log.contains("gives back"), "{log}");
    read_twice(&test.mnt.join("old"));
    drop(writer.stdin.take());
    writer.wait().unwrap();
    test.ask("check", &[]).fine();
    test.finish();
    let new = fs::read(test.src.join("new")).unwrap();
    assert!(new.len() == 100_000 && new.ends_with(b"00007"));
    let _ = hog.kill();
    hog.wait().unwrap();
}
