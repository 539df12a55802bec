//! Errors of reading a trace: each names the file, the place, the fault and the user's next step.

use std::fmt;

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Offset in the (decompressed) content, bytes.
    Byte(u64),
    /// Line number, from 1.
    Line(u64),
}

/// Why a trace cannot be read any further; `Display` is one line: file, place, fault, cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Name of the file, as given.
    pub file: String,
    /// Place of the fault; `None`: the file as a whole.
    pub at: Option<At>,
    /// The fault.
    pub fault: String,
    /// The user's next step.
    pub cure: String,
}

impl Error {
    pub(crate) fn new(file: &str, at: Option<At>, fault: impl Into<String>, cure: &str) -> Error {
        Error { file: file.into(), at, fault: fault.into(), cure: cure.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { file, fault, cure, .. } = self;
        match self.at {
            Some(At::Byte(byte)) => write!(f, "{file}: at byte {byte}: {fault} ({cure})"),
            Some(At::Line(line)) => write!(f, "{file}: line {line}: {fault} ({cure})"),
            None => write!(f, "{file}: {fault} ({cure})"),
        }
    }
}

impl std::error::Error for Error {}
