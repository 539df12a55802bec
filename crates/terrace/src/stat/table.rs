//! Text output of `terrace stat`.

use std::fmt::Write;

use terrace_api::mrc::Mrc;
use terrace_api::stats::{
    Announced, Bound, CompressedTier, GenerationRow, Instance, KeyValue, Leases, Memory, Mode, MountPath,
    PreloadPath, Reclaim, Schedule, ScheduleState, Sizing, StatReport, Writeback,
};
use terrace_api::tiers::{TierKind, TierRow};

use crate::instance::Kind;
use crate::size::human;

/// A few lines for one instance.
pub(super) fn of(stat: &StatReport) -> String {
    let mut page = String::new();
    let StatReport { cache, instance, kv, mrc: estimates } = stat;
    head(&mut page, instance, &cache.policy);
    memory(&mut page, &cache.memory);
    match kv {
        Some(kv) => key_value(&mut page, kv),
        None => {
            preload(&mut page, &cache.preload);
            match (&cache.leases, &cache.announced) {
                (Some(leases), Some(files)) => {
                    leased(&mut page, leases);
                    announced(&mut page, files);
                }
                (Some(leases), _) => leased(&mut page, leases),
                (None, Some(files)) => announced(&mut page, files),
                (None, None) => fuse(&mut page, &cache.fuse),
            }
        }
    }
    if let Some(schedule) = &cache.prefetch.schedule {
        followed(&mut page, schedule);
    }
    reclaim(&mut page, &cache.reclaim);
    tiers(&mut page, &cache.tiers);
    if let Some(tier) = &cache.compressed {
        compressed(&mut page, tier);
    }
    writeback(&mut page, &cache.writeback);
    generations(&mut page, &cache.generations);
    if let Some(estimates) = estimates {
        mrc(&mut page, estimates);
    }
    page
}

fn head(page: &mut String, instance: &Instance, policy: &str) {
    let _ = writeln!(
        page,
        "{} on {}   policy {policy}, {} {}, terraced {} (restarted {} times)",
        instance.src.display(),
        instance.mnt.display(),
        instance.kind.name(),
        instance.pid,
        instance.terraced,
        instance.restarts,
    );
    if let Some(how) = &instance.last_death {
        line(page, "last death", format_args!("terraced {how}"));
    }
    if let Some(address) = &instance.metrics {
        line(page, "metrics", format_args!("http://{address}/metrics"));
    }
    if !instance.supervisor_lives {
        let end = match instance.kind {
            Kind::Kv => "a crash of the server ends the service: `terrace umount` it, and serve again",
            _ => "a crash of terraced ends this mount: `terrace umount` it, and mount again",
        };
        line(page, "supervisor", format_args!("dead; {end}"));
    }
}

fn memory(page: &mut String, m: &Memory) {
    let auto = m.sizing.as_ref().is_some_and(|sizing| sizing.mode == Mode::Auto);
    let (used, limit) = (m.used_bytes, if auto { m.ceiling_bytes } else { None }.unwrap_or(m.limit_bytes));
    line(page, "memory", format_args!("{} of {} ({})", human(used), human(limit), percent(used, limit)));
    match &m.sizing {
        Some(sizing) => size(page, m, sizing),
        None if m.ceiling_bytes.is_some() => {
            line(page, "", format_args!("for now the machine has no more memory"));
        }
        None => {}
    }
    line(
        page,
        "",
        format_args!(
            "{} pages, {} free frames, metadata {} ({:.1} B a page), files and clients {}, huge pages {}",
            m.pages,
            m.free_frames,
            human(m.metadata_bytes),
            m.metadata_bytes_per_page,
            human(m.tables_bytes),
            if m.huge_bytes > 0 { human(m.huge_bytes) } else { "none".to_owned() },
        ),
    );
}

fn key_value(page: &mut String, kv: &KeyValue) {
    let (hits, misses) = (kv.hits, kv.misses);
    line(page, "keys", format_args!("{}, {} expired; {} clients", kv.keys, kv.expired, kv.clients));
    line(
        page,
        "",
        format_args!(
            "{} commands ({} refused), {hits} hits, {misses} misses, hit ratio {}",
            kv.commands,
            kv.errors,
            percent(hits, hits + misses),
        ),
    );
    line(
        page,
        "",
        format_args!(
            "{} in, {} out, buffers {}, decoded {}",
            human(kv.input_bytes),
            human(kv.output_bytes),
            human(kv.buffers_bytes),
            human(kv.decoded_bytes),
        ),
    );
    if let Some(failure) = &kv.sync_failure {
        line(page, "", format_args!("THE LAST SYNC HAS FAILED: {failure}"));
    }
}

