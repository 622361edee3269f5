//! Times of operations on devices.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use disco_core::OpKind;
use disco_core::activity::{Record, RecordKind};

use crate::calls::Calls;
use crate::format::{bandwidth, bytes, number, time};
use crate::trace::{Trace, end, launch_key};

/// The head of a table of [`OnDevice`].
pub(crate) const DEVICE_HEAD: [&str; 6] =
    ["operation", "size", "count", "on the device", "algbw (GB/s)", "of the host's call"];

/// The operations of one kind and size, over all workers. Medians, in nanoseconds.
pub(crate) struct OnDevice {
    kind: OpKind,
    /// Bytes, as `disco bench` counts them.
    size: u64,
    count: usize,
    device: u64,
    /// Of the calls that launched them.
    host: u64,
}

/// Times of the operations of one kind and size.
struct Times {
    kind: OpKind,
    device: Vec<u64>,
    host: Vec<u64>,
}

impl OnDevice {
    /// The cells of a table with [`DEVICE_HEAD`].
    pub(crate) fn cells(&self) -> [String; 6] {
        let rate = if self.size > 0 { number(bandwidth(self.size, self.device)) } else { "–".to_owned() };
        [
            self.kind.name().to_owned(),
            bytes(self.size),
            self.count.to_string(),
            time(self.device),
            rate,
            time(self.host),
        ]
    }
}

/// The operations that have a time on a device and are no groups of operations, by kind and size, the longest total time
/// first; and the largest error of their starts in nanoseconds.
pub(crate) fn on_device(trace: &Trace, calls: &Calls<'_>) -> (Vec<OnDevice>, u64) {
    let mut times: BTreeMap<(&str, u64), Times> = BTreeMap::new();
    let mut error = 0;
    for recording in trace.workers.iter().filter_map(|it| it.known()) {
        let mut launched: Option<&Record> = None;
        let mut launches = HashMap::new();
        for record in &recording.records {
            let Some(op) = &record.op else { continue };
            let length = end(recording, record) - record.start;
            match record.kind {
                RecordKind::Op(_) => {
                    // The first operation of a group has the time of the whole group.
                    if let Some(first) = launched.filter(|_| op.behind > 0) {
                        launches.remove(&launch_key(first));
                    } else {
                        launches.insert(launch_key(record), length);
                        launched = Some(record);
                    }
                }
                RecordKind::Device(kind) => {
                    error = record.clock_error.max(error);
                    if let Some(host) = launches.remove(&launch_key(record)) {
                        let of_size = times.entry((kind.name(), calls.size(kind, op)));
                        let times = of_size.or_insert_with(|| Times { kind, device: Vec::new(), host: Vec::new() });
                        times.device.push(length);
                        times.host.push(host);
                    }
                }
                _ => {}
            }
        }
    }
    let rows = times.into_iter().map(|((_, size), Times { kind, device, host })| {
        let (count, total) = (device.len(), device.iter().copied().fold(0, u64::saturating_add));
        (total, OnDevice { kind, size, count, device: median(device), host: median(host) })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(total, _)| Reverse(*total));
    (rows.into_iter().map(|(_, row)| row).collect(), error)
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
