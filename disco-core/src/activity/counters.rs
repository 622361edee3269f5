//! Samples of numbers that change: registers, room in lanes, bytes, memory.

use super::{Activity, nanoseconds};

/// Least time between two samples of the counters of one activity, in nanoseconds.
const INTERVAL: u64 = 10_000_000;

/// Samples the counters of an activity: at most every 10 ms, and only the counters that have changed.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    due: u64,
    /// The name and the last value of each counter.
    last: Vec<(u32, u64)>,
}

impl Sampler {
    /// Whether to [sample](Self::sample) all counters now.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        let now = nanoseconds();
        let is_due = now >= self.due;
        if is_due {
            self.due = now + INTERVAL;
        }
        is_due
    }

    /// Records the value of a counter if it has changed.
    pub(crate) fn sample(&mut self, activity: &Activity, name: &str, value: u64) {
        let name = activity.intern(name);
        let is_new = match self.last.iter_mut().find(|(known, _)| *known == name) {
            Some((_, last)) => std::mem::replace(last, value) != value,
            None => {
                self.last.push((name, value));
                true
            }
        };
        if is_new {
            activity.count(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{RecordKind, RecorderConfig, Recording};

    #[test]
    fn a_counter_is_recorded_when_it_has_changed() {
        let (activity, mut sampler) = (Activity::new(RecorderConfig::new(16, true)), Sampler::default());
        assert!(sampler.is_due() && !sampler.is_due(), "10 ms have not passed");
        for (name, value) in [("registers", 5), ("room", 0), ("registers", 5), ("room", 7), ("registers", u64::MAX)] {
            sampler.sample(&activity, name, value);
        }
        let records = Recording::decode(&activity.encode(16)).unwrap().records;
        assert!(records.iter().all(|record| record.kind == RecordKind::Counter && record.end == Some(record.start)));
        let values: Vec<_> = records.iter().map(|it| (it.name.as_deref().unwrap(), it.value)).collect();
        assert_eq!(values, [("registers", 5), ("room", 0), ("room", 7), ("registers", u64::MAX)]);
    }
}