/// The size, and the bound in force.
fn size(page: &mut String, m: &Memory, sizing: &Sizing) {
    let by = sizing.bound_by.as_ref().map_or("the machine".to_owned(), |file| file.display().to_string());
    let why = match sizing.bound {
        Bound::Limit if sizing.mode == Mode::Fixed => return,
        Bound::Limit => "all that the machine has".to_owned(),
        Bound::Room => format!("there is no more memory below the limit of {by}"),
        Bound::Weighed => format!("more would cost programs more than it saves, at the limit of {by}"),
        Bound::GaveWay => format!("programs needed the memory more, at the limit of {by}"),
        Bound::Kill => "the kernel has killed terraced for lack of memory: see `last death`".to_owned(),
    };
    match (sizing.mode, m.ceiling_bytes) {
        (Mode::Auto, _) => line(page, "", format_args!("auto: {why}")),
        (Mode::Fixed, ceiling) => {
            let ceiling = human(ceiling.unwrap_or(m.limit_bytes));
            line(page, "", format_args!("limited to {ceiling} for now: {why}"));
        }
    }
    if sizing.mode == Mode::Auto || sizing.yielded_bytes > 0 {
        let ms = |ns: u64| ns as f64 / 1e6;
        let (saves, costs) = (ms(sizing.chunk_saves_ns), ms(sizing.chunk_costs_ns));
        line(
            page,
            "",
            format_args!(
                "{} stay free, {} given back so far; the last 2 MiB save {saves:.1} ms of waiting a second, elsewhere {costs:.1}",
                human(sizing.reserve_bytes),
                human(sizing.yielded_bytes),
            ),
        );
    }
}

fn preload(page: &mut String, preload: &PreloadPath) {
    let (hits, misses) = (preload.hits, preload.misses);
    line(
        page,
        "preload path",
        format_args!(
            "{hits} hits ({}), {misses} misses ({}), hit ratio {}, {} clients",
            human(preload.hit_bytes),
            human(preload.miss_bytes),
            percent(hits, hits + misses),
            preload.clients,
        ),
    );
    line(
        page,
        "",
        format_args!(
            "{} filled: {} taken, {} read again, {} refused, {} dropped; {} to the mount path",
            preload.fills,
            preload.fills_taken,
            preload.fills_read,
            preload.fills_refused,
            preload.fills_dropped,
            preload.fallbacks,
        ),
    );
}

fn fuse(page: &mut String, fuse: &MountPath) {
    let (hits, misses) = (fuse.hits, fuse.misses);
    line(
        page,
        "mount path",
        format_args!(
            "{} reads ({}), pages: {hits} hits, {misses} misses, hit ratio {}, {} passed on",
            fuse.reads,
            human(fuse.read_bytes),
            percent(hits, hits + misses),
            fuse.not_admitted,
        ),
    );
    line(page, "", format_args!("{} writes ({})", fuse.writes, human(fuse.write_bytes)));
}

fn leased(page: &mut String, leases: &Leases) {
    let Leases { held, written, broken, refused } = leases;
    let files = format!("{held} files read from memory, {written} open for writing; {broken} leases broken");
    line(page, "leases", format_args!("{files}"));
    if *written > 0 {
        let cure = "`run` as root or `run --exclusive` serves them";
        line(page, "", format_args!("the kernel serves files open for writing; {cure}"));
    }
    if *refused > 0 {
        let whose = "files left to the kernel, which gives no lease on them (another user's, mostly)";
        line(page, "", format_args!("{refused} times: {whose}"));
    }
}

fn announced(page: &mut String, files: &Announced) {
    let Announced { served, left, unannounced, strangers } = files;
    line(page, "announced", format_args!("{served} files read from memory while programs write them"));
    if *left > 0 {
        let why = "a program without the library writes them, or may do so";
        line(page, "", format_args!("{left} files served by the kernel: {why}"));
    }
    if *unannounced > 0 {
        line(page, "", format_args!("{unannounced} changes by programs without the library"));
    }
    if *strangers > 0 {
        line(page, "", format_args!("{strangers} opens for writing by programs without the library"));
    }
}

