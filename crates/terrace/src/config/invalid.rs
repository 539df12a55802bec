//! Error for a configuration value that is not allowed: the key, the reason, the cure.

use std::fmt;

/// A value that is not allowed, and the cure.
#[derive(Debug)]
pub(crate) struct InvalidValue {
    pub key: &'static str,
    why: String,
    /// The user's next step.
    pub cure: String,
}

impl InvalidValue {
    /// `key` is not allowed because it `why`; `cure` is the user's next step.
    pub(crate) fn new(key: &'static str, why: String, cure: String) -> InvalidValue {
        InvalidValue { key, why, cure }
    }
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.key, self.why)
    }
}
