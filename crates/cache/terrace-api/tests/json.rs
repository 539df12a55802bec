//! The JSON that users see. The recordings in `data` are older than these types: they must parse, and
//! serialize to the same keys and values.

use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_api::capture::SummaryReport;
use terrace_api::instance::{Dirty, Info};
use terrace_api::lru::LruReport;
use terrace_api::stats::{Bound, Mode, Sizing, StatReport};
use terrace_api::tiers::{TierKind, TierReport};

/// Parses `text`, and compares keys and values after serializing it again.
#[track_caller]
fn kept<T: Serialize + DeserializeOwned>(text: &str) -> T {
    let (typed, was): (T, Value) = (serde_json::from_str(text).unwrap(), serde_json::from_str(text).unwrap());
    assert_eq!(serde_json::to_value(&typed).unwrap(), was);
    typed
}

/// All keys with their paths, in order: `memory.pages`, `lists[].label`.
fn keys(prefix: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            keys(&name, value, out);
            out.push(name);
        }),
        Value::Array(rows) => rows.iter().for_each(|row| keys(&format!("{prefix}[]"), row, out)),
        _ => {}
    }
}

fn keys_of(text: &str) -> String {
    let mut found = Vec::new();
    keys("", &serde_json::from_str(text).unwrap(), &mut found);
    found.sort_unstable();
    found.dedup();
    found.join("\n") + "\n"
}

const STAT: &str = include_str!("data/stat.json");
const STAT_MRC: &str = include_str!("data/stat-mrc.json");

#[test]
fn stat_json_keeps_its_keys() {
    let off: StatReport = kept(STAT);
    assert!(off.cache.compressed.is_none() && off.mrc.is_none());
    assert_eq!((off.cache.fuse.reads, off.cache.fuse.hits), (8000, 6260));
    let full: StatReport = kept(STAT_MRC);
    assert!(full.cache.compressed.is_some() && full.mrc.is_some_and(|mrc| mrc.estimates.len() == 4));
    assert_eq!(keys_of(STAT_MRC), include_str!("data/stat.keys"));
}

/// Fields that are `null` in the recordings.
#[test]
fn stat_json_keeps_optional_fields() {
    let rare = STAT
        .replace("\"ceiling_bytes\":null", "\"ceiling_bytes\":7")
        .replace("\"last_death\":null", "\"last_death\":\"died\"");
    let stat: StatReport = kept(&rare);
    assert_eq!(stat.cache.memory.ceiling_bytes, Some(7));
    assert_eq!(stat.instance.last_death.as_deref(), Some("died"));
    let idle = STAT_MRC.replace("\"measured_hit_ratio\":0.0", "\"measured_hit_ratio\":null");
    assert_eq!(kept::<StatReport>(&idle).mrc.unwrap().measured_hit_ratio, None);
}

#[test]
fn size_of_the_cache_is_told_with_its_reason() {
    let sizing = r#"{"mode":"auto","target_bytes":7,"bound":"gave_way","bound_by":"/g/memory.max","reserve_bytes":1,"yielded_bytes":2,"chunk_saves_ns":3,"chunk_costs_ns":4}"#;
    let stat: StatReport =
        kept(&STAT.replace("\"ceiling_bytes\":null", &format!("\"ceiling_bytes\":7,\"sizing\":{sizing}")));
    let told = stat.cache.memory.sizing.unwrap();
    assert_eq!((told.mode, told.bound, told.target_bytes), (Mode::Auto, Bound::GaveWay, 7));
    let unknown: Sizing = serde_json::from_str(r#"{"bound":"of another time"}"#).unwrap();
    assert_eq!((unknown.bound, unknown.mode), (Bound::Limit, Mode::Fixed));
}

#[test]
fn counters_missing_from_an_older_daemon_are_zero() {
    let older = STAT_MRC.replace("\"duplicate_entry\":0,", "").replace("\"ceiling_bytes\":null,", "");
    let stat: StatReport = serde_json::from_str(&older).unwrap();
    assert_eq!(stat.cache.compressed.unwrap().duplicate_entry, 0);
    for (from, to) in [("terrace.stat.v2", "terrace.stat.v9"), ("\"schema\":\"terrace.stat.v2\",", "")] {
        assert!(serde_json::from_str::<StatReport>(&STAT.replace(from, to)).is_err(), "{to}");
    }
    assert!(serde_json::from_str::<StatReport>("{}").is_err());
}

#[test]
fn tiers_json_keeps_its_keys() {
    let rows = r#""tiers":[{"name":"ssd","kind":"device","level":0,"pages":1,"bytes":2,"capacity_bytes":3,"hits":4,"share":0.5,
        "read_us":90.5,"demoted":5,"promoted":6,"reinserted":7,"moved_down":3,"dropped":8,"bytes_written":9,"write_amplification":1.25,
        "days_of_life":null,"dram_bytes_per_page":11.5,"state":"serving"}],"objects"#;
    let stat: StatReport = kept(&STAT.replacen("\"objects", rows, 1));
    assert_eq!((stat.cache.tiers[0].kind, stat.cache.tiers[0].dropped), (TierKind::Device, 8));
    let report: TierReport = kept(
        r#"{"schema":"terrace.tier.v1","path":"/ssd/t","state":"tier","bytes":1,"in_use":true,"pid":2,"mnt":"/mnt","tier":
        {"id":"0","source":"/data","source_state":"there","created":3,"used":4,"clean":false,"capacity_bytes":5,"region_bytes":6,
        "regions":7,"content":{"files":8,"pages":9,"bytes":10,"pages_damaged":0}}}"#,
    );
    assert_eq!(report.tier.unwrap().content.unwrap().pages, 9);
    let info: Info =
        kept(&include_str!("data/info.json").replacen('{', r#"{"tiers":["/ssd/t","/ssd/u"],"#, 1));
    assert_eq!(info.tiers, ["/ssd/t", "/ssd/u"].map(PathBuf::from));
}

#[test]
fn lru_json_keeps_its_keys() {
    let [aged, evicted] = [include_str!("data/lru-age.json"), include_str!("data/lru-evict.json")];
    let lru: LruReport = kept(aged);
    assert_eq!((lru.opened, lru.evicted, lru.lru.tiers.len()), (Some(6), None, 4));
    assert!(lru.lru.lists[0].kinds.is_none(), "a queue");
    assert_eq!(lru.lru.lists[5].kinds.unwrap().total(), 3470);
    let lru: LruReport = kept(evicted);
    assert_eq!((lru.opened, lru.evicted), (None, Some(Default::default())));
    let plain = aged
        .replace("\"opened\":6,", "")
        .replace("\"max_seq\":6,\"min_seq\":3", "\"max_seq\":null,\"min_seq\":null");
    assert_eq!(kept::<LruReport>(&plain).lru.min_seq, None);
}

#[test]
fn trace_json_keeps_its_keys() {
    let told: SummaryReport = kept(include_str!("data/trace.json"));
    assert_eq!((told.summary.accesses, told.summary.fuse.writes), (993, 3));
}

#[test]
fn instance_records_keep_their_keys() {
    let info: Info = kept(include_str!("data/info.json"));
    assert_eq!((info.pid, info.kind.name()), (29086, "mount"));
    let dirty: Dirty = kept(r#"{"bytes":53248,"files_total":1,"files":[{"path":"a b","bytes":53248}]}"#);
    assert_eq!(dirty.files[0].path, "a b");
}
