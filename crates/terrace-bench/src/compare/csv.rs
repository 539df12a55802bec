//! CSV with a header line (RFC 4180): quoted fields may hold the delimiter, quotes as two quotes, and line ends.

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csv {
    /// Of the header.
    pub names: Vec<String>,
    /// As many fields as there are names in each.
    pub records: Vec<Record>,
}

/// Number of the line that it begins at, from 1, and its fields.
pub type Record = (usize, Vec<String>);
/// Line number, from 1, and fault.
pub type Fault = (usize, String);

/// Columns of a file at the most.
const COLUMNS_MAX: usize = 1000;

/// Reads all of it; the header says by which of `,`, `;` and tab fields are told apart. Empty lines are passed over.
///
/// # Errors
/// Line number and fault.
pub fn parse(text: &str) -> Result<Csv, Fault> {
    let text = text.trim_start_matches('\u{feff}');
    let header = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let delimiter = ['\t', ';', ','].into_iter().max_by_key(|d| header.matches(*d).count()).unwrap_or(',');
    let mut rest = Fields { text, line: 1, delimiter };
    let mut csv = Csv::default();
    while let Some((line, fields)) = rest.record()? {
        match (csv.names.len(), fields.len()) {
            (_, 1) if fields[0].is_empty() => {}
            (0, _) => csv.names = names(line, fields)?,
            (names, found) if names != found => {
                return Err((line, format!("{found} fields where the header names {names}")));
            }
            _ => csv.records.push((line, fields)),
        }
    }
    Ok(csv)
}

fn names(line: usize, names: Vec<String>) -> Result<Vec<String>, Fault> {
    let twice = |(i, name): (usize, &String)| names[..i].contains(name).then(|| name.clone());
    if names.len() > COLUMNS_MAX {
        return Err((line, format!("{} columns, more than {COLUMNS_MAX}", names.len())));
    }
    if let Some(name) = names.iter().enumerate().find_map(twice) {
        return Err((line, format!("two columns are called \"{name}\"")));
    }
    Ok(names)
}

struct Fields<'a> {
    text: &'a str,
    line: usize,
    delimiter: char,
}

impl Fields<'_> {
    /// The next record with the line that it starts at.
    fn record(&mut self) -> Result<Option<Record>, Fault> {
        if self.text.is_empty() {
            return Ok(None);
        }
        let start = self.line;
        let mut fields = Vec::new();
        loop {
            let (field, more) = if self.text.starts_with('"') { self.quoted()? } else { self.plain() };
            fields.push(field);
            if !more {
                return Ok(Some((start, fields)));
            }
        }
    }

    /// A field, and whether the record goes on after it.
    fn plain(&mut self) -> (String, bool) {
        let end = self.text.find([self.delimiter, '\n']).unwrap_or(self.text.len());
        let field = self.text[..end].trim().to_string();
        self.text = &self.text[end..];
        (field, self.delimited())
    }

    fn quoted(&mut self) -> Result<(String, bool), Fault> {
        let start = self.line;
        let mut field = String::new();
        self.text = &self.text[1..];
        loop {
            let end = self.text.find('"').ok_or((start, "a quote without its end".to_string()))?;
            field.push_str(&self.text[..end]);
            self.line += self.text[..end].matches('\n').count();
            self.text = &self.text[end + 1..];
            match self.text.strip_prefix('"') {
                Some(after) => self.text = after,
                None => break,
            }
            field.push('"');
        }
        self.text = self.text.trim_start_matches([' ', '\r']);
        if !self.text.is_empty() && !self.text.starts_with([self.delimiter, '\n']) {
            return Err((self.line, "text after a quoted field".into()));
        }
        Ok((field, self.delimited()))
    }

    /// Passes over what follows a field.
    fn delimited(&mut self) -> bool {
        if let Some(rest) = self.text.strip_prefix(self.delimiter) {
            self.text = rest;
            return true;
        }
        if let Some(rest) = self.text.strip_prefix('\n') {
            self.text = rest;
            self.line += 1;
        }
        false
    }
}

/// A field as it must be written.
pub fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Csv {
        parse(text).unwrap()
    }

    #[test]
    fn plain_quoted_and_other_delimiters() {
        let csv = read("\u{feff}a, b,c\r\n1,\"x, \"\"y\"\"\nz\",3\r\n\r\n4,,6");
        assert_eq!(csv.names, ["a", "b", "c"]);
        let records: Vec<_> = csv.records.iter().map(|(line, f)| (*line, f.join("|"))).collect();
        assert_eq!(records, [(2, "1|x, \"y\"\nz|3".to_string()), (5, "4||6".to_string())]);
        assert_eq!(read("a;b,c;d\n1;2,5;3\n").names, ["a", "b,c", "d"]);
        assert_eq!(read("a;b\n1;2,5\n").records, [(2, vec!["1".to_string(), "2,5".into()])]);
        assert_eq!(read("a\tb\n1\t2\n").records.len(), 1);
        assert_eq!(read(""), Csv::default());
    }

    #[test]
    fn what_is_no_csv_has_a_line() {
        assert_eq!(parse("a,b\n1,2\n1,2,3\n").unwrap_err().0, 3);
        assert_eq!(parse("a,b\n1,\"2\n3,4\n").unwrap_err(), (2, "a quote without its end".into()));
        assert_eq!(parse("a,b\n\"1\"x,2\n").unwrap_err().0, 2);
        assert!(parse("a,b,a\n").unwrap_err().1.contains("\"a\""));
        assert!(parse(&"x,".repeat(5000)).is_err());
    }

    #[test]
    fn fields_that_are_written_are_read() {
        let all = ["a", "b,c", "d\"e", "f\ng", ""];
        let text = format!("v,w,x,y,z\n{}\n", all.map(field).join(","));
        assert_eq!(read(&text).records[0].1, all);
    }
}
