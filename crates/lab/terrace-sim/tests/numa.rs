//! The model of thread placement reproduces the published gains, in shape.

use serde_json::Value;
use tempfile::TempDir;
use terrace_output::Progress;
use terrace_sim::numa::cells::{Cell, Report, report};
use terrace_sim::numa::load::Preset;
use terrace_sim::numa::run::Baseline;
use terrace_testkit::command::Tool;

const SIM: Tool = Tool { exe: env!("CARGO_BIN_EXE_terrace-sim"), name: "terrace-sim" };

fn found(preset: Preset, baseline: Baseline) -> Report {
    report(preset, 2, baseline, &mut Progress::default())
}

#[track_caller]
fn within(found: f64, expected: f64, points: f64) {
    assert!((found - expected).abs() <= points, "{found:.1} %, not {expected} %");
}

fn of<'a>(report: &'a Report, policy: &str) -> Vec<&'a Cell> {
    report.cells.iter().filter(|cell| cell.policy == policy).collect()
}

/// With moves of frames, every cell is at least as good as with threads alone.
#[track_caller]
fn frames_do_no_harm(report: &Report) {
    for (threads, both) in of(report, "full").into_iter().zip(of(report, "threads+frames")) {
        assert!(both.mb_s >= threads.mb_s * (1.0 - 1e-9), "{threads:?}\n{both:?}");
    }
}

/// Slides 60-62.
#[test]
fn fio_gains_what_was_published() {
    let report = found(Preset::Fio, Baseline::HomeNode);
    within(report.gain_remote_at_40, 26.9, 3.0);
    within(report.gain_full_mean, 43.8, 3.0);
    frames_do_no_harm(&report);
    for cell in &report.cells {
        assert_eq!(cell.late_moves, 0.0, "threads come to rest: {cell:?}");
    }
}

/// Slide 63.
#[test]
fn rocksdb_gains_what_was_published() {
    let report = found(Preset::Rocksdb, Baseline::HomeNode);
    within(report.gain_full_mean, 88.6, 10.0);
    frames_do_no_harm(&report);
}

/// With local writes, moving threads alone gains nothing; moves with an estimated loss are left out.
#[test]
fn local_writes_leave_nothing_to_gain() {
    let report = found(Preset::Fio, Baseline::LocalWrites);
    within(report.gain_full_mean, 0.0, 4.0);
    frames_do_no_harm(&report);
    for cell in of(&report, "threads+frames") {
        assert!(cell.gain_percent > -0.5, "{cell:?}");
    }
}

#[test]
fn numa_prints_what_it_was_asked_for() {
    let dir = TempDir::new().unwrap();
    let args = "numa --preset rocksdb --policy full --baseline local-writes --json";
    let json: Value = serde_json::from_str(&SIM.done(dir.path(), args)).unwrap();
    assert_eq!((&json["schema"], &json["baseline"]), (&"terrace-sim.numa.v1".into(), &"local-writes".into()));
    assert!(json["gain_remote_at_40"].is_f64() && json["gain_full_mean"].is_f64());
    let policies: Vec<&str> =
        json["cells"].as_array().unwrap().iter().map(|cell| cell["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["none", "full", "none", "full", "none", "full"]);
    let baselines = json["baselines"].as_array().unwrap();
    assert_eq!((baselines.len(), &baselines[1]["baseline"]), (2, &"home-node".into()));
    SIM.refused(dir.path(), "numa --preset fish", "fish");
    SIM.refused(dir.path(), "numa", "--preset");
}
