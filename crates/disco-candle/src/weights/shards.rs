//! The weights of one rank.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Tensor};

use crate::Runs;
use crate::weights::files::Fnv;
use crate::weights::{Encoding, Part, Plan, Weights, WeightsError};

/// The weights of one rank: its part of each tensor, by a [`Plan`].
///
/// Clones share the opened files and the progress.
///
/// ```
/// # use std::collections::HashMap;
/// # use std::sync::Arc;
/// # use candle_core::{DType, Device, Tensor};
/// use disco_candle::weights::{Plan, Shards, Split, Weights};
///
/// # let folder = tempfile::tempdir()?;
/// # let tensor = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?;
/// # candle_core::safetensors::save(&HashMap::from([("w", tensor)]), folder.path().join("model.safetensors"))?;
/// let weights = Arc::new(Weights::open(folder.path())?);
/// let shards = Shards::new(weights, Plan::new().with("w", Split::even(0, 1)), 1, 4, DType::F32, Device::Cpu)
///     .with_progress(|done, total| println!("{done} of {total} bytes"));
/// assert_eq!(shards.tensor("w")?.dims(), [2, 4]);
/// assert_eq!(shards.expected_bytes(), 2 * 4 * 4);
/// assert_eq!(
///     shards.tensor_of("w", &[4, 8]).unwrap_err().to_string(),
///     format!(
///         "`{}`: tensor `w` has the shape [8, 4], and the model expects [4, 8]",
///         folder.path().join("model.safetensors").display(),
///     ),
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Shards {
    pub(super) weights: Arc<Weights>,
    pub(super) plan: Plan,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) dtype: DType,
    pub(super) device: Device,
    /// Set if the files have the parts of this rank alone.
    pub(super) saved: Option<Arc<Saved>>,
    progress: Option<Arc<Progress>>,
}

/// Facts about the whole model in a file of one rank's parts.
pub(super) struct Saved {
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    pub(super) fingerprint: u64,
}

struct Progress {
    done: AtomicU64,
    total: u64,
    report: Box<dyn Fn(u64, u64) + Send + Sync>,
}

impl Shards {
    /// The parts of rank `rank` of `size`, as tensors of `dtype` on `device`. Reads nothing.
    pub fn new(weights: Arc<Weights>, plan: Plan, rank: usize, size: usize, dtype: DType, device: Device) -> Self {
        Self { weights, plan, rank, size, dtype, device, saved: None, progress: None }
    }

    /// Calls `report` after each tensor with the bytes that were read so far, and the bytes of all parts of this rank.
    ///
    /// The first number does not exceed the second, even if tensors are read twice.
    #[must_use]
    pub fn with_progress(mut self, report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        let total = self.expected_bytes();
        self.progress = Some(Arc::new(Progress { done: AtomicU64::new(0), total, report: Box::new(report) }));
        self
    }

    /// Bytes of all parts of this rank: its share of the split tensors, and the replicated tensors.
    ///
    /// A tensor that can't be split or read counts nothing; [`tensor`](Self::tensor) returns its error.
    pub fn expected_bytes(&self) -> u64 {
        let bytes = |name| self.part(name).and_then(|part| self.weights.bytes_of(name, &part));
        self.weights.names().filter_map(|name| bytes(name).ok()).sum()
    }

    /// Bytes of memory of all parts of this rank: in the type of these shards, or in the blocks that are [read](Weights::read_quantized).
    pub fn memory_bytes(&self, is_as_in_files: bool) -> u64 {
        self.weights.names().filter_map(|name| self.memory_bytes_of(name, is_as_in_files).ok()).sum()
    }

    /// As [`memory_bytes`](Self::memory_bytes), of one tensor.
    ///
    /// # Errors
    /// Errors of [`Plan::part`]; there is no such tensor.
    pub fn memory_bytes_of(&self, name: &str, is_as_in_files: bool) -> Result<u64, WeightsError> {
        let encoding = self.weights.info(name)?.encoding();
        let elements = self.part(name)?.shape(self.weights.info(name)?.shape()).iter().product::<usize>();
        match encoding.run() {
            // A scale, and at most a byte for each element.
            Some(run) if is_as_in_files => return Ok((elements.div_ceil(run) * (run + 2)) as u64),
            _ if is_as_in_files => return self.weights.bytes_of(name, &self.part(name)?),
            _ => (),
        }
        Ok((elements * self.dtype_of(name)?.size_in_bytes()) as u64)
    }

