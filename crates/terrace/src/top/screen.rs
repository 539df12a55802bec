//! The screen of `terrace top`: hit ratio over time, memory as bars, other values in a table. Without a
//! terminal, one line for each interval.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table};

use super::model::{Counter, View};
use crate::size::PAGE;

/// Minimum time span of the chart, seconds.
const CHART_SECONDS: f64 = 60.0;
const NOTHING: &str = "-";

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let [reads, rest] = rows(view);
    let parts = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Length(4),
        Constraint::Length(reads.len().max(rest.len()) as u16 + 1),
        Constraint::Length(1),
    ]);
    let [head, chart, bars, numbers, foot] = parts.areas(frame.area());
    frame.render_widget(Line::from(title(view)).style(Modifier::BOLD), head);
    draw_chart(frame, view, chart);
    draw_bars(frame, view, bars);
    let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).areas(numbers);
    frame.render_widget(table(reads), left);
    frame.render_widget(table(rest), right);
    frame.render_widget(Paragraph::new("q, ^C: leave").style(Modifier::DIM), foot);
}

fn table(rows: Vec<[String; 3]>) -> Table<'static> {
    let row = |[name, now, all]: [String; 3]| {
        Row::new([Line::from(name), Line::from(now).right_aligned(), Line::from(all).right_aligned()])
    };
    let heads = row(["", "a second", "in all"].map(str::to_owned)).style(Modifier::DIM);
    let widths = [Constraint::Fill(1), Constraint::Length(10), Constraint::Length(10)];
    Table::new(rows.into_iter().map(row), widths).header(heads)
}

/// The mount, and a failure if there is one.
fn title(view: &View) -> String {
    let mut title = match &view.now {
        Some(now) => format!("terrace {}", now.title),
        None => "terrace: no statistics yet".to_owned(),
    };
    if let Some(now) = view.now.as_ref().filter(|now| now.restarts > 0) {
        title += &format!(", daemon restarted {} times", now.restarts);
    }
    if let Some(errno) = view.now.as_ref().map(|now| now.levels.failing).filter(|errno| *errno != 0) {
        let why = std::io::Error::from_raw_os_error(errno).to_string();
        title += &format!(", WRITEBACK FAILS: {}", why.split(" (os").next().unwrap_or_default());
    }
    title
}

fn percent(value: Option<f64>) -> String {
    value.map_or(NOTHING.to_owned(), |p| format!("{p:.1} %"))
}

fn draw_chart(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let points: Vec<(f64, f64)> = view.ratios.iter().copied().collect();
    let first = points.first().map_or(view.seconds, |p| p.0);
    let from = first.min(view.seconds - CHART_SECONDS);
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(Color::Cyan))
        .data(&points);
    let heading = format!(
        " hit ratio {}, since its start {} ",
        percent(view.hit_percent()),
        percent(view.now.as_ref().and_then(|_| view.hit_percent_all()))
    );
    let chart = Chart::new(vec![line])
        .block(Block::bordered().title(heading))
        .x_axis(
            Axis::default()
                .bounds([from, view.seconds])
                .labels([format!("{:.0} s ago", view.seconds - from), "now".to_owned()]),
        )
        .y_axis(Axis::default().bounds([0.0, 100.0]).labels(["0 %", "50 %", "100 %"]));
    frame.render_widget(chart, area);
}

