//! The file against the code, precedence, and the text of errors.

use super::*;
use crate::cli::Tuning;

const DOCUMENTED: &str = include_str!("../../../../docs/terrace.toml");

/// docs/terrace.toml with its keys switched on: a commented key is `#key = value`, prose is `# text`.
fn uncommented() -> String {
    DOCUMENTED
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest,
            _ => line,
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Every dotted key of a table.
fn keys(prefix: &str, table: &toml::Table) -> Vec<String> {
    table
        .iter()
        .flat_map(|(key, value)| match value {
            toml::Value::Table(inner) => keys(&format!("{prefix}{key}."), inner),
            _ => vec![format!("{prefix}{key}")],
        })
        .collect()
}

fn no_env(_: &str) -> Option<String> {
    None
}

fn parse_error(text: &str) -> (usize, String) {
    let (line, why, cure) = Config::parse(text).expect_err(text);
    (line, format!("{why}; {cure}"))
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    assert_eq!(Config::parse(&uncommented()).unwrap(), Config::default());
    assert_eq!(Config::parse(DOCUMENTED).unwrap(), Config::default());
}

#[test]
fn every_key_is_documented() {
    let documented = keys("", &toml::from_str(&uncommented()).unwrap());
    let known = keys("", &toml::Table::try_from(Config::default()).unwrap());
    assert_eq!(documented, known);
}

#[test]
fn unknown_keys_name_their_line() {
    let (line, why) = parse_error("memory = \"1GiB\"\n\n[dirty]\npercentage = 3\n");
    assert_eq!(line, 4);
    assert!(why.contains("unknown field `percentage`"), "{why}");
    assert!(why.contains("background_ratio"), "{why}");
    assert_eq!(parse_error("\n[dirt]\n").0, 2);
    assert_eq!(parse_error("memory = \"1GiB\"\nmemory = \"2GiB\"\n").0, 2);
    assert_eq!(parse_error("a = \n").0, 1);
}

#[test]
fn wrong_values_name_their_line() {
    let (line, why) = parse_error("\nmemory = \"1KiB\"\n");
    assert_eq!(line, 2);
    assert!(why.contains("below the minimum of 16MiB"), "{why}");
    let (line, why) = parse_error("\n\npolicy = \"best\"\n");
    assert_eq!(line, 3);
    assert!(why.contains("choose one of strata"), "{why}");
    let (line, why) = parse_error("[io]\nengine = \"fast\"\n");
    assert_eq!(line, 2);
    assert!(why.contains("`uring`"), "{why}");
    assert_eq!(parse_error("[dirty]\nexpire = 30\n").0, 2);
    assert_eq!(parse_error("[preload]\n\nring_slots = 65\n").0, 3);
    // The largest ring that a client can map is the largest that can be asked for.
    assert!(parse_error("[preload]\nring_slots = 128\n").1.contains("write 8 to 64"));
}

#[test]
fn contradictions_name_their_line() {
    let (line, why) = parse_error("[dirty]\nratio = 10\nbackground_ratio = 10\n");
    assert_eq!(line, 3);
    assert!(why.contains("not below dirty.ratio = 10"), "{why}");
    // Only one of the two is written: the other is the default it contradicts.
    assert_eq!(parse_error("[dirty]\nratio = 10\n").0, 1);
    assert_eq!(parse_error("[dirty]\nexpire = \"1s\"\n").0, 1);
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("terrace.toml");
    std::fs::write(&file, "memory = \"32MiB\"\npolicy = \"lru\"\n").unwrap();
    let env = |name: &str| match name {
        "TERRACE_CONFIG" => Some(file.display().to_string()),
        "TERRACE_MEMORY" => Some("64MiB".to_owned()),
        _ => None,
    };
    let mut tuning = Tuning::default();
    let config = Config::load_with(&tuning, &env).unwrap();
    assert_eq!((config.memory, config.policy.as_str()), (Size(64 << 20), "lru"));
    tuning.memory = Some("128MiB".to_owned());
    tuning.policy = Some("clock".to_owned());
    let config = Config::load_with(&tuning, &env).unwrap();
    assert_eq!((config.memory, config.policy.as_str()), (Size(128 << 20), "clock"));
}

#[test]
fn errors_name_where_the_value_came_from() {
    let tuning = Tuning { memory: Some("1MiB".to_owned()), ..Tuning::default() };
    let failure = Config::load_with(&tuning, &no_env).unwrap_err().to_string();
    assert_eq!(failure, "terrace: --memory: 1MiB is below the minimum of 16MiB; give at least 16MiB");
    let env = |name: &str| (name == "TERRACE_POLICY").then(|| "none".to_owned());
    let failure = Config::load_with(&Tuning::default(), &env).unwrap_err().to_string();
    assert!(failure.starts_with("terrace: TERRACE_POLICY: there is no policy `none`; choose"), "{failure}");
    let tuning = Tuning { config: Some("/nonexistent.toml".into()), ..Tuning::default() };
    let failure = Config::load_with(&tuning, &no_env).unwrap_err().to_string();
    assert!(failure.starts_with("terrace: /nonexistent.toml: No such file"), "{failure}");
}
