//! Commands with an output that cannot be written, or with a closed pipe: one line of error, no panic.

use std::process::Command;

use terrace_testkit::can_mount;
use terrace_testkit::command::check_outputs;

use crate::test_mount::{TestMount, terrace, text};

#[test]
fn outputs_that_fail_are_one_line_and_no_panic() {
    let test = TestMount::dirs();
    let src = text(&test.src);
    for args in [
        &["--help"][..],
        &["--version"],
        &["mount", "--help"],
        &["generate", "man"],
        &["doctor", src, "--json"],
    ] {
        check_outputs(|| terrace(args));
    }
    if !can_mount() {
        return;
    }
    let tier = test.file("tier");
    test.mount(&["--tier", &format!("{}:16MiB", text(&tier))]).fine();
    let mnt = text(&test.mnt);
    for args in [
        &["check", mnt][..],
        &["drop-caches", mnt],
        &["stat", mnt],
        &["stat", mnt, "--json"],
        &["stat", mnt, "--prometheus"],
        &["lru", mnt],
        &["numa", mnt],
        &["tier", "list", text(&tier)],
    ] {
        check_outputs(|| terrace(args));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert!(terrace(["stat", mnt, "--watch", "0.01"]).stdout(writer).status().unwrap().success());
    test.ask("umount", &[]).fine();
    let on_tier = |args: &[&str]| -> Command {
        let mut command = terrace(args);
        command.arg(&tier).stdin(std::process::Stdio::null());
        command
    };
    for args in [&["recover"][..], &["tier", "show"], &["tier", "drop"]] {
        check_outputs(|| on_tier(args));
    }
    test.nothing_is_left();
}
