//! A mount of a temporary directory, served by a supervisor and a daemon in separate processes, as in the
//! product.
//!
//! The test binary runs itself as the supervisor (see `supervisor_role`). The supervisor starts the daemon by
//! `clone(CLONE_FILES)`, and after a kill starts a successor that recovers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use terrace_engine::{Engine, EngineConfig, SegmentHandles, SystemClock};
use terrace_fs::{DurableLayout, DurableRegion, Namespace, NamespaceConfig, PageCache, fuse, limits};
use terrace_io::BlockingIo;

use crate::direct::Direct;

const ROLE: &str = "TERRACE_TEST_SUPERVISOR";
const THREADS: usize = 8;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cache {
    Direct,
    Engine,
}

/// The page caches of a test over both; none, with a message, if this machine permits no mounts.
pub(crate) fn caches() -> &'static [Cache] {
    if terrace_testkit::can_mount() { &[Cache::Direct, Cache::Engine] } else { &[] }
}

/// A mounted temporary directory.
pub(crate) struct Mount {
    pub src: PathBuf,
    pub mnt: PathBuf,
    supervisor: Child,
    news: BufReader<ChildStdout>,
    daemon: i32,
    _dir: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn new(cache: Cache) -> Self {
        Self::with(cache, u64::MAX, 0)
    }

    /// A mount with a daemon that may open `descriptors_max` descriptors.
    pub(crate) fn with_descriptors(cache: Cache, descriptors_max: u64) -> Self {
        Self::with(cache, descriptors_max, 0)
    }

    /// A mount with a daemon and a source of the user `uid`.
    pub(crate) fn of_user(cache: Cache, uid: u32) -> Self {
        Self::with(cache, u64::MAX, uid)
    }

    fn with(cache: Cache, descriptors_max: u64, uid: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (src, mnt) = (dir.path().join("src"), dir.path().join("mnt"));
        fs::create_dir(&src).unwrap();
        fs::create_dir(&mnt).unwrap();
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
        rustix::fs::chmod(&src, Mode::from_raw_mode(0o777)).unwrap();
        std::os::unix::fs::chown(&src, Some(uid), Some(uid)).unwrap();
        let mut supervisor = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "supervisor_role", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{cache:?}:{}:{}:{descriptors_max}:{uid}", src.display(), mnt.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut news = BufReader::new(supervisor.stdout.take().unwrap());
        let daemon = next_daemon(&mut news);
        // Answered only after the connection is initialised.
        fs::metadata(&mnt).unwrap();
        Self { src, mnt, supervisor, news, daemon, _dir: dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    /// Number of descriptors that the daemon has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.daemon)).unwrap().count()
    }

    /// Number of descriptors for the content of source files that the daemon has open.
    pub(crate) fn data_descriptors(&self) -> usize {
        let path_only = |fd: &str| {
            let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.daemon)).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0");
            i32::from_str_radix(flags.trim(), 8).unwrap() & libc::O_PATH != 0
        };
        let open = fs::read_dir(format!("/proc/{}/fd", self.daemon)).unwrap().map(Result::unwrap);
        open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.starts_with(&self.src)))
            .filter(|fd| !path_only(fd.file_name().to_str().unwrap()))
            .count()
    }

    /// Kills the daemon and waits until its successor serves.
    pub(crate) fn kill_daemon(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.daemon).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        self.daemon = next_daemon(&mut self.news);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.mnt, UnmountFlags::DETACH);
        let _ = self.supervisor.wait();
    }
}

fn next_daemon(news: &mut impl BufRead) -> i32 {
    let mut line = String::new();
    while news.read_line(&mut line).unwrap() > 0 {
        // The test harness prints before the first line of the supervisor.
        if let Some((_, pid)) = line.trim().split_once("daemon ") {
            return pid.parse().unwrap();
        }
        line.clear();
    }
    panic!("the supervisor ended");
}