    /// Reads this rank's part of a tensor. Floats become the type of these shards; integers keep their type.
    ///
    /// # Errors
    /// Errors of [`Plan::part`] and of [`Weights::read`].
    pub fn tensor(&self, name: &str) -> Result<Tensor, WeightsError> {
        let part = self.part(name)?;
        let tensor = self.weights.read(name, &part, self.dtype_of(name)?, &self.device)?;
        self.report(name, &part)?;
        Ok(tensor)
    }

    /// Reads this rank's part of a tensor whose whole shape is `shape`.
    ///
    /// # Errors
    /// [`WrongShape`](WeightsError::WrongShape), and errors of [`tensor`](Self::tensor).
    pub fn tensor_of(&self, name: &str, shape: &[usize]) -> Result<Tensor, WeightsError> {
        self.expect(name, shape)?;
        self.tensor(name)
    }

    /// Reads this rank's part of a tensor of GGUF, quantised as in the file or as [`Encoding::quantized`] says.
    ///
    /// # Errors
    /// Errors of [`Plan::part`] and of [`Weights::read_quantized`].
    pub fn quantized(&self, name: &str) -> Result<QTensor, WeightsError> {
        let part = self.part(name)?;
        let tensor = self.weights.read_quantized(name, &part, &self.device)?;
        self.report(name, &part)?;
        Ok(tensor)
    }

    /// Reads the blocks of GGUF that cover this rank's part of a tensor, and the columns of the blocks that are the part.
    ///
    /// # Errors
    /// Errors of [`Plan::part`] and of [`Weights::read_covering`].
    pub fn covering(&self, name: &str) -> Result<(QTensor, Range<usize>), WeightsError> {
        let part = self.part(name)?;
        let blocks = self.weights.read_covering(name, &part, &self.device)?;
        self.report(name, &part)?;
        Ok(blocks)
    }

    /// As [`covering`](Self::covering), of a tensor that has [runs](Encoding::run).
    ///
    /// # Errors
    /// Errors of [`Plan::part`] and of [`Weights::read_runs`].
    pub fn runs(&self, name: &str) -> Result<(Runs, Range<usize>), WeightsError> {
        let part = self.part(name)?;
        let runs = self.weights.read_runs(name, &part)?;
        self.report(name, &part)?;
        Ok(runs)
    }

    /// Shape of the whole tensor `name`, of which this rank has a part.
    ///
    /// # Errors
    /// [`UnknownTensor`](WeightsError::UnknownTensor).
    pub fn shape(&self, name: &str) -> Result<&[usize], WeightsError> {
        let shape = self.weights.info(name)?.shape();
        let whole = self.saved.as_ref().and_then(|saved| saved.shapes.get(name));
        Ok(whole.map_or(shape, Vec::as_slice))
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    /// The opened files.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// The split plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The rank whose parts these are.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Type of the float tensors.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A hash of the files' [fingerprint](Weights::fingerprint), the plan and the number of ranks. All ranks of a session
    /// have the same, also if each loaded its own saved shard.
    pub fn fingerprint(&self) -> u64 {
        let weights = self.saved.as_ref().map_or_else(|| self.weights.fingerprint(), |saved| saved.fingerprint);
        let mut hash = Fnv::new();
        hash.add(&weights.to_le_bytes());
        hash.add(self.plan.to_string().as_bytes());
        hash.add(&(self.size as u64).to_le_bytes());
        hash.0
    }

    /// The part of a tensor of the opened files.
    fn part(&self, name: &str) -> Result<Part, WeightsError> {
        let info = self.weights.info(name)?;
        match self.saved {
            Some(_) => Ok(Part::Whole),
            None => self.plan.part(name, info.shape(), self.rank, self.size),
        }
    }

    /// Type of a tensor that is read.
    pub(super) fn dtype_of(&self, name: &str) -> Result<DType, WeightsError> {
        Ok(match self.weights.info(name)?.encoding() {
            Encoding::Dense(dtype) if dtype.is_int() => dtype,
            _ => self.dtype,
        })
    }

    fn expect(&self, name: &str, expected: &[usize]) -> Result<(), WeightsError> {
        let found = self.shape(name)?;
        if found == expected {
            return Ok(());
        }
        Err(WeightsError::WrongShape {
            file: self.weights.info(name)?.file().into(),
            tensor: name.to_owned(),
            found: found.to_vec(),
            expected: expected.to_vec(),
        })
    }

    fn report(&self, name: &str, part: &Part) -> Result<(), WeightsError> {
        let Some(progress) = &self.progress else { return Ok(()) };
        let bytes = self.weights.bytes_of(name, part)?;
        let done = progress.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        (progress.report)(done.min(progress.total), progress.total);
        Ok(())
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("path", &self.weights.path())
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("dtype", &self.dtype)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
