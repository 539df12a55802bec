//! Objects by name: the only interface to a store, and the only file that uses OpenDAL and its asynchronous
//! runtime.
//!
//! Callers are threads that block, each for a bounded time. The runtime has one thread, which only waits for
//! sockets. Error texts are made here, since texts of servers may repeat requests, with parts of keys.

use crate::location::{Bucket, Location};
use bytes::Bytes;
use futures::StreamExt;
use opendal::options::{ListOptions, ReadOptions};
use opendal::{Buffer, ErrorKind, HttpTransporter, OperationContext, Operator, services};
use opendal_http_transport_reqwest::ReqwestTransport;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;

/// Time limit of small requests.
pub(crate) const SOON: Duration = Duration::from_secs(2);
/// Maximum number of concurrent requests of one call.
const AT_ONCE: usize = 32;
/// Pause before a retry: a kept connection may have died.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Maximum wait for hanging requests when the runtime ends.
const END_WITHIN: Duration = Duration::from_secs(2);
/// Folder of files that do not have their final names yet.
pub(crate) const UNFINISHED: &str = ".unfinished";
/// Folders of a store in a directory: each object is in one of them.
const FOLDERS: [&str; 4] = [UNFINISHED, "lock", "r", "s"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The object does not exist.
    Absent,
    /// The store denies access.
    Refused,
    /// No answer in time, or the answer of a failing server.
    Unreachable,
}

/// A failed request, with a one-line reason.
#[derive(Debug, Clone)]
pub(crate) struct Failed {
    pub(crate) kind: Kind,
    /// Reason, one line.
    pub(crate) why: String,
}

impl From<Failed> for std::io::Error {
    fn from(failed: Failed) -> std::io::Error {
        let kind = match failed.kind {
            Kind::Absent => std::io::ErrorKind::NotFound,
            Kind::Refused => std::io::ErrorKind::PermissionDenied,
            Kind::Unreachable => std::io::ErrorKind::TimedOut,
        };
        std::io::Error::new(kind, failed.why)
    }
}

/// An object and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) range: Range<u64>,
}

#[derive(Debug)]
pub(crate) struct Store {
    /// For atomic writes: an object appears whole.
    whole: Operator,
    /// For writes that must be the first of their name.
    first: Operator,
    runtime: Option<Runtime>,
}

type Answer<T> = Result<T, Failed>;

impl Store {
    /// Opens a store without a request. A directory is created with its folders, private to this user.
    ///
    /// # Errors
    /// Unreadable credentials or directory; no more threads.
    pub(crate) fn new(location: &Location) -> Answer<Store> {
        match location {
            Location::Fs(dir) => {
                for folder in FOLDERS.map(|name| dir.join(name)) {
                    private(&folder).map_err(|why| refused(format!("{}: {why}", folder.display())))?;
                }
                let fs = || services::Fs::default().root(&dir.to_string_lossy());
                let unfinished = dir.join(UNFINISHED);
                let whole = Operator::new(fs().atomic_write_dir(&unfinished.to_string_lossy()));
                Store::of(whole.map_err(failed)?, Operator::new(fs()).map_err(failed)?)
            }
            Location::S3(bucket) => {
                let operator = s3(bucket)?;
                Store::of(operator.clone(), operator)
            }
        }
    }

    /// Opens a store for reading only. None: the directory does not exist.
    ///
    /// # Errors
    /// As [`Store::new`].
    pub(crate) fn look(location: &Location) -> Answer<Option<Store>> {
        match location {
            Location::Fs(dir) if !dir.exists() => Ok(None),
            Location::Fs(dir) => {
                let operator = Operator::new(services::Fs::default().root(&dir.to_string_lossy()));
                let operator = operator.map_err(failed)?;
                Store::of(operator.clone(), operator).map(Some)
            }
            Location::S3(_) => Store::new(location).map(Some),
        }
    }

