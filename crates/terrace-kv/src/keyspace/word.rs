//! A key's word of metadata: the type of its value and the time when it expires.
//!
//! ```text
//! 63      60 59                                   0
//! [ type:4 ][ expires: milliseconds since 1970, 0 never ]
//! ```

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    String,
    /// Fields with values.
    Hash,
    /// Members with scores.
    Zset,
}

impl Kind {
    /// As TYPE answers.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Zset => "zset",
        }
    }
}

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each element once.
    Compact,
    /// A log of changes: an element may stand in it more than once, the last counts.
    Log,
    /// Such a log in pieces, blobs of their own ([`super::chain`]); the key's blob names them.
    Pieces,
}

/// Largest time of expiry, milliseconds since 1970: the year 36,000,000.
pub const EXPIRES_MAX: u64 = (1 << 60) - 1;

/// The word, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Type.
    pub kind: Kind,
    /// Form; strings are compact.
    pub form: Form,
    /// When the key expires, milliseconds since 1970.
    pub expires: Option<u64>,
}

impl Word {
    /// Of a new value that does not expire.
    pub fn new(kind: Kind) -> Word {
        Word { kind, form: Form::Compact, expires: None }
    }

    /// As it is stored.
    pub fn pack(self) -> u64 {
        let code = match (self.kind, self.form) {
            (Kind::String, _) => 1,
            (Kind::Hash, Form::Compact) => 2,
            (Kind::Hash, Form::Log) => 3,
            (Kind::Zset, Form::Compact) => 4,
            (Kind::Zset, Form::Log) => 5,
            (Kind::Hash, Form::Pieces) => 6,
            (Kind::Zset, Form::Pieces) => 7,
        };
        code << 60 | self.expires.unwrap_or(0).min(EXPIRES_MAX)
    }

    /// From what is stored. A blob of the store that the server has not made, whose word is 0, is a string.
    pub fn unpack(word: u64) -> Word {
        let (kind, form) = match word >> 60 {
            2 => (Kind::Hash, Form::Compact),
            3 => (Kind::Hash, Form::Log),
            4 => (Kind::Zset, Form::Compact),
            5 => (Kind::Zset, Form::Log),
            6 => (Kind::Hash, Form::Pieces),
            7 => (Kind::Zset, Form::Pieces),
            _ => (Kind::String, Form::Compact),
        };
        Word { kind, form, expires: Some(word & EXPIRES_MAX).filter(|expires| *expires > 0) }
    }

    /// Whether the key is no more.
    pub fn is_expired(self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_unpack_to_what_was_packed() {
        for kind in [Kind::String, Kind::Hash, Kind::Zset] {
            for form in [Form::Compact, Form::Log, Form::Pieces] {
                for expires in [None, Some(1), Some(EXPIRES_MAX)] {
                    let form = if kind == Kind::String { Form::Compact } else { form };
                    let word = Word { kind, form, expires };
                    assert_eq!(Word::unpack(word.pack()), word);
                }
            }
        }
        assert_eq!(Word::unpack(0), Word::new(Kind::String));
    }
}
