//! The index of a checkpoint, made of the workers' reports.

use std::collections::BTreeMap;
use std::path::Path;

use disco_core::{WorkerId, World};

use crate::error::{Error, Result};
use crate::index::{Index, Part, Shard, Tensor};
use crate::layout::{Entry, Layout};
use crate::message::{Fault, Report, Seen};

/// Makes the index, and checks the workers' tensors against the layouts.
///
/// # Errors
/// [`Error::Tensor`].
pub(crate) fn assemble(
    checkpoint: &Path,
    step: u64,
    world: &World,
    entries: &[Entry],
    reports: &[Report],
    notes: BTreeMap<String, String>,
) -> Result<Index> {
    let shards = world.workers().zip(reports).filter_map(|(worker, report)| {
        let shard = report.shard.clone()?;
        Some(Shard {
            worker: worker.index() as u32,
            file: Shard::file_of(worker, world),
            bytes: shard.bytes,
            header_bytes: shard.header_bytes,
            header_crc32: shard.header_crc32,
        })
    });
    let shards = shards.collect();
    let mut tensors = BTreeMap::new();
    for (position, entry) in entries.iter().enumerate() {
        let seen = reports.iter().map(|report| report.tensors.get(position).and_then(Option::as_ref));
        let seen: Vec<_> = world.workers().zip(seen).collect();
        tensors.insert(entry.name.clone(), tensor(checkpoint, entry, world, &seen)?);
    }
    let index = Index::new(step, world, notes, shards, tensors);
    match index.problem() {
        None => Ok(index),
        Some(problem) => Err(Error::damaged(checkpoint, problem)),
    }
}

fn tensor(checkpoint: &Path, entry: &Entry, world: &World, seen: &[(WorkerId, Option<&Seen>)]) -> Result<Tensor> {
    let Entry { name, layout, .. } = entry;
    let part = |worker: WorkerId, seen: &Seen| {
        let (offset, crc32) = seen.written?;
        Some(Part::new(worker, seen.dtype, seen.shape.clone(), offset, crc32))
    };
    if *layout == Layout::PerWorker {
        let parts = seen.iter().filter_map(|(worker, seen)| part(*worker, (*seen)?)).collect();
        return Ok(Tensor::new(layout.clone(), parts));
    }
    let mut parts = Vec::new();
    let rank = |(worker, _): &(WorkerId, Option<&Seen>)| layout.rank(world, *worker);
    let mut by_rank = seen.to_vec();
    by_rank.sort_by_key(rank);
    // The workers that have one part.
    for owners in by_rank.chunk_by(|a, b| rank(a) == rank(b)) {
        let mut first: Option<(WorkerId, &Seen)> = None;
        for (worker, seen) in owners {
            let Some(seen) = seen else {
                let problem = format!("the worker has no tensor, and the layout is {layout}");
                return Err(Fault::tensor(name, problem).into_error(checkpoint, Some(*worker)));
            };
            if let Some((other, found)) = first
                && let Some(difference) = difference(found, seen)
            {
                let problem = format!(
                    "it differs between {other} and {worker}: {difference}; its layout is {layout}; save it with the \
                     layout that it has, such as `Layout::split(0)` or `Layout::PerWorker`"
                );
                return Err(Error::tensor(checkpoint, name, problem));
            }
            first.get_or_insert((*worker, seen));
            parts.extend(part(*worker, seen));
        }
    }
    let tensor = Tensor::new(layout.clone(), parts);
    match tensor.problem(layout.ranks(world)) {
        None => Ok(tensor),
        Some(problem) => Err(Error::tensor(checkpoint, name, problem)),
    }
}

/// The difference of tensors that should be equal.
fn difference(a: &Seen, b: &Seen) -> Option<String> {
    if (a.dtype, &a.shape) != (b.dtype, &b.shape) {
        return Some(format!("{}{:?} and {}{:?}", a.dtype, a.shape, b.dtype, b.shape));
    }
    (a.sample != b.sample).then(|| "other elements".into())
}
