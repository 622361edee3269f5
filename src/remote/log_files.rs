//! Log files: the output of each worker process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use disco_channel::processes::Sink;
use disco_core::{Error, Result, WorkerId, WorkerRange, sync};

/// Environment variable with the folder of log files.
pub(crate) const VARIABLE: &str = "DISCO_LOG_DIR";

/// Wraps the sink `next`: lines of worker N are also appended to `FOLDER/N/stdout.log` or `FOLDER/N/stderr.log`. The
/// files of `workers` are opened now; those of workers that join later, with their first line.
///
/// # Errors
/// A folder or a file can't be created; the error names it.
pub(crate) fn tee(next: Sink, folder: &Path, workers: WorkerRange) -> Result<Sink> {
    let open_now = |worker| Ok((worker, open(folder, worker)?));
    let files = Mutex::new(workers.into_iter().map(open_now).collect::<Result<HashMap<_, _>>>()?);
    let folder = folder.to_owned();
    Ok(Arc::new(move |worker: WorkerId, is_err, line: &[u8]| {
        next(worker, is_err, line);
        let mut files = sync::lock(&files);
        let files = match files.entry(worker) {
            Entry::Occupied(files) => Ok(files.into_mut()),
            Entry::Vacant(place) => open(&folder, worker).map(|files| place.insert(files)),
        };
        // One write per line, because other processes may append to the same file.
        let write = |files: &mut [File; 2]| {
            let written = files[usize::from(is_err)].write_all(&[line, b"\n"].concat());
            written.map_err(|error| Error::system("the file can't be written", error))
        };
        if let Err(error) = files.and_then(write) {
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
