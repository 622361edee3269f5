//! The timeline of a session, as a builder keeps it, and its file.

use std::fmt;
use std::sync::Arc;

use disco_core::activity::RecorderConfig;
use disco_core::session::{SessionConfig, Timeline};

/// The size of the workers' recordings, and the function that gets the timeline.
#[derive(Clone)]
pub(crate) struct Recorder {
    pub(crate) config: RecorderConfig,
    sink: Arc<dyn Fn(Timeline) + Send + Sync>,
}

impl Recorder {
    pub(crate) fn new(records: usize, sink: impl Fn(Timeline) + Send + Sync + 'static) -> Self {
        Self { config: RecorderConfig::new(records, true), sink: Arc::new(sink) }
    }

    /// Makes a session pass its timeline on.
    pub(crate) fn set(self, session: SessionConfig) -> SessionConfig {
        session.with_timeline(self.config, move |timeline| (self.sink)(timeline))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

#[cfg(feature = "trace")]
pub(crate) use file::{of_file, of_variable};

#[cfg(feature = "trace")]
pub(crate) mod file {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;

    use disco_core::activity::Recording;
    use disco_core::env::Variable;
    use disco_core::error::causes;
    use disco_core::session::Timeline;
    use disco_core::status::{Status, program_name};
    use disco_core::{Result, WorkerId, sync};
    use disco_trace::{Trace, WorkerTrace};

    use super::Recorder;

    /// Number of records of each worker and of the controller: 4 MiB.
    const RECORDS: usize = 1 << 16;

    /// Number of files that this process has begun with each name.
    static FILES: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());

    /// Records for a file that is written at the end.
    pub(crate) fn of_file(path: PathBuf) -> Recorder {
        Recorder::new(RECORDS, move |timeline| write(&path, timeline))
    }

    /// Records for the file that `DISCO_TRACE` names. A second session of this process gets a file of its own.
    ///
    /// # Errors
    /// The variable is no UTF-8 text.
    pub(crate) fn of_variable() -> Result<Option<Recorder>> {
        Ok(path("DISCO_TRACE")?.map(of_file))
    }

    /// The path that a variable names, with a number if this process has begun such a file before.
    fn path(variable: &'static str) -> Result<Option<PathBuf>> {
        Ok(Variable::read(variable).text()?.map(|path| next(Path::new(path))))
    }

    /// The path of the next file of this process: the first one has the name itself.
    pub(crate) fn next(path: &Path) -> PathBuf {
        let mut files = sync::lock(&FILES);
        let count = files.entry(path.to_owned()).or_default();
        *count += 1;
        match *count {
            1 => path.to_owned(),
            count => numbered(path, count),
        }
    }

    /// `out.json.gz` becomes `out-2.json.gz`.
    fn numbered(path: &Path, number: u32) -> PathBuf {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let (stem, ending) = name.split_at(name.find('.').unwrap_or(name.len()));
        path.with_file_name(format!("{stem}-{number}{ending}"))
    }

    /// Writes the file. A failure is a warning: the program goes on.
    fn write(path: &Path, timeline: Timeline) {
        let Timeline { status, controller, workers, .. } = timeline;
        if let Err(error) = trace(&status, Some(controller), workers).write(path) {
            warn(&format!("no trace is written: {}", with_causes(&error)));
        }
    }

    pub(crate) fn with_causes(error: &disco_trace::TraceError) -> String {
        let why: Vec<String> = [error.to_string()].into_iter().chain(causes(error)).collect();
        why.join(": ")
    }

    /// Prints a warning, not as an event of `tracing`: a subscriber may not print events.
    fn warn(text: &str) {
        disco_core::tell(format_args!("disco: {text}"));
    }

    /// The trace of a session of this program.
    pub(crate) fn trace(
        status: &Status,
        controller: Option<Recording>,
        workers: Vec<(WorkerId, Result<Recording>)>,
    ) -> Trace {
        let place = |worker: WorkerId| {
            let nodes = &mut status.nodes.iter();
            let node =
                nodes.find(|node| (node.first_worker..node.first_worker + node.workers).contains(&worker.index()));
            node.map_or("this machine", |node| &node.name).to_owned()
        };
        let kind = |worker: WorkerId| {
            let kind = status.workers.iter().find(|it| it.worker == worker.index()).map(|it| &it.kind[..]);
            match kind {
                Some("threads") => "thread",
                Some("processes") => "process",
                Some("nodes") => "worker of a node",
                _ => "worker",
            }
        };
        let workers = workers.into_iter().map(|(worker, recording)| {
            WorkerTrace::new(worker, place(worker), kind(worker), recording.map_err(|error| error.to_string()))
        });
        Trace::new(program_name(), controller, workers.collect())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_second_file_has_a_number_before_the_ending() {
            let names = ["out.json.gz", "folder.d/out.json", "out"].map(|path| numbered(Path::new(path), 2));
            assert_eq!(names, ["out-2.json.gz", "folder.d/out-2.json", "out-2"].map(PathBuf::from));
        }
    }
}
