//! Saving: snapshots on the workers, their shards, and the index.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use disco_core::error::ErrorKind;
use disco_core::session::Arguments;
use disco_core::{DRef, Session, WorkerId, World, sync};
use serde::de::DeserializeOwned;

use crate::assemble::assemble;
use crate::error::{Error, Result};
use crate::folder::{Folder, Partial};
use crate::index::Shard;
use crate::layout::Entry;
use crate::message::{Answer, Order, Progress, Report};
use crate::task;
use crate::worker::name;

/// Times between two questions to the workers: the first is short, and each is twice the one before.
const POLL_INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(64);

/// Starts to save tensors as the checkpoint of `step`. Each entry is a name and a handle, or a name, a handle and a
/// [`Layout`](crate::Layout).
///
/// The checkpoint has the tensors as they are after the calls that were submitted before: each worker copies its
/// tensors when its stream of commands reaches the save, and goes on with the next command. A thread of the worker
/// writes the copy. The future ends when the copies are ordered; await the [`Saving`] before the session's shutdown.
///
/// The folder and the layouts are explained in the [documentation of the crate](crate).
///
/// # Errors
/// [`Error::Exists`] if the folder has a valid checkpoint of this step, [`Error::Io`] if the folder can't be made,
/// [`Error::Tensor`] for a name that is not unique and for a mesh that does not fit the session, and errors of the session.
///
/// # Cancel safety
/// If the future is dropped, nothing is saved.
pub fn save<'s, E: Into<Entry>>(
    session: &'s dyn Session,
    folder: impl Into<Folder>,
    step: u64,
    entries: impl IntoIterator<Item = E>,
) -> impl Future<Output = Result<Saving<'s>>> {
    let folder = folder.into().absolute();
    let entries: Vec<Entry> = entries.into_iter().map(E::into).collect();
    async move {
        let folder = folder?;
        let (checkpoint, stall_limit, reuses_memory) =
            (folder.checkpoint(step), folder.stall_limit, folder.reuses_memory);
        let world = session.world();
        check(&checkpoint, &world, &entries)?;
        let partial = task::unblock(move || Partial::create(folder, step)).await;
        let partial = partial.map_err(|source| Error::io(&checkpoint, "making the folder", source))??;
        let tensors = entries.iter().map(|entry| (entry.name.clone(), entry.layout.clone())).collect();
        let args = arguments(Order { folder: partial.path().into(), step, reuses_memory, tensors }, &entries)?;
        let called = session.call(name::SNAPSHOT, args).await;
        let pending = called.map_err(|source| failed(&checkpoint, "copying the tensors", source, &world))?;
        let save = Save { session, world, checkpoint, partial, stall_limit, step, entries, pending };
        let notes = Arc::default();
        Ok(Saving { end: Box::pin(save.finish(Arc::clone(&notes))), notes })
    }
}

/// A checkpoint that is being written. Awaiting it completes the checkpoint: it waits for the workers' shards, writes
/// the index, renames the folder, and removes old checkpoints.
///
/// It asks the workers from time to time with calls, in the order of other calls, which do not wait for the writers.
/// Workers write without being asked, so a program may also await it much later.
///
/// Dropping it abandons the checkpoint: the writers end, and the temporary folder is removed.
///
/// # Errors
/// Awaiting it returns [`Error::Io`] or [`Error::Tensor`] with the worker, [`Error::Lost`] with the shards of lost
/// workers (also if new workers have replaced them), [`Error::Stalled`], [`Error::Exists`] if another save of the same
/// step was faster, or an error of the session. The temporary folder is removed. The session is usable after a failure to
/// write.
#[must_use = "a checkpoint is complete after its `Saving` was awaited"]
pub struct Saving<'s> {
    end: Pin<Box<dyn Future<Output = Result<Saved>> + Send + 's>>,
    notes: Arc<Mutex<BTreeMap<String, String>>>,
}

/// A complete checkpoint.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The folder of the checkpoint.
    pub path: PathBuf,
    /// Its step.
    pub step: u64,
    /// Bytes of all shards.
    pub bytes: u64,
}

impl Saving<'_> {
    /// Adds a text of the program to the checkpoint: the state of a random number generator, hyperparameters.
    /// [`Loaded::note`](crate::Loaded::note) returns it. A later text replaces one of the same name.
    pub fn note(self, name: impl Into<String>, text: impl Into<String>) -> Self {
        sync::lock(&self.notes).insert(name.into(), text.into());
        self
    }
}

impl Future for Saving<'_> {
    type Output = Result<Saved>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.end.as_mut().poll(context)
    }
}

