//! `make install` and `make uninstall`, into a directory of the test: every file is in its place, and the
//! installed programs work.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use terrace_tests::process;
use terrace_tests::tools::need;
use terrace_tests::{TestDir, product, workspace};

/// All files installed below PREFIX, and whether they are executable.
const FILES: &[(&str, bool)] = &[
    ("bin/terrace", true),
    ("lib/systemd/system/terrace@.service", false),
    ("lib/terrace/libterrace_preload.so", false),
    ("share/bash-completion/completions/terrace", false),
    ("share/doc/terrace/mariadb.service.d/terrace.conf", false),
    ("share/doc/terrace/postgresql@.service.d/terrace.conf", false),
    ("share/doc/terrace/terrace.toml", false),
    ("share/fish/vendor_completions.d/terrace.fish", false),
    ("share/man/man1/terrace.1", false),
    ("share/man/man8/mount.fuse.terrace.8", false),
    ("share/man/man8/umount.fuse.terrace.8", false),
    ("share/zsh/site-functions/_terrace", false),
];
const LINKS: &[&str] = &["sbin/mount.fuse.terrace", "sbin/umount.fuse.terrace"];

/// `make TARGET`, with the programs under test as the built ones.
#[track_caller]
fn make(target: &str, variables: &[String]) {
    let built = product("terrace");
    let mut command = Command::new("make");
    command.current_dir(workspace()).args(["--silent", target]).args(variables);
    command.arg(format!("BUILT={}", built.parent().unwrap().display()));
    // Set if the test itself runs under make.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    process::run(&mut command, 60).expect_success();
}

/// Files and links below a directory, by relative path.
fn all_below(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => {
                    found.insert(entry.path().strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn install_puts_every_file_at_its_place_and_takes_it_away() {
    let dir = TestDir::new("install");
    let prefix = dir.path().join("usr");
    let variables = [format!("PREFIX={}", prefix.display())];
    make("install", &variables);
    let expected: BTreeSet<String> =
        FILES.iter().map(|(name, _)| *name).chain(LINKS.iter().copied()).map(str::to_owned).collect();
    assert_eq!(all_below(&prefix), expected);
    for (name, executable) in FILES {
        let mode = fs::metadata(prefix.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o111 != 0, *executable, "{name} {mode:o}");
        assert_eq!(mode & 0o444, 0o444, "{name} {mode:o}");
    }
    for link in LINKS {
        assert_eq!(fs::read_link(prefix.join(link)).unwrap(), prefix.join("bin/terrace"), "{link}");
    }
    let read = |name: &str| fs::read_to_string(prefix.join(name)).unwrap();
    let unit = read("lib/systemd/system/terrace@.service");
    assert!(unit.contains(&format!("ExecStart={}/bin/terrace mount", prefix.display())), "{unit}");
    assert!(!unit.contains("@BINDIR@"), "{unit}");
    assert!(read("share/man/man1/terrace.1").contains(".SH TERRACE MOUNT"));
    assert!(read("share/man/man8/umount.fuse.terrace.8").starts_with(".so man8/mount.fuse.terrace.8"));
    for completion in FILES.iter().map(|(name, _)| *name).filter(|name| name.contains("complet")) {
        assert!(read(completion).contains("drop-caches"), "{completion}");
    }
    for unit in ["postgresql@15-main.service", "mariadb.service"] {
        verify_drop_in(&prefix.join("share/doc/terrace"), unit, &dir.sub("units"));
    }
    make("uninstall", &variables);
    assert_eq!(all_below(&prefix), BTreeSet::new());
}

/// systemd takes a unit with the installed drop-in.
#[track_caller]
fn verify_drop_in(installed: &Path, unit: &str, units: &Path) {
    let template = unit.replace("@15-main", "@");
    fs::create_dir(units.join(format!("{template}.d"))).unwrap();
    fs::copy(
        installed.join(format!("{template}.d/terrace.conf")),
        units.join(format!("{template}.d/terrace.conf")),
    )
    .unwrap();
    fs::write(units.join(&template), "[Service]\nType=notify\nExecStart=/bin/true\n").unwrap();
    let mut analyze = Command::new(need("systemd-analyze", "systemd"));
    analyze.args(["verify", "--man=no"]).arg(units.join(unit));
    analyze.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
    let verified = process::run(&mut analyze, 60);
    assert!(verified.status.success() && verified.stderr.is_empty(), "{unit}: {verified}");
}

/// With DESTDIR, links and units name the final place; the package contains all staged files.
#[test]
fn staged_files_are_those_of_the_debian_package() {
    let dir = TestDir::new("stage");
    let stage = dir.path().join("stage");
    let makefile = fs::read_to_string(workspace().join("Makefile")).unwrap();
    let staged = makefile.lines().find_map(|line| line.trim().strip_prefix("$(MAKE) install ")).unwrap();
    let ours = format!("DESTDIR={}", stage.display());
    let variables: Vec<String> = staged
        .split(' ')
        .map(|word| if word.starts_with("DESTDIR=") { ours.clone() } else { word.to_owned() })
        .collect();
    make("install", &variables);
    let link = fs::read_link(stage.join("usr/sbin/mount.fuse.terrace")).unwrap();
    assert_eq!(link, PathBuf::from("/usr/bin/terrace"));
    let manifest = fs::read_to_string(workspace().join("crates/terrace/Cargo.toml")).unwrap();
    let assets: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[\"../../target/debian/stage/"))
        .map(|rest| rest.split('"').next().unwrap().to_owned())
        .collect();
    assert_eq!(all_below(&stage), assets);
}

#[test]
fn installed_program_finds_its_library_and_its_mount_helpers() {
    if !terrace_tests::is_root() {
        return;
    }
    let dir = TestDir::new("installed");
    let prefix = dir.path().join("usr");
    make("install", &[format!("PREFIX={}", prefix.display())]);
    let (src, mnt) = (dir.sub("src"), dir.sub("mnt"));
    fs::write(src.join("file"), "content").unwrap();
    let mut run = Command::new(prefix.join("bin/terrace"));
    run.args(["run", "--memory", "32MiB", "--on"]).arg(&src).args([
        "--",
        "sh",
        "-c",
        "cat file; echo \" $LD_PRELOAD\"",
    ]);
    let told = process::run(run.current_dir(&src), 60).expect_success();
    let library = fs::canonicalize(&prefix).unwrap().join("lib/terrace/libterrace_preload.so");
    assert_eq!(told.trim_end(), format!("content {}", library.display()));
    let helper = |name: &str| Command::new(prefix.join("sbin").join(name));
    let mut mount = helper("mount.fuse.terrace");
    process::run(mount.arg(&src).arg(&mnt).args(["-o", "memory=32MiB,nosuid"]), 60).expect_success();
    let read = Command::new("cat").arg(mnt.join("file")).output().unwrap();
    process::run(helper("umount.fuse.terrace").arg(&mnt), 60).expect_success();
    assert_eq!(read.stdout, b"content");
    assert!(!mnt.join("file").exists());
}
