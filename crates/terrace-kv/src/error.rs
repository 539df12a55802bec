//! Why a command is refused, in the words that clients know from Redis: they look for the codes, and some for the text.

use std::fmt;

use crate::blobs::BlobError;

/// A command that is not carried out; its text is the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds a value of another type.
    WrongType,
    /// The options make no sense.
    Syntax,
    /// An argument is no integer of 64 bits.
    NotInteger,
    /// An argument, or the value, is no float.
    NotFloat,
    /// A time that is not in the range of one; of this command.
    ExpireTime(&'static str),
    /// The number of arguments is another one; of this command.
    Arity(String),
    /// There is no such key.
    NoSuchKey,
    /// A number that is out of its range.
    OutOfRange,
    /// Anything else: the whole line with its code.
    Other(String),
    /// The store has not done it.
    Store(BlobError),
}

impl Refusal {
    /// An error with the general code.
    pub fn err(text: impl fmt::Display) -> Refusal {
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
            // The code of Redis at its limit of memory, which clients know as one that passes.
            Refusal::Store(BlobError::Full) => f.write_str(
                "OOM command not allowed: the store is full; delete keys, or make room on its file system",
            ),
            Refusal::Store(BlobError::NoMemory) => f.write_str(
                "OOM command not allowed when used memory > 'maxmemory': delete keys, or raise --memory",
            ),
            // The code of Redis where its log cannot be written.
            Refusal::Store(BlobError::NotDurable(why)) => write!(f, "MISCONF {why}"),
            Refusal::Store(err) => write!(f, "ERR {err}"),
        }
    }
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Refusal>;
