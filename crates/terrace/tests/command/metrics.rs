//! Metrics and the live page over HTTP, `stat --prometheus`, and `doctor`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::Stdio;

use terrace_api::doctor::{DoctorReport, State};
use terrace_api::stats::StatReport;
use terrace_testkit::can_mount;
use terrace_testkit::exposition::{self, Families};
use terrace_testkit::scrape::{check, get, scrape};

use crate::test_mount::{TestMount, crash, terrace, text, told, wait_until};

#[test]
fn metrics_are_scraped_also_after_a_crash_of_the_daemon() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("a"), vec![1; 1 << 20]).unwrap();
    test.mount(&["--metrics", "0"]).fine();
    let stat = test.stat();
    let address = stat.instance.metrics.expect("it is told where they are");
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{address}");
    assert!(test.ask("stat", &[]).fine().out.contains(&format!("http://{address}/metrics")));
    fs::read(test.mnt.join("a")).unwrap();
    let before = scrape(&address);
    let sum = |families: &Families, name: &str| families[name].samples.iter().map(|s| s.value).sum::<f64>();
    assert!(sum(&before, "terrace_page_misses_total") + sum(&before, "terrace_page_hits_total") >= 256.0);
    assert_eq!(before["terrace_info"].samples[0].labels["mount"], text(&test.mnt));
    assert_eq!(sum(&before, "terrace_daemon_restarts_total"), 0.0);
    assert!(get(&address, "/").0.starts_with("HTTP/1.1 404 "));
    crash(test.processes().1, libc::SIGKILL);
    wait_until("it is told that it was restarted", || {
        let (head, body) = get(&address, "/metrics");
        let restarts = |families: Families| sum(&families, "terrace_daemon_restarts_total");
        head.starts_with("HTTP/1.1 200 ") && exposition::parse(&body).is_ok_and(|page| restarts(page) == 1.0)
    });
    test.finish();
    assert!(TcpStream::connect(&address).is_err(), "nobody listens after the end");
}

#[test]
fn metrics_of_all_mounts_are_printed_and_addresses_checked() {
    let Some(test) = TestMount::new() else { return };
    let refused = |address: &str, parts: &[&str]| {
        test.mount(&["--metrics", address]).refused(parts);
        assert!(!test.is_mounted());
    };
    refused("0.0.0.0:9464", &["--metrics", "other machines", "--metrics-public"]);
    refused("nowhere", &["--metrics", "`nowhere`", "127.0.0.1:9464"]);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    refused(&other.local_addr().unwrap().to_string(), &["in use", "another port"]);
    test.mount(&[]).fine();
    let page = test.ask("stat", &["--prometheus"]).fine().out;
    let families = check(&page);
    assert_eq!(families["terrace_memory_limit_bytes"].samples[0].value, f64::from(32 << 20));
    assert!(!families.contains_key("terrace_estimated_hit_ratio"));
    fs::write(test.mnt.join("a"), vec![1; 1 << 20]).unwrap();
    let all = told(terrace(["stat", "--prometheus", "--mrc"])).fine().out;
    check(&all);
    assert!(all.contains(&format!("mount=\"{}\"", text(&test.mnt))), "{all}");
    test.finish();
}

#[test]
fn live_page_is_served_until_the_mount_goes() {
    let Some(test) = TestMount::mounted() else { return };
    let mut command = terrace(["top", "--http", "0", "--interval", "0.5"]);
    let mut top = command.arg(&test.mnt).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(top.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address =
        line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect(&line).to_owned();
    let (head, page) = get(&address, "/");
    assert!(head.contains("Content-Type: text/html"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none'"), "{head}");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("INTERVAL_MS = 500,"), "{page}");
    let stat: StatReport = serde_json::from_str(&get(&address, "/stat.json").1).unwrap();
    assert_eq!((stat.instance.mnt, stat.mrc), (test.mnt.clone(), None));
    let stat: StatReport = serde_json::from_str(&get(&address, "/mrc.json").1).unwrap();
    assert!(stat.mrc.is_some());
    assert!(scrape(&address).contains_key("terrace_info"));
    assert!(get(&address, "/etc/passwd").0.starts_with("HTTP/1.1 404 "));
    test.ask("umount", &[]).fine();
    let mut ended = None;
    wait_until("it ends with the mount", || {
        ended = top.try_wait().unwrap();
        ended.is_some()
    });
    let mut said = String::new();
    top.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(ended.unwrap().code(), Some(2), "{said}");
    assert!(said.contains("serves nothing here"), "{said}");
    test.nothing_is_left();
}

#[test]
fn doctor_tells_whether_terrace_can_serve() {
    let test = TestMount::dirs();
    let report = |dir: &str| {
        let told = told(terrace(["doctor", "--json", dir]));
        let report: DoctorReport = serde_json::from_str(&told.out).unwrap();
        assert_eq!(told.code, Some(i32::from(!report.can_serve)), "{}", told.err);
        report
    };
    let found = report(text(&test.src));
    if can_mount() {
        assert!(found.can_serve, "{found:?}");
    }
    let absent = report("/nonexistent");
    assert!(!absent.can_serve);
    let check = absent.checks.iter().find(|check| check.name == "directory").unwrap();
    assert_eq!(check.state, State::Missing);
    let page = told(terrace(["doctor"]));
    for name in ["kernel", "FUSE", "io_uring", "huge pages", "control groups", "open files", "/dev/shm"] {
        assert!(page.out.lines().any(|line| line.contains(name)), "{name}: {}", page.out);
    }
}
