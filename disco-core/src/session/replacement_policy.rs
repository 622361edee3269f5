//! When lost workers are replaced, and how often.

use std::time::Duration;

/// When the session replaces lost workers, and how often. Default: [`when_asked`](Self::when_asked), without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplacementPolicy {
    pub(super) when: When,
    /// The largest number of workers that are replaced within a time of this length.
    pub(super) limit: Option<(u32, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Never,
    Asked,
    Recovered,
    AtOnce,
}

impl ReplacementPolicy {
    /// Workers are never replaced: [`Session::replace_lost`](super::Session::replace_lost) is an error.
    pub const fn never() -> Self {
        Self { when: When::Never, limit: None }
    }

    /// Workers are replaced by [`Session::replace_lost`](super::Session::replace_lost) only.
    pub const fn when_asked() -> Self {
        Self { when: When::Asked, limit: None }
    }

    /// Workers are replaced by [`Session::recover`](super::Session::recover), too, and so by
    /// [`DataPlane::init_ccl`](super::DataPlane::init_ccl), which calls it.
    pub const fn when_recovered() -> Self {
        Self { when: When::Recovered, limit: None }
    }

    /// New workers start in the background as soon as the loss of a worker is reported. The session reports the loss once:
    /// by all waits that it ends, or if it ends none, by the next method. Each later method first waits until the new
    /// workers have their places, as in [`Session::replace_lost`](super::Session::replace_lost), which returns them. If they can't
    /// start, methods fail with the reason, and each of them tries again.
    ///
    /// Callers that share the session hear of the loss only if they wait for it or call next: a collective that another
    /// caller has submitted, and that the loss has ended, leaves its tensors as they were. Such callers compare the epoch
    /// ([`Replaced::epoch`](super::Replaced::epoch), [`Resized::epoch`](super::Resized::epoch)) or replace workers themselves.
    ///
    /// No more than one new worker starts in each place before the next method, so a worker that always ends does not
    /// start again and again on its own. [`at_most`](Self::at_most) limits the number for a program that calls on.
    pub const fn at_once() -> Self {
        Self { when: When::AtOnce, limit: None }
    }

    /// At most `workers` workers are replaced within any time of length `within`. Beyond that, replacement is an error.
    pub const fn at_most(self, workers: u32, within: Duration) -> Self {
        Self { limit: Some((workers, within)), ..self }
    }
}

impl Default for ReplacementPolicy {
    fn default() -> Self {
        Self::when_asked()
    }
}
