//! Recordings of a session: timelines, traces and dumps.

use disco_core::Result;
use disco_core::session::Timeline;

use super::Builder;
#[cfg(feature = "trace")]
use crate::timeline;
use crate::timeline::Recorder;

impl Builder {
    /// Records the activities of the controller and the workers, and writes them to a file when the session ends, as
    /// [`Builder::timeline`] with 65536 records: Chrome's trace events, compressed if the name
    /// ends with `.gz`. Perfetto shows it. A file that can't be written is a warning.
    ///
    /// Default: the file in `DISCO_TRACE`, if it is set; a second session of the program adds `-2` to the name.
    #[cfg(feature = "trace")]
    pub fn trace(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.trace = Some(path.into());
        self
    }

    /// Records the activities of the controller and the workers, and passes the timeline to `sink` when the session ends: at
    /// the end of its shutdown, or when the session is dropped. The controller and each worker keep their last `records`
    /// records of 64 bytes, rounded up to a power of two: commands, operations of communicators, and the program's own
    /// [spans](crate::activity). Worker processes keep their records in shared memory, so that the records of a killed
    /// process are not lost; the records of a lost node are.
    ///
    /// `sink` runs on the thread that ends the session. A call takes some 0.1 µs longer on each worker.
    pub fn timeline(mut self, records: usize, sink: impl Fn(Timeline) + Send + Sync + 'static) -> Self {
        self.recorder = Some(Recorder::new(records, sink));
        self
    }

    /// The recorder of the session: that of the program, that of a file, or none.
    pub(super) fn recorder(&mut self) -> Result<Option<Recorder>> {
        if let Some(recorder) = self.recorder.take() {
            return Ok(Some(recorder));
        }
        #[cfg(feature = "trace")]
        return match self.trace.take() {
            Some(path) => Ok(Some(timeline::of_file(path))),
            None => timeline::of_variable(),
        };
        #[cfg(not(feature = "trace"))]
        Ok(None)
    }
}
