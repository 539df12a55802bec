//! Real programs and outside suites, through the mount and through the preload path. Quick by default, long
//! with TERRACE_SOAK=1.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use terrace_testkit::wait::holds_within;
use terrace_tests::busy;
use terrace_tests::process::{self, Background};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::tools::{cargo_tool, need};
use terrace_tests::{Chaos, Fault, Side, TestDir, TestMount, amount, is_root, product, soak};

// ---- fio ----

/// Random reads and writes with checksums over twice the memory; `verify` reads all data again at the end,
/// through the cache.
#[track_caller]
fn fio(side: Side, engine: &str, more: &[&str]) {
    need("fio", "fio");
    let seed = seed("fio");
    let mount = TestMount::new(&format!("fio-{engine}"), side, "16MiB");
    let size = format!("--size={}m", amount("TERRACE_FIO_MIB", 16, 128));
    // Without randrepeat=0 fio repeats one sequence, whatever the seed.
    let seed = format!("--randseed={seed}");
    let common =
        ["--name=v", "--directory=.", "--numjobs=2", "--rw=randrw", "--bssplit=4k/60:16k/20:64k/10:512/10"];
    let verify = [
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--verify_state_save=0",
        "--randrepeat=0",
        "--group_reporting",
    ];
    let content = if busy::wanted() { &["--buffer_compress_percentage=50"][..] } else { &[] };
    let run = |also: &[&str]| {
        let mut command = mount.command("fio");
        command.args(common).args(verify).args(content).args(more).args([&size, &seed]);
        process::run(command.arg(format!("--ioengine={engine}")).args(also), 900).expect_success();
    };
    run(&[]);
    // Once more, on a cold cache.
    mount.drop_cache();
    run(&["--verify_only=1"]);
    mount.finish();
}

#[test]
fn fio_psync() {
    fio(Side::Mount, "psync", &[]);
    fio(Side::Preload, "psync", &["--fsync=64"]);
    fio(Side::Run, "psync", &["--fsync=64"]);
}

#[test]
fn fio_vectors() {
    fio(Side::Preload, "pvsync2", &[]);
    fio(Side::Preload, "sync", &[]);
}

#[test]
fn fio_libaio() {
    fio(Side::Mount, "libaio", &["--iodepth=16"]);
    fio(Side::Preload, "libaio", &["--iodepth=16", "--direct=1", "--bssplit=4k/80:64k/20"]);
}

#[test]
fn fio_io_uring() {
    fio(Side::Mount, "io_uring", &["--iodepth=16"]);
    fio(Side::Preload, "io_uring", &["--iodepth=16"]);
    fio(Side::Run, "io_uring", &["--iodepth=16"]);
}

#[test]
fn fio_mmap() {
    fio(Side::Mount, "mmap", &["--bs=4k"]);
    fio(Side::Preload, "mmap", &["--bs=4k"]);
}

// ---- fsx ----

const FSX: &str = "
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 5
mapwrite = 5
read = 10
write = 10
truncate = 3
fsync = 1
fdatasync = 1
posix_fallocate = 1
punch_hole = 3
sendfile = 2
copy_file_range = 2
";

#[track_caller]
fn fsx(side: Side, disturbed: Option<Fault>) {
    let mount = TestMount::new("fsx", side, "16MiB");
    fsx_on(&mount, disturbed);
    mount.finish();
}

/// fsx on an existing mount.
#[track_caller]
pub(crate) fn fsx_on(mount: &TestMount, disturbed: Option<Fault>) {
    let seed = seed("fsx");
    let config = mount.aside().join("fsx.toml");
    std::fs::write(&config, FSX).expect("the configuration can be written");
    let chaos = disturbed.map(|what| Chaos::start(mount, what, seed, 100));
    // With a kill every tenth of a second it takes ten times as long.
    let share = if disturbed == Some(Fault::Kill) { 4 } else { 1 };
    let operations = (amount("TERRACE_FSX", 10_000, 100_000) / share).to_string();
    for seed in seed.. {
        let mut command = mount.command(cargo_tool("fsx", "0.3.2"));
        command.arg("-f").arg(&config).args(["-N", &operations, "-S", &(seed & 0xffff_ffff).to_string()]);
        command.arg("-P").arg(mount.aside()).arg("file");
        let outcome = process::run(&mut command, 1800);
        // Once in some 100,000 operations fsx draws a posix_fallocate of no bytes, and treats its EINVAL, the
        // result on every file system, as a failure.
        let last = outcome.stderr.lines().last().unwrap_or_default();
        if !(last.contains("POSIX_FALLOCATE") && last.ends_with("(    0x0 bytes)")) {
            outcome.expect_success();
            break;
        }
    }
    if let Some(chaos) = chaos {
        println!("disturbed {} times", chaos.stop());
    }
}

