//! Loading: the newest checkpoint that is not damaged, for any number of workers.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};

use disco_core::suggestion::similar;
use disco_core::{DRef, Session, WorkerId};

use crate::error::{Error, Refused, Result};
use crate::folder::{self, Folder};
use crate::index::Index;
use crate::layout::{Layout, Request};
use crate::message::{Fault, Wanted};
use crate::plan;
use crate::task;
use crate::worker::name;

/// Loads all tensors of the newest checkpoint of a folder that is not damaged, in the layouts that they were saved in.
/// None if the folder has no checkpoint or does not exist.
///
/// The session may have another number of workers and groups than the one that saved: split tensors are then put
/// together and split evenly again. Each worker reads the saved parts that overlap its own part, and compares their
/// checksums. If a file is damaged, missing or can't be read, the checkpoint before it is loaded instead, a warning says
/// so (`tracing`), and [`Loaded::refused`] has the reason.
///
/// # Errors
/// [`Error::NoneValid`], with all reasons, if there are checkpoints and none can be loaded. [`Error::Uneven`],
/// [`Error::OtherWorld`] and [`Error::Version`] of the newest checkpoint, [`Error::Tensor`] for a tensor that was saved over a
/// mesh that does not fit the session, and errors of the session.
///
/// # Cancel safety
/// If the future is dropped, workers may read on; their tensors are freed.
pub fn load(session: &dyn Session, folder: impl Into<Folder>) -> impl Future<Output = Result<Option<Loaded>>> {
    load_some(session, folder.into(), None)
}

/// Loads some tensors as [`load`] does. A request is a name, or a name and a layout, which may differ from the saved
/// layout.
///
/// # Errors
/// As [`load`], and [`Error::UnknownTensor`], or [`Error::Tensor`] for a layout that the tensor can't have.
pub fn load_only<R: Into<Request>>(
    session: &dyn Session,
    folder: impl Into<Folder>,
    tensors: impl IntoIterator<Item = R>,
) -> impl Future<Output = Result<Option<Loaded>>> {
    load_some(session, folder.into(), Some(tensors.into_iter().map(R::into).collect()))
}

/// The tensors of a checkpoint, on the workers of a session.
#[non_exhaustive]
#[derive(Debug)]
pub struct Loaded {
    /// The folder of the checkpoint.
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// Newer checkpoints that were not loaded, the newest first.
    pub refused: Vec<Refused>,
    tensors: BTreeMap<String, DRef>,
    notes: BTreeMap<String, String>,
}

impl Loaded {
    /// The handle of a tensor. With [`Layout::PerWorker`], workers that saved no tensor have none.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`], with the most similar name.
    pub fn tensor(&self, name: &str) -> Result<&DRef> {
        self.tensors.get(name).ok_or_else(|| unknown(&self.path, name, self.tensors.keys()))
    }

    /// Names of the loaded tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The text that [`Saving::note`](crate::Saving::note) added.
    pub fn note(&self, name: &str) -> Option<&str> {
        self.notes.get(name).map(String::as_str)
    }
}

async fn load_some(session: &dyn Session, folder: Folder, requests: Option<Vec<Request>>) -> Result<Option<Loaded>> {
    let folder = folder.absolute()?;
    let mut refused = Vec::new();
    for step in folder.steps()?.into_iter().rev() {
        let checkpoint = folder.checkpoint(step);
        let reason = match load_one(session, &checkpoint, step, requests.as_deref()).await {
            Ok(loaded) => return Ok(Some(Loaded { refused, ..loaded })),
            Err(reason) if reason.is_of_files() => reason,
            Err(error) => return Err(error),
        };
        tracing::warn!(checkpoint = %checkpoint.display(), %reason, "refused a checkpoint; the one before is next");
        refused.push(Refused { checkpoint, reason });
    }
    if refused.is_empty() { Ok(None) } else { Err(Error::NoneValid { folder: folder.path().into(), refused }) }
}

async fn load_one(session: &dyn Session, checkpoint: &Path, step: u64, requests: Option<&[Request]>) -> Result<Loaded> {
    let path = checkpoint.to_owned();
    let read = task::unblock(move || folder::read_index(&path, step)).await;
    let (index, text) = read.map_err(|source| Error::io(checkpoint, "reading the index", source))??;
    let tensors = wanted(session, checkpoint, &index, requests)?;
    let failed = |source| Error::Session { checkpoint: checkpoint.into(), operation: "loading the tensors", source };
    let protocol = |error: serde_json::Error| failed(disco_core::Error::protocol(error.to_string()));
    let wanted = Wanted { checkpoint: checkpoint.into(), tensors };
    let order = serde_json::to_string(&wanted)
        .map_err(|error| Error::io(checkpoint, "writing its path as text", error.into()))?;

    let read = session.call(name::READ, (text, order)).await.map_err(failed)?;
    let outcomes = session.call(name::OUTCOME, (&read,)).await.map_err(failed)?;
    let outcomes: Vec<Option<String>> = session.get_all(&outcomes).await.map_err(failed)?;
    for (worker, fault) in session.world().workers().zip(outcomes) {
        if let Some(fault) = fault {
            let fault: Fault = serde_json::from_str(&fault).map_err(protocol)?;
            return Err(fault.into_error(checkpoint, Some(worker)));
        }
    }
    let tensor = session.function(name::TENSOR).await.map_err(failed)?;
    let mut tensors = BTreeMap::new();
    for (position, (name, _)) in wanted.tensors.into_iter().enumerate() {
        tensors.insert(name, session.call(&tensor, (&read, position)).await.map_err(failed)?);
    }
    Ok(Loaded { path: checkpoint.into(), step, refused: Vec::new(), tensors, notes: index.notes })
}

/// The tensors to load, with layouts that are possible for the session's workers.
fn wanted(
    session: &dyn Session,
    checkpoint: &Path,
    index: &Index,
    requests: Option<&[Request]>,
) -> Result<Vec<(String, Layout)>> {
    let all: Vec<Request>;
    let requests = match requests {
        Some(requests) => requests,
        None => {
            all = index.tensors.keys().cloned().map(Request::from).collect();
            &all
        }
    };
    let world = session.world();
    let mut wanted = Vec::with_capacity(requests.len());
    for Request { name, layout } in requests {
        let tensor = index.tensors.get(name).ok_or_else(|| unknown(checkpoint, name, index.tensors.keys()))?;
        let layout = layout.as_ref().unwrap_or(&tensor.layout);
        if (*layout == Layout::PerWorker) != (tensor.layout == Layout::PerWorker) {
            let problem = format!("it was saved {}, and can't be loaded {layout}", tensor.layout);
            return Err(Error::tensor(checkpoint, name, problem));
        }
        if *layout == Layout::PerWorker {
            if index.workers != world.size() {
                let (checkpoint, tensor) = (checkpoint.into(), name.clone());
                return Err(Error::OtherWorld { checkpoint, tensor, saved: index.workers, workers: world.size() });
            }
        } else {
            // If worker 0 can have its part, all workers can.
            plan::region_of((checkpoint, name, tensor), layout, WorkerId::new(0), &world)?;
        }
        wanted.push((name.clone(), layout.clone()));
    }
    Ok(wanted)
}

fn unknown<'a>(checkpoint: &Path, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let similar = similar(name, known.map(String::as_str)).map(str::to_owned);
    Error::UnknownTensor { checkpoint: checkpoint.into(), tensor: name.into(), similar }
}