    fn of(whole: Operator, first: Operator) -> Answer<Store> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(AT_ONCE)
            .thread_name("remote-io")
            .enable_all()
            .build()
            .map_err(|err| refused(plain(&err)))?;
        Ok(Store { whole, first, runtime: Some(runtime) })
    }

    fn wait<T>(&self, limit: Duration, request: impl Future<Output = opendal::Result<T>>) -> Answer<T> {
        let runtime = self.runtime.as_ref().expect("it lives as long as the store");
        runtime.block_on(async {
            match tokio::time::timeout(limit, request).await {
                Ok(answer) => answer.map_err(failed),
                Err(_) => Err(late(limit)),
            }
        })
    }

    /// Reads parts of objects, each within `limit`. A shorter object is an error.
    pub(crate) fn read(&self, parts: Vec<Part>, limit: Duration) -> Vec<Answer<Buffer>> {
        let runtime = self.runtime.as_ref().expect("it lives as long as the store");
        runtime.block_on(async {
            let one = |part: Part| async move {
                match tokio::time::timeout(limit, self.read_one(&part)).await {
                    Ok(answer) => answer.map_err(failed),
                    Err(_) => Err(late(limit)),
                }
            };
            futures::stream::iter(parts.into_iter().map(one)).buffered(AT_ONCE).collect().await
        })
    }

    async fn read_one(&self, part: &Part) -> opendal::Result<Buffer> {
        let read = || {
            let options = ReadOptions { range: part.range.clone().into(), ..ReadOptions::default() };
            self.whole.read_options(&part.name, options)
        };
        let answer = match read().await {
            Err(err) if err.is_temporary() => {
                tokio::time::sleep(AGAIN_AFTER).await;
                read().await?
            }
            answer => answer?,
        };
        match answer.len() as u64 == part.range.end - part.range.start {
            true => Ok(answer),
            false => Err(opendal::Error::new(ErrorKind::RangeNotSatisfied, "the object is too short")),
        }
    }

    /// Reads a whole object. None: it does not exist.
    ///
    /// # Errors
    /// Errors other than a missing object.
    pub(crate) fn get(&self, name: &str) -> Answer<Option<Vec<u8>>> {
        present(self.wait(SOON, self.whole.read(name)).map(|buffer| buffer.to_vec()))
    }

    /// Writes an object atomically.
    ///
    /// # Errors
    /// After an error the object may still exist, or appear later.
    pub(crate) fn put(&self, name: &str, content: Bytes, limit: Duration) -> Answer<()> {
        let write = || self.whole.write(name, content.clone());
        let twice = async {
            match write().await {
                Err(err) if err.is_temporary() => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                    write().await
                }
                answer => answer,
            }
        };
        self.wait(limit, twice).map(drop)
    }

    /// Writes an object unless it exists. Returns false if it exists.
    ///
    /// # Errors
    /// As [`Store::put`].
    pub(crate) fn put_first(&self, name: &str, content: Bytes) -> Answer<bool> {
        let write = async {
            match self.first.write_with(name, content).if_not_exists(true).await {
                Ok(_) => Ok(true),
                Err(err)
                    if [ErrorKind::ConditionNotMatch, ErrorKind::AlreadyExists].contains(&err.kind()) =>
                {
                    Ok(false)
                }
                Err(err) => Err(err),
            }
        };
        self.wait(SOON, write)
    }

    /// Removes an object, if it exists.
    pub(crate) fn delete(&self, name: &str) -> Answer<()> {
        present(self.wait(SOON, self.whole.delete(name))).map(drop)
    }

    /// Modification time of an object by the store's clock. None: it does not exist.
    pub(crate) fn written(&self, name: &str) -> Answer<Option<SystemTime>> {
        let meta = present(self.wait(SOON, self.whole.stat(name)))?;
        Ok(meta.and_then(|meta| meta.last_modified()).map(Into::into))
    }

    /// Lists the objects of a folder and of its subfolders. The folder's name ends with a slash. `limit` is
    /// for each thousand objects.
    pub(crate) fn list(&self, folder: &str, limit: Duration) -> Answer<Vec<Listed>> {
        let mut all = Vec::new();
        self.each(folder, limit, |object| {
            all.push(object);
            true
        })?;
        Ok(all)
    }

    /// Like [`Store::list`], object by object, until `wants` returns false.
    pub(crate) fn each(
        &self,
        folder: &str,
        limit: Duration,
        mut wants: impl FnMut(Listed) -> bool,
    ) -> Answer<()> {
        let options = ListOptions { recursive: true, ..ListOptions::default() };
        let Some(mut lister) = present(self.wait(limit, self.whole.lister_options(folder, options)))? else {
            return Ok(());
        };
        let (mut until, mut seen) = (Instant::now() + limit, 0);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let entry = match self.wait(left, async { lister.next().await.transpose() }) {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(()),
                // The folder is created with its first object.
                Err(Failed { kind: Kind::Absent, .. }) => return Ok(()),
                Err(failed) => return Err(failed),
            };
            let (name, meta) = entry.into_parts();
            let is_object = meta.is_file() && !name.starts_with(UNFINISHED);
            if is_object && !wants(Listed { name, bytes: meta.content_length() }) {
                return Ok(());
            }
            seen += 1;
            if seen % 1000 == 0 {
                until = Instant::now() + limit;
            }
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(END_WITHIN);
        }
    }
}

