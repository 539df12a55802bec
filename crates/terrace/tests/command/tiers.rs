//! Tiers on devices from outside: an unusable tier is left unchanged and stops nothing else; a target belongs
//! to one instance, also across crashes of its terraced.

use std::fs;
use std::path::PathBuf;

use terrace_api::tiers::{SourceState, TargetState, TierKind, TierReport};

use crate::test_mount::{Outcome, TERRACE, TestMount, alive, crash, json, terrace, text, told, wait_until};

/// `terrace run --on SRC --tier TIER -- SCRIPT`, without the preload path.
fn run(test: &TestMount, tier: &str, more: &[&str], script: &str) -> Outcome {
    told(test.run_with(&[&["--no-preload", "--tier", tier], more].concat(), script))
}

fn tier(words: &[&str]) -> Outcome {
    told(terrace([&["tier"], words].concat()))
}

fn shown(path: &str) -> TierReport {
    json(tier(&["show", "--json", path]))
}

fn sized(path: &str, size: &str) -> String {
    format!("{path}:{size}")
}

fn target(test: &TestMount) -> String {
    text(&test.file("t.tier")).to_owned()
}

/// Asserts that a command serves, and prints one line, with all of `parts`, why it serves without the tier.
#[track_caller]
fn warned(told: Outcome, parts: &[&str]) {
    assert_eq!((told.code, told.err.lines().count()), (Some(0), 1), "{}", told.err);
    assert!(
        told.err.starts_with("terrace: ") && told.err.ends_with("; terrace serves without this tier\n"),
        "{}",
        told.err
    );
    assert!(parts.iter().all(|part| told.err.contains(part)), "{parts:?} are not all in: {}", told.err);
}

/// Asserts that a mount serves without its tier, and shows this at the start and in `stat`.
#[track_caller]
fn serves_without(test: &TestMount, tier: &str, parts: &[&str]) {
    warned(test.mount(&["--tier", tier]), parts);
    assert_eq!(fs::read(test.mnt.join("f")).unwrap(), b"content");
    assert_eq!(test.info().tiers, Vec::<PathBuf>::new());
    let row = test.stat().cache.tiers.pop().unwrap();
    assert_eq!((row.kind, row.pages), (TierKind::Device, 0));
    assert!(
        row.state.starts_with("off: ") && parts.iter().all(|part| row.state.contains(part)),
        "{}",
        row.state
    );
    let page = test.ask("stat", &[]).fine().out;
    assert!(page.contains(parts[0]), "{page}");
    test.ask("umount", &[]).fine();
}

#[test]
fn serving_goes_on_without_a_tier_that_cannot_be_used() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("f"), "content").unwrap();
    let inside = text(&test.src.join("in")).to_owned();
    let letter = text(&test.file("letter")).to_owned();
    fs::write(&letter, "a letter").unwrap();
    let new = target(&test);
    let cases = [
        (new.clone(), vec!["t.tier: the tier does not exist, and its size is not given"]),
        (sized(&new, "4KiB"), vec!["4KiB is too small for a tier; give at least"]),
        (
            sized(&new, "64GiB"),
            vec!["a quarter of --memory (32MiB); give --memory 768MiB, or a tier of at most"],
        ),
        (text(&test.mnt).to_owned(), vec!["the tier is a directory"]),
        (sized(&inside, "16MiB"), vec!["/in: the tier lies in the served directory", text(&test.src)]),
        (
            sized(&letter, "16MiB"),
            vec!["/letter: the file or device holds data that are not terrace's", "--format-tier"],
        ),
        ("/dev/null".to_owned(), vec!["/dev/null: the tier is no file and no block device"]),
    ];
    for (tier, parts) in cases {
        serves_without(&test, &tier, &parts);
        warned(run(&test, &tier, &[], &format!("grep -q content '{}'", text(&test.src.join("f")))), &parts);
        test.nothing_is_left();
    }
    assert_eq!(fs::read(&letter).unwrap(), b"a letter");
    assert!(!test.file("t.tier").exists());
    let parts = [":16MiB", "--tier: `:16MiB` names no file"];
    test.mount(&["--tier", parts[0]]).refused(&parts);
    test.mount(&["--format-tier"]).refused(&["--format-tier: there is no tier to format"]);
    test.nothing_is_left();
}

