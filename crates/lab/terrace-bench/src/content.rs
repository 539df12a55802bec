//! A data set's pages contain pseudo-random 8-byte numbers ([`pages`]), or pieces of the machine's own files.
//! In the latter, a stamp begins each page.
//!
//! A stamped page is 32 bytes of stamp and 4064 bytes of text, program or log, in files' order:
//! ```text
//!   page number | seed | checksum of the body, of both numbers too | MAGIC     (8 bytes each, little-endian)
//! ```
//! So a page of real content shows its position and its integrity without the original files. The stamp makes
//! equal pages differ: systems with deduplication are measured by compression, not by repetition.

use crate::pages::{self, PAGE};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Content of the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Pseudo-random words.
    #[default]
    Incompressible,
    /// The machine's own texts, programs and logs.
    Real,
}

const STAMP: usize = 32;
/// "terrace!" in little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"terrace!");

impl Content {
    /// Makes `path` a file of `bytes` (a multiple of the page) of this content, on stable storage. An
    /// existing file with the right length, ends and sample is kept.
    ///
    /// # Errors
    /// No room; a machine without files for the content.
    pub(crate) fn make_file(self, path: &Path, bytes: u64, seed: u64) -> io::Result<()> {
        assert_eq!(bytes % PAGE as u64, 0);
        if pages::is_made(path, bytes, seed, |first, data| self.check(seed, first, data))? {
            return Ok(());
        }
        match self {
            Content::Incompressible => write(path, bytes, |page, data| {
                pages::fill(seed, page, data);
                Ok(())
            }),
            Content::Real => write_real(path, bytes, seed, Corpus::of_machine(seed)?),
        }
    }

    /// Checks `data`, read from page `first` on, in full. The error names the fault.
    pub(crate) fn check(self, seed: u64, first: u64, data: &[u8]) -> Result<(), String> {
        match self {
            Content::Incompressible => pages::check(seed, first, data),
            Content::Real => {
                (first..).zip(data.chunks(PAGE)).try_for_each(|(page, data)| check_stamp(seed, page, data))
            }
        }
    }
}

fn word(data: &[u8], i: usize) -> u64 {
    u64::from_le_bytes(data[i * 8..i * 8 + 8].try_into().expect("eight bytes"))
}

fn checksum(seed: u64, page: u64, body: &[u8]) -> u64 {
    (0..body.len() / 8).fold(pages::mix(seed) ^ page, |sum, i| pages::mix(sum ^ word(body, i)))
}

