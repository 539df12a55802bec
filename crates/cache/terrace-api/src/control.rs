//! Commands to a running instance, and their answers: one JSON object a line over a stream socket.
//!
//! ```text
//! {"cmd":"resize","bytes":1073741824}   ->   {"ok":true}
//! {"cmd":"check"}                       ->   {"ok":true,"disagreements":[]}
//! {"cmd":"fly"}                         ->   {"ok":false,"code":"usage","error":"unknown variant `fly`, ..."}
//! {"cmd":"trace"}                       ->   {"ok":true}, frames, {"ok":true,"accesses":70812,...}
//! ```
//! A trace is sent in frames: a length (u32, little-endian), then that many bytes of a capture. A length of 0
//! is followed by the closing line, a [`Summary`](crate::capture::Summary). The recording ends when the
//! client shuts down its side of the socket.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::instance::Dirty;
use crate::lru::Evicted;
use crate::stats::{KeyValue, Stats};

/// Longest frame, bytes.
pub const FRAME_MAX: usize = 1 << 20;

/// A command to a running instance.
pub trait Command: Clone + Into<Request> {
    /// Type of its positive answer.
    type Reply: Serialize + DeserializeOwned;
}

/// Declares the commands: a type for each, with the type of its answer. [`Request`] and [`Reply`] are the
/// sums of these types.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $name:ident { $( $(#[$about:meta])* $field:ident: $type:ty, )* } -> $reply:ty;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
            pub struct $name { $( $(#[$about])* pub $field: $type, )* }

            impl Command for $name {
                type Reply = $reply;
            }

            impl From<$name> for Request {
                fn from(command: $name) -> Request {
                    Request::$name(command)
                }
            }
        )*

        /// A command, as sent over the socket.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "cmd", rename_all = "kebab-case")]
        pub enum Request { $( $(#[$doc])* $name($name), )* }

        /// The positive answer to a command, under the command's name.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        pub enum Reply { $( $(#[$doc])* $name($reply), )* }
    };
}

commands! {
    /// Statistics.
    Stat {} -> StatReply;
    /// Write everything to stable storage.
    Sync {} -> Done;
    /// Drop clean pages.
    DropCaches {} -> DropCachesReply;
    /// Check all tables.
    Check {} -> CheckReply;
    /// Set the memory limit.
    Resize {
        /// The new limit, bytes; 0 with `auto`.
        bytes: u64,
        /// Choose the limit automatically: as much as the machine can spare, and as saves time.
        #[serde(default)]
        auto: bool,
    } -> Done;
    /// Flush, unmount, end.
    Stop {
        /// Stop even if the mount is in use: programs keep their open files.
        #[serde(default)]
        lazy: bool,
        /// Stop even if data cannot be written; they are then lost.
        #[serde(default)]
        lose: bool,
    } -> StopReply;
    /// Release the claim on the source, if the mount is gone and no program writes.
    Release {} -> ReleaseReply;
    /// Process ids.
    Pid {} -> PidReply;
    /// Record accesses; the answer follows once the recording has begun.
    Trace {} -> Done;
    /// Estimates for other sizes of memory.
    Mrc {} -> MrcReply;
    /// Memory nodes and threads.
    Numa {} -> NumaReply;
    /// The policy's lists.
    Lru {} -> LruReply;
    /// Add a file or block device below DRAM.
    TierAdd {
        /// The file or block device, by its absolute path.
        #[serde(with = "crate::path")]
        path: PathBuf,
        /// Its size; none: the size of the file or device.
        #[serde(default)]
        bytes: Option<u64>,
        /// Its name in statistics; none: a free name is chosen.
        #[serde(default)]
        name: Option<String>,
        /// Its content may be erased.
        #[serde(default)]
        format: bool,
    } -> TierChange;
    /// Remove a target; the answer follows once all of its pages have moved or left.
    TierRemove {
        /// Its name, or its absolute path.
        #[serde(with = "crate::path")]
        target: PathBuf,
        /// Remove even the last target.
        #[serde(default)]
        force: bool,
    } -> TierChange;
    /// Resize a target.
    TierResize {
        /// Its name, or its absolute path.
        #[serde(with = "crate::path")]
        target: PathBuf,
        /// The new size.
        bytes: u64,
    } -> TierChange;
    /// Stage a part of a file, on an instance without a mount.
    Stage {
        /// The file, by its absolute path.
        #[serde(with = "crate::path")]
        path: PathBuf,
        /// Start of the part, bytes.
        offset: u64,
        /// Length of the part. At most 1 MiB of it is staged.
        bytes: u64,
        /// What to do.
        how: Staging,
    } -> StageReply;
    /// Open a generation.
    Age {} -> AgeReply;
    /// Evict generations.
    Evict {
        /// Number of the youngest generation to evict.
        seq: u64,
        /// Most pages to evict; none: no limit.
        #[serde(default)]
        pages: Option<u64>,
    } -> Evicted;
}

/// The command was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// The answer to [`Stat`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatReply {
    /// Counters and sizes of the cache.
    pub stat: Box<Stats>,
    /// Is the supervisor alive?
    pub supervisor_lives: bool,
    /// Keys and clients, if it is a server of keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KeyValue>,
}

/// The answer to [`DropCaches`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropCachesReply {
    /// Pages dropped.
    pub pages: u64,
}

/// The answer to [`Check`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReply {
    /// One line for each disagreement between tables.
    pub disagreements: Vec<String>,
}

