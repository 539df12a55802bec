//! The statistics as a page for people.

use std::fmt::Write;

use serde_json::Value;

use crate::size::human;

/// A few lines for one instance.
pub fn of(stat: &Value) -> String {
    let mut page = String::new();
    let instance = &stat["instance"];
    let _ = writeln!(
        page,
        "{} on {}   policy {}, {} {}, terraced {} (restarted {} times)",
        text(&instance["src"]),
        text(&instance["mnt"]),
        text(&stat["policy"]),
        text(&instance["kind"]),
        instance["pid"],
        instance["terraced"],
        instance["restarts"],
    );
    if let Some(how) = instance["last_death"].as_str() {
        line(&mut page, "last death", format_args!("terraced {how}"));
    }
    if instance["keeper_lives"] == false {
        let end = "a crash of terraced would end this mount: `terrace umount` it, and mount again";
        line(&mut page, "keeper", format_args!("dead; {end}"));
    }
    memory(&mut page, &stat["memory"]);
    fast_door(&mut page, &stat["fast_door"]);
    main_door(&mut page, &stat["main_door"]);
    reclaim(&mut page, &stat["reclaim"]);
    compressed(&mut page, &stat["compressed"]);
    writeback(&mut page, &stat["writeback"]);
    generations(&mut page, &stat["generations"]);
    mrc(&mut page, &stat["mrc"]);
    page
}

fn memory(page: &mut String, m: &Value) {
    let (used, limit) = (number(&m["used_bytes"]), number(&m["limit_bytes"]));
    line(page, "memory", format_args!("{} of {} ({})", human(used), human(limit), percent(used, limit)));
    if let Some(ceiling) = m["ceiling_bytes"].as_u64() {
        let why = "for now: there is no more memory, see the log";
        line(page, "", format_args!("keeps to {} {why}", human(ceiling)));
    }
    let huge = number(&m["huge_bytes"]);
    line(
        page,
        "",
        format_args!(
            "{} pages, {} free frames, metadata {} ({:.1} B a page), files and clients {}, huge pages {}",
            number(&m["pages"]),
            number(&m["free_frames"]),
            human(number(&m["metadata_bytes"])),
            m["metadata_bytes_per_page"].as_f64().unwrap_or(0.0),
            human(number(&m["tables_bytes"])),
            if huge > 0 { human(huge) } else { "none".to_owned() },
        ),
    );
}

fn fast_door(page: &mut String, door: &Value) {
    let (hits, misses) = (number(&door["hits"]), number(&door["misses"]));
    line(
        page,
        "fast door",
        format_args!(
            "{hits} hits ({}), {misses} misses ({}), hit ratio {}, {} clients",
            human(number(&door["hit_bytes"])),
            human(number(&door["miss_bytes"])),
            percent(hits, hits + misses),
            number(&door["clients"]),
        ),
    );
    line(
        page,
        "",
        format_args!(
            "{} donated: {} taken, {} read again, {} refused, {} dropped; {} to the main door",
            number(&door["donations"]),
            number(&door["donations_taken"]),
            number(&door["donations_read"]),
            number(&door["donations_refused"]),
            number(&door["donations_dropped"]),
            number(&door["fallbacks"]),
        ),
    );
}

fn main_door(page: &mut String, door: &Value) {
    let (hits, misses) = (number(&door["hits"]), number(&door["misses"]));
    line(
        page,
        "main door",
        format_args!(
            "{} reads ({}), pages: {hits} hits, {misses} misses, hit ratio {}, {} passed on",
            number(&door["reads"]),
            human(number(&door["read_bytes"])),
            percent(hits, hits + misses),
            number(&door["passed_on"]),
        ),
    );
    line(
        page,
        "",
        format_args!("{} writes ({})", number(&door["writes"]), human(number(&door["write_bytes"]))),
    );
}

fn reclaim(page: &mut String, r: &Value) {
    line(
        page,
        "reclaim",
        format_args!(
            "{} scanned, {} evicted, {} refaults, {} inserted",
            number(&r["pgscan"]),
            number(&r["pgsteal"]),
            number(&r["workingset_refault"]),
            number(&r["inserted"]),
        ),
    );
}

/// Nothing where there is no such tier.
fn compressed(page: &mut String, tier: &Value) {
    if tier.is_null() {
        return;
    }
    line(
        page,
        "compressed",
        format_args!(
            "{} pages in {} of at most {} ({:.2} to 1), {} hits, {:.2} a compression{}",
            number(&tier["pages"]),
            human(number(&tier["pool_bytes"])),
            human(number(&tier["pool_limit_bytes"])),
            tier["density"].as_f64().unwrap_or(0.0),
            number(&tier["hits"]),
            tier["hits_per_compression"].as_f64().unwrap_or(0.0),
            if tier["bypassed"] == true { ", bypassed" } else { "" },
        ),
    );
    line(
        page,
        "",
        format_args!(
            "{} stored, {} promoted, {} evicted, {} refused, {} duplicates; {} ns to compress",
            number(&tier["stored_pages"]),
            number(&tier["pgpromote"]),
            number(&tier["evicted_pages"]),
            number(&tier["reject_compress_poor"]) + number(&tier["reject_by_file"]),
            number(&tier["duplicates"]),
            number(&tier["compress_ns"]),
        ),
    );
}

