//! Setup of a server of keys by the supervisor, before any server: settings, sockets, memory, the directory
//! of the instance.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_engine::IoKind;
use terrace_kv::cluster::Cluster;
use terrace_kv::{Config as KvConfig, Durability, Listener};
use terrace_store::{Segment, StoreOptions, SyncPolicy};

use crate::cgroup;
use crate::cli::{ServeKv, Sync};
use crate::config::{Config, MemoryLimit};
use crate::engine::engine_config;
use crate::error::{Failure, Result, reason};
use crate::http;
use crate::instance::{Instance, Lock};
use crate::limits;
use crate::size::{GIB, Size};
use crate::supervisor;
use crate::tier::{self, OpenTarget, Tier};

/// Memory by default and with `auto`: a store cannot give memory back while it is open.
const MEMORY_DEFAULT: Size = Size(GIB);
/// Default port of Redis' protocol.
const PORT: u16 = 6379;
/// Longest path of a socket, bytes (unix(7), `sun_path`).
const SOCKET_PATH_MAX: usize = 107;
/// Longest password, bytes.
const PASSWORD_MAX: usize = 512;

/// Resources that the supervisor holds and each server inherits.
#[derive(Debug)]
pub(super) struct ServerSetup {
    /// Settings of cache and tiers.
    pub config: Config,
    /// Settings of the server.
    pub kv: KvConfig,
    /// Settings of the store.
    pub store: StoreOptions,
    /// Directory of the store.
    pub dir: PathBuf,
    /// Memory of the store.
    pub segment: Segment,
    /// The tier on a device.
    pub tier: Tier,
    /// Listening sockets for clients.
    pub listeners: Vec<Listener>,
    pub places: Vec<String>,
    /// Unix socket path, removed at the end.
    pub unix: Option<PathBuf>,
    pub control: UnixListener,
    /// Socket for scrapes of metrics.
    pub metrics: Option<TcpListener>,
    /// The directory of the instance.
    pub instance: Instance,
}

/// Prepares everything, or fails without leaving anything.
pub(super) fn prepare(args: ServeKv) -> Result<(ServerSetup, Lock)> {
    let mut config = Config::load(&args.tuning)?;
    let dir = directory(&args.dir)?;
    config.look_up_device(&dir)?;
    // A store cannot give memory back while it is open, so `auto` could only grow.
    config.memory = MemoryLimit::Fixed(config.memory.fixed().unwrap_or(MEMORY_DEFAULT));
    let kv = server_config(&args, &config, &dir)?;
    limits::raise();
    // Files are for this user alone.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let (instance, lock) = Instance::create(&[&dir])?;
    supervisor::start_log(config.log.level);
    if let Some(line) = cgroup::too_small_for(config.memory.fixed()) {
        tracing::warn!("{line}");
    }
    match assemble(&args, config, kv, dir, &instance) {
        Ok(setup) => Ok((setup, lock)),
        Err(failure) => {
            instance.remove();
            Err(failure)
        }
    }
}

fn assemble(
    args: &ServeKv,
    mut config: Config,
    kv: KvConfig,
    dir: PathBuf,
    instance: &Instance,
) -> Result<ServerSetup> {
    let tier = tier::open(&mut config, &dir).or_refuse(&config)?;
    let store = store_options(&config, kv.durability, &tier.held);
    let segment = Segment::create(&store)
        .map_err(|err| Failure::new("memory of the server", err, "raise this limit, or lower --memory"))?;
    let control = supervisor::bind(&instance.control_socket())?;
    let metrics = config.metrics.socket_address().map(http::bind).transpose()?;
    let (listeners, places) = listeners(args)?;
    let (unix, instance) = (args.unix.clone(), instance.clone());
    Ok(ServerSetup {
        config,
        kv,
        store,
        dir,
        segment,
        tier,
        listeners,
        places,
        unix,
        control,
        metrics,
        instance,
    })
}

/// The directory of the store, created if missing.
fn directory(dir: &Path) -> Result<PathBuf> {
    let fail = |err: std::io::Error| Failure::new(dir.display(), reason(err), "name a directory of yours");
    match std::fs::create_dir(dir) {
        Err(err) if err.kind() != ErrorKind::AlreadyExists => return Err(fail(err)),
        _ => {}
    }
    let dir = dir.canonicalize().map_err(fail)?;
    match dir.is_dir() {
        true => Ok(dir),
        false => Err(fail(ErrorKind::NotADirectory.into())),
    }
}

fn store_options(config: &Config, durability: Durability, targets: &[OpenTarget]) -> StoreOptions {
    let default = StoreOptions::default();
    let mut engine = engine_config(config, targets);
    // Blocking calls end with the process: no write of a killed server is still under way.
    engine.io = IoKind::Blocking;
    engine.dirty_background_ratio = default.engine.dirty_background_ratio;
    engine.dirty_ratio = default.engine.dirty_ratio;
    let sync = match durability {
        Durability::Always => SyncPolicy::Always,
        Durability::Never => SyncPolicy::Never,
        Durability::EverySecond => SyncPolicy::Every(Duration::from_secs(1)),
    };
    let memory_bytes = config.memory.most().0;
    // A batch is a round of all clients' requests, which only the server knows.
    StoreOptions { name: "kv".to_owned(), memory_bytes, sync, batches: true, engine, ..default }
}

