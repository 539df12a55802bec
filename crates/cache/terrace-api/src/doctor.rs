//! Checks of a machine, and of the directory to be served: the data of `terrace doctor --json`.

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
    /// The checked directory; none: no directory was given.
    #[serde(default, with = "crate::path::optional")]
    pub dir: Option<PathBuf>,
    /// False if something is missing without which terrace cannot serve.
    pub can_serve: bool,
    /// All checks.
    pub checks: Vec<Check>,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// terrace can use it fully.
    #[default]
    Good,
    /// terrace serves without it, at a cost.
    Limited,
    /// terrace cannot serve without it.
    Missing,
}

impl State {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Limited => "limited",
            State::Missing => "missing",
        }
    }
}

/// One check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// Result.
    pub state: State,
    /// The finding.
    pub found: String,
    /// Cost of a lack; none: there is no cost.
    pub cost: Option<String>,
    /// Cure; none: not needed.
    pub cure: Option<String>,
}

impl Check {
    /// A check without a lack.
    pub fn good(name: &str, found: impl Into<String>) -> Check {
        Check { name: name.to_owned(), found: found.into(), ..Check::default() }
    }

    /// A check with a lack.
    pub fn bad(name: &str, state: State, found: impl Into<String>, cost: &str, cure: &str) -> Check {
        let (cost, cure) = (Some(cost.to_owned()), Some(cure.to_owned()));
        Check { name: name.to_owned(), state, found: found.into(), cost, cure }
    }
}
