//! Files of one rank's parts: written once, and loaded without the whole model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::safetensors::tensor::{TensorInfo, View};
use candle_core::{DType, Device};
use serde_json::{Map, Value, json};

use crate::weights::find::names_in;
use crate::weights::safetensors::malformed;
use crate::weights::shards::Saved;
use crate::weights::source::io_error;
use crate::weights::{Encoding, Plan, Shards, Weights, WeightsError};

/// Keys of the metadata.
const PLAN: &str = "disco.plan";
const RANK: &str = "disco.rank";
const SIZE: &str = "disco.size";
const SHAPES: &str = "disco.shapes";
const FINGERPRINT: &str = "disco.fingerprint";

impl Shards {
    /// Writes this rank's parts to `PREFIX-rank-I-of-N.safetensors` and returns that path. The tensors have the types of
    /// [`tensor`](Self::tensor): quantised tensors are written dequantised. The plan and the shapes of the whole tensors
    /// are in the metadata.
    ///
    /// The file has a temporary name until it is complete. At most one tensor is in memory at a time.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use std::sync::Arc;
    /// # use candle_core::{DType, Device, Tensor};
    /// use disco_candle::weights::{Plan, Shards, Split, Weights};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let tensor = Tensor::arange(0f32, 8., &Device::Cpu)?;
    /// # candle_core::safetensors::save(&HashMap::from([("w", tensor)]), folder.path().join("model.safetensors"))?;
    /// let weights = Arc::new(Weights::open(folder.path())?);
    /// let plan = Plan::new().with("w", Split::even(0, 1));
    /// let prefix = folder.path().join("split");
    /// for rank in 0..2 {
    ///     Shards::new(weights.clone(), plan.clone(), rank, 2, DType::F32, Device::Cpu).save(&prefix)?;
    /// }
    /// let shards = Shards::load(&prefix, plan, 1, 2, DType::F32, Device::Cpu)?;
    /// assert_eq!(shards.tensor_of("w", &[8])?.to_vec1::<f32>()?, [4., 5., 6., 7.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Errors of [`tensor`](Self::tensor), and errors of writing.
    pub fn save(&self, prefix: impl AsRef<Path>) -> Result<PathBuf, WeightsError> {
        let path = shard_path(prefix.as_ref(), self.rank, self.size);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let written = self.write(&partial).and_then(|()| {
            std::fs::rename(&partial, &path).map_err(|source| io_error(&path, "renaming the complete file", source))
        });
        if written.is_err() {
            // The error of writing says more than one of removing would.
            _ = std::fs::remove_file(&partial);
        }
        written.map(|()| path)
    }

    /// Opens the file of rank `rank` of `size` that [`save`](Self::save) wrote with the same prefix and plan. Its
    /// tensors are those of the shards that were saved.
    ///
    /// # Errors
    /// [`NoShard`](WeightsError::NoShard) if there is no file of this rank and size,
    /// [`OtherShard`](WeightsError::OtherShard) if it was saved by another plan, and errors of [`Weights::open`].
    pub fn load(
        prefix: impl AsRef<Path>,
        plan: Plan,
        rank: usize,
        size: usize,
        dtype: DType,
        device: Device,
    ) -> Result<Self, WeightsError> {
        let prefix = prefix.as_ref();
        let file = shard_path(prefix, rank, size);
        if !file.is_file() {
            return Err(WeightsError::NoShard { found: sibling_shards(&file, prefix), file, rank, size });
        }
        let weights = Weights::open(&file)?;
        let saved = check(&file, &weights, &plan, rank, size)?;
        let mut shards = Self::new(Arc::new(weights), plan, rank, size, dtype, device);
        shards.saved = Some(Arc::new(saved));
        Ok(shards)
    }

    fn write(&self, path: &Path) -> Result<(), WeightsError> {
        let (header, order) = self.header()?;
        let failed = |source: io::Error| io_error(path, "writing the shard", source);
        let file = File::create(path).map_err(failed)?;
        let mut file = io::BufWriter::with_capacity(1 << 20, file);
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        file.write_all(header.as_bytes()).map_err(failed)?;
        for name in order {
            let tensor = self.tensor(name)?.to_device(&Device::Cpu).map_err(|source| WeightsError::Candle {
                file: path.to_owned(),
                tensor: name.to_owned(),
                operation: "move to the host",
                source: Box::new(source),
            })?;
            file.write_all(&View::data(&tensor)).map_err(failed)?;
        }
        file.flush().map_err(failed)
    }