#[test]
fn fsx_on_a_plain_directory() {
    fsx(Side::Plain, None);
}

#[test]
fn fsx_through_the_mount() {
    fsx(Side::Mount, None);
}

#[test]
fn fsx_through_preload() {
    fsx(Side::Preload, None);
}

#[test]
fn fsx_while_disturbed() {
    fsx(Side::Preload, Some(Fault::Commands));
}

#[test]
fn fsx_through_the_mount_while_terraced_is_killed() {
    fsx(Side::Mount, Some(Fault::Kill));
}

#[test]
fn fsx_through_preload_while_terraced_is_killed() {
    fsx(Side::Preload, Some(Fault::Kill));
}

// ---- pjdfstest ----

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The cases of the suite with their results.
#[track_caller]
fn pjdfstest(side: Side) -> BTreeMap<String, String> {
    // At a short path, for the names of sockets.
    let mount = TestMount::new("/var/tmp/t", side, "16MiB");
    let config = mount.aside().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).expect("the configuration can be written");
    let mut command = mount.command(cargo_tool("pjdfstest", "0.2.2"));
    command.arg("-c").arg(&config).arg("-p").arg(mount.at());
    let outcome = process::run(&mut command, 600);
    println!("{side:?}: {}", outcome.stdout.lines().last().unwrap_or("no output"));
    let case = |line: &str| {
        let (name, how) = line.split_once(' ')?;
        let how = how.trim();
        ["ok", "skipped", "FAILED", "failed"].contains(&how).then(|| (name.to_owned(), how.to_lowercase()))
    };
    let cases: BTreeMap<_, _> = outcome.stdout.lines().filter_map(case).collect();
    assert!(cases.len() > 300, "{outcome}");
    if side != Side::Plain {
        mount.finish();
    }
    cases
}

fn only_in_one<'a>(a: &'a BTreeMap<String, String>, b: &'a BTreeMap<String, String>) -> Vec<&'a String> {
    a.keys()
        .filter(|name| !b.contains_key(*name))
        .chain(b.keys().filter(|name| !a.contains_key(*name)))
        .collect()
}

#[test]
fn pjdfstest_as_on_a_plain_directory() {
    if !is_root() {
        return;
    }
    let plain = pjdfstest(Side::Plain);
    let mounted = pjdfstest(Side::Mount);
    // An aborted case has no line: then the names differ.
    assert!(plain.keys().eq(mounted.keys()), "other cases ran: {:#?}", only_in_one(&plain, &mounted));
    let other: Vec<_> = mounted.iter().filter(|(name, how)| plain[*name] != **how).collect();
    let worse: Vec<_> = other.iter().filter(|case| case.1 == "failed").collect();
    assert!(worse.is_empty(), "fail through the mount only: {worse:#?}");
    println!("otherwise than on the plain directory: {other:?}");
    assert!(other.len() <= 2, "{other:#?}");
}

// ---- git, tar ----

