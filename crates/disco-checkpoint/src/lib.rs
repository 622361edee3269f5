//! Checkpoints of Disco's sessions: tensors of all workers in one folder, which a session of any number of workers loads.
//!
//! ```text
//! save ─▶ each worker copies its tensors, goes on with the next command, and a thread of it writes the copies
//!           .step-000123.ID.partial/worker-0-of-2.safetensors
//!                                   worker-1-of-2.safetensors
//! Saving ─▶ all shards are on the disk ─▶ index.json ─▶ renamed to step-000123/ ─▶ older ones are removed
//! load ─▶ the newest checkpoint without damage ─▶ each worker reads its parts and compares their checksums
//! ```
//!
//! ```
//! use disco_checkpoint::{Folder, Layout, load, save};
//! use disco_core::{DRef, Session};
//!
//! /// Saves the state of a training after `step`, and keeps the last three checkpoints.
//! async fn checkpoint(session: &dyn Session, step: u64, weights: &DRef, momentum: &DRef) -> disco_checkpoint::Result<()> {
//!     let folder = Folder::new("checkpoints").keep(3);
//!     let entries = [("weights", weights, Layout::Replicated), ("momentum", momentum, Layout::split(0))];
//!     let saving = save(session, folder, step, entries).await?;
//!     // Calls from here on may change the tensors.
//!     let saved = saving.note("seed", "17").await?;
//!     println!("{} has {} bytes", saved.path.display(), saved.bytes);
//!     Ok(())
//! }
//!
//! /// The step to continue from, and the tensors; none at the first start.
//! async fn resume(session: &dyn Session) -> disco_checkpoint::Result<Option<(u64, DRef, DRef)>> {
//!     let Some(loaded) = load(session, "checkpoints").await? else { return Ok(None) };
//!     let (weights, momentum) = (loaded.tensor("weights")?, loaded.tensor("momentum")?);
//!     Ok(Some((loaded.step, weights.clone(), momentum.clone())))
//! }
//! ```
//!
//! # Layouts
//! A [`Layout`] says how the tensors of the workers make one tensor: [`Layout::Replicated`], [`Layout::Split`] along a
//! dimension over the world or over each group, or [`Layout::PerWorker`]. A pair of a name and a handle is
//! [`Layout::Replicated`]. The save compares dtypes, shapes and a sample of at most 64 KiB of the copies that should be
//! equal, and refuses tensors that differ, so that a split tensor is not taken for a replicated one. Replicated tensors
//! are spread over the workers by their size: each is written once.
//!
//! # Guarantees
//! - A checkpoint with its name is complete: index, shards and folder were on the disk before the rename. A save that
//!   ends early leaves a temporary folder at most, which the next save into the folder removes.
//! - Each byte of the shards and of the index is covered by a CRC-32. Damage is an error that names the file.
//! - A failure to copy or to write is an error of the save; the session goes on.
//! - All machines must share the folder. Workers write their own shards; no tensor passes through the controller.
//!
//! The guide's chapter on checkpoints documents the format of the index. Shards are plain safetensors.
//!
//! # Invariants
//! - A save is one call in the stream of commands, `checkpoint.snapshot`. The copies are complete when the function
//!   returns; only the writer's thread reads them. The controller asks for the state with `checkpoint.progress`,
//!   which never waits for a writer.
//! - A fault of a save or of a load is the value of a register, not a failure of the worker. So it neither ends the
//!   epoch nor aborts collectives.
//! - Which worker writes a replicated tensor follows from the sizes, which are the same on all workers: no message is
//!   needed. The controller checks the reports: each part exactly once, parts that make a whole tensor, equal
//!   samples.
//! - The order on the disk: shards, index, the folder's entries, the rename, the entries of the folder above. Only
//!   then are old checkpoints removed.
//! - The temporary folder is locked (`flock`) by the controller. A folder that can be locked belongs to a program
//!   that has ended. A folder loses its name before its files are removed, so that a late writer can't add files to
//!   it.
//! - Direct writes need aligned addresses and whole blocks. The copies of a save lie in one mapping, at the places
//!   that they have in the file, so it is written as it is.
//! - The memory of copies is kept per worker (`WorkerContext::state`), if the program asks for it
//!   (`Folder::reuse_memory`). It returns to the worker when the last tensor in it is dropped: after the writer, and
//!   after a device's copy that an error has left unfinished. So no save writes into memory that is still read.
//! - The index is hostile: sizes, positions, names of files and the parts of each tensor are checked before a worker
//!   uses them. The checksum is only against accidents.

#![doc(html_root_url = "https://docs.rs/disco-checkpoint/latest")]

mod assemble;
mod checksum;
mod dtype;
mod error;
mod folder;
#[cfg(fuzzing)]
pub mod fuzzing;
mod index;
mod layout;
mod load;
mod memory;
mod message;
mod output;
mod plan;
mod region;
mod save;
mod shard;
mod snapshot;
mod task;
mod worker;

pub use error::{Error, Refused, Result};
pub use folder::Folder;
pub use layout::{Entry, Layout, Request};
pub use load::{Loaded, load, load_only};
pub use save::{Saved, Saving, save};