    /// The text of the header, and the order of the tensors: large elements first, so that all are aligned.
    fn header(&self) -> Result<(String, Vec<&str>), WeightsError> {
        let mut order = Vec::new();
        let mut shapes = BTreeMap::new();
        for name in self.weights.names() {
            let dtype = self.dtype_of(name)?;
            if matches!(dtype, DType::F4 | DType::F6E2M3 | DType::F6E3M2 | DType::F8E8M0) {
                let (file, tensor) = (self.weights.info(name)?.file().into(), name.to_owned());
                return Err(WeightsError::Unsupported { file, tensor, encoding: Encoding::Dense(dtype) });
            }
            let whole = self.shape(name)?;
            let part = self.plan.part(name, whole, self.rank, self.size)?.shape(whole);
            shapes.insert(name, whole);
            order.push((name, dtype, part));
        }
        order.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.size_in_bytes()));
        let metadata = json!({
            PLAN: self.plan.to_string(),
            RANK: self.rank.to_string(),
            SIZE: self.size.to_string(),
            SHAPES: json!(shapes).to_string(),
            FINGERPRINT: format!("{:016x}", self.source_fingerprint()),
        });
        let mut header = Map::from_iter([("__metadata__".to_owned(), metadata)]);
        let mut start = 0;
        for (name, dtype, shape) in &order {
            let end = start + shape.iter().product::<usize>() * dtype.size_in_bytes();
            let info = TensorInfo { dtype: (*dtype).into(), shape: shape.clone(), data_offsets: (start, end) };
            header.insert((*name).to_owned(), json!(info));
            start = end;
        }
        let mut text = Value::Object(header).to_string();
        // Spaces up to a multiple of 8, which aligns the data.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        Ok((text, order.into_iter().map(|(name, _, _)| name).collect()))
    }

    fn source_fingerprint(&self) -> u64 {
        self.saved.as_ref().map_or_else(|| self.weights.fingerprint(), |saved| saved.fingerprint)
    }
}

/// Checks that a file was saved for this session.
fn check(file: &Path, weights: &Weights, plan: &Plan, rank: usize, size: usize) -> Result<Saved, WeightsError> {
    let text = |key: &str| {
        let text = weights.metadata().get(key);
        text.ok_or_else(|| malformed(file, format!("it has no metadata `{key}`, which every saved shard has")))
    };
    let other = |what, saved: String, wanted: String| {
        Err(WeightsError::OtherShard { file: file.to_owned(), what, saved, wanted })
    };
    let ranks = (format!("rank {} of {}", text(RANK)?, text(SIZE)?), format!("rank {rank} of {size}"));
    if ranks.0 != ranks.1 {
        return other("another rank or number of ranks:", ranks.0, ranks.1);
    }
    let saved_plan = text(PLAN)?.parse::<Plan>()?;
    if saved_plan != *plan {
        let line = |plan: &Plan, index: usize| plan.to_string().lines().nth(index).unwrap_or("no rule").to_owned();
        let differs = |index: &usize| saved_plan.rules.get(*index) != plan.rules.get(*index);
        let first = (0..).find(differs).unwrap_or(0);
        return other(
            "another plan, whose first other rule is",
            quoted(&line(&saved_plan, first)),
            quoted(&line(plan, first)),
        );
    }
    let invalid = |key: &str| malformed(file, format!("its metadata `{key}` is not valid"));
    let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_str(text(SHAPES)?).map_err(|_| invalid(SHAPES))?;
    let fingerprint = u64::from_str_radix(text(FINGERPRINT)?, 16).map_err(|_| invalid(FINGERPRINT))?;
    for name in weights.names() {
        let whole = shapes.get(name).ok_or_else(|| invalid(SHAPES))?;
        let part = plan.part(name, whole, rank, size)?;
        let fits = part.problem(whole).is_none() && part.shape(whole) == weights.info(name)?.shape();
        if !fits {
            return Err(malformed(
                file,
                format!("tensor `{name}` is not the part of rank {rank} of {size} by its plan"),
            ));
        }
    }
    Ok(Saved { shapes, fingerprint })
}

fn quoted(rule: &str) -> String {
    format!("`{rule}`")
}

fn shard_path(prefix: &Path, rank: usize, size: usize) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("-rank-{rank}-of-{size}.safetensors"));
    path.into()
}

/// Names of the shards with the same prefix, whatever the rank and number of ranks; none if the folder can't be listed.
fn sibling_shards(file: &Path, prefix: &Path) -> Vec<String> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = prefix.file_name().unwrap_or_default().to_string_lossy();
    let is_shard = |name: &String| {
        let rest = name.strip_prefix(&*prefix).and_then(|rest| rest.strip_prefix("-rank-"));
        rest.is_some_and(|rest| rest.ends_with(".safetensors") && rest.contains("-of-"))
    };
    names_in(folder).unwrap_or_default().into_iter().filter(is_shard).collect()
}