/// The answer to [`Stop`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReply {
    /// The mount is in use: open files are served until the last is closed.
    pub in_use: bool,
    /// Data that could not be written; none: all are written.
    pub lost: Option<Dirty>,
}

/// The answer to [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseReply {
    /// The mount exists, so the claim stays.
    pub mounted: bool,
}

/// The answer to [`Pid`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PidReply {
    /// Process id of the supervisor.
    pub supervisor: i32,
    /// Process id of the daemon.
    pub terraced: u32,
    /// Directory where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
}

/// The answer to [`Mrc`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MrcReply {
    /// The estimates.
    pub mrc: crate::mrc::Mrc,
}

/// The answer to [`Numa`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumaReply {
    /// The daemon's findings.
    pub numa: Box<crate::numa::Numa>,
}

/// The answer to [`Lru`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LruReply {
    /// The lists.
    pub lru: Box<crate::lru::Lru>,
}

/// The answer to [`TierAdd`], [`TierRemove`] and [`TierResize`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierChange {
    /// The name of the target.
    pub name: String,
    /// The file or block device.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// Its present size, bytes; 0: removed.
    pub bytes: u64,
    /// Pages that went to other targets.
    pub moved_pages: u64,
    /// Pages that left the cache.
    pub dropped_pages: u64,
    /// The file was deleted, because the instance had created it.
    pub file_removed: bool,
}

impl TierChange {
    /// A change without moved or dropped pages.
    pub fn of(name: &str, path: &Path, bytes: u64) -> TierChange {
        TierChange { name: name.to_owned(), path: path.to_owned(), bytes, ..TierChange::default() }
    }
}

/// What [`Stage`] does with a part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Staging {
    /// Reads it into the cache.
    Read,
    /// Keeps its pages in memory for this time, milliseconds.
    Pin(u64),
    /// Moves its pages from memory to the tier of this level.
    Down(u8),
    /// Drops its pages from memory. The part may have any length.
    Drop,
}

/// The answer to [`Stage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReply {
    /// Bytes read, pinned, on tiers, or dropped.
    pub bytes: u64,
}

/// The answer to [`Age`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeReply {
    /// Number of the generation that was opened.
    pub seq: u64,
}

/// Reason of a refusal, for programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The mount is in use, or another recording is under way.
    Busy,
    /// Another file system is mounted over the mount.
    Covered,
    /// The policy has no generations.
    NoGenerations,
    /// The instance cannot do this: the arguments, or the kind of the instance, exclude it.
    Refused,
    /// The daemon did not answer. Set by the client, never sent.
    Silent,
    /// The command does not exist, or needs a connection of its own.
    Usage,
    /// The operation failed. Unknown codes are read as this one.
    #[default]
    #[serde(other)]
    Failed,
}

/// The refusal of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandError {
    /// Code for programs.
    #[serde(default)]
    pub code: ErrorCode,
    /// Message for users: one line.
    #[serde(rename = "error")]
    pub message: String,
}

impl CommandError {
    /// A refusal with this code.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> CommandError {
        CommandError { code, message: message.to_string() }
    }

    /// A failed operation.
    pub fn failed(err: impl fmt::Display) -> CommandError {
        CommandError::new(ErrorCode::Failed, err)
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CommandError {}

/// An answer as JSON: `ok`, and the fields of the reply or the error.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    ok: bool,
    #[serde(flatten)]
    fields: T,
}

