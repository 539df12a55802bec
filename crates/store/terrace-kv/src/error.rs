//! Errors of refused commands, with the texts of Redis: clients parse the codes, and some parse the text.

use std::fmt;

use crate::blobs::BlobError;

/// A refused command. Its text is the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds a value of another type.
    WrongType,
    /// The options are contradictory or unknown.
    Syntax,
    /// An argument is not a 64-bit integer.
    NotInteger,
    /// An argument, or the value, is not a float.
    NotFloat,
    /// An expiry time out of range, with the command's name.
    ExpireTime(&'static str),
    /// Wrong number of arguments, with the command's name.
    Arity(String),
    /// The key does not exist.
    NoSuchKey,
    /// A number out of range.
    OutOfRange,
    /// Any other refusal: the whole line with its code.
    Other(String),
    /// The store refused the operation.
    Store(BlobError),
}

impl Refusal {
    /// An error with the general code.
    pub(crate) fn err(text: impl fmt::Display) -> Refusal {
        Refusal::Other(format!("ERR {text}"))
    }
}

impl From<BlobError> for Refusal {
    fn from(err: BlobError) -> Refusal {
        Refusal::Store(err)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::WrongType => {
                f.write_str("WRONGTYPE Operation against a key holding the wrong kind of value")
            }
            Refusal::Syntax => f.write_str("ERR syntax error"),
            Refusal::NotInteger => f.write_str("ERR value is not an integer or out of range"),
            Refusal::NotFloat => f.write_str("ERR value is not a valid float"),
            Refusal::ExpireTime(command) => write!(f, "ERR invalid expire time in '{command}' command"),
            Refusal::Arity(command) => write!(f, "ERR wrong number of arguments for '{command}' command"),
            Refusal::NoSuchKey => f.write_str("ERR no such key"),
            Refusal::OutOfRange => f.write_str("ERR value is out of range"),
            Refusal::Other(line) => f.write_str(line),
            // The code that Redis uses at its memory limit. Clients treat it as temporary.
            Refusal::Store(BlobError::Full) => f.write_str(
                "OOM command not allowed: the store is full; delete keys, or make room on its file system",
            ),
            Refusal::Store(BlobError::NoMemory) => f.write_str(
                "OOM command not allowed when used memory > 'maxmemory': delete keys, or raise --memory",
            ),
            // The code that Redis uses when it cannot write its log.
            Refusal::Store(BlobError::NotDurable(why)) => write!(f, "MISCONF {why}"),
            Refusal::Store(err) => write!(f, "ERR {err}"),
        }
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Refusal>;
