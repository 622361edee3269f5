//! A trace as a file of Chrome's trace events, and back.
//!
//! The file is a JSON array with one event a line. Viewers and [`Trace::read`] accept an array without its end, so a
//! file that was cut off can be opened. The whole trace stands in `args`. The fields that viewers draw (`ts`, `dur`, flows,
//! counters) are derived from it and ignored by [`Trace::read`].
//!
//! ```text
//! [
//! {"ph":"M","name":"disco_trace","args":{..}},                the head: format, program, numbers of workers and records
//! {"ph":"M","name":"process_name",..}                         a process for the controller and for each place
//! {"ph":"M","name":"thread_name","args":{..}},                a track: the state of the controller or of a worker
//! {"ph":"X","cat":"command","name":"train.step","ts":..,..},  a record; marks are instants (`i`)
//! {"ph":"X","cat":"part","name":"wait for rank 2",..},        the part of an operation that it waited
//! {"ph":"s","cat":"submit",..}, {"ph":"f",..}                 flows: from a submission to the command on each worker,
//! {"ph":"s","cat":"collective",..}, {"ph":"t",..}             and through the calls of a collective, in order of start
//! {"ph":"X","cat":"device","name":"all_reduce",..},           the time of an operation on the worker's device, on a track of
//!                                                             its own
//! {"ph":"s","cat":"launch",..}, {"ph":"f",..}                 flows: from an operation to its time on the device
//! {"ph":"i","cat":"note",..},                                 the reason why records are missing
//! {"ph":"M","name":"disco_counter","args":{..}},              the record of a counter; the next event draws its value
//! {"ph":"C","name":"controller registers in use",..}          a counter: of records, or computed from other records
//! ]
//! ```
//!
//! Slices of a track must nest, because viewers draw others wrongly. A record that neither is inside of an earlier one
//! nor follows it gets a further track of the same worker ([`lanes`]).

mod args;
mod counters;
mod events;
mod flows;
mod lanes;
mod read;
mod write;

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::error::TraceError;
use crate::trace::Trace;

/// The format of the file, in its head.
const FORMAT: &str = "disco trace 2";
/// Bytes that are written, or compressed, at once.
const BUFFER: usize = 1 << 16;

impl Trace {
    /// Writes the trace as Chrome's trace events (JSON), compressed by gzip if the name ends with `.gz`. Perfetto
    /// (ui.perfetto.dev), `chrome://tracing` and speedscope open it, and [`Trace::read`] reads it. An existing file is
    /// replaced.
    ///
    /// # Errors
    /// The file can't be written; the error names it. A part of it may have been written, which can be read.
    pub fn write(&self, path: &Path) -> Result<(), TraceError> {
        let written = || -> io::Result<()> {
            let file = File::create(path)?;
            if path.extension().is_some_and(|extension| extension == "gz") {
                let mut file = BufWriter::with_capacity(BUFFER, GzEncoder::new(file, Compression::default()));
                self.encode(&mut file)?;
                return file.into_inner()?.finish()?.flush();
            }
            let mut file = BufWriter::with_capacity(BUFFER, file);
            self.encode(&mut file)?;
            file.flush()
        };
        written().map_err(TraceError::write(path))
    }

    /// Writes the content of a file of [`Trace::write`], not compressed. The events are many small writes.
    ///
    /// # Errors
    /// `out` fails.
    pub fn encode(&self, out: &mut impl io::Write) -> io::Result<()> {
        write::trace(self, out)
    }

    /// Reads a file of [`Trace::write`]. If the file ends early, [`Trace::missing`] tells how much is missing.
    ///
    /// # Errors
    /// The file can't be read, or is not such a file; the error names it, and the line.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::Read { path: path.to_owned(), source })?;
        Self::decode(file, path)
    }

    /// Reads the content of a file of [`Trace::write`]. Errors name `path`.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn decode(content: impl io::Read, path: &Path) -> Result<Self, TraceError> {
        read::trace(content).map_err(|failure| failure.at(path))
    }
}
