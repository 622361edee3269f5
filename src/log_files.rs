//! Log files: the output of each worker process.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use disco_channel::processes::Sink;
use disco_core::{Error, Result, WorkerId, WorkerRange};

/// Environment variable with the folder of log files.
pub(crate) const VARIABLE: &str = "DISCO_LOG_DIR";

/// Wraps the sink `next`: lines of worker N are also appended to `FOLDER/N/stdout.log` or `FOLDER/N/stderr.log`. All
/// files are opened now.
///
/// # Errors
/// A folder or a file can't be created; the error names it.
pub(crate) fn tee(next: Sink, folder: &Path, workers: WorkerRange) -> Result<Sink> {
    let files = workers.into_iter().map(|worker| open(folder, worker)).collect::<Result<Vec<_>>>()?;
    let first = workers.first().index();
    Ok(Arc::new(move |worker: WorkerId, is_err, line: &[u8]| {
        next(worker, is_err, line);
        let Some(files) = worker.index().checked_sub(first).and_then(|at| files.get(at)) else { return };
        // One write per line, because other processes may append to the same file.
        if let Err(error) = (&files[usize::from(is_err)]).write_all(&[line, b"\n"].concat()) {
            tracing::warn!(%worker, %error, "a line could not be written to the worker's log file");
        }
    }))
}

/// Opens a worker's files for standard output and standard error.
fn open(folder: &Path, worker: WorkerId) -> Result<[File; 2]> {
    let folder = folder.join(worker.index().to_string());
    let refused = |path: &Path, error| Error::system(format!("log file {} can't be written", path.display()), error);
    fs::create_dir_all(&folder).map_err(|error| refused(&folder, error))?;
    let open = |name: &str| {
        let path = folder.join(name);
        OpenOptions::new().create(true).append(true).open(&path).map_err(|error| refused(&path, error))
    };
    Ok([open("stdout.log")?, open("stderr.log")?])
}
