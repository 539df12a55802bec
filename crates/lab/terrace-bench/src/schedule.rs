//! `terrace-bench schedule`: converts a capture into a schedule for `terrace run --prefetch`: pages in the
//! order of their first use.

use clap::Args;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use terrace_api::capture::{Event, Name, Record, RecordReader};
use terrace_api::schedule::{self, Schedule, Span, is_below};

/// Options of the command.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// A capture of `terrace trace`.
    capture: PathBuf,
    /// Output file; an existing file is replaced.
    #[arg(short, long)]
    output: PathBuf,
}

/// Makes and writes the schedule, and prints its size.
///
/// # Errors
/// A capture that cannot be read, or that names no file; a file that cannot be written.
pub fn run(options: &Options) -> io::Result<()> {
    let shown = options.capture.display().to_string();
    let file = File::open(&options.capture).map_err(terrace_output::named(&options.capture))?;
    let mut made = Made::default();
    for record in RecordReader::new(&shown, Box::new(file)).map_err(io::Error::other)? {
        made.add(record.map_err(io::Error::other)?);
    }
    let Made { schedule, nameless, .. } = &made;
    if schedule.spans.is_empty() {
        let why = format!("{shown}: no reads of named files (record it again with this terrace)");
        return Err(io::Error::other(why));
    }
    terrace_output::write_whole(&options.output, &schedule.to_text())?;
    let pages: u64 = schedule.spans.iter().map(|span| span.pages).sum();
    terrace_output::print_line!(
        "{} files, {pages} pages in {} spans",
        schedule.files.len(),
        schedule.spans.len()
    )?;
    if *nameless > 0 {
        terrace_output::error_line!("{shown}: {nameless} accesses to files without a name are left out");
    }
    Ok(())
}

/// A growing schedule.
#[derive(Debug, Default)]
struct Made {
    schedule: Schedule,
    names: HashMap<u64, Name>,
    /// Index of each file in the schedule.
    places: HashMap<u64, u32>,
    used: HashSet<(u64, u64)>,
    nameless: u64,
}

impl Made {
    fn add(&mut self, record: Record) {
        match record {
            // An object's number may be reused, or its file may change later: the first name belongs to the
            // first reads.
            Record::Name(name) if is_below(&name.path) => drop(self.names.entry(name.object).or_insert(name)),
            Record::Access(Event { object, page, write, .. }) if self.used.insert((object, page)) => {
                match self.names.get(&object) {
                    None => self.nameless += 1,
                    // A page need not exist in the source if its first use is a write.
                    Some(_) if write => {}
                    Some(name) => {
                        let files = &mut self.schedule.files;
                        let file = *self.places.entry(object).or_insert_with(|| {
                            let Name { path, bytes, changed_ns, .. } = name.clone();
                            files.push(schedule::File { path, bytes, changed_ns });
                            files.len() as u32 - 1
                        });
                        self.schedule.push(Span { file, first: page, pages: 1 });
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_api::capture::AccessPath;

    #[test]
    fn first_uses_are_kept_in_order_and_merged() {
        let name =
            |object, path: &str| Record::Name(Name { object, path: path.into(), bytes: 9, changed_ns: 1 });
        let access = |object, page, write| {
            Record::Access(Event { object, page, write, via: AccessPath::Fuse, time_ms: 0 })
        };
        let mut made = Made::default();
        let records = [
            access(9, 1, false),
            name(7, "b"),
            name(5, "a"),
            name(3, "../x"),
            access(5, 4, false),
            access(5, 5, false),
            access(5, 4, false),
            access(5, 6, false),
            access(7, 0, true),
            access(7, 0, false),
            access(3, 0, false),
            access(7, 2, false),
            access(5, 7, false),
        ];
        records.into_iter().for_each(|record| made.add(record));
        let text = "terrace-schedule 1 4096\nfile 9 1 a\n0 4 3\nfile 9 1 b\n1 2\n0 7\n";
        assert_eq!((made.schedule.to_text().as_str(), made.nameless), (text, 2));
    }
}
