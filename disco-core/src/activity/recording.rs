//! A copy of an activity with its records: as bytes for another process, and decoded.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::alignment::{Alignment, ClockPoint};
use super::clock::{Reading, Scale};
use super::memory::{Memory, parse_names};
use super::record::{Names, RECORD_WORDS, RawRecord, Record, RecordKind};
use crate::codec::WireError;

/// The first word of the bytes.
const FORMAT: u64 = u64::from_le_bytes(*b"disco r3");
/// Name of the moment in records at which a worker begins an epoch.
pub(crate) const RECOVERY: &str = "recover";
/// Words before the alignment.
const HEAD_WORDS: usize = 11;
/// Words of a point of the alignment.
const POINT_WORDS: usize = 3;
/// The word of the head with the number of those points.
const POINTS: usize = 10;

/// The latest records of a worker or of the controller, and its state.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Number of the last command received; of the controller, submitted.
    pub received: u64,
    /// Number of the last command finished.
    pub finished: u64,
    /// The worker function that the worker is inside.
    pub inside: Option<Arc<str>>,
    /// When the copy was made, in nanoseconds of the machine's monotonic clock.
    pub time: u64,
    /// Number of older records, which later ones have replaced or which were not asked for.
    pub replaced: u64,
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// The alignment of these times with the clock of the controller's machine. Empty on that machine.
    pub alignment: Alignment,
}

/// A copy of `memory` with its `last` records, as little-endian words: format, ticks and nanoseconds now and at the
/// beginning, the four words of the state, number of name words, number of points; the points of the alignment (none: see
/// [`align`]); names; records.
pub(super) fn encode(memory: &Memory, last: usize) -> Vec<u8> {
    let (now, first, names) = (Reading::now(), memory.first_reading(), memory.name_words());
    let begun = memory.begun();
    let oldest = begun.saturating_sub(memory.places().min(last) as u64) + 1;
    let head: [u64; HEAD_WORDS] = [
        FORMAT,
        now.ticks,
        now.nanoseconds,
        first.ticks,
        first.nanoseconds,
        memory.received(),
        memory.finished(),
        memory.inside().0.into(),
        begun,
        names.len() as u64,
        0,
    ];
    let records = (oldest..=begun).filter_map(|number| memory.read(number)).flat_map(|RawRecord(words)| words);
    head.into_iter().chain(names).chain(records).flat_map(u64::to_le_bytes).collect()
}

impl Recording {
    /// Decodes the bytes of [`Activity::encode`](super::Activity::encode). Records that make no sense are left out.
    ///
    /// # Errors
    /// The bytes are no recording of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let invalid = WireError::Expected("a recording of a worker");
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let Some((head, body)) = words.split_first_chunk::<HEAD_WORDS>().filter(|_| rest.is_empty()) else {
            return Err(invalid);
        };
        let [format, ticks, time, first_ticks, first, received, finished, inside, begun, names, points] = *head;
        let Some((alignment, body)) = split_alignment(points, body).filter(|_| format == FORMAT) else {
            return Err(invalid);
        };
        if names > body.len() as u64 {
            return Err(invalid);
        }
        let (names, records) = body.split_at(names as usize);
        let names = Names(parse_names(names));
        let (records, rest) = records.as_chunks::<RECORD_WORDS>();
        if !rest.is_empty() {
            return Err(invalid);
        }
        let (now, first) = (Reading { ticks, nanoseconds: time }, Reading { ticks: first_ticks, nanoseconds: first });
        let scale = Scale::new(first, now);
        let (nanoseconds, length) = (|ticks| scale.nanoseconds(ticks), |ticks| scale.length(ticks));
        let records: Vec<Record> =
            records.iter().filter_map(|words| RawRecord(*words).decode(&names, nanoseconds, length)).collect();
        let replaced = begun.saturating_sub(records.len() as u64);
        Ok(Self { received, finished, inside: names.get(inside), time, replaced, records, alignment })
    }

    /// The records of these commands, without the state of the worker, which is that of the last command.
    pub(crate) fn of_commands(&self, commands: Range<u64>) -> Self {
        let records = self.records.iter().filter(|record| commands.contains(&record.command)).cloned().collect();
        Self { records, time: self.time, replaced: self.replaced, alignment: self.alignment.clone(), ..Self::default() }
    }
}

