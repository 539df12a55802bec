//! Environments of the command: limits, names that are not UTF-8, a full runtime directory.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::test_mount::{TERRACE, TestMount, told};

/// A script in a mount namespace of its own: `$t` is the program, `$1` the source, `$2` the mount point.
fn script(test: &TestMount, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script, "sh"]).arg(&test.src).arg(&test.mnt).env("t", TERRACE);
    command
}

#[test]
fn limits_of_the_caller_end_no_instance() {
    let Some(test) = TestMount::new() else { return };
    // Limits on file size (1 GiB), address space (8 GiB) and private memory (128 MiB), which terrace may
    // raise.
    for limit in ["ulimit -f 2097152", "ulimit -v 8388608", "ulimit -S -d 131072"] {
        let run = format!(
            "{limit}; \"$t\" run --memory 32MiB --mount --no-preload --on \"$1\" -- sh -c ulimit\\ -f"
        );
        let out = told(script(&test, &run)).fine().out;
        assert_eq!(
            out.trim() != "unlimited",
            limit.starts_with("ulimit -f"),
            "{limit}: the command keeps it"
        );
        test.nothing_is_left();
    }
    // Without the right to raise a limit.
    let few =
        "ulimit -d 131072; setpriv --bounding-set -sys_resource \"$t\" mount --memory 32MiB \"$1\" \"$2\"";
    told(script(&test, few)).refused(&["private memory", "the limit is 128 MiB", "ulimit -d unlimited"]);
    test.nothing_is_left();
    // A write past the file-size limit of the mount's starter, by a process without that limit: EFBIG or
    // success, and the mount survives.
    let write = "ulimit -S -f 2097152; \"$t\" mount --memory 32MiB \"$1\" \"$2\"; ulimit -S -f unlimited; printf kept > \"$2/y\"; \
                 dd if=/dev/zero of=\"$2/x\" bs=64k count=1 seek=32768 conv=fsync 2>/dev/null || :; \
                 sync \"$2/y\"; \"$t\" umount \"$2\"; cat \"$1/y\"";
    assert_eq!(told(script(&test, write)).fine().out, "kept");
    test.nothing_is_left();
}

#[test]
fn names_that_are_not_utf8_are_served_and_found() {
    let Some(mut test) = TestMount::new() else { return };
    for at in [&mut test.src, &mut test.mnt] {
        let odd = at.join(OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir(&odd).unwrap();
        *at = odd;
    }
    fs::write(test.src.join("f"), "content").unwrap();
    let all = "\"$t\" mount --memory 32MiB \"$1\" \"$2\"; cat \"$2/f\"; printf ' and more' >> \"$2/f\"; \
               for verb in stat sync check; do \"$t\" $verb \"$2\" > /dev/null; done; \"$t\" stat \"$2\" --json > /dev/null; \
               \"$t\" umount \"$2\"; cat \"$1/f\"; \"$t\" run --memory 32MiB --mount --no-preload --on \"$1\" -- cat \"$1/f\"; \
               \"$t\" doctor \"$1\" --json > /dev/null";
    let out = told(script(&test, all)).fine().out;
    assert_eq!(out, "contentcontent and morecontent and more");
    test.nothing_is_left();
}

#[test]
fn full_runtime_directory_is_passed_over() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("f"), "content").unwrap();
    let run = "mkdir -p /run/terrace; mount -t tmpfs -o size=4k,mode=700 none /run/terrace; \
               head -c 4096 /dev/zero > /run/terrace/fill; \
               \"$t\" run --memory 32MiB --mount --no-preload --on \"$1\" -- cat \"$1/f\"; \
               \"$t\" mount --memory 32MiB \"$1\" \"$2\"; \"$t\" stat \"$2\" > /dev/null; \"$t\" umount \"$2\"; ls /run/terrace";
    assert_eq!(told(script(&test, run)).fine().out, "contentfill\n");
    test.nothing_is_left();
}

#[test]
fn full_runtime_directories_are_refused_in_one_line() {
    let Some(test) = TestMount::new() else { return };
    let run = "for d in /run/terrace /tmp /dev/shm; do mkdir -p $d; mount -t tmpfs -o size=4k none $d; \
               [ $d = /run/terrace ] || mkdir -m 700 $d/terrace-0; head -c 4096 /dev/zero > $d/fill || :; done; \
               exec \"$t\" run --memory 32MiB --mount --no-preload --on \"$1\" -- true";
    told(script(&test, run)).refused(&["/run/terrace: No space left on device", "free space there"]);
    test.nothing_is_left();
}
