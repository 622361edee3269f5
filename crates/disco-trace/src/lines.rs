//! Reads a file of lines, which may be compressed or end early.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::TraceError;

/// Why a file is refused.
pub(crate) const NOT_A_TRACE: &str = "this is no trace that Disco has written";
/// Longest line, in bytes.
const MAX_LINE: u64 = 4 << 20;
/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Size of the buffer of the file, and of that of the decompressed content, in bytes.
const BUFFER: usize = 1 << 16;

/// A failure of reading, without the path of the file.
pub(crate) enum Failure {
    Io(io::Error),
    Format { line: u64, reason: String },
}

impl Failure {
    pub(crate) fn at(self, path: &Path) -> TraceError {
        let path = path.to_owned();
        match self {
            Self::Io(source) => TraceError::Read { path, source },
            Self::Format { line, reason } => TraceError::Format { path, line, reason },
        }
    }
}

/// The lines of a file.
pub(crate) struct Lines<R> {
    content: Content<R>,
    /// Number of the last line, from 1.
    number: u64,
}

enum Content<R> {
    Plain(BufReader<R>),
    Compressed(Box<BufReader<GzDecoder<BufReader<R>>>>),
}

impl<R> fmt::Debug for Lines<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<R: Read> Lines<R> {
    /// The lines of a file, which gzip may have compressed.
    pub(crate) fn of(content: R) -> io::Result<Self> {
        let mut content = BufReader::with_capacity(BUFFER, content);
        let content = if content.fill_buf()?.starts_with(&GZIP) {
            Content::Compressed(Box::new(BufReader::with_capacity(BUFFER, GzDecoder::new(content))))
        } else {
            Content::Plain(content)
        };
        Ok(Self { content, number: 0 })
    }

    /// The next line without its end and the blanks around it, and whether it has an end; `None` at the end of the file.
    pub(crate) fn next<'l>(&mut self, line: &'l mut Vec<u8>) -> Result<Option<(&'l [u8], bool)>, Failure> {
        line.clear();
        let read = match &mut self.content {
            Content::Plain(content) => content.take(MAX_LINE).read_until(b'\n', line),
            Content::Compressed(content) => content.take(MAX_LINE).read_until(b'\n', line),
        };
        match read {
            Ok(_) => {}
            // The compressed file ends early.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(Failure::Io(error)),
        }
        self.number += 1;
        if line.len() as u64 == MAX_LINE {
            return Err(self.wrong(format!("{NOT_A_TRACE}: the line is longer than {} MiB", MAX_LINE >> 20)));
        }
        let is_whole = line.last() == Some(&b'\n');
        Ok((!line.is_empty()).then_some((line.trim_ascii(), is_whole)))
    }

    /// The failure for the last line, because of `reason`.
    pub(crate) fn wrong(&self, reason: impl Into<String>) -> Failure {
        Failure::Format { line: self.number, reason: reason.into() }
    }
}
