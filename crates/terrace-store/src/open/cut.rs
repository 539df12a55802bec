//! The log loses what stands behind the last record that the start trusts: it must not become the next one's neighbour by chance.

use super::files::Files;
use crate::durable::{create_new, new_path};
use crate::error::{Error, Result};
use crate::log::{Position, Writer, Written};
use crate::record::Record;
use crate::records::Records;
use std::fs::File;
use std::os::fd::AsRawFd;
use terrace_engine::io::Io;

/// The log that a start goes on with.
#[derive(Debug)]
pub(super) struct Kept {
    /// None: the file that was there.
    pub file: Option<File>,
    /// Where the next record goes.
    pub end: Position,
    /// Number of the last record that is durable for certain.
    pub marked: u64,
}

/// Cuts the log at `end`. Marks up to there cover the records up to `kept`, all marks those up to `marked`.
///
/// # Errors
/// Failing I/O.
pub(super) fn cut(files: &Files, io: &dyn Io, end: Position, (kept, marked): (u64, u64)) -> Result<Kept> {
    let error = |action| move |e| Error::io(&files.names_path, action, e);
    let size = files.names.metadata().map_err(error("look at"))?.len();
    if size <= end.at {
        return Ok(Kept { file: None, end, marked });
    }
    tracing::warn!(
        "{}: the last {} bytes were not durable when the store ended; they are dropped",
        files.names_path.display(),
        size - end.at
    );
    if kept < marked {
        match write_marked(files, io, end, marked) {
            Err(e) if e.is_full() => {
                tracing::warn!("{e}");
                let _ = std::fs::remove_file(new_path(&files.names_path));
            }
            written => {
                // With nothing in between the mark covers itself, too.
                let marked = if marked + 1 == end.number { end.number } else { marked };
                let Written { file, end, .. } = written?;
                return Ok(Kept { file: Some(file), end, marked });
            }
        }
    }
    io.truncate(files.names.as_raw_fd(), end.at).map_err(error("cut"))?;
    io.sync(files.names.as_raw_fd(), false).map_err(error("sync"))?;
    Ok(Kept { file: None, end, marked: kept })
}

/// Puts a log in the place of this one that ends at `end`, with a mark. The next start would check what the lost mark has covered, and may miss bytes of
/// a large blob that was changed in place since.
fn write_marked(files: &Files, io: &dyn Io, end: Position, marked: u64) -> Result<Written> {
    let (path, error) = (&files.names_path, |action| move |e| Error::io(&files.names_path, action, e));
    let new = new_path(path);
    let mut writer = Writer::new(io, path, create_new(&new).map_err(error("create"))?, files.header);
    let mut records = Records::new(&files.names, &files.header);
    while records.position().number < end.number {
        let Some((_, record)) = records.next().map_err(error("read"))? else { break };
        writer.add(&record)?;
    }
    writer.add(&Record::Mark { upto: marked })?;
    writer.sync()?;
    std::fs::rename(&new, path).map_err(error("rename"))?;
    io.sync(files.dir.as_raw_fd(), false).map_err(error("sync the directory of"))?;
    Ok(writer.end())
}
