//! Changes of the workers for programs: settings and results.

use std::sync::Arc;

use super::DRef;
use super::changing::Revived;
use super::lane_session::LaneSession;
use super::plan::Goal;
use crate::error::Result;
use crate::id::WorkerId;
use crate::value::Value;

/// The result of [`Session::replace_lost`](super::Session::replace_lost).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The workers that are new since the last call that succeeded, in order. Empty if no worker was lost.
    pub workers: Vec<WorkerId>,
    /// For each worker before, in order, its number now. All have the same number, unless a call of
    /// [`resize`](super::Session::resize) has failed or was dropped after it had changed the numbers.
    pub numbers: Vec<Option<WorkerId>>,
    /// Number of the session's epoch: a new one if a worker was lost.
    pub epoch: u64,
}

/// The result of [`Session::resize`](super::Session::resize).
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resized {
    /// For each worker before, in order, its number now; `None` if it has left or is lost. "Before" is the last call of
    /// `resize` or [`replace_lost`](super::Session::replace_lost) that succeeded, or the start of the session.
    pub numbers: Vec<Option<WorkerId>>,
    /// The workers that are new since then, in order, by their numbers now.
    pub workers: Vec<WorkerId>,
    /// Number of the session's epoch: a new one unless the call did nothing.
    pub epoch: u64,
}

impl LaneSession {
    /// Sets the function that restores new workers. [`Session::replace_lost`](super::Session::replace_lost) calls
    /// `restore` for each new worker and [sets](super::Session::set) the returned values in the worker's registers, before
    /// the session takes other commands; so does [`Session::resize`](super::Session::resize) for each worker that it adds. A
    /// later call replaces the function. A function that owns the session keeps it alive. It can't use the session: methods
    /// that it calls fail.
    pub fn on_replaced(&self, restore: impl Fn(WorkerId) -> Vec<(DRef, Value)> + Send + Sync + 'static) {
        self.helpers.set_restore(Arc::new(restore));
    }

    /// Implements [`Session::replace_lost`](super::Session::replace_lost).
    pub(super) async fn replace_and_report(&self) -> Result<Replaced> {
        let Revived { epoch, .. } = self.change(Goal::Replace).await?;
        let (numbers, workers) = self.take_unreported();
        Ok(Replaced { workers, numbers, epoch })
    }

    /// Implements [`Session::resize`](super::Session::resize).
    pub(super) async fn resize_and_report(&self, size: usize) -> Result<Resized> {
        let Revived { epoch, .. } = self.change(Goal::Resize(size)).await?;
        let (numbers, workers) = self.take_unreported();
        Ok(Resized { numbers, workers, epoch })
    }

    /// What no call has returned yet: for each worker before, its number now; and the new workers.
    fn take_unreported(&self) -> (Vec<Option<WorkerId>>, Vec<WorkerId>) {
        let members = self.stream.lanes().members;
        let (before, new) = self.stream.reply_table.fleet(|fleet| fleet.take_unreported(members.clone()));
        let numbers = before.places().map(|place| members.worker(place)).collect();
        (numbers, new.into_iter().filter_map(|place| members.worker(place)).collect())
    }
}
