//! Text output of `terrace tier list` and `terrace tier show`.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use terrace_api::tiers::{SourceState, TargetState, TierFacts, TierReport};

use crate::size::human;

/// A table with one line for each target.
pub(super) fn list(reports: &[TierReport]) -> String {
    let mut rows = vec![["TIER", "SIZE", "SOURCE", "LAST USED", "STATE"].map(str::to_owned)];
    rows.extend(reports.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut page = String::new();
    for [path, size, source, used, state] in &rows {
        let [a, b, c, d] = widths;
        let _ = writeln!(page, "{path:<a$}  {size:>b$}  {source:<c$}  {used:<d$}  {state}");
    }
    page
}

fn row(report: &TierReport) -> [String; 5] {
    let path = report.path.display().to_string();
    let (source, used) = match &report.tier {
        Some(tier) => (tier.source.display().to_string(), since(tier.used)),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let size = if report.state == TargetState::Missing { "-".to_owned() } else { human(report.bytes) };
    [path, size, source, used, state(report)]
}

/// State of a target, in a few words.
fn state(report: &TierReport) -> String {
    match (report.state, &report.tier) {
        (TargetState::Tier, _) if report.in_use => used_by(report),
        (TargetState::Tier, Some(tier)) => match (tier.source_state, tier.clean) {
            (SourceState::There, true) => "clean".to_owned(),
            (SourceState::There, false) => "not left clean".to_owned(),
            (SourceState::Replaced, _) => "its source was replaced".to_owned(),
            (SourceState::Gone, _) => "its source is gone".to_owned(),
        },
        (TargetState::Missing, _) => "not made yet".to_owned(),
        (TargetState::Empty, _) => "empty".to_owned(),
        (TargetState::Damaged, _) => "damaged".to_owned(),
        (TargetState::Layout, _) => "of another version of terrace".to_owned(),
        (TargetState::Unreadable, _) => "cannot be read".to_owned(),
        (TargetState::Foreign | TargetState::Tier, _) => "no tier".to_owned(),
    }
}

fn used_by(report: &TierReport) -> String {
    match (&report.mnt, report.pid) {
        (Some(mnt), Some(pid)) => format!("in use by {} (process {pid})", mnt.display()),
        (_, Some(pid)) => format!("in use by process {pid}"),
        _ => "in use by a process not visible here".to_owned(),
    }
}

pub(super) fn show(report: &TierReport) -> String {
    let mut page = String::new();
    let Some(tier) = &report.tier else { return page };
    let _ = writeln!(page, "{}   tier of {}", report.path.display(), tier.source.display());
    let mut line = |head: &str, rest: String| {
        let _ = writeln!(page, "  {head:<12} {rest}");
    };
    let source = match tier.source_state {
        SourceState::There => "is there",
        SourceState::Replaced => "was replaced: another directory has its path now",
        SourceState::Gone => "is gone: removed, renamed, or not mounted",
    };
    line("source", source.to_owned());
    let (size, region) = (human(tier.capacity_bytes), human(tier.region_bytes));
    line(
        "size",
        format!("{size} in {} regions of {region}; the target has {}", tier.regions, human(report.bytes)),
    );
    let clean = if tier.clean { "left clean" } else { "not left clean" };
    let clean = if report.in_use { used_by(report) } else { clean.to_owned() };
    line("created", since(tier.created));
    line("last used", format!("{}, {clean}", since(tier.used)));
    line("content", content(tier));
    line("id", tier.id.clone());
    page
}

fn content(tier: &TierFacts) -> String {
    let Some(content) = tier.content else { return "not counted while it is in use".to_owned() };
    let damaged = match content.pages_damaged {
        0 => String::new(),
        n => format!(", {n} damaged pages, which the next mount leaves out"),
    };
    format!("{} pages ({}) of {} files{damaged}", content.pages, human(content.bytes), content.files)
}

/// Age of a time given in seconds since 1970.
fn since(then: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    ago(now.saturating_sub(then))
}

fn ago(seconds: u64) -> String {
    let (n, unit) = match seconds {
        s if s < 60 => return "just now".to_owned(),
        s if s < 3600 => (s / 60, "minute"),
        s if s < 2 * 86_400 => (s / 3600, "hour"),
        s => (s / 86_400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::tiers::TierContent;

    fn report() -> TierReport {
        let tier = TierFacts {
            id: "0".to_owned(),
            source: "/data".into(),
            source_state: SourceState::There,
            created: 0,
            used: 0,
            clean: true,
            capacity_bytes: 63 << 24,
            region_bytes: 1 << 24,
            regions: 63,
            content: Some(TierContent { files: 3, pages: 512, bytes: 2 << 20, pages_damaged: 0 }),
        };
        let (path, state) = ("/ssd/t".into(), TargetState::Tier);
        TierReport { path, state, bytes: 1 << 30, tier: Some(tier), ..TierReport::default() }
    }

    #[test]
    fn list_has_a_line_for_each_target() {
        let used = TierReport { in_use: true, pid: Some(7), mnt: Some("/mnt".into()), ..report() };
        let missing = TierReport { path: "/ssd/a long name".into(), ..TierReport::default() };
        let page = list(&[report(), used, missing]);
        let lines: Vec<&str> = page.lines().collect();
        assert!(lines[0].starts_with("TIER              "), "{page}");
        assert!(lines[1].ends_with(" clean") && lines[1].contains("1.00 GiB  /data "), "{page}");
        assert!(lines[2].ends_with("in use by /mnt (process 7)"), "{page}");
        assert!(lines[3].ends_with("not made yet") && lines[3].contains("   -  -  "), "{page}");
    }

    #[test]
    fn show_tells_content_or_user() {
        let page = show(&report());
        assert!(page.starts_with("/ssd/t   tier of /data\n"), "{page}");
        assert!(page.contains("1008 MiB in 63 regions of 16.0 MiB; the target has 1.00 GiB"), "{page}");
        assert!(page.contains("content      512 pages (2.00 MiB) of 3 files\n"), "{page}");
        let mut used = TierReport { in_use: true, pid: Some(7), ..report() };
        used.tier.as_mut().unwrap().content = None;
        let page = show(&used);
        assert!(page.contains("ago, in use by process 7\n") && page.contains("not counted while"), "{page}");
    }

    #[test]
    fn ages_are_told_in_one_unit() {
        let told = [0, 60, 3599, 3600, 47 * 3600, 48 * 3600, 86_400 * 400].map(ago);
        assert_eq!(
            told,
            [
                "just now",
                "1 minute ago",
                "59 minutes ago",
                "1 hour ago",
                "47 hours ago",
                "2 days ago",
                "400 days ago"
            ]
        );
    }
}
