//! The records of operations that the worker is inside.

use super::record::RawRecord;
use super::{Activity, OpState};

/// The records of operations that have begun. Dropping it records a failure.
#[derive(Debug)]
pub struct Running<'a> {
    pub(super) activity: &'a Activity,
    /// Number of the first record, and of the records behind it.
    pub(super) number: u64,
    pub(super) more: u64,
    pub(super) state: OpState,
}

impl Running<'_> {
    /// Records the end.
    #[inline]
    pub fn end(self, ok: bool) {
        self.end_as(OpState::of(ok));
    }

    /// Records the end, with its state.
    #[inline]
    pub(crate) fn end_as(mut self, state: OpState) {
        self.state = state;
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        let Self { activity, number, more, state } = *self;
        // A reading of the clock costs as much as the rest.
        if activity.timeline || state != OpState::Done {
            activity.end(number, state)
        } else {
            activity.change(number, |what| RawRecord::ended(what, state))
        }
        if more > 0 {
            activity.end_more(number, more, state);
        }
    }
}