fn followed(page: &mut String, schedule: &Schedule) {
    let Schedule { state, fetched, used, unused, files_left_out } = schedule;
    let state = match state {
        ScheduleState::Following => "followed",
        ScheduleState::Done => "done",
        ScheduleState::Useless => "stopped, too little of it was used",
    };
    let pages = format!("{fetched} pages fetched, {used} used, {unused} left behind");
    line(page, "schedule", format_args!("{state}: {pages}; {files_left_out} files left out"));
}

fn reclaim(page: &mut String, r: &Reclaim) {
    line(
        page,
        "reclaim",
        format_args!(
            "{} scanned, {} evicted, {} refaults, {} inserted",
            r.pgscan, r.pgsteal, r.workingset_refault, r.inserted,
        ),
    );
}

/// A table of all tiers; below it, details of tiers on devices.
fn tiers(page: &mut String, rows: &[TierRow]) {
    let Some(longest) = rows.iter().map(|row| row.name.len()).max() else { return };
    let width = longest.max("compressed".len());
    line(
        page,
        "tiers",
        format_args!(
            "{:<width$} {:>5} {:>11} {:>10} {:>10} {:>12} {:>7} {:>8} {:>11} {:>11} {:>11} {:>11}  state",
            "",
            "level",
            "pages",
            "bytes",
            "of",
            "hits",
            "share",
            "read us",
            "demoted",
            "promoted",
            "moved down",
            "dropped",
        ),
    );
    for row in rows {
        line(
            page,
            "",
            format_args!(
                "{:<width$} {:>5} {:>11} {:>10} {:>10} {:>12} {:>6.1}% {:>8} {:>11} {:>11} {:>11} {:>11}  {}",
                row.name,
                row.level.map_or("-".to_owned(), |level| level.to_string()),
                row.pages,
                human(row.bytes),
                human(row.capacity_bytes),
                row.hits,
                100.0 * row.share,
                row.read_us.map_or("-".to_owned(), |us| format!("{us:.0}")),
                row.demoted,
                row.promoted,
                row.moved_down,
                row.dropped,
                row.state,
            ),
        );
    }
    rows.iter().filter(|row| row.kind == TierKind::Device).for_each(|row| wear(page, row));
}

/// Device writes, and DRAM cost of the tier.
fn wear(page: &mut String, row: &TierRow) {
    let digits =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    line(
        page,
        &row.name,
        format_args!(
            "{} written, amplification {}, {} pages written again, {} days of life, {} B of DRAM a page",
            human(row.bytes_written),
            digits(row.write_amplification, 2),
            row.reinserted,
            digits(row.days_of_life, 0),
            digits(row.dram_bytes_per_page, 1),
        ),
    );
}

fn compressed(page: &mut String, tier: &CompressedTier) {
    line(
        page,
        "compressed",
        format_args!(
            "{} pages in {} of at most {} ({:.2} to 1), {} hits, {:.2} a compression{}",
            tier.pages,
            human(tier.pool_bytes),
            human(tier.pool_limit_bytes),
            tier.density,
            tier.hits,
            tier.hits_per_compression,
            if tier.bypassed { ", bypassed" } else { "" },
        ),
    );
    line(
        page,
        "",
        format_args!(
            "{} stored, {} promoted, {} evicted, {} refused, {} stored twice; {} ns to compress",
            tier.stored_pages,
            tier.pgpromote_success,
            tier.evicted,
            tier.reject_compress_poor + tier.reject_by_file,
            tier.duplicate_entry,
            tier.compress_ns,
        ),
    );
}

fn writeback(page: &mut String, w: &Writeback) {
    let failing = match w.failing_errno {
        0 => String::new(),
        errno => {
            format!("; failing now: {}", crate::error::reason(std::io::Error::from_raw_os_error(errno)))
        }
    };
    let on_tier = match w.owed_bytes {
        0 => String::new(),
        bytes => format!("; {} of the dirty data durable on a tier", human(bytes)),
    };
    let conflict = match w.conflict_bytes {
        0 => String::new(),
        bytes => format!("; {} of an earlier run on a tier alone: see `terrace recover`", human(bytes)),
    };
    line(
        page,
        "writeback",
        format_args!(
            "{} dirty ({} pages, {} on their way, {} not yet stable, of at most {}), {} pages written back, {} errors, writers waited {} times{on_tier}{conflict}{failing}",
            human(w.dirty_bytes),
            w.dirty,
            w.writeback,
            w.unstable,
            w.dirty_limit,
            w.written_back,
            w.errors,
            w.throttled,
        ),
    );
}