disco_core::format_as!(Debug for Saving<'_>, |_| "Saving {{ .. }}");

/// Refuses names that a checkpoint can't have, and layouts that the workers can't have.
fn check(checkpoint: &Path, world: &World, entries: &[Entry]) -> Result<()> {
    let mut names = BTreeSet::new();
    for Entry { name, layout, .. } in entries {
        // The key of safetensors for texts.
        if name == "__metadata__" {
            return Err(Error::tensor(checkpoint, name, "safetensors reserves this name"));
        }
        if !names.insert(name) {
            return Err(Error::tensor(checkpoint, name, "two entries have this name"));
        }
        layout
            .check(world)
            .map_err(|error| Error::tensor(checkpoint, name, format!("it can't be {layout}: {error}")))?;
    }
    Ok(())
}

/// The arguments of the worker function that copies the tensors: the order and the handles.
fn arguments(order: Order, entries: &[Entry]) -> Result<Arguments> {
    let failed = |error: serde_json::Error| Error::io(&order.folder, "writing its path as text", error.into());
    let order = serde_json::to_string(&order).map_err(failed)?;
    let mut args = Arguments::with_capacity(1 + entries.len());
    args.push(order);
    entries.iter().for_each(|entry| args.push(&entry.handle));
    Ok(args)
}

/// A save that the workers have begun, and its folder.
struct Save<'s> {
    session: &'s dyn Session,
    /// The workers that save.
    world: World,
    checkpoint: PathBuf,
    partial: Partial,
    stall_limit: Duration,
    step: u64,
    entries: Vec<Entry>,
    /// The writers; dropping the handle ends them.
    pending: DRef,
}

impl Save<'_> {
    async fn finish(self, notes: Arc<Mutex<BTreeMap<String, String>>>) -> Result<Saved> {
        self.wait().await?;
        let reports: Vec<Report> = self.ask(name::REPORT).await?;
        let Self { world, checkpoint, partial, step, entries, pending, .. } = self;
        drop(pending);
        let notes = std::mem::take(&mut *sync::lock(&notes));
        let index = assemble(&checkpoint, step, &world, &entries, &reports, notes)?;
        let bytes = index.shards.iter().map(|shard| shard.bytes).sum();
        let published = task::unblock(move || partial.publish(&index)).await;
        let path = published.map_err(|source| Error::io(&checkpoint, "completing the checkpoint", source))??;
        Ok(Saved { path, step, bytes })
    }

    /// Waits until all shards are complete. A report may be large, so the workers send it only then.
    async fn wait(&self) -> Result<()> {
        let world = self.world;
        let mut written: Vec<(u64, Instant)> = vec![(0, Instant::now()); world.size()];
        let mut interval = *POLL_INTERVALS.start();
        loop {
            let states: Vec<Progress> = self.ask(name::PROGRESS).await?;
            let mut done = 0;
            for ((worker, state), (last, since)) in world.workers().zip(states).zip(&mut written) {
                match state {
                    Progress::Done => done += 1,
                    Progress::Failed(fault) => return Err(fault.into_error(&self.checkpoint, Some(worker))),
                    Progress::Writing { bytes } if bytes != *last => (*last, *since) = (bytes, Instant::now()),
                    Progress::Writing { bytes } if since.elapsed() >= self.stall_limit => {
                        let path = self.partial.path().join(Shard::file_of(worker, &world));
                        return Err(Error::Stalled { worker, path, bytes, after: self.stall_limit });
                    }
                    Progress::Writing { .. } => {}
                }
            }
            if done == world.size() {
                return Ok(());
            }
            task::sleep(interval).await;
            interval = (2 * interval).min(*POLL_INTERVALS.end());
        }
    }

    /// The results of a worker function about the save, of all workers.
    ///
    /// # Errors
    /// The session fails, or has other workers than at the time of the save.
    async fn ask<T: DeserializeOwned>(&self, function: &str) -> Result<Vec<T>> {
        let failed = |source| failed(&self.checkpoint, "waiting for the shards", source, &self.world);
        let answers = self.session.call(function, (&self.pending,)).await.map_err(failed)?;
        let answers: Vec<String> = self.session.get_all(&answers).await.map_err(failed)?;
        if self.session.world() != self.world {
            return Err(failed(disco_core::Error::state("the session was resized meanwhile; save again")));
        }
        let known = |(worker, answer): (WorkerId, String)| match serde_json::from_str(&answer) {
            Ok(Answer::Known(answer)) => Ok(answer),
            Ok(Answer::New { epoch }) => {
                let (checkpoint, files) = (self.checkpoint.clone(), vec![Shard::file_of(worker, &self.world)]);
                let text = format!("{worker} is new since epoch {epoch}; save again");
                Err(Error::Lost { checkpoint, files, source: disco_core::Error::state(text) })
            }
            Err(error) => Err(failed(disco_core::Error::protocol(error.to_string()))),
        };
        self.world.workers().zip(answers).map(known).collect()
    }
}

/// The error for a failure of the session.
fn failed(checkpoint: &Path, operation: &'static str, source: disco_core::Error, world: &World) -> Error {
    let checkpoint = checkpoint.to_owned();
    match source.kind() {
        ErrorKind::Lost { workers } if !workers.is_empty() => {
            let files = workers.iter().map(|worker: WorkerId| Shard::file_of(worker, world)).collect();
            Error::Lost { checkpoint, files, source }
        }
        _ => Error::Session { checkpoint, operation, source },
    }
}
