//! Each kind of bad input: one line with the cure, exit code 2, nothing left mounted.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::test_mount::{Outcome, TERRACE, TestMount, terrace, text, told};

fn mount(src: &Path, mnt: &Path) -> Outcome {
    told(terrace(["mount"]).args([src, mnt]))
}

#[test]
fn source() {
    let test = TestMount::dirs();
    let file = test.file("file");
    fs::write(&file, "").unwrap();
    mount(&test.file("none"), &test.mnt).refused(&["none: the source does not exist", "name a directory"]);
    mount(&file, &test.mnt).refused(&["the source is not a directory"]);
    told(terrace(["run", "--no-preload", "--on", "/nonexistent", "--", "true"])).refused(&["does not exist"]);
    told(terrace(["run", "--no-preload", "--on", "/", "--", "true"]))
        .refused(&["the root cannot be covered"]);
    test.nothing_is_left();
}

#[test]
fn mount_point() {
    let test = TestMount::dirs();
    let file = test.file("file");
    fs::write(&file, "").unwrap();
    mount(&test.src, &test.file("none")).refused(&["the mount point does not exist", "mkdir -p"]);
    mount(&test.src, &file).refused(&["the mount point is not a directory"]);
    mount(&test.src, Path::new("/proc")).refused(&["busy: proc is mounted here"]);
    test.nothing_is_left();
}

#[test]
fn nested() {
    let test = TestMount::dirs();
    let inner = test.src.join("inner");
    fs::create_dir(&inner).unwrap();
    mount(&test.src, &inner).refused(&["the mount point is inside the source", "terrace run --on"]);
    mount(&inner, &test.src).refused(&["the source is inside the mount point"]);
    mount(&test.src, &test.src).refused(&["the source and the mount point at once"]);
    test.nothing_is_left();
}

#[test]
fn already_mounted() {
    let Some(test) = TestMount::new() else { return };
    let other = test.file("other");
    fs::create_dir(&other).unwrap();
    test.mount(&[]).fine();
    test.mount(&[]).refused(&["terrace already serves", "terrace umount"]);
    mount(&test.mnt, &other).refused(&["the source is itself on the terrace mount", text(&test.src)]);
    let mut nested = terrace(["run", "--no-preload", "--on"]);
    nested.arg(&test.mnt).args(["--", "true"]);
    told(nested).refused(&["itself on the terrace mount"]);
    test.finish();
}

#[test]
fn memory_and_policy() {
    let test = TestMount::dirs();
    let with = |flag: &str, value: &str| told(terrace(["mount", flag, value]).args([&test.src, &test.mnt]));
    with("--memory", "1MiB").refused(&["--memory: 1MiB is below the minimum of 16MiB"]);
    with("--memory", "much").refused(&["`much` is not a size", "512MiB"]);
    let file = test.file("terrace.toml");
    fs::write(&file, "min_ttl = \"2s\"\n").unwrap();
    test.mount(&["--config", text(&file), "--policy", "lru"])
        .refused(&["--policy: min_ttl = 2s, but the policy lru has no generations", "leave it at 0s"]);
    with("--policy", "best").refused(&["no policy `best`", "strata, mglru-fg, clock, lru"]);
    with("--policy", "classic").refused(&["`classic` is a yardstick of the simulator", "use 2q"]);
    let mut command = terrace(["mount", text(&test.src), text(&test.mnt)]);
    told(command.env("TERRACE_MEMORY", "1")).refused(&["TERRACE_MEMORY: 1 is below the minimum"]);
    test.nothing_is_left();
}

#[test]
fn configuration() {
    let test = TestMount::dirs();
    let file = test.file("terrace.toml");
    let cases = [
        ("memory = \"32MiB\"\n[dirty]\npercentage = 3\n", "line 3", "unknown field `percentage`"),
        ("\n[io]\nengine = \"fast\"\n", "line 3", "`uring`"),
        ("[dirty]\nratio = 10\nbackground_ratio = 10\n", "line 3", "not below dirty.ratio"),
        ("memory = \n", "line 1", "terrace.toml"),
        ("policy = \"clock\"\nmin_ttl = \"1s\"\n", "line 2", "has no generations"),
        ("\nmin_ttl = \"2h\"\n", "line 2", "write 0s to 1h"),
    ];
    let (src, mnt) = (text(&test.src), text(&test.mnt));
    for (content, line, why) in cases {
        fs::write(&file, content).unwrap();
        told(terrace(["mount", "--config", text(&file), src, mnt])).refused(&[text(&file), line, why]);
        let mut run = terrace(["run", "--no-preload", "--on", src, "--", "true"]);
        told(run.env("TERRACE_CONFIG", &file)).refused(&[line, why]);
    }
    fs::remove_file(&file).unwrap();
    told(terrace(["mount", "--config", text(&file), src, mnt])).refused(&["No such file"]);
    test.nothing_is_left();
}