fn generations(page: &mut String, rows: &[GenerationRow]) {
    for (at, row) in rows.iter().enumerate() {
        let age = row.age_ms as f64 / 1000.0;
        let head = if at == 0 { "generations" } else { "" };
        line(page, head, format_args!("{:<12} {:>10} pages, {age:.1} s", row.label, row.pages));
    }
}

/// Hit ratios for other sizes of memory.
fn mrc(page: &mut String, mrc: &Mrc) {
    if mrc.estimates.is_empty() {
        line(page, "with memory", format_args!("no accesses yet, so no estimates for other sizes"));
        return;
    }
    for (at, row) in mrc.estimates.iter().enumerate() {
        let head = if at == 0 { "with memory" } else { "" };
        let frames = human(row.bytes);
        let [hits, lru] = [row.hit_ratio, row.lru_hit_ratio].map(|ratio| 100.0 * ratio);
        let factor = row.factor;
        line(
            page,
            head,
            format_args!("x{factor:<4} {frames:>10} of frames   hit ratio {hits:5.1} %   (LRU {lru:5.1} %)"),
        );
    }
    if let Some(measured) = mrc.measured_hit_ratio {
        let now = format_args!("now, measured of {:<10} hit ratio {:5.1} %", mrc.policy, 100.0 * measured);
        line(page, "", now);
    }
    let (saved, rate) = (mrc.gib_saves_per_second.unwrap_or(0.0), mrc.accesses_per_second);
    line(
        page,
        "",
        format_args!(
            "one more GiB would save {saved:.1} reads of {rate:.1} accesses a second, over the last {:.0} s",
            mrc.seconds
        ),
    );
}

