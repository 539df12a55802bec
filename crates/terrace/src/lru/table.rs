//! Text output of `terrace lru`: generations as in /sys/kernel/debug/lru_gen_full, oldest last.

use std::fmt::Write;

use terrace_api::lru::{Kinds, ListRow, Lru, TierRow};

/// A few lines for one instance.
pub(super) fn of(lru: &Lru) -> String {
    let mut page = String::new();
    let policy = &lru.policy;
    let _ = match (lru.min_seq, lru.max_seq) {
        (Some(min), Some(max)) => writeln!(page, "policy {policy}, generations {min} to {max}"),
        _ => writeln!(page, "policy {policy}, which has no generations"),
    };
    lists(&mut page, &lru.lists, &lru.queued);
    tiers(&mut page, &lru.tiers);
    let _ = writeln!(
        page,
        "  refaults    {} of pages evicted or not admitted, {} of them recent; {} pages scanned, {} evicted",
        lru.refaults, lru.refaults_recent, lru.pgscan, lru.pgsteal,
    );
    if lru.min_ttl_ms > 0 {
        let (seconds, refused) = (lru.min_ttl_ms as f64 / 1000.0, lru.min_ttl_refused);
        let _ = writeln!(page, "  min_ttl     {seconds:.1} s, {refused} evictions refused");
    }
    page
}

fn lists(page: &mut String, rows: &[ListRow], queued: &Kinds) {
    let _ = writeln!(
        page,
        "  {:<12} {:>10} {:>10} {:>10} {:>8} {:>10} {:>9}",
        "list", "age s", "pages", "clean", "dirty", "writeback", "unstable"
    );
    for row in rows {
        let age = row.age_ms as f64 / 1000.0;
        let _ = write!(page, "  {:<12} {age:>10.1} {:>10}", row.label, row.pages);
        let _ = match &row.kinds {
            None => writeln!(page),
            Some(kinds) => write_kinds(page, kinds),
        };
    }
    let _ = write!(page, "  {:<12} {:>10} {:>10}", "in no gen", "", queued.total());
    let _ = write_kinds(page, queued);
}

fn write_kinds(page: &mut String, kinds: &Kinds) -> std::fmt::Result {
    let Kinds { clean, dirty, writeback, unstable } = kinds;
    writeln!(page, " {clean:>10} {dirty:>8} {writeback:>10} {unstable:>9}")
}

fn tiers(page: &mut String, rows: &[TierRow]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        page,
        "  {:<12} {:>10} {:>10} {:>10} {:>10} {:>13} {:>10}",
        "tier", "pages", "refaulted", "evicted", "protected", "avg refaulted", "avg total"
    );
    for t in rows {
        let _ = writeln!(
            page,
            "  {:<12} {:>10} {:>10} {:>10} {:>10} {:>13} {:>10}",
            t.tier, t.pages, t.refaulted, t.evicted, t.protected, t.avg_refaulted, t.avg_total,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_queues_and_tiers_have_their_columns() {
        let kinds = Kinds { clean: 3, dirty: 2, ..Kinds::default() };
        let page = of(&Lru {
            policy: "mglru".to_owned(),
            min_seq: Some(3),
            max_seq: Some(6),
            lists: vec![
                ListRow { label: "held".to_owned(), pages: 1, age_ms: 9000, ..ListRow::default() },
                ListRow {
                    label: "gen 6".to_owned(),
                    seq: Some(6),
                    age_ms: 2500,
                    pages: 5,
                    kinds: Some(kinds),
                },
            ],
            queued: Kinds { clean: 1, ..Kinds::default() },
            tiers: vec![TierRow { tier: 1, pages: 4, refaulted: 8, protected: 7, ..TierRow::default() }],
            min_ttl_ms: 1500,
            min_ttl_refused: 2,
            ..Lru::default()
        });
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
