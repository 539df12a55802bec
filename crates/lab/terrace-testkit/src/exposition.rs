//! A strict parser of Prometheus' text format, version 0.0.4. It accepts a subset of promtool's input, with
//! promtool's rules for names.
//!
//! Source: "Exposition formats" and "Metric and label naming" of Prometheus' documentation. Stricter rules:
//! each family has HELP and TYPE, in this order and before its samples; a family occurs once; there are no
//! time stamps, and no types but counter and gauge.

use std::collections::BTreeMap;

/// All families by name.
pub type Families = BTreeMap<String, Family>;

/// One metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Family {
    /// Its HELP text.
    pub(crate) help: String,
    /// `counter` or `gauge`.
    pub(crate) kind: String,
    /// Its values.
    pub samples: Vec<Sample>,
}

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// Parses a whole page.
///
/// # Errors
/// The first invalid line, and the violated rule.
pub fn parse(page: &str) -> Result<Families, String> {
    let mut families = Families::new();
    let mut current = String::new();
    if !page.is_empty() && !page.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for line in page.lines() {
        let read = match line.strip_prefix("# ") {
            Some(comment) => head(comment, &mut families, &mut current),
            None => sample(line, &mut families, &current),
        };
        read.map_err(|why| format!("{why}: {line}"))?;
    }
    match families.iter().find(|(_, family)| family.samples.is_empty()) {
        Some((name, _)) => Err(format!("{name} has no sample")),
        None => Ok(families),
    }
}

fn head(comment: &str, families: &mut Families, current: &mut String) -> Result<(), String> {
    let (word, rest) = comment.split_once(' ').ok_or("a comment that is neither HELP nor TYPE")?;
    let (name, text) = rest.split_once(' ').ok_or("no text")?;
    match word {
        "HELP" => {
            if !is_name(name) {
                return Err("no name of a metric".to_owned());
            }
            if text.trim().is_empty() || text.contains('\\') {
                return Err("no plain text".to_owned());
            }
            let family = Family { help: text.to_owned(), ..Family::default() };
            name.clone_into(current);
            families
                .insert(name.to_owned(), family)
                .map_or(Ok(()), |_| Err("the family comes twice".to_owned()))
        }
        "TYPE" => {
            let family = families.get_mut(name).filter(|_| name == current).ok_or("TYPE without its HELP")?;
            if !family.kind.is_empty() || !["counter", "gauge"].contains(&text) {
                return Err("a second or an unknown type".to_owned());
            }
            if (text == "counter") != name.ends_with("_total") {
                return Err("counters, and nothing else, end in _total".to_owned());
            }
            text.clone_into(&mut family.kind);
            check_units(name)
        }
        _ => Err("a comment that is neither HELP nor TYPE".to_owned()),
    }
}

/// Checks that a name has base units only, and no abbreviations of them.
fn check_units(name: &str) -> Result<(), String> {
    let other = "ms us ns milliseconds microseconds nanoseconds days kib mib kb mb percent sec";
    match name.split('_').find(|part| other.split(' ').any(|unit| unit == *part)) {
        Some(unit) => Err(format!("{unit} is no base unit")),
        None => Ok(()),
    }
}

fn sample(line: &str, families: &mut Families, current: &str) -> Result<(), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, rest) = line.split_at(end);
    let family =
        families.get_mut(name).filter(|_| name == current).ok_or("a sample outside of its family")?;
    if family.kind.is_empty() {
        return Err("a sample before its TYPE".to_owned());
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    let value: f64 =
        value.parse().map_err(|_| "the value is no number, or a time stamp follows".to_owned())?;
    if !value.is_finite() || (family.kind == "counter" && value < 0.0) {
        return Err("a value that cannot be".to_owned());
    }
    if family.samples.iter().any(|other| other.labels == labels) {
        return Err("the sample comes twice".to_owned());
    }
    family.samples.push(Sample { labels, value });
    Ok(())
}

/// Labels up to the closing brace, and the text behind it.
fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut found = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) || name.contains(':') || name.starts_with("__") {
            return Err(format!("{name} is no name of a label"));
        }
        let (value, after) = quoted(after)?;
        if found.insert(name.to_owned(), value).is_some() {
            return Err(format!("{name} comes twice"));
        }
        match after.strip_prefix(',') {
            Some(more) => rest = more,
            None => return Ok((found, after.strip_prefix('}').ok_or("no closing brace")?)),
        }
    }
}

/// A value up to its closing quotation mark, unescaped, and the text behind it.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('\\' | '"'))) => c,
                _ => return Err("an unknown escape".to_owned()),
            }),
            c => value.push(c),
        }
    }
    Err("a value without end".to_owned())
}

/// Whether the text is a valid metric name.
fn is_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    name.chars().all(word) && name.starts_with(|c: char| !c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sound_page_is_read() {
        let page = "# HELP a_total Of a.\n# TYPE a_total counter\na_total{x=\"1\\\\\\\"\\n\",y=\"\"} 5\na_total{x=\"2\"} 0.5\n\
                    # HELP b_bytes Of b.\n# TYPE b_bytes gauge\nb_bytes -1\n";
        let families = parse(page).unwrap();
        assert_eq!(families["a_total"].samples[0].labels["x"], "1\\\"\n");
        assert_eq!((families["a_total"].samples[1].value, families["b_bytes"].samples[0].value), (0.5, -1.0));
        assert_eq!(
            (families["b_bytes"].help.as_str(), families["b_bytes"].kind.as_str()),
            ("Of b.", "gauge")
        );
        assert_eq!(parse("").unwrap(), Families::new());
    }

    #[test]
    fn every_rule_that_is_broken_is_told() {
        let head = "# HELP a_total Of a.\n# TYPE a_total counter\n";
        let broken = [
            "a 1\n",
            "# HELP a Of a.\n",
            "# TYPE a gauge\na 1\n",
            "# HELP a Of a.\na 1\n",
            "# HELP a Of a.\n# TYPE a counter\na 1\n",
            "# HELP a_total Of a.\n# TYPE a_total gauge\na_total 1\n",
            "# HELP a_ms Of a.\n# TYPE a_ms gauge\na_ms 1\n",
            "# HELP 1a Of a.\n# TYPE 1a gauge\n1a 1\n",
            "# words\n",
            "# HELP a Of a.\n# TYPE a gauge\na 1",
            &format!("{head}a_total 1\na_total 1\n"),
            &format!("{head}a_total -1\n"),
            &format!("{head}a_total 1 1234\n"),
            &format!("{head}a_total{{x=\"1}} 1\n"),
            &format!("{head}a_total{{x=\"\\t\"}} 1\n"),
            &format!("{head}a_total{{x=\"1\",x=\"2\"}} 1\n"),
            &format!("{head}a_total{{x-y=\"1\"}} 1\n"),
            &format!("{head}a_total{{x=\"1\"}}1\n"),
            &format!("{head}a_total NaN\n"),
            &format!("{head}b 1\n"),
            &format!("{head}a_total 1\n{head}"),
        ];
        for page in broken {
            assert!(parse(page).is_err(), "{page}");
        }
    }
}