fn line(page: &mut String, head: &str, rest: std::fmt::Arguments<'_>) {
    let _ = writeln!(page, "  {head:<12} {rest}");
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
    use terrace_api::instance::Kind;
    use terrace_api::mrc::MrcPoint;
    use terrace_api::stats::Stats;

    fn stat(cache: Stats, mrc: Option<Mrc>) -> StatReport {
        let instance = Instance {
            src: "/data".into(),
            mnt: "/mnt".into(),
            kind: Kind::Run,
            pid: 7,
            terraced: 8,
            restarts: 0,
            last_death: None,
            metrics: None,
            version: String::new(),
            supervisor_lives: true,
        };
        StatReport { cache, instance, kv: None, mrc }
    }

    #[test]
    fn absent_parts_are_left_out() {
        let page = of(&stat(Stats { policy: "lru".to_owned(), ..Stats::default() }, None));
        assert!(
            page.starts_with("/data on /mnt   policy lru, run 7, terraced 8 (restarted 0 times)\n"),
            "{page}"
        );
        assert!(page.contains("preload path") && page.contains("hit ratio -"), "{page}");
        for there in
            ["last death", "supervisor", "tiers", "compressed", "generations", "with memory", "failing"]
        {
            assert!(!page.contains(there), "{there}: {page}");
        }
    }

    #[test]
    fn size_of_the_cache_comes_with_its_reason() {
        let sizing = Sizing {
            mode: Mode::Auto,
            bound: Bound::Weighed,
            bound_by: Some("/g/memory.max".into()),
            reserve_bytes: 32 << 20,
            yielded_bytes: 8 << 20,
            chunk_saves_ns: 2_500_000,
            ..Sizing::default()
        };
        let memory = |sizing| Memory {
            limit_bytes: 1 << 40,
            ceiling_bytes: Some(400 << 20),
            used_bytes: 100 << 20,
            sizing,
            ..Memory::default()
        };
        let page = |sizing| of(&stat(Stats { memory: memory(sizing), ..Stats::default() }, None));
        let auto = page(Some(sizing.clone()));
        for part in [
            "100 MiB of 400 MiB (25.0 %)",
            "auto: more would cost programs more than it saves, at the limit of /g/memory.max",
            "32.0 MiB stay free, 8.00 MiB given back so far; the last 2 MiB save 2.5 ms of waiting a second",
        ] {
            assert!(auto.contains(part), "`{part}` is not in: {auto}");
        }
        let fixed = page(Some(Sizing { mode: Mode::Fixed, bound: Bound::GaveWay, ..sizing }));
        assert!(fixed.contains("limited to 400 MiB for now: programs needed the memory more"), "{fixed}");
        assert!(page(None).contains("for now the machine has no more memory"), "of an older daemon");
    }

    #[test]
    fn ratios_and_failures_are_told() {
        let row = GenerationRow { label: "probation".to_owned(), pages: 7, age_ms: 1500, seq: 0 };
        let mut stat = stat(
            Stats {
                preload: PreloadPath { hits: 3, misses: 1, ..PreloadPath::default() },
                writeback: Writeback { failing_errno: 28, ..Writeback::default() },
                generations: vec![row],
                ..Stats::default()
            },
            None,
        );
        stat.instance.supervisor_lives = false;
        stat.instance.last_death = Some("was killed by signal 9".to_owned());
        let page = of(&stat);
        assert!(page.contains("hit ratio 75.0 %"), "{page}");
        assert!(page.contains("failing now: No space left on device"), "{page}");
        assert!(page.contains("generations  probation             7 pages, 1.5 s"), "{page}");
        assert!(page.contains("last death   terraced was killed by signal 9"), "{page}");
        assert!(page.contains("supervisor   dead; a crash"), "{page}");
    }

    #[test]
    fn tiers_are_told_in_a_table() {
        let dram = TierRow { name: "dram".to_owned(), hits: 75, share: 0.75, ..TierRow::default() };
        let ssd = TierRow {
            name: "fast-disk-2".to_owned(),
            kind: TierKind::Device,
            level: Some(1),
            pages: 1000,
            bytes: 4 << 20,
            capacity_bytes: 64 << 30,
            hits: 20,
            share: 0.2,
            read_us: Some(91.4),
            demoted: 1100,
            promoted: 20,
            reinserted: 10,
            moved_down: 7,
            dropped: 80,
            bytes_written: 5 << 20,
            write_amplification: Some(1.28),
            days_of_life: None,
            dram_bytes_per_page: Some(11.84),
            state: "scanning".to_owned(),
        };
        let page = of(&stat(Stats { tiers: vec![dram, ssd], ..Stats::default() }, None));
        let lines: Vec<&str> = page.lines().skip_while(|line| !line.starts_with("  tiers ")).collect();
        let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "dram - 0 0 B 0 B 75 75.0% - 0 0 0 0");
        assert_eq!(words(2), "fast-disk-2 1 1000 4.00 MiB 64.0 GiB 20 20.0% 91 1100 20 7 80 scanning");
        assert_eq!(
            words(3),
            "fast-disk-2 5.00 MiB written, amplification 1.28, 10 pages written again, - days of life, 11.8 B of DRAM a page"
        );
        // The columns are aligned.
        assert_eq!(lines[0].find("dropped").unwrap() + "dropped".len(), lines[2].find("  scanning").unwrap());
    }

    #[test]
    fn other_sizes_are_told_where_they_are_known() {
        let point =
            |factor, bytes, hit_ratio, lru_hit_ratio| MrcPoint { factor, bytes, hit_ratio, lru_hit_ratio };
        let mrc = Mrc {
            policy: "strata".to_owned(),
            measured_hit_ratio: Some(0.7512),
            gib_saves_per_second: Some(12.34),
            accesses_per_second: 100.0,
            seconds: 60.2,
            estimates: vec![point(0.5, 1 << 20, 0.5, 0.25), point(1.0, 2 << 20, 0.75, 0.0)],
            ..Mrc::default()
        };
        let page = of(&stat(Stats::default(), Some(mrc)));
        assert!(page.contains("x0.5    1.00 MiB of frames   hit ratio  50.0 %   (LRU  25.0 %)"), "{page}");
        assert!(page.contains("now, measured of strata     hit ratio  75.1 %"), "{page}");
        assert!(
            page.contains("would save 12.3 reads of 100.0 accesses a second, over the last 60 s"),
            "{page}"
        );
        assert!(of(&stat(Stats::default(), Some(Mrc::default()))).contains("no accesses yet"));
    }
}