fn draw_bars(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let levels = view.now.as_ref().map(|now| now.levels.clone()).unwrap_or_default();
    let (pool, pool_max) = levels.tier.unwrap_or_default();
    let note = match (levels.tier, levels.bypassed) {
        (None, _) => "off".to_owned(),
        (_, true) => "bypassed: too few hits".to_owned(),
        (_, false) => format!("{:.2} to 1", levels.density),
    };
    let bars = [
        ("memory", levels.used, levels.limit, String::new(), Color::Blue),
        ("  DRAM", levels.dram, levels.dram_max, String::new(), Color::Cyan),
        ("  compressed", pool, pool_max, note, Color::Magenta),
        ("dirty", levels.dirty, levels.dirty_max, String::new(), Color::Yellow),
    ];
    let lines: [Rect; 4] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    for ((name, is, most, note, colour), line) in bars.into_iter().zip(lines) {
        let [head, bar, tail] =
            Layout::horizontal([Constraint::Length(14), Constraint::Min(10), Constraint::Length(24)])
                .areas(line);
        frame.render_widget(Paragraph::new(name), head);
        let label = format!("{} of {}", bytes(is as f64), bytes(most as f64));
        let ratio = if most > 0 { (is as f64 / most as f64).min(1.0) } else { 0.0 };
        let gauge = Gauge::default()
            .ratio(ratio)
            .label(label)
            .gauge_style(Style::new().fg(colour).bg(Color::DarkGray));
        frame.render_widget(gauge, bar);
        frame.render_widget(Paragraph::new(format!(" {note}")), tail);
    }
}

/// Counters in the order of [`Counter`].
type Values = [f64; Counter::ALL.len()];

/// Table rows (name, per second, since the daemon's start): reads, and other values.
fn rows(view: &View) -> [Vec<[String; 3]>; 2] {
    let all = view.now.as_ref().map(|now| now.counters.map(|n| n as f64));
    let row = |name: &str, text: fn(f64) -> String, value: fn(&Values) -> f64| {
        let [now, all] = [view.rates, all].map(|v| v.map_or(NOTHING.to_owned(), |v| text(value(&v))));
        [name.to_owned(), now, all]
    };
    let us = |name: &str, us: Option<f64>| {
        [name.to_owned(), us.map_or(NOTHING.to_owned(), |us| format!("{} us", number(us))), String::new()]
    };
    let miss_us = view.now.as_ref().and_then(|now| now.levels.miss_us);
    let reads = vec![
        row("hits in DRAM", count, |v| (v[Counter::Hits as usize] - v[Counter::TierHits as usize]).max(0.0)),
        row("hits compressed", count, |v| v[Counter::TierHits as usize]),
        row("misses", count, |v| v[Counter::Misses as usize]),
        row("  from the source", bytes, |v| v[Counter::MissBytes as usize]),
        us("  device's reads", view.device_us()),
        us("  count as", miss_us),
    ];
    let rest = vec![
        row("evicted", count, |v| v[Counter::Evicted as usize]),
        row("  compressed", count, |v| v[Counter::Stored as usize]),
        row("  out of there", count, |v| v[Counter::TierEvicted as usize]),
        row("  came back", count, |v| v[Counter::Refaults as usize]),
        row("written", bytes, |v| v[Counter::WriteBytes as usize]),
        row("  to the source", bytes, |v| v[Counter::WrittenBack as usize] * PAGE as f64),
    ];
    [reads, rest]
}

/// One line for the last interval.
pub(super) fn line(view: &View) -> String {
    let Some(now) = &view.now else { return format!("{:8.1} s  no statistics yet", view.seconds) };
    let a_second = |counter| view.rate(counter).map_or(NOTHING.to_owned(), count);
    let levels = &now.levels;
    let compressed = match levels.tier {
        Some((pool, _)) => {
            format!(", compressed {} {} hits/s", bytes(pool as f64), a_second(Counter::TierHits))
        }
        None => String::new(),
    };
    let device = view.device_us().map_or(String::new(), |us| format!(", device {} us", number(us)));
    format!(
        "{:8.1} s  hit ratio {}, {} hits/s, {} misses/s, DRAM {} of {}{compressed}, evicted {}/s, dirty {}{device}",
        view.seconds,
        percent(view.hit_percent()),
        a_second(Counter::Hits),
        a_second(Counter::Misses),
        bytes(levels.dram as f64),
        bytes(levels.dram_max as f64),
        a_second(Counter::Evicted),
        bytes(levels.dirty as f64),
    )
}

