//! Entry points of the fuzz targets.

use std::path::Path;

use disco_core::{WorkerId, World};

use crate::error::Result;
use crate::index::Index;
use crate::layout::Layout;
use crate::plan;

/// Parses `checkpoint` as the value of an index with a valid checksum, and checks that every part is inside of its shard,
/// and that sessions of up to 4 workers load parts that make the whole tensor.
///
/// # Errors
/// The index is refused.
pub fn index(checkpoint: &str) -> Result<()> {
    let path = Path::new("fuzzed");
    let index = Index::decode_unsigned(path, checkpoint)?;
    for (name, tensor) in &index.tensors {
        for part in &tensor.parts {
            let shard = index.shard(part.worker).expect("each part has a shard");
            assert!(part.offset >= shard.header_bytes && part.offset + part.bytes() <= shard.bytes, "{name}: {part:?}");
        }
        if tensor.layout == Layout::PerWorker {
            continue;
        }
        let shape = tensor.shape();
        for part in &tensor.parts {
            _ = tensor.region(&shape, part);
        }
        for workers in 1..=4 {
            let world = World::new(workers, 1).expect("one group");
            for layout in [tensor.layout.clone(), Layout::Replicated, Layout::split(0)] {
                let region = |worker| plan::region_of((path, name, tensor), &layout, WorkerId::new(worker), &world);
                let Ok(first) = region(0) else { continue };
                let Layout::Split { dim, scope } = &layout else {
                    assert_eq!(first.shape(), shape, "{name}");
                    continue;
                };
                let set = scope.members(&world, WorkerId::new(0)).into_iter().map(|worker| worker.index() as u32);
                let extents = set.map(|worker| region(worker).expect("as worker 0").shape()[*dim]);
                assert_eq!(extents.sum::<usize>(), shape[*dim], "{name}");
            }
        }
    }
    Ok(())
}
