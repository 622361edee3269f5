//! The limit of open files: a session has some for each worker that is a process or behind a connection.

use std::io;

use disco_core::{Error, Result};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the most that this process may have. Processes that it starts inherit it.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Without it, the error names the limit.
        _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Whether this process has as many open files as it may have.
pub(crate) fn is_at_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MFILE.raw_os_error())
}

/// Names the limit in an error that it has caused, at the start of `workers` workers.
pub(crate) fn explained<T>(result: Result<T>, workers: usize) -> Result<T> {
    result.map_err(|error| match error {
        Error::System { operation, source } if is_at_limit(&source) => {
            let limit = getrlimit(Resource::Nofile).current.map_or("no".to_owned(), |limit| limit.to_string());
            let operation = format!(
                "{operation}: {workers} workers need about {} open files here, and the hard limit is {limit} (`ulimit -Hn`)",
                FILES_OF_PROGRAM + FILES_OF_WORKER * workers
            );
            Error::System { operation, source }
        }
        error => error,
    })
}

/// Files of a session, and for each worker: its connection, its process, and the pipes of its output.
const FILES_OF_PROGRAM: usize = 32;
const FILES_OF_WORKER: usize = 4;
