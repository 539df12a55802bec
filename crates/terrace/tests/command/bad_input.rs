//! Each kind of bad input: one line with the cure, exit code 2, nothing left mounted.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::stage::{TestMount, possible, terrace, text, told};

fn mount(src: &Path, mnt: &Path) -> crate::stage::Outcome {
    let mut command = terrace(["mount"]);
    command.args([src, mnt]);
    told(command)
}

#[test]
fn source() {
    let stage = TestMount::new();
    let file = stage.file("file");
    fs::write(&file, "").unwrap();
    mount(&stage.file("none"), &stage.mnt).refused(&["none: the source does not exist", "name a directory"]);
    mount(&file, &stage.mnt).refused(&["the source is not a directory"]);
    told(terrace(["run", "--no-preload", "--on", "/nonexistent", "--", "true"])).refused(&["does not exist"]);
    told(terrace(["run", "--no-preload", "--on", "/", "--", "true"]))
        .refused(&["the root cannot be covered"]);
    stage.nothing_is_left();
}

#[test]
fn mount_point() {
    let stage = TestMount::new();
    let file = stage.file("file");
    fs::write(&file, "").unwrap();
    mount(&stage.src, &stage.file("none")).refused(&["the mount point does not exist", "mkdir -p"]);
    mount(&stage.src, &file).refused(&["the mount point is not a directory"]);
    mount(&stage.src, Path::new("/proc")).refused(&["busy: proc is mounted here"]);
    stage.nothing_is_left();
}

#[test]
fn nested() {
    let stage = TestMount::new();
    let inner = stage.src.join("inner");
    fs::create_dir(&inner).unwrap();
    mount(&stage.src, &inner).refused(&["the mount point is inside the source", "terrace run --on"]);
    mount(&inner, &stage.src).refused(&["the source is inside the mount point"]);
    mount(&stage.src, &stage.src).refused(&["source and mount point at once"]);
    stage.nothing_is_left();
}

#[test]
fn already_mounted() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let other = stage.file("other");
    fs::create_dir(&other).unwrap();
    stage.mount(&[]).fine();
    stage.mount(&[]).refused(&["terrace already serves", "terrace umount"]);
    mount(&stage.mnt, &other).refused(&["the source is itself on the terrace mount", text(&stage.src)]);
    let mut nested = terrace(["run", "--no-preload", "--on"]);
    nested.arg(&stage.mnt).args(["--", "true"]);
    told(nested).refused(&["itself on the terrace mount"]);
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

#[test]
fn memory_and_policy() {
    let stage = TestMount::new();
    let with = |flag: &str, value: &str| {
        let mut command = terrace(["mount", flag, value]);
        command.args([&stage.src, &stage.mnt]);
        told(command)
    };
    with("--memory", "1MiB").refused(&["--memory: 1MiB is below the minimum of 16MiB"]);
    with("--memory", "much").refused(&["`much` is not a size", "512MiB"]);
    let file = stage.file("terrace.toml");
    fs::write(&file, "min_ttl = \"2s\"\n").unwrap();
    let mut command = terrace(["mount", "--config", text(&file), "--policy", "lru"]);
    command.args([&stage.src, &stage.mnt]);
    told(command)
        .refused(&["--policy: min_ttl = 2s, but the policy lru has no generations", "leave it at 0s"]);
    with("--policy", "best").refused(&["no policy `best`", "strata, mglru-fg, clock, lru"]);
    with("--policy", "classic").refused(&["`classic` is a yardstick of the simulator", "use 2q"]);
    let mut command = terrace(["mount"]);
    command.args([&stage.src, &stage.mnt]).env("TERRACE_MEMORY", "1");
    told(command).refused(&["TERRACE_MEMORY: 1 is below the minimum"]);
    stage.nothing_is_left();
}

#[test]
fn configuration() {
    let stage = TestMount::new();
    let file = stage.file("terrace.toml");
    let cases = [
        ("memory = \"32MiB\"\n[dirty]\npercentage = 3\n", "line 3", "unknown field `percentage`"),
        ("\n[io]\nengine = \"fast\"\n", "line 3", "`uring`"),
        ("[dirty]\nratio = 10\nbackground_ratio = 10\n", "line 3", "not below dirty.ratio"),
        ("memory = \n", "line 1", "terrace.toml"),
        ("policy = \"clock\"\nmin_ttl = \"1s\"\n", "line 2", "has no generations"),
        ("\nmin_ttl = \"2h\"\n", "line 2", "write 0s to 1h"),
    ];
    for (content, line, why) in cases {
        fs::write(&file, content).unwrap();
        let mut command = terrace(["mount", "--config", text(&file)]);
        command.args([&stage.src, &stage.mnt]);
        told(command).refused(&[text(&file), line, why]);
        let mut command = terrace(["run", "--no-preload", "--on", text(&stage.src), "--", "true"]);
        command.env("TERRACE_CONFIG", &file);
        told(command).refused(&[line, why]);
    }
    fs::remove_file(&file).unwrap();
    let mut command = terrace(["mount", "--config", text(&file)]);
    command.args([&stage.src, &stage.mnt]);
    told(command).refused(&["No such file"]);
    stage.nothing_is_left();
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
    trace(["--seconds=-1", "--json"]).refused(&["--seconds: -1 is no length of time"]);
    trace(["--seconds", "0"]).refused(&["--seconds: 0 is no length of time"]);
    trace(["--max", "1KiB"]).refused(&["--max: 1KiB holds no trace"]);
    trace(["--max", "much"]).refused(&["`much` is not a size"]);
    trace(["--seconds", "1"]).refused(&["terrace serves nothing here"]);
    for verb in ["umount", "sync", "drop-caches", "check", "stat", "lru"] {
        told(terrace([verb, "/tmp"])).refused(&["terrace serves nothing here"]);
        told(terrace([verb, "/nonexistent"])).refused(&["/nonexistent"]);
    }
}

#[test]
fn no_fuse_device() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    // A mount namespace without /dev/fuse.
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" \"$@\"";
    let in_it = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_terrace")]).args(args);
        told(command)
    };
    in_it(&["mount", text(&stage.src), text(&stage.mnt)])
        .refused(&["/dev/fuse: No such file", "modprobe fuse"]);
    in_it(&["run", "--no-preload", "--on", text(&stage.src), "--", "true"])
        .refused(&["/dev/fuse: No such file"]);
    stage.nothing_is_left();
}

#[test]
fn command_of_run() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let run = |words: &[&str]| {
        let mut command = terrace(["run", "--no-preload", "--on", text(&stage.src), "--"]);
        command.args(words);
        told(command)
    };
    run(&["no-such-command"]).refused_with(127, &["no-such-command: No such file", "PATH"]);
    run(&["/etc/passwd"]).refused_with(126, &["/etc/passwd: Permission denied"]);
    let mut command = terrace(["run", "--on", text(&stage.src), "--", "true"]);
    command.env("TERRACE_PRELOAD", "/nonexistent.so");
    told(command).refused(&["TERRACE_PRELOAD: /nonexistent.so does not exist"]);
    let mut command =
        terrace(["run", "--no-preload", "--stats", "/nonexistent/s.json", "--on", text(&stage.src)]);
    command.args(["--", "true"]);
    told(command).refused(&["/nonexistent/s.json"]);
    stage.nothing_is_left();
}
