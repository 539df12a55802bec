//! Hostile clients of the preload server beside a verifying stress: no program may read a byte that was never
//! written, and no process may crash.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_tests::process::Background;
use terrace_tests::rng::seed;
use terrace_tests::stress::Stress;
use terrace_tests::tools::compile;
use terrace_tests::{Side, TestMount, amount, is_root, process};

/// Starts the attackers, runs the stress, and checks that the attacks failed and the same terraced still
/// serves.
#[track_caller]
fn attacked(test: &str, user: Option<&str>) {
    let seed = seed(test);
    let mount = TestMount::new(test, Side::Mount, "16MiB");
    let attacker = mount.dir().join("hostile");
    compile("hostile", &attacker, &[]);
    for path in [mount.src(), mount.dir(), mount.at()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("our own directory");
    }
    let (place, info) = mount.instance();
    // The permissions of its directory close the preload socket to other users. They are opened here, to test
    // the next line of defence. (The attacker starts inside it, for the directory above stays closed.)
    let open = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    open(&place, 0o755).and_then(|()| open(&place.join("preload.sock"), 0o666)).expect("our own directory");
    let seconds = amount("TERRACE_SECONDS", 6, 60);
    let mut stress = Stress::new(&mount, 4, 2048, 2, seed);
    stress.start("write", 0, true, &["sync=1"]);
    stress.start("write", 1, false, &["sync=1", "torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, false, &["torn=ok"]);
    let mut attackers: Vec<Background> = (0..2)
        .map(|n| {
            let mut command = match user {
                Some(user) => {
                    let mut command = Command::new("setpriv");
                    command.args([
                        format!("--reuid={user}"),
                        format!("--regid={user}"),
                        "--clear-groups".into(),
                    ]);
                    command.arg(&attacker);
                    command
                }
                None => Command::new(&attacker),
            };
            command.current_dir(&place).arg("preload.sock").arg(mount.at().join(format!("f{n}")));
            command.args([seconds.to_string(), (seed + n).to_string()]).stdin(Stdio::null());
            if user.is_none() {
                command.arg("noise");
            }
            Background::new(&mut command)
        })
        .collect();
    stress.work(Duration::from_secs(seconds));
    for attacker in &mut attackers {
        let status = attacker.wait(Duration::from_secs(20)).expect("the attacker ends");
        assert!(status.success(), "an attacker got what it may not have: {status}");
    }
    stress.work(Duration::from_secs(1));
    stress.stop();
    stress.verify(Some(true), "acked");
    stress.verify(Some(false), "acked");
    assert_eq!(info.terraced, mount.terraced(), "terraced fell and was started again");
    assert!(process::alive(mount.supervisor()));
    mount.check();
    mount.umount();
    stress.verify(None, "acked");
}

#[test]
fn by_a_user_who_may_only_read() {
    if is_root() {
        attacked("hostile-reader", Some("65534"));
    }
}

#[test]
fn by_the_user_himself() {
    attacked("hostile-self", None);
}
