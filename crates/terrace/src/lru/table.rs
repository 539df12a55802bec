//! The lists as a page for people: generations as /sys/kernel/debug/lru_gen_full has them, oldest last.

use std::fmt::Write;

use serde_json::Value;

/// A few lines for one instance.
pub fn of(lru: &Value) -> String {
    let mut page = String::new();
    let policy = lru["policy"].as_str().unwrap_or("?");
    let _ = match (lru["min_seq"].as_u64(), lru["max_seq"].as_u64()) {
        (Some(min), Some(max)) => writeln!(page, "policy {policy}, generations {min} to {max}"),
        _ => writeln!(page, "policy {policy}, which has no generations"),
    };
    lists(&mut page, lru);
    tiers(&mut page, &lru["tiers"]);
    let _ = writeln!(
        page,
        "  refaults    {} of pages evicted or passed on, {} of them recent; {} pages scanned, {} evicted",
        number(&lru["refaults"]),
        number(&lru["refaults_recent"]),
        number(&lru["pgscan"]),
        number(&lru["pgsteal"]),
    );
    let ttl = number(&lru["min_ttl_ms"]);
    if ttl > 0 {
        let refused = number(&lru["min_ttl_refused"]);
        let _ = writeln!(page, "  min_ttl     {:.1} s, {refused} evictions refused", ttl as f64 / 1000.0);
    }
    page
}

fn lists(page: &mut String, lru: &Value) {
    let _ = writeln!(
        page,
        "  {:<12} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9}",
        "list", "age s", "pages", "clean", "dirty", "writeback", "unstable"
    );
    for row in lru["lists"].as_array().into_iter().flatten() {
        let age = number(&row["age_ms"]) as f64 / 1000.0;
        let label = row["label"].as_str().unwrap_or("?");
        let _ = write!(page, "  {label:<12} {age:>10.1} {:>10}", number(&row["pages"]));
        let _ = match row["seq"].is_null() {
            true => writeln!(page),
            false => kinds(page, row),
        };
    }
    let _ = write!(page, "  {:<12} {:>10} {:>10}", "in no gen", "", sum(&lru["queued"]));
    let _ = kinds(page, &lru["queued"]);
}

fn kinds(page: &mut String, row: &Value) -> std::fmt::Result {
    let [clean, dirty, writeback, unstable] =
        ["clean", "dirty", "writeback", "unstable"].map(|kind| number(&row[kind]));
    writeln!(page, " {clean:>10} {dirty:>8} {writeback:>10} {unstable:>9}")
}

fn sum(kinds: &Value) -> u64 {
    kinds.as_object().into_iter().flatten().map(|(_, value)| number(value)).sum()
}

fn tiers(page: &mut String, tiers: &Value) {
    let Some(rows) = tiers.as_array().filter(|rows| !rows.is_empty()) else { return };
    let _ = writeln!(
        page,
        "  {:<12} {:>10} {:>10} {:>10} {:>10} {:>13} {:>10}",
        "tier", "pages", "refaulted", "evicted", "protected", "avg refaulted", "avg total"
    );
    for row in rows {
        let n = |name: &str| number(&row[name]);
        let _ = writeln!(
            page,
            "  {:<12} {:>10} {:>10} {:>10} {:>10} {:>13} {:>10}",
            n("tier"),
            n("pages"),
            n("refaulted"),
            n("evicted"),
            n("protected"),
            n("avg_refaulted"),
            n("avg_total"),
        );
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn generations_queues_and_tiers_have_their_columns() {
        let page = of(&json!({
            "policy": "mglru", "min_seq": 3, "max_seq": 6, "min_ttl_ms": 1500, "min_ttl_refused": 2,
            "lists": [{"label": "held", "seq": null, "pages": 1, "age_ms": 9000},
                      {"label": "gen 6", "seq": 6, "pages": 5, "age_ms": 2500, "clean": 3, "dirty": 2}],
            "queued": {"clean": 1, "dirty": 0},
            "tiers": [{"tier": 1, "pages": 4, "refaulted": 8, "protected": 7}],
        }));
        assert!(page.starts_with("policy mglru, generations 3 to 6\n"), "{page}");
        let fields = |head: &str| {
            let line = page.lines().find(|line| line.trim_start().starts_with(head)).unwrap();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(fields("held"), ["held", "9.0", "1"]);
        assert_eq!(fields("gen 6"), ["gen", "6", "2.5", "5", "3", "2", "0", "0"]);
        assert_eq!(fields("in no gen")[3..], ["1", "1", "0", "0", "0"]);
        assert_eq!(fields("1"), ["1", "4", "8", "0", "7", "0", "0"]);
        assert!(page.contains("1.5 s, 2 evictions refused"), "{page}");
    }
}