fn stamp(seed: u64, page: u64, data: &mut [u8]) {
    let sum = checksum(seed, page, &data[STAMP..]);
    for (i, word) in [page, seed, sum, MAGIC].into_iter().enumerate() {
        data[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
}

fn check_stamp(seed: u64, page: u64, data: &[u8]) -> Result<(), String> {
    if data.len() != PAGE {
        return Err(format!("page {page}: {} bytes instead of {PAGE}", data.len()));
    }
    if (word(data, 0), word(data, 1), word(data, 3)) != (page, seed, MAGIC) {
        return Err(format!("page {page}: it is stamped {:#x} of {:#x}", word(data, 0), word(data, 1)));
    }
    if word(data, 2) != checksum(seed, page, &data[STAMP..]) {
        return Err(format!("page {page}: its content does not match its stamp"));
    }
    Ok(())
}

fn write_real(path: &Path, bytes: u64, seed: u64, mut corpus: Corpus) -> io::Result<()> {
    write(path, bytes, |page, data| {
        corpus.fill(&mut data[STAMP..])?;
        stamp(seed, page, data);
        Ok(())
    })
}

/// Writes a file of pages made by `fill`, on stable storage.
fn write(path: &Path, bytes: u64, mut fill: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut file = io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut data = [0u8; PAGE];
    for page in 0..bytes / PAGE as u64 {
        fill(page, &mut data)?;
        file.write_all(&data)?;
    }
    file.into_inner()?.sync_all()
}

/// An endless stream of the machine's files, alternating between kinds.
#[derive(Debug)]
struct Corpus {
    kinds: Vec<Files>,
    turn: usize,
    /// Bytes left before the next kind.
    left: usize,
}

/// Bytes of one kind before the next.
const PIECE: usize = 256 << 10;
/// Minimum file size: smaller ones are not worth opening.
const FILE_MIN: u64 = 4 << 10;
/// Maximum number of files in a list.
const FILES_MAX: usize = 100_000;

impl Corpus {
    /// Equal parts of texts and programs, half as much of logs.
    fn of_machine(seed: u64) -> io::Result<Corpus> {
        let texts = || Files::below(&["/usr/share", "/usr/include"], seed);
        let programs = || Files::below(&["/usr/bin", "/usr/lib"], seed);
        Corpus::new(vec![texts(), programs(), texts(), programs(), Files::below(&["/var/log"], seed)])
    }

    fn new(mut kinds: Vec<Files>) -> io::Result<Corpus> {
        kinds.retain(|files| !files.paths.is_empty());
        // The second list of a kind starts at a different file.
        for (i, files) in kinds.iter_mut().enumerate() {
            files.next = i * files.paths.len() / 5;
        }
        if kinds.is_empty() {
            return Err(io::Error::other("no files below /usr and /var/log to take content from"));
        }
        Ok(Corpus { kinds, turn: 0, left: PIECE })
    }

    fn fill(&mut self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            if self.left == 0 {
                (self.turn, self.left) = ((self.turn + 1) % self.kinds.len(), PIECE);
            }
            let want = out.len().min(self.left);
            let n = self.kinds[self.turn].read(&mut out[..want])?;
            self.left -= n;
            out = &mut out[n..];
        }
        Ok(())
    }
}

/// A list of files, read cyclically.
#[derive(Debug)]
struct Files {
    paths: Vec<PathBuf>,
    next: usize,
    open: Option<File>,
}

impl Files {
    fn below(roots: &[&str], seed: u64) -> Files {
        let mut paths = Vec::new();
        roots.iter().for_each(|root| collect(Path::new(root), &mut paths));
        // Sorted by name first: the order of a directory is arbitrary.
        paths.sort_unstable();
        fastrand::Rng::with_seed(seed).shuffle(&mut paths);
        Files { paths, next: 0, open: None }
    }

    /// Reads one byte or more.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // Two rounds: some files may be gone meanwhile.
        for _ in 0..self.paths.len() * 2 + 1 {
            if let Some(n) = self.open.as_mut().and_then(|file| file.read(out).ok()).filter(|n| *n > 0) {
                return Ok(n);
            }
            self.open = File::open(&self.paths[self.next % self.paths.len()]).ok();
            self.next += 1;
        }
        Err(io::Error::other("the source files of the content are gone"))
    }
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if out.len() >= FILES_MAX {
            return;
        }
        if kind.is_dir() {
            collect(&entry.path(), out);
        } else if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() >= FILE_MIN) {
            out.push(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_corpus(dir: &Path) -> Corpus {
        let words = (0..4000).map(|i| format!("line {i} of a file of words\n")).collect::<String>();
        fs::write(dir.join("a"), &words).unwrap();
        fs::write(dir.join("b"), words.to_uppercase()).unwrap();
        Corpus::new(vec![Files::below(&[dir.to_str().unwrap()], 1)]).unwrap()
    }

    #[test]
    fn a_stamped_page_knows_its_place_and_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (from, path) = (dir.path().join("from"), dir.path().join("f"));
        fs::create_dir(&from).unwrap();
        write_real(&path, 64 * PAGE as u64, 7, text_corpus(&from)).unwrap();
        let mut data = fs::read(&path).unwrap();
        let real = Content::Real;
        real.check(7, 0, &data).unwrap();
        assert!(String::from_utf8_lossy(&data[STAMP..PAGE]).contains(" of a file of words"), "real text");
        assert!(real.check(8, 0, &data).is_err(), "another file's");
        assert!(real.check(7, 1, &data).unwrap_err().contains("page 1: it is stamped 0x0"));
        assert!(real.check(7, 0, &data[..4000]).is_err(), "a short read");
        data[5 * PAGE + 4095] ^= 1;
        assert!(real.check(7, 0, &data).unwrap_err().contains("page 5: its content"));
        assert!(real.check(7, 0, &[0u8; PAGE]).is_err(), "a hole");
    }

    #[test]
    fn a_file_is_made_once_and_made_again_when_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let plain = Content::Incompressible;
        plain.make_file(&path, 64 * PAGE as u64, 3).unwrap();
        plain.check(3, 0, &fs::read(&path).unwrap()).unwrap();
        let is_made = |seed| pages::is_made(&path, 64 * PAGE as u64, seed, |p, d| plain.check(seed, p, d));
        assert_eq!((is_made(3).unwrap(), is_made(4).unwrap()), (true, false));
        plain.make_file(&path, 32 * PAGE as u64, 4).unwrap();
        plain.check(4, 0, &fs::read(&path).unwrap()).unwrap();
    }

    #[test]
    fn a_file_that_is_right_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (from, path) = (dir.path().join("from"), dir.path().join("f"));
        fs::create_dir(&from).unwrap();
        write_real(&path, 16 * PAGE as u64, 7, text_corpus(&from)).unwrap();
        let before = fs::read(&path).unwrap();
        Content::Real.make_file(&path, 16 * PAGE as u64, 7).unwrap();
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn nothing_to_take_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Corpus::new(vec![Files::below(&[dir.path().to_str().unwrap()], 1)]).is_err());
    }
}
