//! Opened files of weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use disco_core::suggestion::similar;

use crate::weights::find::{self, Found};
use crate::weights::gguf::{self, Metadata};
use crate::weights::source::Source;
use crate::weights::{TensorInfo, WeightsError, safetensors};

/// Opened files of weights: headers are parsed, and no tensor is read.
///
/// ```
/// use std::collections::HashMap;
///
/// use candle_core::{DType, Device, Tensor};
/// use disco_candle::weights::{Part, Weights};
///
/// # let folder = tempfile::tempdir()?;
/// let tensor = Tensor::arange(0u32, 6, &Device::Cpu)?.reshape((2, 3))?;
/// candle_core::safetensors::save(&HashMap::from([("token_ids", tensor)]), folder.path().join("model.safetensors"))?;
///
/// let weights = Weights::open(folder.path())?;
/// assert_eq!(weights.info("token_ids")?.shape(), [2, 3]);
/// let columns = Part::Range { dim: 1, range: 1..3 };
/// let part = weights.read("token_ids", &columns, DType::F32, &Device::Cpu)?;
/// assert_eq!(part.to_vec2::<f32>()?, [[1., 2.], [4., 5.]]);
/// assert_eq!(
///     weights.info("token_id").unwrap_err().to_string(),
///     format!("`{}` has no tensor `token_id`; did you mean `token_ids`?", folder.path().display()),
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    sources: Vec<Source>,
    /// In the order of their names.
    tensors: Vec<(Box<str>, TensorInfo)>,
    metadata: BTreeMap<String, String>,
    gguf: Option<Metadata>,
    /// Length of the index, if there is one.
    index_bytes: u64,
}

impl Weights {
    /// Opens a `.safetensors` file, a `.gguf` file, an index (`model.safetensors.index.json`), or a folder with an index,
    /// with files of safetensors or with one model of GGUF. A GGUF model of several files is opened by its first file.
    ///
    /// With an index, only the tensors of the index are opened.
    ///
    /// # Errors
    /// Paths that do not name weights, a folder with an adapter, headers that break the rules of their format, files that are shorter than their
    /// header says, files that an index names and that are missing or outside of its folder, a tensor in two files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        let mut weights = Self {
            path: path.to_owned(),
            sources: Vec::new(),
            tensors: Vec::new(),
            metadata: BTreeMap::new(),
            gguf: None,
            index_bytes: 0,
        };
        match find::find(path)? {
            Found::Safetensors(files) => files.iter().try_for_each(|file| weights.add_safetensors(file, |_| true))?,
            Found::Index(index) => weights.add_index(&index)?,
            Found::Gguf(file) => weights.add_gguf(&file)?,
        }
        Ok(weights)
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|(name, _)| &**name)
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Shape, encoding and file of a tensor.
    ///
    /// # Errors
    /// [`UnknownTensor`](WeightsError::UnknownTensor), with the most similar name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        self.find(name).ok_or_else(|| WeightsError::UnknownTensor {
            weights: self.path.clone(),
            tensor: name.to_owned(),
            similar: similar(name, self.names()).map(str::to_owned),
        })
    }

    /// The metadata of a GGUF file. Of a model of several files, that of the first.
    pub fn gguf(&self) -> Option<&Metadata> {
        self.gguf.as_ref()
    }

    /// The `__metadata__` of safetensors. Of several files with the same key, the value of the last file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files of weights, in an order that depends on their names only.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.sources.iter().map(|source| source.path.as_path())
    }

    /// Bytes that were read so far: headers, the index, and parts of tensors.
    ///
    /// A header counts without the bytes that the reader has read ahead.
    pub fn bytes_read(&self) -> u64 {
        self.index_bytes + self.sources.iter().map(Source::bytes_read).sum::<u64>()
    }

    /// A hash of the tensors' names, shapes, encodings and positions, and of the lengths of the files. Ranks that compare
    /// it notice that they opened different files. The contents of tensors are not hashed.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        for (name, info) in &self.tensors {
            hash.add(name.as_bytes());
            info.shape.iter().for_each(|dim| hash.add(&(*dim as u64).to_le_bytes()));
            hash.add(info.encoding.to_string().as_bytes());
            hash.add(&info.start.to_le_bytes());
            hash.add(&self.source(info).len.to_le_bytes());
        }
        hash.0
    }

    /// The opened file of a tensor.
    pub(super) fn source(&self, info: &TensorInfo) -> &Source {
        &self.sources[info.source]
    }

    fn add_index(&mut self, path: &Path) -> Result<(), WeightsError> {
        let index = find::read_index(path)?;
        self.index_bytes = index.bytes;
        for file in index.files.values().collect::<BTreeSet<_>>() {
            self.add_safetensors(file, |name| index.files.get(name) == Some(file))?;
        }
        let missing = index.files.into_iter().find(|(name, _)| !self.contains(name));
        match missing {
            Some((tensor, file)) => Err(WeightsError::NotInFile { index: path.to_owned(), file, tensor }),
            None => Ok(()),
        }
    }

    fn add_safetensors(&mut self, path: &Path, keep: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let source = Source::open(path)?;
        let header = safetensors::read_header(&source.path, source.reader(), source.len)?;
        source.count(header.bytes);
        self.metadata.extend(header.metadata);
        let mut tensors = header.tensors;
        tensors.retain(|(name, _)| keep(name));
        self.add(source, tensors)
    }

    fn add_gguf(&mut self, path: &Path) -> Result<(), WeightsError> {
        let metadata = self.add_gguf_file(path)?;
        let count = metadata.get("split.count").and_then(|count| u64::try_from(count.integer()?).ok()).unwrap_or(1);
        self.gguf = Some(metadata);
        if count > 1 {
            find::further_files(path, count)?.iter().try_for_each(|file| self.add_gguf_file(file).map(drop))?;
        }
        Ok(())
    }

    fn add_gguf_file(&mut self, path: &Path) -> Result<Metadata, WeightsError> {
        let source = Source::open(path)?;
        let header = gguf::read_header(&source.path, source.reader(), source.len)?;
        source.count(header.bytes);
        self.add(source, header.tensors)?;
        Ok(header.metadata)
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        let found = self.tensors.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.tensors[found].1)
    }

    fn add(&mut self, source: Source, mut tensors: Vec<(Box<str>, TensorInfo)>) -> Result<(), WeightsError> {
        for (tensor, info) in &mut tensors {
            if let Some(first) = self.find(tensor) {
                let (first, second) = (first.file().into(), source.path.to_path_buf());
                return Err(WeightsError::Duplicate { tensor: tensor.to_string(), first, second });
            }
            info.source = self.sources.len();
        }
        if self.tensors.is_empty() {
            self.tensors = tensors;
        } else {
            self.tensors.append(&mut tensors);
        }
        self.tensors.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.sources.push(source);
        Ok(())
    }
}

/// FNV-1a of 64 bits.
pub(super) struct Fnv(pub(super) u64);

impl Fnv {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds the length and the bytes, so that the borders between texts count.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let len = (bytes.len() as u64).to_le_bytes();
        for byte in len.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