#[test]
fn target_that_is_off_goes_live_and_stays_gone() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("f"), "content").unwrap();
    let letter = text(&test.file("letter")).to_owned();
    fs::write(&letter, "a letter").unwrap();
    warned(test.mount(&["--tier", &letter]), &["not terrace's"]);
    let devices = || test.stat().cache.tiers.into_iter().filter(|row| row.kind == TierKind::Device).count();
    assert_eq!(devices(), 1);
    let mnt = text(&test.mnt);
    let out = tier(&["remove", mnt, "device", "--force"]).fine().out;
    assert!(out.contains("its file was not in use, and is unchanged"), "{out}");
    assert_eq!(devices(), 0);
    let (_, terraced) = test.processes();
    crash(terraced, libc::SIGKILL);
    wait_until("another terraced", || fs::read(test.mnt.join("f")).is_ok() && test.processes().1 != terraced);
    assert_eq!(devices(), 0);
    tier(&["add", mnt, &sized(text(&test.mnt.join("in")), "32MiB")]).refused(&["lies on a mount of terrace"]);
    test.ask("umount", &[]).fine();
    assert_eq!(fs::read(&letter).unwrap(), b"a letter");
    test.nothing_is_left();
}

#[test]
fn relative_path_of_a_tier_is_that_of_the_command() {
    let Some(test) = TestMount::new() else { return };
    told(test.mount_command(&["--tier", "t.tier:16MiB"]).current_dir(test.file(""))).fine();
    assert_eq!(test.info().tiers, [test.file("t.tier")]);
    test.ask("umount", &[]).fine();
    assert!(test.file("t.tier").exists());
    test.nothing_is_left();
}

#[test]
fn tier_belongs_to_one_instance_also_over_a_crash() {
    let Some(test) = TestMount::new() else { return };
    let other = TestMount::dirs();
    let path = target(&test);
    fs::write(test.src.join("f"), "content").unwrap();
    test.mount(&["--tier", &sized(&path, "16MiB")]).fine();
    let (supervisor, terraced) = test.processes();
    let used = ["the tier is in use by the mount of", text(&test.mnt), &format!("(process {supervisor})")];
    fs::write(other.src.join("f"), "content").unwrap();
    serves_without(&other, &path, &used);
    warned(run(&other, &path, &["--format-tier"], "true"), &used);
    crash(terraced, libc::SIGKILL);
    wait_until("another serves", || test.info().terraced != terraced && alive(test.info().terraced));
    assert_eq!(fs::read(test.mnt.join("f")).unwrap(), b"content");
    serves_without(&other, &path, &used);
    let report = shown(&path);
    assert_eq!((report.in_use, report.pid, report.mnt), (true, Some(supervisor), Some(test.mnt.clone())));
    tier(&["drop", &path]).refused(&used);
    test.ask("umount", &[]).fine();
    // It can be used directly after the unmount.
    run(&test, &path, &[], "true").fine();
    serves_without(&other, &path, &["the tier belongs to", text(&test.src), "--format-tier"]);
    other.mount(&["--tier", &path, "--format-tier"]).fine();
    other.ask("umount", &[]).fine();
    other.nothing_is_left();
    test.nothing_is_left();
}

#[test]
fn tier_without_processes_is_free() {
    let Some(test) = TestMount::new() else { return };
    let path = target(&test);
    test.mount(&["--tier", &sized(&path, "16MiB")]).fine();
    let (supervisor, terraced) = test.processes();
    crash(supervisor, libc::SIGKILL);
    crash(terraced, libc::SIGKILL);
    wait_until("all are dead", || !alive(supervisor) && !alive(terraced));
    wait_until("the tier is free", || !shown(&path).in_use);
    test.ask("umount", &[]);
    test.mount(&["--tier", &path]);
    assert!(test.is_mounted());
    test.finish();
}

