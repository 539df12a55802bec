//! Finds the configuration file, and the lines of its keys.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// The file to read. A file named by flag or environment is returned even if it does not exist: this becomes
/// an error. Otherwise the first existing default.
pub(super) fn file(flag: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    flag.map(Path::to_owned)
        .or_else(|| env("TERRACE_CONFIG").map(PathBuf::from))
        .or_else(|| searched(env).into_iter().find(|path| path.exists()))
}

/// Default files: the user's before the machine's.
fn searched(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let home = || env("HOME").map(|home| Path::new(&home).join(".config"));
    let user = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let user = user.filter(|dir| dir.is_absolute()).map(|dir| dir.join("terrace/terrace.toml"));
    user.into_iter().chain([PathBuf::from("/etc/terrace/terrace.toml")]).collect()
}

/// The line, counted from 1, of byte `offset` in `text`.
pub(super) fn line_of_offset(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

/// The line of a dotted key; if it is absent, the line of its nearest table, or 1. In a list of tables, the
/// last one counts.
pub(super) fn line_of_key(text: &str, dotted: &str) -> usize {
    let Ok(root) = DeTable::parse(text) else { return 1 };
    let mut table = root.get_ref();
    let mut offset = 0;
    for part in dotted.split('.') {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
        offset = key.span().start;
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            DeValue::Array(list) => match list.last().map(|last| (last.span(), last.get_ref())) {
                Some((span, DeValue::Table(inner))) => (offset, table) = (span.start, inner),
                _ => break,
            },
            _ => break,
        }
    }
    line_of_offset(text, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_lines() {
        let text = "memory = 1\n\n[dirty]\n# note\nratio = 5\n";
        assert_eq!(line_of_key(text, "memory"), 1);
        assert_eq!(line_of_key(text, "dirty.ratio"), 5);
        assert_eq!(line_of_key(text, "dirty.background_ratio"), 3);
        assert_eq!(line_of_key(text, "log.level"), 1);
        let text = "[[tier.device]]\npath = \"a\"\n\n[[tier.device]]\nname = \"\"\n";
        assert_eq!(line_of_key(text, "tier.device.name"), 5);
        assert_eq!(line_of_key(text, "tier.device.path"), 4);
        assert_eq!(line_of_key(text, "tier.device"), 4);
    }

    #[test]
    fn the_nearest_file_wins() {
        let env = |name: &str| match name {
            "TERRACE_CONFIG" => Some("/named.toml".to_owned()),
            "XDG_CONFIG_HOME" => Some("/x".to_owned()),
            _ => None,
        };
        assert_eq!(file(Some(Path::new("/flag.toml")), &env), Some("/flag.toml".into()));
        assert_eq!(file(None, &env), Some("/named.toml".into()));
        let found = searched(&env);
        assert_eq!(found, [Path::new("/x/terrace/terrace.toml"), Path::new("/etc/terrace/terrace.toml")]);
    }
}
