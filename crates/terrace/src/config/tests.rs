//! Tests of the configuration: docs/terrace.toml against the code, the precedence of sources, and the text
//! of errors.

use super::*;
use crate::cli::Tuning;
use std::path::Path;

const DOCUMENTED: &str = include_str!("../../../../docs/terrace.toml");

/// docs/terrace.toml with its commented keys switched on: a key is `#key = value`, prose is `# text`. Lists
/// of tables are empty by default. Their example (`#[[table]]`, up to the next line without a key) is left
/// out.
fn uncommented() -> String {
    let mut in_example = false;
    let is_key = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase());
    let lines = DOCUMENTED.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with("[[") => {
            in_example = true;
            line
        }
        Some(rest) if is_key(rest) && !in_example => rest,
        Some(rest) if is_key(rest) => line,
        _ => {
            in_example = false;
            line
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The example of `[[tier.device]]` in docs/terrace.toml.
fn device_example() -> String {
    let mut lines = DOCUMENTED.lines().skip_while(|line| !line.starts_with("#[[tier.device]]"));
    let of = |line: &str| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned);
    let example: Vec<String> = std::iter::from_fn(|| lines.next().and_then(of)).collect();
    example.join("\n")
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
fn every_key_of_a_device_is_documented() {
    let size = |text: &str| Some(text.parse::<Size>().unwrap());
    let device = Device {
        name: "ssd".to_owned(),
        path: "/ssd/terrace.tier".into(),
        size: size("64GiB"),
        write_budget: size("200GiB"),
        rated_writes: size("600TB"),
        speed: None,
    };
    assert_eq!(Config::parse(&device_example()).unwrap().tier.device, std::slice::from_ref(&device));
    let documented: toml::Table = toml::from_str(&device_example()).unwrap();
    let documented = documented["tier"]["device"][0].as_table().unwrap();
    assert_eq!(keys("", documented), keys("", &toml::Table::try_from(device).unwrap()));
}

#[test]
fn devices_that_cannot_be_name_their_line() {
    let device = "[[tier.device]]\npath = \"/ssd/t\"\n";
    assert_eq!(Config::parse(device).unwrap().tier.device[0].name, "device");
    let several = |n: usize| (0..n).map(|n| format!("[[tier.device]]\npath = \"/{n}\"\nname = \"{n}\"\n"));
    assert_eq!(Config::parse(&several(8).collect::<String>()).unwrap().tier.device.len(), 8);
    let (_, why) = parse_error(&several(9).collect::<String>());
    assert_eq!(why, "tier.device has 9 entries, and terrace uses 8 at one time; remove some of them");
    let (_, why) = parse_error(&format!("{device}\n[[tier.device]]\npath = \"/ssd/u\"\n"));
    assert!(why.contains("= \"device\" is the name of two tiers; give each"), "{why}");
    let (line, why) = parse_error("[tier]\nplacement = \"best\"\n");
    assert!(line == 2 && why.contains("use one of min-io-time, min-io-sum, round-robin, random"), "{why}");
    let cases = [
        ("[[tier.device]]\nsize = \"1GiB\"\n", 1, "tier.device.path is missing; write path"),
        ("[[tier.device]]\npath = \"/t\"\nname = \"a b\"\n", 3, "= \"a b\" is no name"),
        ("[[tier.device]]\npath = \"/t\"\nname = \"dram\"\n", 3, "the name of another tier"),
        ("[[tier.device]]\npath = \"/t\"\nwrite_budget = 1\n", 3, "= 1 a day is too little"),
        ("[[tier.device]]\npath = \"/t\"\n\nrated_writes = 0\n", 4, "= 0 is no rating"),
        ("[[tier.device]]\npath = \"/t\"\nsize = \"big\"\n", 3, "`big` is not a size"),
        ("[[tier.device]]\npath = \"/t\"\nbudget = 1\n", 3, "unknown field `budget`"),
    ];
    for (text, at, part) in cases {
        let (line, why) = parse_error(text);
        assert_eq!(line, at, "{text}{why}");
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn flag_replaces_the_device_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("terrace.toml");
    std::fs::write(&file, "[[tier.device]]\nname = \"ssd\"\npath = \"data.tier\"\n").unwrap();
    let mut tuning = Tuning { config: Some(file), format_tier: true, ..Tuning::default() };
    let config = Config::load_with(&tuning, &no_env).unwrap();
    assert_eq!(config.tier.device[0].path, dir.path().join("data.tier"));
    assert!(config.tier.format);
    let env = |name: &str| (name == "TERRACE_TIER").then(|| "/ssd/t:1GiB".to_owned());
    let config = Config::load_with(&tuning, &env).unwrap();
    let device = &config.tier.device[0];
    assert_eq!((device.name.as_str(), device.size), ("device", Some(Size(1 << 30))));
    tuning.tier = vec!["/ssd/other".into()];
    assert_eq!(Config::load_with(&tuning, &env).unwrap().tier.device[0].path, Path::new("/ssd/other"));
    let tuning = Tuning { format_tier: true, ..Tuning::default() };
    let failure = Config::load_with(&tuning, &no_env).unwrap_err().to_string();
    assert!(failure.starts_with("terrace: --format-tier: there is no tier to format; name it"), "{failure}");
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
    // The largest permitted ring is the largest that a client can map.
    assert!(parse_error("[preload]\nring_slots = 128\n").1.contains("write 8 to 64"));
}

#[test]
fn contradictions_name_their_line() {
    let (line, why) = parse_error("[dirty]\nratio = 10\nbackground_ratio = 10\n");
    assert_eq!(line, 3);
    assert!(why.contains("not below dirty.ratio = 10"), "{why}");
    // Only one of the two keys is in the file: it contradicts the default of the other.
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
    assert_eq!((config.memory, config.policy.as_str()), (MemoryLimit::Fixed(Size(64 << 20)), "lru"));
    tuning.memory = Some("128MiB".to_owned());
    tuning.policy = Some("clock".to_owned());
    let config = Config::load_with(&tuning, &env).unwrap();
    assert_eq!((config.memory, config.policy.as_str()), (MemoryLimit::Fixed(Size(128 << 20)), "clock"));
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
