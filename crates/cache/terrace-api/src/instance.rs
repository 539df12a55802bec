//! Data types of `info.json` and `dirty.json`: an instance keeps these files in its runtime directory for
//! other commands.

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
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Mount => "mount",
            Kind::Run => "run",
            Kind::Kv => "kv",
        }
    }
}

/// `info.json`: the source, its mount point, and the processes that serve it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of this record: [`SCHEMA`].
    pub schema: String,
    /// Process id of the supervisor.
    pub pid: i32,
    /// Process id of the daemon; changes when it is restarted.
    pub terraced: i32,
    /// The kernel's name of the PID namespace of `pid` and `terraced`. Instances of several PID namespaces can
    /// share a runtime directory.
    #[serde(default)]
    pub pid_namespace: PathBuf,
    /// Restarts of the daemon.
    pub restarts: u32,
    /// Death of the previous daemon; none: this is the first.
    #[serde(default)]
    pub last_death: Option<String>,
    /// The purpose of the instance.
    pub kind: Kind,
    /// The directory that is cached.
    #[serde(with = "crate::path")]
    pub src: PathBuf,
    /// Directory where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
    /// The mount's device, major and minor; none where there is no mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// Number of the claim on the source, by which other instances find this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<u32>,
    /// Memory limit at the start, bytes.
    pub memory_bytes: u64,
    /// Name of the eviction policy.
    pub policy: String,
    /// Files and block devices of the tiers below DRAM.
    #[serde(default, with = "crate::path::list", skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<PathBuf>,
    /// Address of metrics over HTTP; none: off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Version of terrace.
    pub version: String,
}

/// The value of [`Info::schema`].
pub const SCHEMA: &str = "terrace.instance.v1";

/// `dirty.json`: data that were not yet in the source at the file's modification time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirty {
    /// Unwritten bytes, all files together.
    pub bytes: u64,
    /// Files with unwritten data.
    pub files_total: u64,
    /// Files with the most unwritten data.
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