fn refused(why: String) -> Failed {
    Failed { kind: Kind::Refused, why }
}

/// Creates a private directory: the objects contain parts of other users' files.
fn private(dir: &Path) -> Result<(), String> {
    std::fs::create_dir_all(dir.parent().unwrap_or(dir)).map_err(|err| plain(&err))?;
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(err) if err.kind() != std::io::ErrorKind::AlreadyExists => return Err(plain(&err)),
        _ => {}
    }
    let meta = dir.metadata().map_err(|err| plain(&err))?;
    if meta.mode() & 0o077 != 0 || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err("others may read or write there".to_owned());
    }
    Ok(())
}

/// Turns a missing object into None.
fn present<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(it) => Ok(Some(it)),
        Err(Failed { kind: Kind::Absent, .. }) => Ok(None),
        Err(failed) => Err(failed),
    }
}

fn s3(bucket: &Bucket) -> Answer<Operator> {
    let mut builder = services::S3::default().bucket(&bucket.name).disable_ec2_metadata();
    builder = builder.root(&format!("/{}", bucket.prefix));
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.endpoint(endpoint);
    }
    let of_environment =
        || ["AWS_REGION", "AWS_DEFAULT_REGION"].iter().find_map(|name| std::env::var(name).ok());
    builder =
        builder.region(&bucket.region.clone().or_else(of_environment).unwrap_or("us-east-1".to_owned()));
    if let Some(file) = &bucket.credentials {
        let Keys { id, secret, token } = Keys::read(file)?;
        builder = builder.disable_config_load().access_key_id(&id).secret_access_key(&secret);
        builder = builder.session_token(&token);
    }
    let operator = Operator::new(builder).map_err(failed)?;
    let transport = HttpTransporter::new(ReqwestTransport::new(client()?));
    Ok(operator.with_context(OperationContext::new().with_http_transport(transport)))
}

/// Each store has its own client: connections must not outlive the process that opened them.
fn client() -> Answer<reqwest::Client> {
    static CRYPTOGRAPHY: Once = Once::new();
    CRYPTOGRAPHY.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let client = reqwest::Client::builder().connect_timeout(SOON).redirect(reqwest::redirect::Policy::none());
    client.build().map_err(|err| Failed {
        kind: Kind::Refused,
        why: format!("the HTTP client cannot start: {}", cause(&err)),
    })
}

struct Keys {
    id: String,
    secret: String,
    token: String,
}