/// The supervisor: mounts, and keeps a daemon running until the mount is gone.
pub(crate) fn keep_if_told() {
    let Ok(task) = std::env::var(ROLE) else { return };
    let [cache, src, mnt, descriptors_max, uid] =
        task.split(':').collect::<Vec<_>>().try_into().expect("cache, source, mount point, limit, user");
    let most = limits::raise_descriptors_max().unwrap().min(descriptors_max.parse().unwrap());
    let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let root =
        rustix::fs::open(src, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=1048576\0",
        fuse.as_raw_fd()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    rustix::mount::mount("terrace-test", mnt, "fuse.terrace", MountFlags::empty(), options).unwrap();
    become_user(uid.parse().unwrap());
    match cache {
        "Direct" => keep(&fuse, root, &DirectParts::new()),
        _ => keep(&fuse, root, &EngineParts::new()),
    }
    std::process::exit(0);
}

fn become_user(uid: u32) {
    if uid != 0 {
        // SAFETY: these calls change only this process's own credentials.
        let done = unsafe {
            libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(uid) == 0 && libc::setuid(uid) == 0
        };
        assert!(done, "user {uid}: {}", std::io::Error::last_os_error());
    }
}

/// State that outlives a daemon, and the start of a daemon from it.
trait Parts {
    type Cache: PageCache;
    fn namespace(&self, root: OwnedFd, recovering: bool) -> Arc<Namespace<Self::Cache>>;
    fn end(&self) {}
}

fn keep(fuse: &OwnedFd, root: OwnedFd, parts: &(impl Parts + Sync)) {
    let mut recovering = false;
    loop {
        // SAFETY: as fork, with the descriptor table shared. This process has no other running thread.
        let pid =
            unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if pid == 0 {
            let root = root.as_fd();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    serve(fuse.as_fd().try_clone_to_owned().unwrap(), root, parts, recovering)
                });
            });
            // SAFETY: ends this process without the parent's destructors.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0, "clone: {}", std::io::Error::last_os_error());
        println!("daemon {pid}");
        let mut status = 0;
        // SAFETY: waits for this process's own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        if libc::WIFEXITED(status) {
            return;
        }
        recovering = true;
    }
}

fn serve(fuse: OwnedFd, root: std::os::fd::BorrowedFd<'_>, parts: &impl Parts, recovering: bool) {
    let namespace = parts.namespace(root.try_clone_to_owned().unwrap(), recovering);
    let served = fuse::connect(&namespace, fuse.as_fd(), recovering)
        .and_then(|fuse| fuse::serve(namespace.clone(), fuse, None, THREADS, recovering, || ()));
    if let Err(err) = served {
        eprintln!("serve: {err}");
    }
    // The cache writes back through the namespace's descriptors, so it ends first.
    parts.end();
    drop(namespace);
}

struct DirectParts(DurableRegion);

impl DirectParts {
    fn new() -> Self {
        let bytes = DurableLayout::default().bytes();
        // SAFETY: a fresh shared mapping that is never unmapped. Only one daemon lives at a time.
        unsafe {
            let base = rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
            );
            Self(DurableRegion::new(std::ptr::NonNull::new(base.unwrap().cast()).unwrap(), bytes))
        }
    }
}

impl Parts for DirectParts {
    type Cache = Direct;

    fn namespace(&self, root: OwnedFd, recovering: bool) -> Arc<Namespace<Direct>> {
        let (cache, config) = (Arc::new(Direct), NamespaceConfig::default());
        Arc::new(if recovering {
            let namespace = Namespace::recover(cache, self.0, config).unwrap();
            namespace.finish_recovery();
            namespace
        } else {
            Namespace::new(cache, root, self.0, config).unwrap()
        })
    }
}

struct EngineParts {
    config: EngineConfig,
    handles: Arc<SegmentHandles>,
    engine: std::sync::OnceLock<Arc<Engine>>,
}

impl EngineParts {
    fn new() -> Self {
        let config = EngineConfig {
            memory_bytes: 64 << 20,
            memory_max_bytes: Some(64 << 20),
            dirty_expire: Duration::from_millis(300),
            writeback_interval: Duration::from_millis(100),
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        Self { config, handles, engine: std::sync::OnceLock::new() }
    }
}

impl Parts for EngineParts {
    type Cache = Engine;

    fn namespace(&self, root: OwnedFd, recovering: bool) -> Arc<Namespace<Engine>> {
        let (clock, io) = (Arc::new(SystemClock), Arc::new(BlockingIo::default()));
        let engine = Engine::start(self.config.clone(), self.handles.clone(), clock, io).unwrap();
        let _ = self.engine.set(engine.clone());
        let (base, bytes) = self.handles.user_region();
        // SAFETY: the handles are never dropped, and only one daemon lives at a time.
        let region = unsafe { DurableRegion::new(base, bytes) };
        let config = NamespaceConfig { direct_writes: true, ..NamespaceConfig::default() };
        if !recovering {
            engine.serve().unwrap();
            return Arc::new(Namespace::new(engine, root, region, config).unwrap());
        }
        let namespace = Namespace::recover(engine.clone(), region, config).unwrap();
        engine.recover_pages();
        engine.serve().unwrap();
        namespace.finish_recovery();
        Arc::new(namespace)
    }

    fn end(&self) {
        self.engine.get().unwrap().shutdown().unwrap();
    }
}

/// Reads a file of the source past the mount.
pub(crate) fn source(mount: &Mount, name: &str) -> Vec<u8> {
    fs::read(mount.src.join(name)).unwrap()
}

/// Opens with flags that std lacks.
pub(crate) fn open(path: &Path, flags: OFlags) -> rustix::io::Result<File> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?.into())
}
