//! Findings about a machine: the data of `terrace doctor --json`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.doctor.v1")]
    V1,
}

/// The output of `terrace doctor --json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// The format.
    pub schema: Schema,
    /// The directory that was looked at; none: none was named.
    #[serde(default, with = "crate::path::optional")]
    pub dir: Option<PathBuf>,
    /// Nothing is missing without which terrace cannot serve.
    pub can_serve: bool,
    /// All that was looked at.
    pub checks: Vec<Check>,
}

/// How a machine does in one respect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As well as terrace can use it.
    #[default]
    Good,
    /// terrace serves without it, at a cost.
    Limited,
    /// terrace cannot serve without it.
    Missing,
}

impl State {
    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Limited => "limited",
            State::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// How the machine does.
    pub state: State,
    /// The finding.
    pub found: String,
    /// The cost of the lack; none: it costs nothing.
    pub cost: Option<String>,
    /// The cure; none: none is needed.
    pub cure: Option<String>,
}

impl Check {
    /// All is well.
    pub fn good(name: &str, found: impl Into<String>) -> Check {
        Check { name: name.to_owned(), found: found.into(), ..Check::default() }
    }

    /// Something is not.
    pub fn bad(name: &str, state: State, found: impl Into<String>, cost: &str, cure: &str) -> Check {
        let (cost, cure) = (Some(cost.to_owned()), Some(cure.to_owned()));
        Check { name: name.to_owned(), state, found: found.into(), cost, cure }
    }
}