impl Keys {
    /// Reads the first key of a file in the format of the AWS tools.
    fn read(file: &Path) -> Answer<Keys> {
        let refused = |why: String| refused(format!("{}: {why}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|err| refused(plain(&err)))?;
        let value = |key: &str| {
            let of_line = |line: &str| {
                let (name, value) = line.split_once('=')?;
                (name.trim() == key).then(|| value.trim().to_owned())
            };
            text.lines().find_map(of_line)
        };
        match (value("aws_access_key_id"), value("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                Ok(Keys { id, secret, token: value("aws_session_token").unwrap_or_default() })
            }
            _ => Err(refused("aws_access_key_id or aws_secret_access_key is missing".to_owned())),
        }
    }
}

fn late(limit: Duration) -> Failed {
    let why = format!("the store gave no answer within {:.1} s", limit.as_secs_f64());
    Failed { kind: Kind::Unreachable, why }
}

/// Translates an error, with our own text.
fn failed(err: opendal::Error) -> Failed {
    let (kind, why) = match err.kind() {
        _ if code(&err) == " (NoSuchBucket)" => (Kind::Refused, "the store has no such bucket".to_owned()),
        ErrorKind::NotFound | ErrorKind::RangeNotSatisfied => {
            (Kind::Absent, "the store has no such object".to_owned())
        }
        ErrorKind::PermissionDenied => (Kind::Refused, format!("the store refuses access{}", code(&err))),
        ErrorKind::ConfigInvalid => (Kind::Refused, "the address or the credentials are invalid".to_owned()),
        ErrorKind::Unsupported => (Kind::Refused, "the store lacks operations that a tier needs".to_owned()),
        ErrorKind::RateLimited => (Kind::Unreachable, "the store limits the rate of requests".to_owned()),
        _ => (Kind::Unreachable, cause(&err)),
    };
    Failed { kind, why }
}

/// The server's error code, if any, as ` (NAME)`.
fn code(err: &opendal::Error) -> String {
    let name = err.message().split_once("code: \"").and_then(|(_, rest)| rest.split_once('"'));
    match name {
        Some((name, _)) if !name.is_empty() && name.chars().all(char::is_alphanumeric) => {
            format!(" ({name})")
        }
        _ => String::new(),
    }
}

/// The system error behind a failure, if there is one.
fn cause(err: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(err), |err| err.source());
    let of_system = chain.filter_map(|err| err.downcast_ref::<std::io::Error>()).last();
    match (of_system, err.downcast_ref::<opendal::Error>()) {
        (Some(err), _) => plain(err),
        (None, Some(err)) if err.message() != "send http request" => {
            format!("the store answers with an error{}", code(err))
        }
        _ => "the store cannot be reached".to_owned(),
    }
}

/// Removes Rust's `(os error N)`.
fn plain(err: &std::io::Error) -> String {
    let text = err.to_string();
    text.split(" (os error ").next().unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A store in a directory.
    pub(crate) fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&Location::Fs(dir.path().into())).unwrap();
        (dir, store)
    }

    #[test]
    fn objects_are_written_read_listed_and_removed() {
        let (_dir, store) = store();
        assert_eq!(store.list("r/", SOON).unwrap(), []);
        store.put("r/a", Bytes::from(vec![7; 100]), SOON).unwrap();
        assert_eq!(store.list("r/", SOON).unwrap(), [Listed { name: "r/a".to_owned(), bytes: 100 }]);
        let part = |range| Part { name: "r/a".to_owned(), range };
        let missing = Part { name: "r/b".to_owned(), range: 0..1 };
        let read = store.read(vec![part(10..20), part(90..101), missing], SOON);
        assert_eq!(read[0].as_ref().unwrap().to_vec(), [7; 10]);
        assert!(read[1..].iter().all(|answer| answer.as_ref().is_err_and(|err| err.kind == Kind::Absent)));
        store.delete("r/a").unwrap();
        store.delete("r/a").unwrap();
        assert_eq!((store.get("r/a").unwrap(), store.written("r/a").unwrap()), (None, None));
    }

    #[test]
    fn one_of_many_writes_the_first_object() {
        let (_dir, store) = store();
        let won = std::thread::scope(|scope| {
            let write = |n: u8| {
                let store = &store;
                scope.spawn(move || store.put_first("lock/1", Bytes::from(vec![n])).unwrap())
            };
            let threads: Vec<_> = (0..8).map(write).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap().then_some(())).count()
        });
        assert_eq!(won, 1);
    }

    /// A server that accepts connections and never answers.
    fn silent() -> (TcpListener, Location) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        let credentials = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&credentials, "[default]\naws_access_key_id = id\naws_secret_access_key = key\n")
            .unwrap();
        let (_, credentials) = credentials.keep().unwrap();
        let bucket =
            Bucket { name: "b".to_owned(), endpoint, credentials: Some(credentials), ..Bucket::default() };
        (listener, Location::S3(bucket))
    }

    #[test]
    fn silent_server_costs_a_bounded_time() {
        let (listener, location) = silent();
        let store = Store::new(&location).unwrap();
        let parts = (0..64).map(|n| Part { name: format!("r/{n}"), range: 0..4096 }).collect();
        let limit = Duration::from_millis(50);
        let began = Instant::now();
        assert!(
            store
                .read(parts, limit)
                .iter()
                .all(|answer| answer.as_ref().unwrap_err().kind == Kind::Unreachable)
        );
        // Two rounds of 32 requests, with a margin for a busy machine.
        assert!(began.elapsed() < SOON * 5, "{:?}", began.elapsed());
        drop(listener);
        let refused = store.put("r/1", Bytes::new(), SOON).unwrap_err();
        assert_eq!((refused.kind, refused.why.as_str()), (Kind::Unreachable, "Connection refused"));
    }
}
