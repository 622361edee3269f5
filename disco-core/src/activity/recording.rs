//! A copy of an activity with its records: as bytes for another process, and decoded.

use std::sync::Arc;

use super::clock::{Reading, Scale};
use super::memory::{Memory, parse_names};
use super::record::{RECORD_WORDS, RawRecord, Record};
use crate::codec::WireError;

/// The first word of the bytes.
const FORMAT: u64 = u64::from_le_bytes(*b"disco r1");
/// Words before the names.
const HEAD_WORDS: usize = 10;

/// What a worker, or the controller, has done lately.
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
    /// The difference, in nanoseconds, between a time here and the same time on the clock of the controller's machine. A
    /// session sets 0: the clocks of nodes are not aligned yet.
    pub shift: i64,
    /// Largest error of that difference, in nanoseconds.
    pub shift_error: u64,
}

/// A copy of `memory` with its `last` records, as little-endian words: format, ticks and nanoseconds now and at the
/// beginning, the four words of the state, number of name words; names; records.
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
        memory.inside(),
        begun,
        names.len() as u64,
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
        let [format, ticks, time, first_ticks, first, received, finished, inside, begun, names] = *head;
        if format != FORMAT || names > body.len() as u64 {
            return Err(invalid);
        }
        let (names, records) = body.split_at(names as usize);
        let names = parse_names(names);
        let (records, rest) = records.as_chunks::<RECORD_WORDS>();
        if !rest.is_empty() {
            return Err(invalid);
        }
        let (now, first) = (Reading { ticks, nanoseconds: time }, Reading { ticks: first_ticks, nanoseconds: first });
        let scale = Scale::new(first, now);
        let (nanoseconds, length) = (|ticks| scale.nanoseconds(ticks), |ticks| scale.length(ticks));
        let records: Vec<Record> =
            records.iter().filter_map(|words| RawRecord(*words).decode(&names, nanoseconds, length)).collect();
        let inside = (inside as usize).checked_sub(1).and_then(|name| names.get(name).cloned());
        let replaced = begun.saturating_sub(records.len() as u64);
        Ok(Self { received, finished, inside, time, replaced, records, ..Self::default() })
    }
}