#[test]
fn show_and_list_tell_whose_a_tier_is() {
    let Some(test) = TestMount::new() else { return };
    let path = target(&test);
    run(&test, &sized(&path, "16MiB"), &[], "true").fine();
    let report = shown(&path);
    let facts = report.tier.unwrap();
    assert_eq!((report.state, report.bytes, report.in_use), (TargetState::Tier, 16 << 20, false));
    assert_eq!((facts.source, facts.source_state), (test.src.clone(), SourceState::There));
    assert!(facts.clean && facts.content.is_some());
    let page = tier(&["show", &path]).fine().out;
    assert!(page.starts_with(&format!("{path}   tier of {}\n", test.src.display())), "{page}");
    // The mount of `run` covers the source.
    let show = format!("'{}' tier show '{path}'", TERRACE);
    let page = run(&test, &path, &[], &show).fine().out;
    assert!(page.contains("source       is there\n") && page.contains("in use by"), "{page}");
    fs::rename(&test.src, test.file("away")).unwrap();
    assert_eq!(shown(&path).tier.unwrap().source_state, SourceState::Gone);
    fs::create_dir(&test.src).unwrap();
    assert_eq!(shown(&path).tier.unwrap().source_state, SourceState::Replaced);

    let config = test.file("terrace.toml");
    fs::write(&config, "[[tier.device]]\npath = \"not-yet.tier\"\n").unwrap();
    fs::write(test.file("letter"), "a letter").unwrap();
    let dir = test.file("");
    let listed = tier(&["list", "--json", "--config", text(&config), text(&dir)]).fine().out;
    let listed: Vec<TierReport> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ours: Vec<(PathBuf, TargetState)> = listed
        .into_iter()
        .filter(|report| report.path.starts_with(&dir))
        .map(|report| (report.path, report.state))
        .collect();
    let (missing, there) = (test.file("not-yet.tier"), test.file("t.tier"));
    assert_eq!(ours, [(missing, TargetState::Missing), (there, TargetState::Tier)]);
    let page = tier(&["list", &path]).fine().out;
    assert!(page.starts_with("TIER ") && page.contains("its source was replaced"), "{page}");

    tier(&["show", text(&test.file("letter"))]).refused(&["/letter: there is no tier of terrace here"]);
    tier(&["show", "/nonexistent"]).refused(&["/nonexistent: No such file"]);
    tier(&["list", "/nonexistent"]).refused(&["/nonexistent: No such file"]);
    tier(&["show", text(&dir)]).refused(&["the tier is a directory"]);
    tier(&["drop", text(&test.file("letter"))]).refused(&["there is no tier of terrace here"]);
    tier(&["drop", "--yes", "/nonexistent"]).refused(&["/nonexistent: No such file"]);
    test.nothing_is_left();
}

#[test]
fn drop_empties_a_tier_and_keeps_its_place() {
    let Some(test) = TestMount::new() else { return };
    let path = target(&test);
    run(&test, &sized(&path, "16MiB"), &[], "true").fine();
    let was = shown(&path).tier.unwrap();
    assert!(tier(&["drop", &path]).fine().out.contains("still belongs to"));
    let now = shown(&path).tier.unwrap();
    assert!(now.id != was.id && now.source == was.source);
    assert_eq!((now.regions, now.content.unwrap().pages), (was.regions, 0));
    run(&test, &path, &[], "true").fine();
    test.nothing_is_left();
}

#[test]
fn devices_of_one_name_and_wrong_values_are_refused() {
    let test = TestMount::dirs();
    let file = test.file("terrace.toml");
    let cases = [
        (
            "[[tier.device]]\npath = \"a\"\n[[tier.device]]\npath = \"b\"\n",
            "line 3",
            "is the name of two tiers",
        ),
        ("\n[[tier.device]]\nsize = \"1GiB\"\n", "line 2", "tier.device.path is missing"),
        ("[[tier.device]]\npath = \"a\"\nsize = \"big\"\n", "line 3", "`big` is not a size"),
        ("[[tier.device]]\npath = \"a\"\nwrite_budget = 1\n", "line 3", "a day is too little"),
    ];
    for (content, line, why) in cases {
        fs::write(&file, content).unwrap();
        test.mount(&["--config", text(&file)]).refused(&[text(&file), line, why]);
        tier(&["list", "--config", text(&file)]).refused(&[line, why]);
    }
    test.nothing_is_left();
}

#[test]
fn stat_has_a_row_for_each_tier() {
    let Some(test) = TestMount::mounted() else { return };
    let tiers = test.stat().cache.tiers;
    assert_eq!(tiers.iter().map(|row| row.kind).collect::<Vec<_>>(), [TierKind::Dram, TierKind::Compressed]);
    assert!(tiers.iter().all(|row| row.state == "serving"));
    let page = test.ask("stat", &[]).fine().out;
    assert!(page.lines().any(|line| line.starts_with("  tiers ") && line.ends_with("state")), "{page}");
    test.finish();
}

#[test]
fn help_tells_how_a_tier_is_given() {
    let help = |words: &[&str]| told(terrace([words, &["--help"]].concat())).fine().out;
    for command in ["mount", "run"] {
        let help = help(&[command]);
        let has = |part: &str| assert!(help.contains(part), "`{part}` is not in: {help}");
        ["--tier <PATH[:SIZE]>", "TERRACE_TIER", "--format-tier"].iter().for_each(|part| has(part));
    }
    let page = help(&["tier"]);
    assert!(["list", "show", "drop"].iter().all(|verb| page.contains(&format!("  {verb} "))), "{page}");
    assert!(help(&["tier", "drop"]).contains("--yes"));
    let man = told(terrace(["generate", "man"])).fine().out;
    assert!(man.contains(".SH TERRACE TIER DROP") && man.contains("TERRACE_TIER"), "{man}");
}
