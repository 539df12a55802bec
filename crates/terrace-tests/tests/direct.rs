//! Direct opens: under `terrace run --passthrough auto`, clients open small files for reading in the source itself, and see no difference.
//!
//! The scripts in `direct/` run in a client; they tell a direct descriptor by the mount that /proc/self/fdinfo names.

use std::process::Command;
use std::time::Duration;

use terrace_tests::rig::{Chaos, Rig, Side, Trouble};
use terrace_tests::rng::seed;
use terrace_tests::{amount, leftovers, process};

/// A rig whose programs may open files directly; none, with a word, where the kernel or the user cannot have it.
fn rig(test: &str, more: &[&str]) -> Option<Rig> {
    crate::passthrough::is_possible().then(|| {
        let options = [&["--memory", "16MiB", "--passthrough", "auto"], more].concat();
        Rig::with(test, Side::Run, &options)
    })
}

/// Python with a script, under a `terrace run` of its own.
fn script(rig: &Rig, text: &str) -> Command {
    let path = rig.aside().join("script.py");
    let prelude = include_str!("direct/prelude.py");
    std::fs::write(&path, format!("{prelude}\n{text}")).unwrap();
    let mut command = rig.command("python3");
    command
        .arg(path)
        .env("TERRACE_LARGE_FILE", (1 << 20).to_string())
        .env("BOARD", rig.aside().join("board"));
    command
}

#[track_caller]
fn passes(test: &str, text: &str, more: &[&str]) {
    let Some(rig) = rig(test, more) else { return };
    let said = process::run(&mut script(&rig, text), 120).expect_success();
    assert!(said.trim_end().ends_with(" ok"), "{said}");
    rig.finish();
}

/// Absolute and relative paths, directories that move, links, `..`, flags, streams: opened directly, and the same file.
#[test]
fn direct_opens_find_the_file_of_the_mount() {
    passes("direct-names", include_str!("direct/names.py"), &[]);
}

/// Whatever a descriptor is used for that the source would answer differently, it is the mount's by then, at the same position.
#[test]
fn direct_descriptors_are_exchanged_where_it_matters() {
    passes("direct-leaving", include_str!("direct/leaving.py"), &[]);
}

#[test]
fn locks_exclude_others_also_by_direct_descriptors() {
    passes("direct-locks", include_str!("direct/locks.py"), &[]);
}

/// Set-id and large files, fresh ones, unlinked and renamed ones, files that grow or are mapped; and rights.
#[test]
fn direct_opens_keep_off_what_they_cannot_serve() {
    passes("direct-rest", include_str!("direct/rest.py"), &[]);
}

#[test]
fn direct_opens_end_with_a_new_root_directory() {
    passes("direct-chroot", include_str!("direct/chroot.py"), &[]);
}

#[test]
fn exchange_of_a_descriptor_harms_no_other_thread() {
    passes("direct-threads", include_str!("direct/threads.py"), &[]);
}

#[test]
fn direct_opens_stay_within_the_mount() {
    let Some(rig) = rig("direct-except", &["--except", "logs"]) else { return };
    std::fs::create_dir(rig.src().join("logs")).unwrap();
    let said = process::run(&mut script(&rig, include_str!("direct/except.py")), 60).expect_success();
    assert_eq!(said.trim_end(), "except ok");
    rig.finish();
}

/// Without passthrough the source's page cache is not the truth.
#[test]
fn without_passthrough_nothing_is_opened_directly() {
    let rig = Rig::with("direct-off", Side::Run, &["--memory", "16MiB", "--passthrough", "off"]);
    let said = process::run(&mut script(&rig, "make('file'); ordinary('file'); print('ok')"), 60);
    assert_eq!(said.expect_success(), "ok\n");
    rig.finish();
}

/// No read is older than a write that was done before it began: writes, mappings, renames, by clients and others, while terraced is killed.
#[test]
fn direct_reads_are_never_old_while_terraced_is_killed() {
    let Some(rig) = rig("direct-stress", &[]) else { return };
    let seed = seed("direct-stress");
    let seconds = amount("TERRACE_SECONDS", 6, 60);
    let mut command = script(&rig, include_str!("direct/stress.py"));
    command.env("STRESS_SECONDS", seconds.to_string()).env("STRESS_SEED", (seed % 100_000).to_string());
    let chaos = Chaos::start(&rig, Trouble::Kill, seed, 200);
    let said = process::run(&mut command, seconds + 120).expect_success();
    println!("disturbed {} times: {said}", chaos.stop());
    rig.finish();
}

/// A program that goes on with a direct descriptor keeps neither the mount nor its daemon.
#[test]
fn direct_descriptors_outlive_the_run() {
    let Some(rig) = rig("direct-end", &[]) else { return };
    let go_on = rig.aside().join("go-on");
    let text = format!(
        "make('file'); fd = direct('file')
if os.fork(): print('ended'); os._exit(0)
os.setsid(); os.chdir('/'); [os.close(n) for n in range(3)]
while not os.path.exists({go_on:?}): time.sleep(0.01)
content = os.read(fd, 9)
open({go_on:?} + '.done', 'wb').write(content)"
    );
    let said = process::run(&mut script(&rig, &text), 60).expect_success();
    assert_eq!(said, "ended\n");
    let ended = || leftovers::daemons(rig.dir()).is_empty();
    assert!(process::wait_until(20, ended), "the daemon lives on");
    std::fs::write(&go_on, "").unwrap();
    let done = rig.aside().join("go-on.done");
    let read = || std::fs::read(&done).is_ok_and(|content| content == b"content\n");
    assert!(process::wait_until(20, read), "it reads on");
    std::thread::sleep(Duration::from_millis(50));
    rig.finish();
}