fn server_config(args: &ServeKv, config: &Config, dir: &Path) -> Result<KvConfig> {
    let mut kv = KvConfig::for_memory(config.memory.most().0);
    kv.durability = match args.sync {
        Sync::Always => Durability::Always,
        Sync::EverySecond => Durability::EverySecond,
        Sync::No => Durability::Never,
    };
    kv.password = args.password_file.as_deref().map(password).transpose()?;
    kv.port = port(args).unwrap_or(0);
    kv.dir = dir.to_owned();
    if let Some(threads) = args.threads {
        (kv.threads, kv.spare_threads) = (usize::from(threads), 0);
    }
    if let Some(clients) = args.clients_max {
        kv.clients_max = clients as usize;
    }
    if !address(args).is_loopback() && kv.password.is_none() {
        let why =
            format!("{} can be reached from other machines, and no password is asked for", address(args));
        return Err(Failure::new("--bind", why, "give --password-file FILE, or leave --bind out"));
    }
    kv.cluster = args.cluster.as_deref().map(|path| cluster(path, args)).transpose()?;
    Ok(kv)
}

fn address(args: &ServeKv) -> IpAddr {
    args.bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// None: only a Unix socket.
fn port(args: &ServeKv) -> Option<u16> {
    args.port.or((args.unix.is_none() || args.bind.is_some()).then_some(PORT))
}

/// Reads the password: the first line of the file.
fn password(path: &Path) -> Result<String> {
    let name = path.display();
    let fail = |why: String| Failure::new(name.to_string(), why, "write the password into its first line");
    let text = std::fs::read_to_string(path).map_err(|err| fail(reason(err)))?;
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        terrace_output::error_line!("terrace: warning: {name}: others can read the password; `chmod 600` it");
    }
    let password = text.lines().next().unwrap_or_default().trim_end();
    match password.len() {
        1..=PASSWORD_MAX => Ok(password.to_owned()),
        bytes => Err(fail(format!("the password has {bytes} bytes, not 1 to {PASSWORD_MAX}"))),
    }
}

fn cluster(path: &Path, args: &ServeKv) -> Result<Cluster> {
    let name = path.display();
    let Some(port) = port(args) else {
        return Err(Failure::new(
            "--cluster",
            "the cluster map identifies each server by its port, and this server has none",
            "give --port PORT",
        ));
    };
    let text = std::fs::read_to_string(path)
        .map_err(|err| Failure::new(name, reason(err), "name the file with the map of the servers"))?;
    Cluster::parse(&text, &address(args).to_string(), port)
        .map_err(|err| Failure::new(path.display(), err, "correct the map; all servers need the same map"))
}

fn listeners(args: &ServeKv) -> Result<(Vec<Listener>, Vec<String>)> {
    let (mut listeners, mut places) = (Vec::new(), Vec::new());
    if let Some(port) = port(args) {
        let (listener, at) = tcp_listener(args, port, "--port")?;
        places.push(at.to_string());
        listeners.push(Listener::Tcp(listener));
    }
    if let Some(port) = args.memcached {
        if port > 0 && self::port(args) == Some(port) {
            let why = format!("{port} is the port of Redis' protocol, too");
            return Err(Failure::new("--memcached", why, "give each protocol a port of its own"));
        }
        let (listener, at) = tcp_listener(args, port, "--memcached")?;
        places.push(format!("{at} (memcached)"));
        listeners.push(Listener::Memcached(listener));
    }
    if let Some(path) = &args.unix {
        listeners.push(Listener::Unix(unix_listener(path)?));
        places.push(path.display().to_string());
    }
    Ok((listeners, places))
}

/// A listener, and its address.
fn tcp_listener(args: &ServeKv, port: u16, option: &str) -> Result<(TcpListener, SocketAddr)> {
    let at = SocketAddr::new(address(args), port);
    let listener = TcpListener::bind(at).map_err(|err| {
        let cure = match err.kind() {
            ErrorKind::AddrNotAvailable => "give --bind an address of this machine".to_owned(),
            _ => format!("choose another {option}, or end what listens there"),
        };
        Failure::new(at, reason(err), cure)
    })?;
    let at = listener.local_addr().unwrap_or(at);
    Ok((listener, at))
}

/// A Unix socket for this user alone; replaces the socket of a dead server.
fn unix_listener(path: &Path) -> Result<UnixListener> {
    let name = path.display();
    if UnixStream::connect(path).is_ok() {
        return Err(Failure::new(
            name,
            "another server listens there",
            "end that server, or choose another path",
        ));
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => drop(std::fs::remove_file(path)),
        Ok(_) => {
            return Err(Failure::new(name, "a file that is no socket has this path", "choose another path"));
        }
        Err(_) => {}
    }
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let why = format!("a socket's path has at most {SOCKET_PATH_MAX} bytes");
        return Err(Failure::new(name, why, "choose a shorter one"));
    }
    let bound = UnixListener::bind(path).and_then(|listener| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map(|()| listener)
    });
    bound.map_err(|err| Failure::new(name, reason(err), "choose a path in a directory of yours"))
}
