//! When lost workers are replaced, and how often.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// When the session replaces lost workers, and how often. Default: [`when_asked`](Self::when_asked), without a limit.
///
/// ```
/// use std::time::Duration;
///
/// use disco_core::session::ReplacementPolicy;
///
/// // As soon as a loss is reported, but at most 3 workers an hour: for `Builder::replacement` of the crate `disco-runtime`.
/// let policy = ReplacementPolicy::at_once().at_most(3, Duration::from_secs(3600));
/// # assert_ne!(policy, ReplacementPolicy::default());
/// ```
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
    /// [`init_ccl`](super::Session#method.init_ccl), which calls it.
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

/// The replacements that count for a policy's limit.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Instant>);

impl History {
    /// Checks that `policy` permits `count` replacements, those of the workers called `list`.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn admit(&mut self, policy: ReplacementPolicy, list: &str, count: usize, now: Instant) -> Result<()> {
        if policy.when == When::Never {
            return Err(Error::state(format!(
                "replace_lost: {list}: the session never replaces workers (`ReplacementPolicy`)"
            )));
        }
        let Some((most, within)) = policy.limit else { return Ok(()) };
        self.0.retain(|at| now.saturating_duration_since(*at) < within);
        let before = self.0.len();
        if before + count <= most as usize {
            return Ok(());
        }
        Err(Error::state(format!(
            "replace_lost: {list}: {before} workers were replaced within {within:?}, and the limit is {most} \
             (`ReplacementPolicy::at_most`)"
        )))
    }

    /// Counts new workers that have started.
    pub(super) fn count(&mut self, policy: ReplacementPolicy, new: usize, now: Instant) {
        if policy.limit.is_some() {
            self.0.extend(std::iter::repeat_n(now, new));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_policy_holds_in_every_window_of_its_length() {
        let (mut history, begun) = (History::default(), Instant::now());
        let within = Duration::from_secs(10);
        let policy = ReplacementPolicy::at_once().at_most(3, within);
        let mut all: Vec<Instant> = Vec::new();
        for second in 0..100_u64 {
            let now = begun + Duration::from_secs(second);
            let count = 1 + (second % 2) as usize;
            let recent = all.iter().filter(|at| now.duration_since(**at) < within).count();
            let admitted = history.admit(policy, "worker 0", count, now);
            assert_eq!(admitted.is_ok(), recent + count <= 3, "after {second} s");
            // An attempt that fails does not count.
            if admitted.is_ok() && second % 3 > 0 {
                history.count(policy, count, now);
                all.extend(std::iter::repeat_n(now, count));
            }
        }
        assert!(all.len() > 20);
        let refused = history.admit(ReplacementPolicy::never(), "worker 0", 1, begun).unwrap_err().to_string();
        assert_eq!(refused, "replace_lost: worker 0: the session never replaces workers (`ReplacementPolicy`)");
    }
}
