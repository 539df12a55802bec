//! Tier targets in an S3 bucket: restarts, killed and silent servers, wrong keys, second instances.

use crate::fixture::{Fixture, PAGES};
use crate::server::{Mode, Server, server};
use std::time::Duration;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;

/// Maximum wait of a reader for a silent store: one try, then the source, with a margin for busy machines.
const LONGEST: Duration = Duration::from_secs(10);

fn fixture(server: &Server) -> Fixture {
    Fixture::new(Some(server.path("tier", "cache/one", "keys")))
}

#[test]
fn restart_begins_warm_from_a_bucket() {
    let Some(server) = server() else { return };
    let mut w = fixture(&server);
    let life = w.start();
    w.read_all(&life);
    w.work(&life, &mut Rng::new(1), 2_000, 50);
    let row = w.row(&life);
    assert!(row.hits > 300 && row.pages > PAGES / 2, "{row:?}");
    w.check(&life);
    w.flush(&life);
    w.restart_warm(life);
}

#[test]
fn server_killed_under_load_is_used_again_when_it_is_back() {
    let Some(mut server) = server() else { return };
    let mut w = fixture(&server);
    let mut rng = Rng::new(2);
    let life = w.start();
    w.read_all(&life);
    w.work(&life, &mut rng, 1_000, 20);
    server.kill();
    let longest = w.read_all(&life);
    assert!(longest < LONGEST, "a reader waited {longest:?}");
    let row = w.row(&life);
    assert!(row.state.starts_with("off: "), "{row:?}");
    w.work(&life, &mut rng, 500, 20);
    server.start();
    wait_until("the store", || w.row(&life).state == "serving");
    w.read_all(&life);
    w.work(&life, &mut rng, 500, 20);
    assert!(w.row(&life).bytes_written > row.bytes_written, "{row:?}");
    w.check(&life);
    // The next daemon finds no server. The one after that finds the pages.
    w.flush(&life);
    server.kill();
    let life = w.restart(life);
    w.read_all(&life);
    assert!(w.row(&life).state.starts_with("off: "), "{:?}", w.row(&life));
    server.start();
    wait_until("the store", || w.row(&life).state == "serving");
    w.read_all(&life);
    w.check(&life);
    life.engine.shutdown().unwrap();
}

#[test]
fn silent_or_slow_server_holds_up_nobody_for_long() {
    let Some(server) = server() else { return };
    let mut w = fixture(&server);
    let mut rng = Rng::new(3);
    let life = w.start();
    w.read_all(&life);
    w.work(&life, &mut rng, 1_000, 20);
    server.set(Mode::Dead);
    let longest = w.read_all(&life);
    assert!(longest < LONGEST, "a reader waited {longest:?}");
    assert!(w.row(&life).state.starts_with("off: the store gave no answer within "), "{:?}", w.row(&life));
    server.set(Mode::Slow);
    wait_until("the store", || w.row(&life).state == "serving");
    w.work(&life, &mut rng, 200, 20);
    server.set(Mode::Good);
    wait_until("the store", || w.row(&life).state == "serving");
    w.check(&life);
    server.set(Mode::Dead);
    // The end is not clean, but it comes.
    life.engine.shutdown().unwrap();
}

#[test]
fn wrong_keys_bucket_and_address_are_told_in_one_line() {
    let Some(mut server) = server() else { return };
    let refused = |path: String| {
        let line = Fixture::new(Some(path)).open().unwrap_err().to_string();
        assert!(!line.contains('\n') && line.contains("; ") && !line.contains("not-a-secret"), "{line}");
        line
    };
    let line = refused(server.path("tier", "x", "wrong"));
    assert!(
        line.contains(": the store refuses access (SignatureDoesNotMatch); set AWS_ACCESS_KEY_ID and "),
        "{line}"
    );
    let line = refused(server.path("none", "x", "keys"));
    assert!(line.contains(": the store has no such bucket; "), "{line}");
    assert!(refused(server.path("tier", "x", "missing")).contains("/missing: No such file or directory; "));
    server.kill();
    assert!(
        refused(server.path("tier", "x", "keys"))
            .contains("; check the store's address, or start its server")
    );
}

#[test]
fn second_instance_on_a_prefix_is_refused_and_its_neighbour_not() {
    let Some(server) = server() else { return };
    let (w, neighbour) = (fixture(&server), Fixture::new(Some(server.path("tier", "cache/two", "keys"))));
    let first = w.open().unwrap();
    let line = w.open().unwrap_err().to_string();
    assert!(line.contains("the tier is in use by process "), "{line}");
    neighbour.open().unwrap().give_back();
    first.give_back();
    w.open().unwrap().give_back();
}
