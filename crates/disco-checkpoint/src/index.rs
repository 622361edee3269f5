//! The index of a checkpoint. The guide's chapter on checkpoints documents its JSON.

use std::collections::BTreeMap;
use std::path::Path;

use disco_core::{DType, WorkerId, World};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::checksum::Checksum;
use crate::dtype;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::region::Region;

/// The version of the format. Another format has another number.
const VERSION: u64 = 1;

/// The name of the index in the folder of a checkpoint.
pub(crate) const FILE: &str = "index.json";

/// The largest index that is read, in bytes.
pub(crate) const MAX_BYTES: u64 = 1 << 30;

/// The whole file. The checksum is that of the bytes of `checkpoint` as they are in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    crc32: Checksum,
    #[serde(borrow)]
    checkpoint: &'a RawValue,
}

/// The field that all versions have.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

/// The tensors of a checkpoint and their parts in the shards.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    version: u64,
    pub(crate) step: u64,
    pub(crate) workers: usize,
    pub(crate) groups: usize,
    /// Texts of the program.
    pub(crate) notes: BTreeMap<String, String>,
    /// In the order of the workers.
    pub(crate) shards: Vec<Shard>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// A file of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shard {
    pub(crate) worker: u32,
    /// The name of the file beside the index.
    pub(crate) file: String,
    /// Length of the file.
    pub(crate) bytes: u64,
    /// Bytes before the data of the first tensor.
    pub(crate) header_bytes: u64,
    pub(crate) header_crc32: Checksum,
}

/// A tensor and its parts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tensor {
    pub(crate) layout: Layout,
    /// Of a split tensor, in the order of the dimension; of others, in the order of the workers.
    pub(crate) parts: Vec<Part>,
}

/// A part of a tensor, in the shard of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// The worker that wrote the part into its shard.
    pub(crate) worker: u32,
    dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Position of the part along the dimension of the split; 0 for other layouts.
    start: usize,
    /// Position of the first byte in the file.
    pub(crate) offset: u64,
    pub(crate) crc32: Checksum,
}

impl Shard {
    /// The name of a worker's file.
    pub(crate) fn file_of(worker: WorkerId, world: &World) -> String {
        format!("worker-{}-of-{}.safetensors", worker.index(), world.size())
    }
}

impl Part {
    pub(crate) fn new(worker: WorkerId, dtype: Dtype, shape: Vec<usize>, offset: u64, crc32: Checksum) -> Self {
        Self { worker: worker.index() as u32, dtype, shape, start: 0, offset, crc32 }
    }

    /// Size in bytes; none for a dtype that Disco lacks, and for a size of more than 63 bits.
    fn size(&self) -> Option<u64> {
        let element = dtype::loaded(self.dtype)?.size() as u64;
        let bytes = self.shape.iter().try_fold(element, |bytes, extent| bytes.checked_mul(*extent as u64))?;
        (bytes <= i64::MAX as u64).then_some(bytes)
    }

    /// The extents of the dimensions before and behind `dim`; none where there is no such dimension.
    fn other_extents(&self, dim: usize) -> (Option<&[usize]>, Option<&[usize]>) {
        (self.shape.get(..dim), self.shape.get(dim + 1..))
    }

    /// Size in bytes. The index was checked.
    pub(crate) fn bytes(&self) -> u64 {
        self.size().unwrap_or(0)
    }

    /// The type of the elements. The index was checked.
    pub(crate) fn dtype(&self) -> DType {
        dtype::loaded(self.dtype).unwrap_or(DType::U8)
    }
}

impl Tensor {
    /// A tensor and the positions of its parts: parts of a split tensor follow each other without gaps.
    pub(crate) fn new(layout: Layout, mut parts: Vec<Part>) -> Self {
        if let Layout::Split { dim, .. } = &layout {
            let mut end = 0;
            for part in &mut parts {
                part.start = end;
                end += part.shape.get(*dim).copied().unwrap_or(0);
            }
        }
        Self { layout, parts }
    }

    /// The shape of the whole tensor. The index was checked, and the layout is not [`Layout::PerWorker`].
    pub(crate) fn shape(&self) -> Vec<usize> {
        let mut shape = self.parts.first().map(|part| part.shape.clone()).unwrap_or_default();
        if let Layout::Split { dim, .. } = self.layout {
            shape[dim] = self.parts.iter().map(|part| part.shape[dim]).sum();
        }
        shape
    }

    /// The elements of a part of this tensor, whose whole shape is `shape`. The index was checked.
    pub(crate) fn region(&self, shape: &[usize], part: &Part) -> Region {
        match self.layout {
            Layout::Split { dim, .. } => Region::along(shape, dim, part.start..part.start + part.shape[dim]),
            _ => Region::whole(shape),
        }
    }

