//! The error message of a command: one line, `terrace: <what>: <why>; <cure>`.

use std::fmt;
use std::process::ExitCode;

/// The command worked, and its answer is negative.
pub(crate) const EXIT_NEGATIVE: u8 = 1;
/// The command was used wrongly or could not do its work.
pub(crate) const EXIT_FAILED: u8 = 2;

/// A failure, as one line for the user.
///
/// The cure is part of the type: each failure states the reader's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    text: String,
    code: u8,
}

/// Cure of a failure in the background that leaves no log.
pub(crate) const SEE_ALL_MESSAGES: &str = "`terrace mount --foreground` shows all messages";

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// `what` failed because of `why`; `cure` is the user's next step.
    pub(crate) fn new(what: impl fmt::Display, why: impl fmt::Display, cure: impl fmt::Display) -> Failure {
        Failure { text: one_line(&format!("{what}: {why}; {cure}")), code: EXIT_FAILED }
    }

    /// A failure with a line of another process (the supervisor, for the command that started it).
    pub(crate) fn from_line(line: &str) -> Failure {
        let text = line.strip_prefix("terrace: ").unwrap_or(line);
        Failure { text: one_line(text), code: EXIT_FAILED }
    }

    /// The same failure with another exit code.
    #[must_use]
    pub(crate) fn with_code(mut self, code: u8) -> Failure {
        self.code = code;
        self
    }

    /// The line without the program's name.
    pub(crate) fn line(&self) -> &str {
        &self.text
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "terrace: {}", self.text)
    }
}

/// Joins several lines into one: messages of libraries may have several.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The operating system's reason without Rust's `(os error N)`.
pub(crate) fn reason(err: impl Into<std::io::Error>) -> String {
    let text = err.into().to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::new("/data", "not\n  there", "make it");
        assert_eq!(failure.to_string(), "terrace: /data: not there; make it");
        assert_eq!(Failure::from_line(&failure.to_string()), failure);
    }

    #[test]
    fn reasons_carry_no_rust() {
        assert_eq!(reason(std::io::Error::from_raw_os_error(2)), "No such file or directory");
    }
}
