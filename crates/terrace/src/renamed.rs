//! Old spellings, which scripts and configuration files may still have: each is refused with the new one.

/// Commands and options.
const WORDS: [(&str, &str); 4] = [
    ("flush", "sync"),
    ("drop", "drop-caches"),
    ("watch", "terrace top"),
    ("--no-fast-door", "--no-preload"),
];

/// Tables and keys of the configuration. Old names differ from all that are valid now.
const KEYS: [(&str, &str); 6] = [
    ("door", "preload"),
    ("background_percent", "background_ratio"),
    ("percent", "ratio"),
    ("interval", "writeback_interval"),
    ("min_share", "min_percent"),
    ("max_share", "max_percent"),
];

/// The new spelling of a command or option.
pub fn word(old: &str) -> Option<&'static str> {
    WORDS.iter().find(|(was, _)| *was == old).map(|(_, is)| *is)
}

/// The new spelling of the key that the message of a TOML error calls unknown.
pub fn key(message: &str) -> Option<&'static str> {
    let old = message.strip_prefix("unknown field `")?.split('`').next()?;
    KEYS.iter().find(|(was, _)| *was == old).map(|(_, is)| *is)
}