/// Serializes an answer as a line, with its end.
///
/// # Errors
/// A path is not UTF-8.
pub fn write_answer(answer: &Result<impl Serialize, CommandError>) -> serde_json::Result<Vec<u8>> {
    let mut line = match answer {
        Ok(fields) => serde_json::to_vec(&Line { ok: true, fields }),
        Err(fields) => serde_json::to_vec(&Line { ok: false, fields }),
    }?;
    line.push(b'\n');
    Ok(line)
}

/// Parses the answer in a line.
///
/// # Errors
/// The line is not JSON, or has another form.
pub fn read_answer<T: DeserializeOwned>(line: &str) -> serde_json::Result<Result<T, CommandError>> {
    /// The field that every answer has.
    #[derive(Deserialize)]
    struct Head {
        ok: bool,
    }
    match serde_json::from_str::<Head>(line)?.ok {
        true => serde_json::from_str(line).map(Ok),
        false => serde_json::from_str(line).map(Err),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: impl Command) -> String {
        serde_json::to_string(&command.into()).unwrap()
    }

    #[test]
    fn requests_carry_the_name_of_the_command() {
        assert_eq!(request(Stat {}), r#"{"cmd":"stat"}"#);
        assert_eq!(request(Resize { bytes: 7, auto: false }), r#"{"cmd":"resize","bytes":7,"auto":false}"#);
        assert_eq!(request(Stop { lazy: true, lose: false }), r#"{"cmd":"stop","lazy":true,"lose":false}"#);
        let read = |line: &str| serde_json::from_str::<Request>(line).unwrap();
        assert_eq!(read(r#"{"cmd":"resize","bytes":7}"#), Resize { bytes: 7, auto: false }.into());
        assert_eq!(read(r#"{"cmd":"stop"}"#), Stop { lazy: false, lose: false }.into());
        assert_eq!(read(r#"{"cmd":"evict","seq":3}"#), Evict { seq: 3, pages: None }.into());
        assert_eq!(read(r#"{"cmd":"age","more":1}"#), Age {}.into());
        assert!(serde_json::from_str::<Request>(r#"{"cmd":"fly"}"#).is_err());
    }

    #[test]
    fn answers_survive_the_wire() {
        let wire =
            |answer: Result<Reply, CommandError>| String::from_utf8(write_answer(&answer).unwrap()).unwrap();
        let done = wire(Ok(Reply::Sync(Done {})));
        assert_eq!((done.as_str(), read_answer::<Done>(&done).unwrap()), ("{\"ok\":true}\n", Ok(Done {})));
        let lost = Dirty { bytes: 4096, ..Dirty::default() };
        let stopped = StopReply { in_use: true, lost: Some(lost) };
        let line = wire(Ok(Reply::Stop(stopped.clone())));
        assert!(line.starts_with("{\"ok\":true,\"in_use\":true,\"lost\":{\"bytes\":4096"), "{line}");
        assert_eq!(read_answer(&line).unwrap(), Ok(stopped));
        let stat = StatReply { stat: Box::default(), supervisor_lives: true, kv: None };
        let line = wire(Ok(Reply::Stat(stat.clone())));
        assert_eq!(read_answer(&line).unwrap(), Ok(stat));
    }

    #[test]
    fn refusals_carry_code_and_message() {
        let no = CommandError::new(ErrorCode::NoGenerations, "the policy lru has no generations");
        let line = write_answer(&Err::<Done, _>(no.clone())).unwrap();
        let line = String::from_utf8(line).unwrap();
        let wire =
            "{\"ok\":false,\"code\":\"no_generations\",\"error\":\"the policy lru has no generations\"}\n";
        assert_eq!(line, wire);
        assert_eq!(read_answer::<Done>(&line).unwrap(), Err(no));
        for line in [r#"{"ok":false,"code":"later","error":"x"}"#, r#"{"ok":false,"error":"x"}"#] {
            assert_eq!(read_answer::<Done>(line).unwrap(), Err(CommandError::failed("x")), "{line}");
        }
        assert!(
            read_answer::<Done>("{}").is_err() && read_answer::<DropCachesReply>(r#"{"ok":true}"#).is_err()
        );
    }
}