const GIT_REPOSITORY: &str = r#"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t HOME=$PWD GIT_CONFIG_NOSYSTEM=1
git init -q -b main origin
cd origin
for n in $(seq "$2"); do
    mkdir -p part$n
    cp -rL "$1"/* part$n/
    echo "$n" > part$n/number
    git add -A
    git commit -q -m "part $n"
done
"#;

const GIT_WORK: &str = r#"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t HOME=$PWD GIT_CONFIG_NOSYSTEM=1
git config --global safe.directory '*'
git clone -q --no-local "$1/origin" clone
cd clone
git fsck --full --strict
test -z "$(git status --porcelain)"
git checkout -q -b work HEAD~2
for f in $(git ls-files | head -50); do echo more >> "$f"; done
git commit -q -a -m more
git rebase -q main || git rebase --abort
git repack -q -a -d
git gc -q
git fsck --full --strict
test -z "$(git status --porcelain)"
git log --stat > /dev/null
git clone -q --shared . ../second
git -C ../second fsck --full
diff -r --exclude=.git . ../second
"#;

#[track_caller]
fn run_git(script: &str, command: &mut Command, arguments: &[&Path]) {
    command.arg("-euc").arg(script).arg("script").args(arguments);
    process::run(command, 600).expect_success();
}

/// A clone of the repository in `origin`, and work in it.
#[track_caller]
fn git(side: Side, origin: &Path) {
    let mount = TestMount::new("git", side, "32MiB");
    run_git(GIT_WORK, &mut mount.command("/bin/bash"), &[origin]);
    mount.drop_cache();
    mount.shell("cd clone; git -c safe.directory='*' fsck --full --strict", 300);
    mount.check();
    mount.umount();
    let fsck = "git -c safe.directory='*' -C \"$1/clone\" fsck --full --strict";
    run_git(fsck, &mut Command::new("/bin/bash"), &[mount.src()]);
}

#[test]
fn git_clone_and_fsck() {
    need("git", "git");
    let dir = TestDir::new("git-origin");
    let sources = terrace_tests::workspace().join("crates");
    // Commits, each of all sources again; then a reset by two.
    let parts = Path::new(if soak() { "6" } else { "3" });
    run_git(GIT_REPOSITORY, Command::new("/bin/bash").current_dir(dir.path()), &[&sources, parts]);
    git(Side::Mount, dir.path());
    git(Side::Preload, dir.path());
    git(Side::Run, dir.path());
}

/// A tree of the machine's own files; all of /usr/share in the long form.
fn some_tree() -> PathBuf {
    if soak() {
        return "/usr/share".into();
    }
    let has_some = |p: &&&str| std::fs::read_dir(p).is_ok_and(|list| list.count() > 3);
    let all = ["/usr/share/perl", "/usr/lib/python3.11", "/usr/include", "/usr/share/doc", "/etc"];
    all.iter().find(has_some).expect("a tree of files on this machine").into()
}

#[track_caller]
fn tar(side: Side) {
    let tree = some_tree();
    let mount = TestMount::new("tar", side, "32MiB");
    let tree = tree.display();
    mount.shell(&format!("mkdir copy; tar -C {tree} -cf - . | tar -C copy -xf -"), 1800);
    mount.shell(&format!("diff -r --no-dereference {tree} copy"), 1800);
    mount.drop_cache();
    mount.shell(&format!("tar -C copy -cf copy.tar . && mkdir again && tar -C again -xf copy.tar && diff -r --no-dereference {tree} again"), 1800);
    mount.shell("cp -a again third && mv third fourth && rm -r again && find fourth -type f -print0 | xargs -0 cat | wc -c", 1800);
    mount.check();
    mount.umount();
    let diff = format!("diff -r --no-dereference {tree} fourth && diff -r --no-dereference {tree} copy");
    process::run(Command::new("/bin/bash").arg("-euc").arg(diff).current_dir(mount.src()), 600)
        .expect_success();
}

#[test]
fn tar_and_diff() {
    tar(Side::Mount);
    tar(Side::Preload);
}

// ---- small tools ----

/// Tools with reads inside libc, a shell that moves descriptors, and python, agree with the plain directory.
#[test]
fn coreutils_and_python() {
    need("python3", "python3");
    let script = r#"
        seq 1 200000 | tac > numbers
        sort -n -S 1M -T . numbers > sorted; seq 1 200000 | cmp - sorted
        md5sum numbers sorted; sha1sum < numbers; wc numbers
        split -b 100000 numbers part. ; cat part.* | cmp - numbers
        gzip -k numbers; gunzip -c numbers.gz | cmp - numbers
        dd if=numbers of=copy bs=7777 status=none; cmp numbers copy
        dd if=numbers of=copy bs=64k iflag=direct status=none; cmp numbers copy
        sed -i 's/^1/one/' copy; grep -c one copy; head -c 100000 copy | tail -n 3; cut -c 1-2 copy | sort | uniq -c | head
        exec 7< numbers; read -u 7 a; read -u 7 b; echo $a $b; exec 7<&-
        while read -r x; do echo $x; done < <(head -3 numbers)
        python3 - <<'P'
import os, mmap, hashlib, array, io
d = open('numbers','rb').read(); print(len(d), hashlib.md5(d).hexdigest())
f = os.open('numbers', os.O_RDONLY)
h = hashlib.md5()
while True:
    b = os.read(f, 3333)
    if not b: break
    h.update(b)
print(h.hexdigest(), hashlib.md5(os.pread(f, 50000, 12345)).hexdigest())
v = [bytearray(100), bytearray(5000)]
print(os.preadv(f, v, 777), hashlib.md5(v[0] + v[1]).hexdigest())
m = mmap.mmap(f, 0, prot=mmap.PROT_READ); print(hashlib.md5(m[:]).hexdigest())
with open('made', 'w+b') as g:
    for i in range(1000): g.seek(i * 997); g.write(b'%d' % i)
    g.seek(0); print(hashlib.md5(g.read()).hexdigest())
print(sorted(os.listdir('.'))[:5], os.stat('numbers').st_size)
P
    "#;
    let run = |side: Side| {
        let mount = TestMount::new("tools", side, "16MiB");
        let said = mount.shell(script, 300);
        mount.check();
        mount.umount();
        said
    };
    let plain = run(Side::Plain);
    assert_eq!(plain, run(Side::Mount));
    assert_eq!(plain, run(Side::Preload));
}

// ---- SQLite ----

const SQLITE_WRITER: &str = r#"
import sqlite3, sys, os, random, hashlib
path, acked, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = random.Random(seed)
db = sqlite3.connect(path, isolation_level=None, timeout=30)
db.execute('pragma journal_mode=wal'); db.execute('pragma synchronous=full'); db.execute('pragma wal_autocheckpoint=200')
db.execute('create table if not exists t (id integer primary key, body blob, sum text)')
out = os.open(acked, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = (db.execute('select max(id) from t').fetchone()[0] or 0)
while True:
    db.execute('begin immediate')
    for _ in range(rng.randrange(1, 20)):
        n += 1
        body = rng.randbytes(rng.randrange(10, 3000))
        db.execute('insert into t values (?, ?, ?)', (n, body, hashlib.md5(body).hexdigest()))
    if rng.random() < 0.3:
        db.execute('delete from t where id in (select id from t order by random() limit 5) and id < ?', (n,))
    db.execute('commit')
    os.write(out, b'%d\n' % n)
"#;

const SQLITE_CHECK: &str = r#"
import sqlite3, sys, hashlib
db = sqlite3.connect(sys.argv[1], timeout=30)
said = db.execute('pragma integrity_check').fetchone()[0]
assert said == 'ok', said
db.execute('create table if not exists t (id integer primary key, body blob, sum text)')
for i, body, s in db.execute('select id, body, sum from t'):
    assert hashlib.md5(body).hexdigest() == s, f'row {i}'
newest = db.execute('select max(id) from t').fetchone()[0] or 0
acked = [int(l) for l in open(sys.argv[2]).read().split()]
assert newest >= (acked[-1] if acked else 0), f'{newest} < {acked[-1]}'
print(newest, 'rows')
"#;

#[track_caller]
fn sqlite(side: Side, trouble: Option<Fault>) {
    need("python3", "python3");
    let seed = seed("sqlite");
    let mut rng = Rng::new(seed);
    let mount = TestMount::new("sqlite", side, "16MiB");
    let acked = mount.aside().join("acked");
    std::fs::write(&acked, "").expect("a file");
    let log = mount.aside().join("log");
    let chaos = trouble.map(|what| Chaos::start(&mount, what, seed, 150));
    for round in 0..amount("TERRACE_SQLITE_ROUNDS", 5, 30) {
        let mut command = mount.command("python3");
        command.args(["-c", SQLITE_WRITER, "db"]).arg(&acked).arg((seed + round).to_string());
        command.stderr(std::fs::File::create(&log).expect("a log"));
        let length = || std::fs::metadata(&acked).expect("a file").len();
        let before = length();
        let mut writer = Background::new(&mut command);
        holds_within(Duration::from_secs(60), || length() > before);
        std::thread::sleep(Duration::from_millis(rng.below(800)));
        let early = writer.wait(Duration::ZERO);
        assert!(
            early.is_none(),
            "the writer ended: {early:?} {}",
            std::fs::read_to_string(&log).unwrap_or_default()
        );
        writer.kill();
        mount.await_end_of_run();
        let mut check = mount.command("python3");
        process::run(check.args(["-c", SQLITE_CHECK, "db"]).arg(&acked), 60).expect_success();
    }
    if let Some(chaos) = chaos {
        println!("disturbed {} times", chaos.stop());
    }
    let mut check = mount.command("python3");
    println!("{}", process::run(check.args(["-c", SQLITE_CHECK, "db"]).arg(&acked), 60).expect_success());
    mount.check();
    mount.umount();
    let mut check = Command::new("python3");
    process::run(check.args(["-c", SQLITE_CHECK]).arg(mount.src().join("db")).arg(&acked), 60)
        .expect_success();
}

#[test]
fn sqlite_wal_with_killed_clients() {
    sqlite(Side::Plain, None);
    sqlite(Side::Mount, None);
    sqlite(Side::Preload, None);
    sqlite(Side::Run, None);
}

#[test]
fn sqlite_wal_with_killed_clients_and_terraced() {
    sqlite(Side::Preload, Some(Fault::Kill));
}

// ---- PostgreSQL ----

/// Common parts of a test's scripts.
const POSTGRES: &str = r#"
bin=$(dirname "$1"); data=$2; sock=$3
export PATH=$bin:$PATH PGHOST=$sock PGUSER=postgres LC_ALL=C
start() {
    pg_ctl -s -w -D "$data" -l "$sock/log" -o "-c listen_addresses='' -c unix_socket_directories=$sock \
        -c shared_buffers=8MB -c max_wal_size=64MB -c checkpoint_timeout=30s" start
}
stop() { pg_ctl -s -w -D "$data" "$@" stop; }
fill() {
    initdb -k -A trust -D "$data" > /dev/null
    start
    createdb bench
    pgbench -q -i -s 3 bench 2> /dev/null
    psql -qAt bench -c 'create extension amcheck'
}
sums() {
    psql -qAt bench -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
        (select sum(bbalance) from pgbench_branches) = (select sum(tbalance) from pgbench_tellers)'
}
verify() { pg_amcheck --heapallindexed --rootdescend bench; }
"#;

/// A server of user postgres; stopped when dropped.
struct Postgres {
    initdb: PathBuf,
    data: PathBuf,
    /// Directory of its socket, at a short path, and of its log.
    sock: PathBuf,
}

impl Postgres {
    #[track_caller]
    fn new(mount: &TestMount) -> Postgres {
        let initdb = need("initdb", "postgresql");
        let sock = PathBuf::from(format!("/tmp/terrace-pg-{}-{:?}", std::process::id(), mount.side()));
        let server = Postgres { initdb, data: mount.at().join("data"), sock };
        for dir in [&server.sock, &server.data] {
            std::fs::create_dir(dir).expect("a directory for the server");
            let chown = Command::new("chown").arg("postgres:postgres").arg(dir).status().expect("chown");
            assert!(chown.success(), "the user postgres exists");
        }
        server
    }

    /// Completes `setpriv` with the server's user and a program.
    fn user(mut setpriv: Command, program: impl AsRef<std::ffi::OsStr>) -> Command {
        setpriv.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
        setpriv
    }

    /// Completes `bash` of the server's user with a script, and runs it.
    #[track_caller]
    fn script(&self, mut bash: Command, script: &str, seconds: u64) -> String {
        bash.arg("-euc").arg(format!("{POSTGRES}\n{script}")).arg("script");
        bash.args([&self.initdb, &self.data, &self.sock]).current_dir("/").env_remove("PGDATA");
        process::run(&mut bash, seconds).expect_success()
    }

    /// Checks the pages in the source, without a cache in front.
    #[track_caller]
    fn check_source(&self, mount: &TestMount) {
        let program = self.initdb.with_file_name("pg_checksums");
        let mut check = Postgres::user(Command::new("setpriv"), program);
        process::run(check.args(["--check", "-D"]).arg(mount.src().join("data")), 120).expect_success();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.data.join("postmaster.pid")).ok();
        if let Some(pid) = pid.and_then(|t| t.lines().next()?.parse().ok()) {
            process::kill(pid, libc::SIGQUIT);
            holds_within(Duration::from_secs(5), || !process::alive(pid));
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.sock.join("log")).unwrap_or_default();
            log.lines().rev().take(20).for_each(|l| eprintln!("  {l}"));
        }
        let _ = std::fs::remove_dir_all(&self.sock);
    }
}

/// terraced is killed while pgbench runs; then every page and index is checked.
#[track_caller]
fn postgres(side: Side) {
    if !is_root() {
        return;
    }
    let mount = TestMount::new("postgres", side, "32MiB");
    let server = Postgres::new(&mount);
    let bash = || Postgres::user(mount.command("setpriv"), "/bin/bash");
    let shell = |script: &str, seconds: u64| server.script(bash(), script, seconds);
    shell("fill", 240);
    let chaos =
        (mount.side() != Side::Plain).then(|| Chaos::start(&mount, Fault::Kill, seed("postgres"), 1500));
    let seconds = amount("TERRACE_PG_SECONDS", 8, 60);
    let bench = shell(&format!("pgbench -n -c 4 -j 2 -T {seconds} bench"), seconds + 120);
    println!(
        "{side:?}: {}",
        bench.lines().filter(|l| l.contains("tps") || l.contains("failed")).collect::<Vec<_>>().join(", ")
    );
    println!("terraced killed {} times", chaos.map_or(0, Chaos::stop));
    assert!(bench.contains("number of failed transactions: 0"), "{bench}");
    assert_eq!(shell("sums", 60).trim(), "t|t", "balances agree");
    shell("verify", 120);
    // The server itself is killed too, recovers, and stops normally.
    shell("stop -m immediate", 60);
    shell("start", 120);
    assert_eq!(shell("sums", 60).trim(), "t|t", "balances agree after recovery");
    shell("verify; stop; pg_checksums --check -D \"$data\"", 240);
    mount.check();
    mount.umount();
    server.check_source(&mount);
}

#[test]
fn postgres_on_a_plain_directory() {
    if soak() {
        postgres(Side::Plain);
    }
}

#[test]
fn postgres_through_the_mount() {
    postgres(Side::Mount);
}

/// A server under one `terrace run`. Its statistics are read while only the server reads.
const POSTGRES_UNDER_RUN: &str = r#"
preload() {
    "$TERRACE" stat --json "$(dirname "$data")" | python3 -c 'import json, sys
stat = json.load(sys.stdin)
print(stat["instance"]["terraced"], stat["preload"]["hits"])'
}
fill
pgbench -n -c 4 -j 2 -T "$SECONDS_OF_WRITES" bench & bench=$!
while sleep 1.5; kill -0 $bench 2> /dev/null; do
    if read -r pid hits < <(preload) && kill -9 "$pid"; then echo "killed after hits: $hits"; fi
done
wait $bench
sums
verify
stop -m immediate
start
sums
verify
read -r _ before < <(preload)
pgbench -n -S -c 4 -j 2 -T 2 bench
read -r _ after < <(preload)
echo "reads with hits: $((after - before))"
stop
pg_checksums --check -D "$data"
"#;

/// The preload path is open to the instance's user only, and a server does not run as root: here both are
/// user postgres.
#[test]
fn postgres_through_preload() {
    if !is_root() {
        return;
    }
    need("python3", "python3");
    let mount = TestMount::new("postgres", Side::Run, "32MiB");
    let Some(mut bash) = mount.command_of("postgres", "/bin/bash") else { return };
    let server = Postgres::new(&mount);
    let seconds = amount("TERRACE_PG_SECONDS", 8, 60);
    bash.env("XDG_RUNTIME_DIR", &server.sock).env("HOME", &server.sock).env("TERRACE", product("terrace"));
    bash.env("SECONDS_OF_WRITES", seconds.to_string());
    let said = server.script(bash, POSTGRES_UNDER_RUN, seconds + 600);

    let lines = |start: &str| said.lines().filter_map(|line| line.strip_prefix(start)).collect::<Vec<_>>();
    let hits = |start: &str| lines(start).iter().map(|n| n.parse().expect("a number")).collect::<Vec<u64>>();
    let (killed, reads) = (hits("killed after hits: "), hits("reads with hits: "));
    println!(
        "terraced killed after hits {killed:?}, then reads with hits {reads:?}; tps {:?}",
        lines("tps = ")
    );
    assert_eq!(lines("number of failed transactions: 0").len(), 2, "{said}");
    assert_eq!(lines("t|t").len(), 2, "balances agree, also after recovery: {said}");
    // Backends with few misses count their hits in rings, which the next terraced does not know at first.
    assert!(killed.first().is_some_and(|hits| *hits > 0), "{said}");
    // The minimum memory has no rings for all of them.
    assert!(reads[0] > 0 || busy::wanted(), "{said}");
    let stats = mount.stats_of_runs();
    let restarts: Vec<_> = stats.iter().map(|stat| stat.instance.restarts).collect();
    assert_eq!(restarts, [killed.len() as u32], "one instance served to the end");

    mount.umount();
    let instances = std::fs::read_dir(server.sock.join("terrace")).expect("where they were").count();
    assert_eq!(instances, 0, "left behind in {}", server.sock.display());
    server.check_source(&mount);
}
