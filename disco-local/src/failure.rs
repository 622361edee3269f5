//! What broke a communicator, and what each rank is told of it.

use std::sync::Arc;

use disco_core::Error;

use crate::report;

/// What broke a communicator.
pub(crate) struct Failure {
    error: Error,
    /// What everybody else is told.
    cause: Arc<str>,
    /// Ranks that get the error itself; none of them means all.
    witnesses: Vec<usize>,
}

impl Failure {
    /// An abort from outside.
    pub(crate) fn abort(cause: &Arc<str>) -> Self {
        Self { error: Error::Aborted { cause: cause.clone() }, cause: cause.clone(), witnesses: Vec::new() }
    }

    /// Ranks wait for one whose communicator is gone.
    pub(crate) fn lost(rank: usize) -> Self {
        let workers = report::ranks(&[rank]);
        Self::for_all(Error::Lost { workers, why: "its communicator was dropped while others waited for it".into() })
    }

    /// A failure that every rank reports as its own.
    pub(crate) fn for_all(error: Error) -> Self {
        Self { cause: error.to_string().into(), error, witnesses: Vec::new() }
    }

    /// A failure of two ranks, of which the others are told.
    pub(crate) fn between(a: usize, b: usize, error: Error) -> Self {
        Self { cause: error.to_string().into(), error, witnesses: vec![a, b] }
    }

    /// A failure of one rank, of which the others are told.
    pub(crate) fn of(rank: usize, error: Error) -> Self {
        Self { cause: format!("rank {rank}: {error}").into(), error, witnesses: vec![rank] }
    }

    /// What `rank` is told that was inside an operation when this happened.
    pub(crate) fn told_to(&self, rank: usize) -> Error {
        match self.witnesses.is_empty() || self.witnesses.contains(&rank) {
            true => self.error.clone(),
            false => Error::Aborted { cause: self.cause.clone() },
        }
    }

    /// What anybody is told who asks for an `operation` afterwards.
    pub(crate) fn broken(&self, operation: String) -> Error {
        Error::Broken { operation, cause: self.cause.clone() }
    }
}