    /// The fault of a tensor, if there is one.
    pub(crate) fn problem(&self, ranks: usize) -> Option<String> {
        if self.layout == Layout::PerWorker {
            return self.repeated().map(|worker| format!("has two parts of worker {worker}"));
        }
        if self.parts.len() != ranks {
            return Some(format!("has {} parts, expected {ranks}", self.parts.len()));
        }
        let first = self.parts.first()?;
        if let Some(other) = self.parts.iter().find(|part| part.dtype != first.dtype) {
            return Some(format!("has parts of {} and {}", first.dtype, other.dtype));
        }
        let Layout::Split { dim, .. } = self.layout else {
            return (first.start != 0).then(|| format!("is not split, and has a part at {}", first.start));
        };
        if dim >= first.shape.len() {
            return Some(format!("of shape {:?} is split along dimension {dim}, which it does not have", first.shape));
        }
        let mut end = 0usize;
        for part in &self.parts {
            if part.other_extents(dim) != first.other_extents(dim) {
                return Some(format!("has parts of shapes {:?} and {:?}", first.shape, part.shape));
            }
            if part.start != end {
                return Some(format!("has a part at {}, expected at {end}", part.start));
            }
            let Some(next) = end.checked_add(part.shape[dim]) else {
                return Some("is too large".into());
            };
            end = next;
        }
        let whole = Part { shape: self.shape(), ..first.clone() };
        whole.size().is_none().then(|| format!("of shape {:?} is too large", whole.shape))
    }

    /// A worker with two parts.
    fn repeated(&self) -> Option<u32> {
        self.parts.windows(2).find(|pair| pair[0].worker >= pair[1].worker).map(|pair| pair[1].worker)
    }
}

impl Index {
    pub(crate) fn new(
        step: u64,
        world: &World,
        notes: BTreeMap<String, String>,
        shards: Vec<Shard>,
        tensors: BTreeMap<String, Tensor>,
    ) -> Self {
        Self { version: VERSION, step, workers: world.size(), groups: world.groups(), notes, shards, tensors }
    }

    /// The text of the file.
    ///
    /// # Errors
    /// Not for an index whose texts are valid.
    pub(crate) fn encode(&self) -> serde_json::Result<String> {
        let checkpoint = RawValue::from_string(serde_json::to_string(self)?)?;
        let crc32 = Checksum::of(checkpoint.get().as_bytes());
        Ok(serde_json::to_string(&File { crc32, checkpoint: &checkpoint })? + "\n")
    }

    /// Reads and checks the text of the index at `path`.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Version`].
    pub(crate) fn decode(path: &Path, text: &str) -> Result<Self> {
        let invalid = |error: serde_json::Error| Error::damaged(path, format!("it is no index: {error}"));
        let file: File = serde_json::from_str(text).map_err(invalid)?;
        let found = Checksum::of(file.checkpoint.get().as_bytes());
        if found != file.crc32 {
            return Err(Error::damaged(path, format!("it has the checksum {found}, expected {}", file.crc32)));
        }
        Self::decode_unsigned(path, file.checkpoint.get())
    }

    /// Reads and checks the value of `checkpoint` in the index at `path`.
    ///
    /// # Errors
    /// As [`Index::decode`].
    pub(crate) fn decode_unsigned(path: &Path, text: &str) -> Result<Self> {
        let invalid = |error: serde_json::Error| Error::damaged(path, format!("it is no index: {error}"));
        let Version { version } = serde_json::from_str(text).map_err(invalid)?;
        if version != VERSION {
            return Err(Error::Version { path: path.into(), version, known: VERSION });
        }
        let index: Self = serde_json::from_str(text).map_err(invalid)?;
        match index.problem() {
            Some(problem) => Err(Error::damaged(path, problem)),
            None => Ok(index),
        }
    }

    /// The shard of a worker.
    pub(crate) fn shard(&self, worker: u32) -> Option<&Shard> {
        let found = self.shards.binary_search_by_key(&worker, |shard| shard.worker).ok()?;
        self.shards.get(found)
    }

    /// The first fault, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        let world = match World::new(self.workers, self.groups) {
            Ok(world) => world,
            Err(error) => return Some(error.to_string()),
        };
        if let Some(pair) = self.shards.windows(2).find(|pair| pair[0].worker >= pair[1].worker) {
            return Some(format!("the shard of worker {} is behind that of worker {}", pair[1].worker, pair[0].worker));
        }
        for Shard { worker, file, bytes, header_bytes, .. } in &self.shards {
            if *worker as usize >= self.workers {
                return Some(format!("it has a shard of worker {worker}, and {} workers", self.workers));
            }
            if *file != Shard::file_of(WorkerId::new(*worker), &world) {
                return Some(format!("the shard of worker {worker} has the name `{file}`"));
            }
            if header_bytes > bytes {
                return Some(format!("`{file}` has a header of {header_bytes} bytes and {bytes} bytes in all"));
            }
        }
        self.tensors.iter().find_map(|(name, tensor)| {
            let outside = tensor.parts.iter().find_map(|part| self.outside(part));
            let misfit =
                tensor.layout.check(&world).err().map(|error| format!("has a layout that does not fit: {error}"));
            let problem = outside.or(misfit).or_else(|| tensor.problem(tensor.layout.ranks(&world)))?;
            Some(format!("tensor `{name}` {problem}"))
        })
    }

    /// The fault of a part that is not inside of the data of its shard.
    fn outside(&self, part: &Part) -> Option<String> {
        let Some(shard) = self.shard(part.worker) else {
            return Some(format!("has a part of worker {}, which has no shard", part.worker));
        };
        let Some(size) = part.size() else {
            return Some(format!(
                "has a part of {}{:?}, which is too large or of an unknown dtype",
                part.dtype, part.shape
            ));
        };
        let end = part.offset.checked_add(size).filter(|end| *end <= shard.bytes && part.offset >= shard.header_bytes);
        end.is_none().then(|| format!("has a part at {} that is outside of the data of `{}`", part.offset, shard.file))
    }
}
