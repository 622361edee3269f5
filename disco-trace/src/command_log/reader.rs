//! Reads a command log, line by line.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{FORMAT, Head, Line};
use crate::error::TraceError;
use crate::lines::{Failure, Lines};

/// Most workers that a log may have.
const MAX_WORKERS: usize = 1 << 16;
/// The reason for refusing a file that is no command log.
const NOT_A_LOG: &str = "this is no log of commands that Disco has recorded";

/// The lines of a command log after its head. The iteration ends at the first error; a log that was cut off ends
/// without [`Line::End`].
#[derive(Debug)]
pub struct Reader<R> {
    path: PathBuf,
    lines: Lines<R>,
    line: Vec<u8>,
    head: Head,
    has_ended: bool,
}

/// The part of a head that the formats of all versions have.
#[derive(Deserialize)]
struct Versioned {
    session: VersionedHead,
}

#[derive(Deserialize)]
struct VersionedHead {
    format: String,
}

impl Reader<File> {
    /// Opens a log.
    ///
    /// # Errors
    /// The file can't be read, is no command log, or has the format of another version; the error names it.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        Self::new(file, path)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the content of a log. Errors name `path`.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(content: R, path: &Path) -> Result<Self, TraceError> {
        let started = Lines::of(content, NOT_A_LOG).map_err(Failure::Io).and_then(|mut lines| {
            let mut line = Vec::new();
            let text = match lines.next(&mut line)? {
                Some((text, _)) => text,
                None => return Err(lines.wrong(format!("{NOT_A_LOG}: the file is empty"))),
            };
            let head = head(text).map_err(|reason| lines.wrong(reason))?;
            Ok(Self { path: path.to_owned(), lines, line, head, has_ended: false })
        });
        started.map_err(|failure| failure.at(path))
    }

    /// The session that was recorded.
    pub fn head(&self) -> &Head {
        &self.head
    }

    fn line(&mut self) -> Result<Option<Line>, Failure> {
        let Some((text, is_whole)) = self.lines.next(&mut self.line)? else { return Ok(None) };
        match serde_json::from_slice(text) {
            Ok(Line::Session(_)) => Err(self.lines.wrong("a second head: two sessions have written to the file")),
            Ok(line) => Ok(Some(line)),
            // The log was cut inside this line.
            Err(_) if !is_whole => Ok(None),
            Err(error) => Err(self.lines.wrong(format!("no line of a log of commands: {error}"))),
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Line, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let line = self.line().map_err(|failure| failure.at(&self.path)).transpose();
        self.has_ended = !matches!(line, Some(Ok(ref line)) if !matches!(line, Line::End(_)));
        line
    }
}

/// The head in a line, or the reason why the line has none.
fn head(text: &[u8]) -> Result<Head, String> {
    let refused = |error| format!("{NOT_A_LOG}: {error}");
    let versioned: Versioned = serde_json::from_slice(text).map_err(refused)?;
    if versioned.session.format != FORMAT {
        return Err(format!("the format is `{}`; this version reads `{FORMAT}`", versioned.session.format));
    }
    let line: Line = serde_json::from_slice(text).map_err(refused)?;
    let Line::Session(head) = line else { return Err(NOT_A_LOG.to_owned()) };
    match head.workers.checked_rem(head.groups) {
        Some(0) if (1..=MAX_WORKERS).contains(&head.workers) => Ok(head),
        _ => Err(format!("{NOT_A_LOG}: {} workers in {} groups", head.workers, head.groups)),
    }
}
