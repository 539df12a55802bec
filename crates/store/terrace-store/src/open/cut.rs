//! Cuts the log behind the last record that the start trusts. Otherwise the remains might by chance pass as
//! successors of new records.

use super::files::Files;
use crate::durable::{create_new, new_path};
use crate::error::{Error, Result};
use crate::log::{Position, Writer, Written};
use crate::record::Record;
use crate::records::Records;
use std::fs::File;
use std::os::fd::AsRawFd;
use terrace_io::Io;

/// The log that the opened store continues.
#[derive(Debug)]
pub(super) struct ContinuedLog {
    /// None: the existing file.
    pub file: Option<File>,
    /// Position of the next record.
    pub end: Position,
    /// Number of the last record known to be durable.
    pub marked: u64,
}

/// Cuts the log at `end`. Marks before `end` cover the records up to `kept`, all marks those up to `marked`.
///
/// # Errors
/// Failing I/O.
pub(super) fn cut(
    files: &Files,
    io: &dyn Io,
    end: Position,
    (kept, marked): (u64, u64),
) -> Result<ContinuedLog> {
    let error = |action| move |e| Error::io(&files.names_path, action, e);
    let size = files.names.metadata().map_err(error("stat"))?.len();
    if size <= end.at {
        return Ok(ContinuedLog { file: None, end, marked });
    }
    tracing::warn!(
        "{}: the last {} bytes were not durable when the store ended; the store drops them",
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
                // A mark that directly follows the marked record covers itself, too.
                let marked = if marked + 1 == end.number { end.number } else { marked };
                let Written { file, end, .. } = written?;
                return Ok(ContinuedLog { file: Some(file), end, marked });
            }
        }
    }
    io.truncate(files.names.as_raw_fd(), end.at).map_err(error("cut"))?;
    io.sync(files.names.as_raw_fd(), false).map_err(error("sync"))?;
    Ok(ContinuedLog { file: None, end, marked: kept })
}

/// Rewrites the log up to `end`, with a mark. Without the lost mark, the next start would check records that
/// it covered. The check might miss bytes of a large blob that was changed in place since.
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
