//! Tests of a matrix's TOML file: its values, errors with line and key, and values of single loads.

use super::*;

const GOOD: &str = r#"name = "x"
repetitions = 3
limit_mib = 64
file_set = 2.0
patterns = ["random", "zipf:0.8", "normal:40"]
jobs_per_cpu = [1, 2]

[device]
kind = "directory"

[[system]]
kind = "kernel"

[[system]]
kind = "terrace"
args = ["--policy", "lru"]

[[load]]
kind = "fio"
bs = "4k"
"#;

fn error(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    Spec::parse(&GOOD.replace(from, to)).unwrap_err()
}

#[test]
fn a_matrix_is_read() {
    let spec = Spec::parse(GOOD).unwrap();
    assert_eq!(spec.file_mib_of(&spec.load[0]), Some(128));
    assert_eq!((spec.jobs_on(2), spec.jobs_on(1)), (vec![2, 4], vec![1, 2]));
    let names: Vec<_> = spec.system.iter().map(|s| s.name.as_str()).collect();
    assert_eq!((names, spec.load[0].name.as_str()), (vec!["kernel", "terrace"], "fio-psync"));
    let half = Spec::parse(&GOOD.replace("[1, 2]", "[0.1, 0.5, 1]")).unwrap();
    assert_eq!(half.jobs_on(2), [1, 2], "never none, none twice");
}

#[test]
fn errors_name_line_and_key() {
    for (from, to, said) in [
        ("repetitions = 3", "repetitions = 0", "line 2: repetitions: 1 to 1000"),
        ("repetitions = 3", "repetitions = \"a\"", "line 2: repetitions: invalid type"),
        ("limit_mib = 64", "limit_mib = 64\nlimits = 1", "line 4: limits: unknown field `limits`"),
        ("limit_mib = 64\n", "", "line 3: file_set: is a multiple of limit_mib"),
        ("zipf:0.8", "zipf", "line 5: patterns: \"zipf\" is none of"),
        ("[1, 2]", "[0]", "line 6: jobs_per_cpu: above 0"),
        ("kind = \"directory\"", "kind = \"disk\"", "line 9: kind: unknown variant `disk`"),
        (
            "kind = \"directory\"",
            "kind = \"directory\"\niops = 5",
            "line 10: iops: only for kind = \"throttled\"",
        ),
        ("kind = \"directory\"", "kind = \"throttled\"", "line 9: kind: a throttled device wants"),
        (
            "kind = \"directory\"",
            "kind = \"throttled\"\nlatency_us = 50",
            "line 10: latency_us: whole milliseconds",
        ),
        (
            "kind = \"kernel\"",
            "kind = \"kernel\"\nargs = [\"x\"]",
            "line 13: args: not for kind = \"kernel\"",
        ),
        ("kind = \"kernel\"", "kind = \"terrace\"", "line 14: name: there is another \"terrace\""),
        ("bs = \"4k\"", "bs = \"5k\"", "line 20: bs: a multiple of 4k"),
        ("bs = \"4k\"", "depth = 8", "line 20: depth: 1 to 4096, above 1 for io_uring and libaio only"),
        ("bs = \"4k\"", "limit_mib = 8", "line 20: limit_mib: 32 to"),
        ("bs = \"4k\"", "headroom_mib = 56", "line 20: headroom_mib: leaves terrace less than 16 MiB"),
        ("bs = \"4k\"", "patterns = [\"zip\"]", "line 20: patterns: \"zip\" is none of"),
        ("bs = \"4k\"", "systems = [\"kernels\"]", "line 20: systems: there is no system \"kernels\""),
        ("kind = \"kernel\"", "kind = \"kernel\"\nauto = true", "line 13: auto: not for kind = \"kernel\""),
        (
            "kind = \"kernel\"",
            "kind = \"kernel\"\nprogram = \"t\"",
            "line 13: program: not for kind = \"kernel\"",
        ),
        (
            "kind = \"kernel\"",
            "kind = \"kernel\"\ntier_mib = 64",
            "line 13: tier_mib: not for kind = \"kernel\"",
        ),
        ("kind = \"kernel\"", "kind = \"foyer\"", "line 12: kind: foyer wants tier_mib"),
        ("kind = \"kernel\"", "kind = \"foyer\"\ntier_mib = 64", "line 12: kind: foyer is no file system"),
        ("bs = \"4k\"", "restart = true", "line 20: restart: for kind = \"reads\""),
        ("kind = \"fio\"", "kind = \"reads\"\nonce = true", "line 19: kind: once, options, parts"),
        ("bs = \"4k\"", "regex = \"(\"", "line 20: regex: not for kind = \"fio\""),
        ("kind = \"fio\"", "kind = \"command\"", "line 19: kind: a command load wants its command"),
        ("name = \"x\"", "name = ", "line 1: name: "),
        (
            "kind = \"fio\"\nbs = \"4k\"",
            "kind = \"command\"\ncommand = \"x\"\nbetter = \"lower\"",
            "line 21: better: metric \"value\": the better direction is unknown",
        ),
    ] {
        let why = error(from, to);
        assert!(why.starts_with(said), "{to:?} says {why:?}, not {said:?}");
    }
}

