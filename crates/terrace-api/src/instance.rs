//! The records of an instance in its runtime directory, for other commands: `info.json` and `dirty.json`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The purpose of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A mount for all programs.
    Mount,
    /// The private mount of one command.
    Run,
    /// A server of keys; `src` and `mnt` are the directory of its store.
    Kv,
}

impl Kind {
    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mount => "mount",
            Kind::Run => "run",
            Kind::Kv => "kv",
        }
    }
}

/// `info.json`: the source, where it is served, and the processes that serve it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of this record: [`SCHEMA`].
    pub schema: String,
    /// Process id of the supervisor.
    pub pid: i32,
    /// Process id of the daemon; changes when it is restarted.
    pub terraced: i32,
    /// The namespace in which these are their ids, by the kernel's name for it: several may share a runtime directory.
    #[serde(default)]
    pub pid_namespace: PathBuf,
    /// Restarts of the daemon.
    pub restarts: u32,
    /// How its predecessor died; none: there was none.
    #[serde(default)]
    pub last_death: Option<String>,
    /// Mount or run.
    pub kind: Kind,
    /// The directory that is cached.
    #[serde(with = "crate::path")]
    pub src: PathBuf,
    /// Where it is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
    /// The mount's device, major and minor; none where there is no mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// The number of its claim on the source, by which others find this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<u32>,
    /// Memory limit at the start, bytes.
    pub memory_bytes: u64,
    /// Name of the eviction policy.
    pub policy: String,
    /// Files and block devices of the tiers below DRAM.
    #[serde(default, with = "crate::path::list", skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PathBuf>,
    /// Address at which metrics are served over HTTP; none: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Version of terrace.
    pub version: String,
}

/// The value of [`Info::schema`].
pub const SCHEMA: &str = "terrace.instance.v1";

/// `dirty.json`: data not yet written to the source at the time of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirty {
    /// Bytes unwritten, all files together.
    pub bytes: u64,
    /// Files that have some.
    pub files_total: u64,
    /// Those with most.
    pub files: Vec<DirtyFile>,
}

/// A file with unwritten data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyFile {
    /// Its path below the source.
    pub path: String,
    /// Its unwritten bytes.
    pub bytes: u64,
}