#[test]
fn usage() {
    told(terrace(["fly"])).refused(&["usage", "'fly'", "terrace --help"]);
    told(terrace::<&str>([])).refused(&["no command is given", "terrace --help"]);
    told(terrace(["mount", "/tmp"])).refused(&["<MNT>"]);
    told(terrace(["run", "--on", "/tmp"])).refused(&["<CMD>"]);
    told(terrace(["stat", "--watch", "0"])).refused(&["0 is no interval"]);
    told(terrace(["resize", "/tmp", "1KiB"])).refused(&["below the minimum"]);
    told(terrace(["lru", "/tmp", "--pages", "3"])).refused(&["--evict"]);
    told(terrace(["lru", "/tmp", "--age", "--evict", "3"])).refused(&["--age"]);
    told(terrace(["lru", "/tmp", "--evict", "old"])).refused(&["'old'"]);
    let trace = |more: [&str; 2]| told(terrace(["trace", "/tmp", "-o", "/nonexistent/t", more[0], more[1]]));
    told(terrace(["trace", "/tmp"])).refused(&["--output"]);
    trace(["--seconds=-1", "--json"]).refused(&["--seconds: -1 s is outside of the range"]);
    trace(["--seconds", "0"]).refused(&["--seconds: 0 s is outside of the range"]);
    trace(["--max", "1KiB"]).refused(&["--max: 1KiB holds no trace"]);
    trace(["--max", "much"]).refused(&["`much` is not a size"]);
    trace(["--seconds", "1"]).refused(&["terrace serves nothing here"]);
    for verb in ["umount", "sync", "drop-caches", "check", "stat", "lru"] {
        told(terrace([verb, "/tmp"])).refused(&["terrace serves nothing here"]);
        told(terrace([verb, "/nonexistent"])).refused(&["/nonexistent"]);
    }
}

/// An instance does not log what it refuses.
#[test]
fn refusals_of_an_instance_do_not_name_its_log() {
    let Some(test) = TestMount::mounted() else { return };
    let refusals: [(&str, &[&str], &str); 2] =
        [("resize", &["1TiB"], "--memory"), ("lru", &["--evict", "999999"], "lists the generations")];
    for (verb, arguments, cure) in refusals {
        let told = test.ask(verb, arguments);
        assert!(!told.err.contains("the log"), "{}", told.err);
        told.refused(&[cure]);
    }
    test.finish();
}

#[test]
fn no_fuse_device() {
    let Some(test) = TestMount::new() else { return };
    // A mount namespace without /dev/fuse.
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" \"$@\"";
    let in_it =
        |args: &[&str]| told(Command::new("unshare").args(["-m", "sh", "-c", script, TERRACE]).args(args));
    in_it(&["mount", text(&test.src), text(&test.mnt)])
        .refused(&["/dev/fuse: No such file", "modprobe fuse"]);
    in_it(&["run", "--no-preload", "--on", text(&test.src), "--", "true"])
        .refused(&["/dev/fuse: No such file"]);
    test.nothing_is_left();
}

#[test]
fn command_of_run() {
    let Some(test) = TestMount::new() else { return };
    let run =
        |words: &[&str]| told(terrace(["run", "--no-preload", "--on", text(&test.src), "--"]).args(words));
    run(&["no-such-command"]).refused_with(127, &["no-such-command: No such file", "PATH"]);
    run(&["/etc/passwd"]).refused_with(126, &["/etc/passwd: Permission denied"]);
    let mut command = terrace(["run", "--on", text(&test.src), "--", "true"]);
    told(command.env("TERRACE_PRELOAD", "/nonexistent.so"))
        .refused(&["TERRACE_PRELOAD: /nonexistent.so does not exist"]);
    told(test.run_with(&["--no-preload", "--stats", "/nonexistent/s.json"], "true"))
        .refused(&["/nonexistent/s.json"]);
    test.nothing_is_left();
}
