//! A trace with keys numbered by first occurrence, once for all cells. Four bytes a request.

use std::io;
use std::path::{Path, PathBuf};

use terrace_api::capture::{Format, Options, Reader};

use crate::opt::next_uses;
use crate::sim::Ids;
use terrace_output::Progress;

/// Requests between two updates of the progress line.
const STRETCH: usize = 1 << 18;

/// A numbered trace.
#[derive(Debug)]
pub struct Trace {
    /// The file's name, without directory and endings of formats.
    pub name: String,
    /// The page of each request, by number.
    pub ids: Vec<u32>,
    /// Different pages.
    pub pages: usize,
    /// Accesses lost by the capture, by its own count.
    pub lost: u64,
    /// For `opt`: the next request of each request's page.
    pub next_uses: Vec<u32>,
}

impl Trace {
    /// Reads a whole trace. A trace without requests is an error.
    pub fn load(path: &Path, options: &Options, progress: &mut Progress) -> io::Result<Trace> {
        let mut numbers = Ids::default();
        let mut ids = Vec::new();
        let lost = each_key(path, options, progress, |key| ids.push(numbers.id(key)))?;
        Ok(Trace::new(name(path), ids, numbers.len(), lost))
    }

    /// From numbered pages, all numbers below `pages`.
    pub(crate) fn new(name: String, ids: Vec<u32>, pages: usize, lost: u64) -> Trace {
        let next_uses = next_uses(&ids);
        Trace { name, ids, pages, lost, next_uses }
    }
}

/// Calls `each` with every key of a trace. Returns the number of accesses lost by the capture. A trace
/// without requests, or with more than 2^32 - 2, is an error.
pub fn each_key(
    path: &Path,
    options: &Options,
    progress: &mut Progress,
    mut each: impl FnMut(u64),
) -> io::Result<u64> {
    let mut reader = Reader::open(path, options).map_err(io::Error::other)?;
    let (mut requests, mut first, mut differ) = (0usize, None, false);
    for access in reader.by_ref() {
        let key = access.map_err(io::Error::other)?.key;
        differ |= *first.get_or_insert(key) != key;
        each(key);
        requests += 1;
        if requests.is_multiple_of(STRETCH) {
            progress.tick(|| format!("{}: {requests} requests read", path.display()));
        }
        if requests >= u32::MAX as usize {
            let cure = "cut it into pieces";
            return Err(io::Error::other(format!(
                "{}: more than 2^32 - 2 requests ({cure})",
                path.display()
            )));
        }
    }
    if reader.format() == Format::Csv && options.column.is_none() && requests > 1 && !differ {
        let why = format!(
            "{}: all {requests} requests have one key (name its column with --column)",
            path.display()
        );
        return Err(io::Error::other(why));
    }
    if requests == 0 {
        let format = reader.format();
        let cure = match format {
            Format::Terrace => "record while programs use the mount",
            _ => "if it is not, name its format with --format",
        };
        let why = format!("{}: no requests, read as {} ({cure})", path.display(), format.name());
        return Err(io::Error::other(why));
    }
    Ok(reader.lost())
}

/// `DIR/w106.u64.zst` is `w106`.
pub fn name(path: &Path) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let mut name = &*file;
    for ending in [".zst", ".bin", ".oracleGeneral", ".u64", ".txt", ".csv", ".trace"] {
        name = name.strip_suffix(ending).filter(|rest| !rest.is_empty()).unwrap_or(name);
    }
    name.to_owned()
}

/// A name for each path; equal names are replaced by the paths.
pub fn names(paths: &[PathBuf]) -> Vec<String> {
    let short: Vec<String> = paths.iter().map(|path| name(path)).collect();
    let is_shared = |name: &String| short.iter().filter(|other| *other == name).count() > 1;
    let named = |(path, name): (&PathBuf, &String)| match is_shared(name) {
        true => path.display().to_string(),
        false => name.clone(),
    };
    paths.iter().zip(&short).map(named).collect()
}

/// Reports on stderr the accesses that a capture lost.
pub fn warn_of_loss(name: &str, lost: u64, requests: usize) {
    if lost > 0 {
        let share = lost as f64 / (lost as f64 + requests as f64) * 100.0;
        terrace_output::error_line!(
            "{name}: the capture lost {lost} accesses ({share:.2} %); miss ratios are of those it has"
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_lose_what_names_formats() {
        let name = |path: &str| super::name(path.as_ref());
        assert_eq!(name("/a/b/w106.u64.zst"), "w106");
        assert_eq!(name("w106.oracleGeneral.bin.zst"), "w106");
        assert_eq!(name("today"), "today");
        assert_eq!(name(".u64"), ".u64");
        let paths = ["a/x.u64", "b/x.u64.zst", "y.csv"].map(std::path::PathBuf::from);
        assert_eq!(super::names(&paths), ["a/x.u64", "b/x.u64.zst", "y"]);
    }
}