#[test]
fn a_number_is_called_by_its_unit() {
    let text = |more: &str| {
        GOOD.replace("kind = \"fio\"\nbs = \"4k\"", &format!("kind = \"command\"\ncommand = \"x\"\n{more}"))
    };
    let key = |more: &str| Spec::parse(&text(more)).unwrap().load[0].metric_key();
    assert_eq!(key("metric = \"requests\"\nunit = \"1/s\"\nbetter = \"higher\""), "requests_per_s");
    assert_eq!(key("metric = \"load\"\nunit = \"s\"\nbetter = \"lower\""), "load_s");
    assert_eq!(key("metric = \"moved\"\nunit = \"MiB/s\""), "moved_MiB_per_s");
    assert_eq!(key("metric = \"score\""), "score");
}

#[test]
fn patterns_of_fio() {
    assert_eq!(distribution("zipf:0.8").unwrap(), "zipf:0.8:0.5");
    assert_eq!(distribution("normal:40").unwrap(), "normal:40");
    assert!(["zipf:1", "zipf:x", "normal:0", "pareto:0.9", ""].iter().all(|p| distribution(p).is_none()));
    assert_eq!(
        (block_bytes("4k"), block_bytes("1M"), block_bytes("8192")),
        (Some(4096), Some(1 << 20), Some(8192))
    );
    assert!(["", "k", "0k", "100", "4kb"].iter().all(|bs| block_bytes(bs).is_none()));
}

#[test]
fn a_load_has_a_limit_patterns_and_systems_of_its_own() {
    let more =
        "kind = \"fio\"\nlimit_mib = 32\nheadroom_mib = 8\npatterns = [\"random\"]\nsystems = [\"kernel\"]";
    let spec = Spec::parse(&GOOD.replace("kind = \"fio\"", more)).unwrap();
    let load = &spec.load[0];
    assert_eq!(
        (spec.limit_mib_of(load), spec.file_mib_of(load), spec.fixed_mib_of(load)),
        (Some(32), Some(64), Some(24))
    );
    assert_eq!(spec.patterns_of(load), ["random"]);
    assert_eq!(spec.system.iter().map(|s| load.is_for(s)).collect::<Vec<_>>(), [true, false]);
    let plain = Spec::parse(GOOD).unwrap();
    assert_eq!((plain.fixed_mib_of(&plain.load[0]), plain.patterns_of(&plain.load[0]).len()), (None, 3));
    let command = |line: &str| {
        GOOD.replace("kind = \"fio\"\nbs = \"4k\"", &format!("kind = \"command\"\ncommand = \"{line}\""))
    };
    let patterns = |line: &str| {
        let spec = Spec::parse(&command(line)).unwrap();
        spec.patterns_of(&spec.load[0]).into_iter().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!((patterns("find {dir}"), patterns("x {pattern}").len()), (vec!["none".to_string()], 3));
}
