//! A key's word of metadata: the type of its value, its expiry time, and the flags of a memcached client.
//!
//! ```text
//! 63      60 59                                   0
//! [ type:4 ][ expires: milliseconds since 1970, 0 never ]
//!
//! strings with flags of at most 16 bits, and of 32:
//! [ 1000 ][ flags:16 ][ expires: milliseconds, 44 bits ]
//! [ 11 ][ flags:32 ][ expires: units of 4 s, rounded up, 30 bits ]
//! ```

/// Type of a value.
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
    /// The type's name in TYPE.
    pub fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Hash => "hash",
            Kind::Zset => "zset",
        }
    }
}

/// Form of a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Each element once.
    Compact,
    /// A log of changes. The last record of an element counts.
    Log,
    /// A log in pieces, which are separate blobs ([`super::segment_list`]). The key's blob is their head.
    Pieces,
}

/// Maximum expiry time, milliseconds since 1970: the year 36,000,000.
pub(crate) const EXPIRES_MAX: u64 = (1 << 60) - 1;

/// Strings with flags up to [`NARROW_MAX`]: flags and milliseconds, up to the year 2527.
const NARROW: u64 = 0b1000;
const NARROW_MAX: u32 = 0xffff;
const NARROW_EXPIRES: u32 = 44;
/// Strings with larger flags: two bits, flags, and units of [`WIDE_UNIT`] milliseconds, up to the year 2106.
const WIDE: u64 = 0b11;
const WIDE_EXPIRES: u32 = 30;
const WIDE_UNIT: u64 = 4000;

/// The unpacked word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) kind: Kind,
    /// Form. Strings are always compact.
    pub(crate) form: Form,
    /// Expiry time, milliseconds since 1970.
    pub(crate) expires: Option<u64>,
    /// Flags of a memcached client. Only strings have them.
    pub(crate) flags: u32,
}

impl Word {
    /// The word of a new value without expiry time.
    pub(crate) fn new(kind: Kind) -> Word {
        Word { kind, form: Form::Compact, expires: None, flags: 0 }
    }

    pub(crate) fn pack(self) -> u64 {
        let code = match (self.kind, self.form) {
            (Kind::String, _) if self.flags > 0 => return self.pack_with_flags(),
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

    fn pack_with_flags(self) -> u64 {
        let (flags, expires) = (u64::from(self.flags), self.expires.unwrap_or(0));
        if self.flags <= NARROW_MAX {
            return NARROW << 60 | flags << NARROW_EXPIRES | expires.min(low(NARROW_EXPIRES));
        }
        WIDE << 62 | flags << WIDE_EXPIRES | expires.div_ceil(WIDE_UNIT).min(low(WIDE_EXPIRES))
    }

    /// Unpacks a stored word. A blob that the server did not create has the word 0, a string.
    pub(crate) fn unpack(word: u64) -> Word {
        let string = |flags: u64, expires: u64| Word {
            expires: Some(expires).filter(|expires| *expires > 0),
            flags: flags as u32,
            ..Word::new(Kind::String)
        };
        if word >> 62 == WIDE {
            return string(word >> WIDE_EXPIRES, (word & low(WIDE_EXPIRES)) * WIDE_UNIT);
        }
        let (kind, form) = match word >> 60 {
            2 => (Kind::Hash, Form::Compact),
            3 => (Kind::Hash, Form::Log),
            4 => (Kind::Zset, Form::Compact),
            5 => (Kind::Zset, Form::Log),
            6 => (Kind::Hash, Form::Pieces),
            7 => (Kind::Zset, Form::Pieces),
            NARROW => {
                let flags = word >> NARROW_EXPIRES & u64::from(NARROW_MAX);
                return string(flags, word & low(NARROW_EXPIRES));
            }
            _ => (Kind::String, Form::Compact),
        };
        Word { kind, form, expires: Some(word & EXPIRES_MAX).filter(|expires| *expires > 0), flags: 0 }
    }

    /// The word after a round trip through storage. The expiry time may be capped, or rounded up if the flags
    /// exceed 16 bits.
    #[must_use]
    pub(crate) fn as_stored(self) -> Word {
        Word::unpack(self.pack())
    }

    pub(crate) fn is_expired(self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// A mask of the low `bits` bits.
const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
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
                    let word = Word { form, expires, ..Word::new(kind) };
                    assert_eq!(Word::unpack(word.pack()), word);
                }
            }
        }
        assert_eq!(Word::unpack(0), Word::new(Kind::String));
    }

    #[test]
    fn flags_stand_beside_the_time_of_expiry() {
        const NOW: u64 = 1_790_000_000_123;
        let with = |flags, expires| Word { flags, expires, ..Word::new(Kind::String) };
        let stored = |flags, expires| Word::unpack(with(flags, expires).pack());
        for flags in [0, 1, 2, 0x100, NARROW_MAX] {
            for expires in [None, Some(1), Some(NOW), Some(low(NARROW_EXPIRES))] {
                assert_eq!(stored(flags, expires), with(flags, expires));
            }
        }
        for flags in [NARROW_MAX + 1, 1 << 31, u32::MAX] {
            assert_eq!(stored(flags, None), with(flags, None));
            let rounded = with(flags, Some(NOW)).as_stored();
            assert_eq!((rounded.flags, rounded.kind), (flags, Kind::String));
            assert!((NOW..NOW + WIDE_UNIT).contains(&rounded.expires.unwrap()));
            assert_eq!(rounded, rounded.as_stored());
            assert!(stored(flags, Some(u64::MAX)).expires.unwrap() > 4_200_000_000_000);
        }
        assert_eq!(with(0, Some(u64::MAX)).as_stored(), with(0, Some(EXPIRES_MAX)));
        assert!(stored(1, Some(u64::MAX)).expires.unwrap() > 17_000_000_000_000);
    }
}
