//! Checkpoints, and libraries on the workers.

use std::path::PathBuf;
use std::sync::Arc;

use disco::checkpoint::{self, Entry, Folder, Layout};
use disco::ffi::{LibraryFile, Module};
use disco::{DRef, LaneSession};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::core::Core;
use crate::operation::Operation;
use crate::reference::Ref;

/// The name of the note with the program's own texts.
const NOTES: &str = "python";

/// How the workers' tensors of this name make one: `"replicated"`, `"per_worker"`, or the axis along which it is split.
pub(crate) fn layout(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Layout> {
    if let Ok(axis) = given.extract::<i64>() {
        let why =
            format!("tensor {name:?}: axis {axis}: an axis counts from 0, since a handle does not know the last one");
        return usize::try_from(axis).map(Layout::split).map_err(|_| PyValueError::new_err(why));
    }
    match given.extract::<String>().as_deref() {
        Ok("replicated") => Ok(Layout::Replicated),
        Ok("per_worker") => Ok(Layout::PerWorker),
        _ => Err(PyTypeError::new_err(format!(
            "tensor {name:?}: {} is no layout: it is \"replicated\", \"per_worker\" or an axis",
            given.repr()?
        ))),
    }
}

fn failed(error: checkpoint::Error) -> disco::Error {
    match error {
        checkpoint::Error::Session { source, .. } | checkpoint::Error::Lost { source, .. } => source,
        other => disco::Error::State(other.to_string()),
    }
}

/// Saves tensors in a folder of checkpoints: the path of the new one, and its bytes.
pub(crate) fn save(
    core: &Core,
    folder: PathBuf,
    step: u64,
    tensors: Vec<(String, DRef, Layout)>,
    notes: String,
    keep: Option<usize>,
) -> PyResult<Operation> {
    let folder = keep.iter().fold(Folder::new(folder), |folder, &keep| folder.keep(keep));
    let save = |lanes: Arc<LaneSession>| async move {
        let entries = tensors.iter().map(|(name, handle, layout)| Entry::new(name, handle, layout.clone()));
        let saving = checkpoint::save(&*lanes, folder, step, entries).await.map_err(failed)?;
        saving.note(NOTES, notes).await.map_err(failed)
    };
    core.operation(save, |py, saved| Ok((saved.path, saved.bytes).into_pyobject(py)?.into_any().unbind()))
}

/// Loads the newest checkpoint without damage: its path, step, handles by name, and the program's texts; or `None`.
pub(crate) fn load(core: &Arc<Core>, folder: PathBuf) -> PyResult<Operation> {
    let load = |lanes: Arc<LaneSession>| async move { checkpoint::load(&*lanes, folder).await.map_err(failed) };
    let core_of_handles = core.clone();
    core.operation(load, move |py, loaded| {
        let Some(loaded) = loaded else { return Ok(py.None()) };
        let tensors = PyDict::new(py);
        for name in loaded.names() {
            if let Ok(handle) = loaded.tensor(name) {
                tensors.set_item(name, Py::new(py, Ref::new(&core_of_handles, handle.clone(), false))?)?;
            }
        }
        let notes = loaded.note(NOTES).unwrap_or("{}");
        Ok((&loaded.path, loaded.step, tensors, notes).into_pyobject(py)?.into_any().unbind())
    })
}

/// Opens a shared library on all workers.
pub(crate) fn load_library(core: &Arc<Core>, path: PathBuf, is_sent: bool) -> PyResult<Operation> {
    let file = LibraryFile::new(path);
    let file = if is_sent { file.send() } else { file };
    let load = |lanes: Arc<LaneSession>| async move { Ok(Module::load(&*lanes, file).await?.handle().clone()) };
    handle(core, load)
}

/// A function that a library exports.
pub(crate) fn library_function(core: &Arc<Core>, library: &DRef, name: String) -> PyResult<Operation> {
    let module = Module::from(library.clone());
    handle(core, |lanes: Arc<LaneSession>| async move { module.function(&*lanes, &name).await })
}

/// A function that a library has registered with libtvm_ffi.
pub(crate) fn global_function(core: &Arc<Core>, name: String) -> PyResult<Operation> {
    handle(core, |lanes: Arc<LaneSession>| async move { Module::global_function(&*lanes, &name).await })
}

/// An operation whose result is a handle to what is no Python object.
fn handle<F: Future<Output = disco::Result<DRef>> + Send + 'static>(
    core: &Arc<Core>,
    run: impl FnOnce(Arc<LaneSession>) -> F,
) -> PyResult<Operation> {
    let of_handle = core.clone();
    core.operation(run, move |py, handle| Ok(Py::new(py, Ref::new(&of_handle, handle, false))?.into_any()))
}