/// A whole number in groups of three digits; in millions if it is too long.
fn count(value: f64) -> String {
    if value >= 1e8 {
        return format!("{} M", count(value / 1e6));
    }
    let digits = format!("{value:.0}");
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    groups.join(",")
}

fn bytes(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = value;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Three significant digits or more, no exponents.
fn number(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::recorded;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn watched() -> View {
        let mut view = View::default();
        recorded().into_iter().zip(1..).for_each(|(snapshot, s)| view.take(snapshot, f64::from(s)));
        view
    }

    /// Lines of the screen, without trailing blanks.
    fn drawn(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let cells = terminal.backend().buffer().content();
        let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|c| c.symbol()).collect::<String>();
        cells.chunks(width.into()).map(|c| line(c).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_real_mount_on_the_screen() {
        let lines = drawn(&watched(), 80, 24);
        let screen = lines.join("\n");
        assert_eq!(lines[0], "terrace /data, strata", "{screen}");
        assert!(lines[1].contains("hit ratio 90.4 %, since its start 89.3 %"), "{screen}");
        assert!(
            screen.contains("60 s ago") && screen.contains("now") && screen.contains("100 %"),
            "{screen}"
        );
        let braille = |line: &&String| line.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        assert!(lines.iter().any(|l| braille(&l)), "{screen}");
        // 459004 - 444379 hits, 82032 - 79376 of them compressed, 54862 - 53314 misses, in a second.
        let has = |name: &str, numbers: &str| {
            let squeezed: Vec<String> =
                lines.iter().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
            assert!(
                squeezed.iter().any(|l| l.contains(&format!("{name} {numbers}"))),
                "{name} {numbers}\n{screen}"
            );
        };
        has("hits in DRAM", "11,969 376,972");
        has("hits compressed", "2,656 82,032");
        has("misses", "1,548 54,891");
        has("evicted", "1,536 49,920");
        has("count as", "60.0 us");
        has("device's reads", "-");
        let compressed = lines.iter().find(|l| l.contains("  compressed  ")).unwrap();
        assert!(compressed.contains("8.0 MiB of 8.0 MiB") && compressed.contains("to 1"), "{screen}");
        assert!(screen.contains("800.0 KiB of 4.0 MiB"), "dirty: {screen}");
        assert_eq!(lines[23], "q, ^C: leave");
    }

    #[test]
    fn any_size_of_the_screen_and_an_empty_view_are_drawn() {
        for (width, height) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 100)] {
            drawn(&watched(), width, height);
            drawn(&View::default(), width, height);
        }
        let lines = drawn(&View::default(), 80, 30);
        assert_eq!(lines[0], "terrace: no statistics yet");
        assert!(lines.join("\n").contains("off"), "no compressed tier");
    }

    #[test]
    fn trouble_is_in_the_title() {
        let mut view = watched();
        let now = view.now.as_mut().unwrap();
        (now.restarts, now.levels.failing) = (2, libc::ENOSPC);
        let title = &drawn(&view, 120, 30)[0];
        assert!(title.contains("restarted 2 times, WRITEBACK FAILS: No space left on device"), "{title}");
    }

    #[test]
    fn a_line_an_interval() {
        let mut view = watched();
        assert_eq!(
            line(&view),
            "     3.0 s  hit ratio 90.4 %, 14,625 hits/s, 1,548 misses/s, DRAM 22.0 MiB of 22.0 MiB, compressed 8.0 MiB \
             2,656 hits/s, evicted 1,536/s, dirty 800.0 KiB"
        );
        view.rates = None;
        assert!(line(&view).contains("hit ratio -, - hits/s"));
        assert!(line(&View::default()).contains("no statistics yet"));
        assert_eq!(
            (count(0.4), count(999.0), count(1_234_567.0)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!((bytes(1023.0), bytes(1536.0)), ("1023 B".into(), "1.5 KiB".into()));
    }
}