/// Numbers of the commands with which the session of these recordings has recovered, in order. Numbers of operations begin
/// again with each.
pub fn recoveries<'a>(recordings: impl IntoIterator<Item = &'a Recording>) -> Vec<u64> {
    let records = recordings.into_iter().flat_map(|recording| &recording.records);
    let marks = records.filter(|record| is_recovery(record)).map(|record| record.command);
    BTreeSet::from_iter(marks).into_iter().collect()
}

fn is_recovery(record: &Record) -> bool {
    record.kind == RecordKind::Mark && record.name.as_deref() == Some(RECOVERY)
}

/// The alignment at the start of `words`, and the words that follow. `None` if there are too few words or too many points.
fn split_alignment(points: u64, words: &[u64]) -> Option<(Alignment, &[u64])> {
    let points = usize::try_from(points).ok().filter(|points| *points <= Alignment::MAX_POINTS)?;
    let (points, rest) = words.split_at_checked(POINT_WORDS * points)?;
    let (points, _) = points.as_chunks::<POINT_WORDS>();
    let point =
        |[time, shift, error]: &[u64; POINT_WORDS]| ClockPoint { time: *time, shift: *shift as i64, error: *error };
    Some((Alignment::new(points.iter().map(point)), rest))
}

/// Adds `next` to the alignment of an encoded recording ([`Alignment::then`]): `next` is the alignment of the sender's
/// clock with the receiver's.
///
/// # Errors
/// The bytes are no recording of this version.
pub fn align(bytes: &[u8], next: &Alignment) -> Result<Vec<u8>, WireError> {
    let invalid = || WireError::Expected("a recording of a worker");
    let (words, _) = bytes.as_chunks::<8>();
    let head = words.get(..HEAD_WORDS).ok_or_else(invalid)?;
    let points = u64::from_le_bytes(head[POINTS]);
    // Only the points are converted: a recording may be large.
    let rest = &words[HEAD_WORDS..];
    let most: Vec<u64> =
        rest.iter().take(POINT_WORDS * Alignment::MAX_POINTS).map(|word| u64::from_le_bytes(*word)).collect();
    let (alignment, left) =
        split_alignment(points, &most).filter(|_| u64::from_le_bytes(head[0]) == FORMAT).ok_or_else(invalid)?;
    let unchanged = &bytes[8 * (HEAD_WORDS + most.len() - left.len())..];
    let alignment = alignment.then(next);
    let points = alignment.points();
    let mut aligned = Vec::with_capacity(8 * (HEAD_WORDS + POINT_WORDS * points.len()) + unchanged.len());
    aligned.extend_from_slice(&bytes[..8 * POINTS]);
    aligned.extend((points.len() as u64).to_le_bytes());
    for point in points {
        aligned.extend([point.time, point.shift as u64, point.error].map(u64::to_le_bytes).as_flattened());
    }
    aligned.extend_from_slice(unchanged);
    Ok(aligned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, RecorderConfig};

    #[test]
    fn an_alignment_is_added_to_the_bytes_of_a_recording_at_each_hop() {
        let activity = Activity::new(RecorderConfig::new(4, true));
        (0..3).for_each(|_| activity.mark(activity.intern("recover")));
        let bytes = activity.encode(4);
        let before = Recording::decode(&bytes).unwrap();
        assert!(before.alignment.is_empty());
        let hops = [(100, 5), (-1_000, 7)]
            .map(|(shift, error)| Alignment::new([ClockPoint { time: before.time, shift, error }]));
        let once = align(&bytes, &hops[0]).unwrap();
        let after = Recording::decode(&align(&once, &hops[1]).unwrap()).unwrap();
        assert_eq!(after.alignment, hops[0].then(&hops[1]));
        assert_eq!(after.alignment.points()[0].shift, -900);
        assert_eq!(after, Recording { alignment: after.alignment.clone(), ..before });
        for len in 0..bytes.len() {
            // Never a panic.
            _ = align(&once[..len], &hops[0]).map(|bytes| Recording::decode(&bytes).is_ok());
        }
        assert!(align(b"disco r1", &hops[0]).is_err());
    }
}