fn writeback(page: &mut String, w: &Value) {
    let failing = w["failing_errno"].as_i64().unwrap_or(0);
    let failing = match failing {
        0 => String::new(),
        errno => format!(
            "; failing now: {}",
            crate::error::reason(std::io::Error::from_raw_os_error(errno as i32))
        ),
    };
    line(
        page,
        "writeback",
        format_args!(
            "{} dirty ({} pages, {} on their way, {} not yet stable, of at most {}), {} pages written back, {} errors, writers waited {} times{failing}",
            human(number(&w["dirty_bytes"])),
            number(&w["dirty"]),
            number(&w["writeback"]),
            number(&w["unstable"]),
            number(&w["dirty_limit"]),
            number(&w["written_back"]),
            number(&w["errors"]),
            number(&w["throttled"]),
        ),
    );
}

fn generations(page: &mut String, rows: &Value) {
    for (at, row) in rows.as_array().into_iter().flatten().enumerate() {
        let age = row["age_ms"].as_f64().unwrap_or(0.0) / 1000.0;
        let head = if at == 0 { "generations" } else { "" };
        line(
            page,
            head,
            format_args!("{:<12} {:>10} pages, {age:.1} s", text(&row["label"]), number(&row["pages"])),
        );
    }
}

/// What other sizes of memory would do.
fn mrc(page: &mut String, mrc: &Value) {
    let Some(estimates) = mrc["estimates"].as_array() else { return };
    let real = |value: &Value| value.as_f64().unwrap_or(0.0);
    if estimates.is_empty() {
        line(
            page,
            "with memory",
            format_args!("nothing was accessed yet, so that nothing can be told of other sizes"),
        );
        return;
    }
    for (at, row) in estimates.iter().enumerate() {
        let head = if at == 0 { "with memory" } else { "" };
        let frames = human(number(&row["bytes"]));
        let [hits, lru] = ["hit_ratio", "lru_hit_ratio"].map(|name| 100.0 * real(&row[name]));
        let factor = real(&row["factor"]);
        line(
            page,
            head,
            format_args!("x{factor:<4} {frames:>10} of frames   hit ratio {hits:5.1} %   (LRU {lru:5.1} %)"),
        );
    }
    if let Some(measured) = mrc["measured_hit_ratio"].as_f64() {
        line(
            page,
            "",
            format_args!(
                "now, measured of {:<10} hit ratio {:5.1} %",
                text(&mrc["policy"]),
                100.0 * measured
            ),
        );
    }
    let (saved, rate) = (real(&mrc["gib_saves_per_second"]), real(&mrc["accesses_per_second"]));
    line(
        page,
        "",
        format_args!(
            "one more GiB would save {saved:.1} reads of {rate:.1} accesses a second, over the last {:.0} s",
            real(&mrc["seconds"])
        ),
    );
}

fn line(page: &mut String, head: &str, rest: std::fmt::Arguments<'_>) {
    let _ = writeln!(page, "  {head:<11} {rest}");
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_missing_is_zero() {
        let page = of(&json!({}));
        assert!(page.contains("fast door"));
        assert!(page.contains("hit ratio -"));
    }

    #[test]
    fn ratios_and_failures_are_told() {
        let page = of(&json!({
            "fast_door": {"hits": 3, "misses": 1},
            "writeback": {"failing_errno": 28},
            "generations": [{"label": "probation", "pages": 7, "age_ms": 1500}],
        }));
        assert!(page.contains("hit ratio 75.0 %"), "{page}");
        assert!(page.contains("failing now: No space left on device"), "{page}");
        assert!(page.contains("generations probation             7 pages, 1.5 s"), "{page}");
        assert!(!page.contains("with memory"), "{page}");
    }

    #[test]
    fn other_sizes_are_told_where_they_are_known() {
        let page = of(&json!({"mrc": {
            "policy": "strata", "measured_hit_ratio": 0.7512, "gib_saves_per_second": 12.34,
            "accesses_per_second": 100.0, "seconds": 60.2,
            "estimates": [{"factor": 0.5, "bytes": 1 << 20, "hit_ratio": 0.5, "lru_hit_ratio": 0.25},
                          {"factor": 1.0, "bytes": 2 << 20, "hit_ratio": 0.75}],
        }}));
        assert!(page.contains("x0.5    1.00 MiB of frames   hit ratio  50.0 %   (LRU  25.0 %)"), "{page}");
        assert!(page.contains("now, measured of strata     hit ratio  75.1 %"), "{page}");
        assert!(
            page.contains("would save 12.3 reads of 100.0 accesses a second, over the last 60 s"),
            "{page}"
        );
        assert!(of(&json!({"mrc": {"estimates": []}})).contains("nothing was accessed yet"));
    }
}
