//! Processes of workers, and what this machine has.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::available_parallelism;
use std::time::Duration;

use disco::Launch;
use disco::internal::WorkerProgram;
use disco_core::sync;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;
use crate::lock::detached;

/// Serves as the worker of the invitation in the environment, until the session ends.
#[pyfunction]
pub(crate) fn serve(py: Python<'_>) -> PyResult<()> {
    let served = detached(py, || match disco::Invitation::take() {
        // The session of a spare has ended.
        Some(Err(disco::Error::Closed(_))) => Ok(()),
        Some(invitation) => invitation.and_then(|invitation| disco::serve(&invitation)),
        None => {
            // A node, or a process of TVM; it exits here.
            disco::init();
            Err(disco::Error::State("this process was started by no session: there is no invitation".to_owned()))
        }
    });
    served.map_err(|error| errors::raised(py, &error))
}

/// Serves as the worker of an invitation that this process got by other means than the environment, until the session ends.
#[pyfunction]
pub(crate) fn serve_invitation(py: Python<'_>, text: &str) -> PyResult<()> {
    let served = detached(py, || disco::Invitation::parse(text).and_then(|invitation| disco::serve(&invitation)));
    served.map_err(|error| errors::raised(py, &error))
}

/// The invitations of a session whose processes were started by other means.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Invitations {
    invited: Sender<(usize, String)>,
    waiting: Mutex<Receiver<(usize, String)>>,
}

impl Invitations {
    /// How a session invites its workers.
    pub(crate) fn launch(&self) -> Launch {
        let invited = self.invited.clone();
        Launch::elsewhere(move |invitation| {
            let sent = invited.send((invitation.worker.index(), invitation.text()));
            let why = || format!("{}: the program passes its invitation on no more", invitation.worker);
            sent.map_err(|_| disco::Error::State(why()))
        })
    }
}

#[pymethods]
impl Invitations {
    #[new]
    fn new() -> Self {
        let (invited, waiting) = mpsc::channel();
        Self { invited, waiting: Mutex::new(waiting) }
    }

    /// The next invitation: the number of its worker, and its text. `None` after `timeout` seconds.
    fn next(&self, py: Python<'_>, timeout: f64) -> Option<(usize, String)> {
        let limit = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX);
        detached(py, || sync::lock(&self.waiting).recv_timeout(limit).ok())
    }
}

/// Returns in the program, and serves in a process that was started as a worker or a node.
#[pyfunction]
pub(crate) fn init(py: Python<'_>) {
    detached(py, disco::init);
}

/// Whether [`init`] serves, as far as the environment says.
#[pyfunction]
pub(crate) fn is_server() -> bool {
    disco::internal::serves()
}

/// Says what sessions execute as their workers.
#[pyfunction]
pub(crate) fn set_worker_program(path: PathBuf, args: Vec<OsString>, env: Vec<(OsString, OsString)>) {
    disco::internal::set_worker_program(WorkerProgram { path, args, env });
}

/// Names of the worker functions of this library.
#[pyfunction]
pub(crate) fn function_names() -> Vec<&'static str> {
    disco_core::function::names()
}

/// Number of processors that this program may use: those of its affinity, within the quota of its control group.
#[pyfunction]
pub(crate) fn processors() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// The backends: name, version and library of each, or why it is unavailable on this machine.
#[pyfunction]
pub(crate) fn backends(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let probes = detached(py, || {
        disco::backend::all().iter().map(|backend| (backend.name(), backend.probe())).collect::<Vec<_>>()
    });
    let row = |(name, probe): (&'static str, Result<disco::Probe, disco::Unavailable>)| {
        let row = PyDict::new(py);
        row.set_item("name", name)?;
        row.set_item("available", probe.is_ok())?;
        match probe {
            Ok(probe) => {
                row.set_item("version", probe.version)?;
                row.set_item("library", probe.library)?;
            }
            Err(absent) => row.set_item("reason", absent.to_string())?,
        }
        Ok(row)
    };
    probes.into_iter().map(row).collect()
}
