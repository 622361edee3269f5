//! The files that a path names: one file, the files of an index, or the files of a folder.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::weights::safetensors::malformed;
use crate::weights::source::{Source, io_error};
use crate::weights::{WeightsError, gguf};

/// The end of the name of an index.
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// The longest index in bytes.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// The files that a path names.
pub(super) enum Found {
    /// Files of safetensors, without an index.
    Safetensors(Vec<PathBuf>),
    /// The index of several files of safetensors.
    Index(PathBuf),
    /// A file of GGUF, the first of several if the model is split.
    Gguf(PathBuf),
}

/// Finds the files of weights at `path`.
pub(super) fn find(path: &Path) -> Result<Found, WeightsError> {
    let meta = std::fs::metadata(path).map_err(|source| io_error(path, "looking at the path", source))?;
    if meta.is_dir() {
        return find_in(path);
    }
    // A file in the storage of a program such as Ollama has no extension, but its first bytes tell its format.
    let start = Source::open(path)?.start::<9>()?;
    match path.extension().and_then(|end| end.to_str()) {
        _ if start.starts_with(&gguf::MAGIC) => Ok(Found::Gguf(path.to_owned())),
        Some("gguf") => Ok(Found::Gguf(path.to_owned())),
        Some("json") => Ok(Found::Index(path.to_owned())),
        Some("safetensors") => Ok(Found::Safetensors(vec![path.to_owned()])),
        _ if start[8] == b'{' => Ok(Found::Safetensors(vec![path.to_owned()])),
        _ => Err(WeightsError::UnknownFormat { path: path.to_owned() }),
    }
}

/// The ends of the names of weights in formats that are not read.
const OTHER_FORMATS: [&str; 9] = [".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".npz", ".ggml"];

/// Files with these ends that a training leaves beside weights.
const OF_TRAINING: [&str; 4] = ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"];

/// The configuration of an adapter.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Whether a file belongs to an adapter of a model: `adapter_config.json`, or weights such as
/// `adapter_model.safetensors` (peft) and `adapters.safetensors` (MLX).
fn is_of_adapter(name: &str) -> bool {
    let ends = [".safetensors", INDEX_SUFFIX, ".gguf"].into_iter().chain(OTHER_FORMATS);
    name == ADAPTER_CONFIG || name.starts_with("adapter") && ends.into_iter().any(|end| name.ends_with(end))
}

/// An index is preferred to the files beside it.
fn find_in(folder: &Path) -> Result<Found, WeightsError> {
    let names = names_in(folder)?;
    if let Some(file) = names.iter().find(|name| is_of_adapter(name)) {
        return Err(WeightsError::Adapter { folder: folder.to_owned(), file: file.clone() });
    }
    let ending = |end: &str| names.iter().filter(|name| name.ends_with(end)).collect::<Vec<_>>();
    let (indices, dense, gguf) = (ending(INDEX_SUFFIX), ending(".safetensors"), ending(".gguf"));
    let ambiguous = |found: &[&String]| {
        let found = found.iter().map(ToString::to_string).collect();
        Err(WeightsError::Ambiguous { folder: folder.to_owned(), found })
    };
    let no_dense = indices.is_empty() && dense.is_empty();
    match (indices.as_slice(), gguf.as_slice()) {
        ([], []) if no_dense => {
            let is_other = |name: &&String| {
                OTHER_FORMATS.iter().any(|end| name.ends_with(end)) && !OF_TRAINING.contains(&name.as_str())
            };
            let other = names.iter().filter(is_other).cloned().collect();
            Err(WeightsError::NoWeights { folder: folder.to_owned(), other })
        }
        ([], []) => Ok(Found::Safetensors(dense.into_iter().map(|name| folder.join(name)).collect())),
        ([index], []) => Ok(Found::Index(folder.join(index))),
        ([], [first, ..]) if no_dense && are_one_model(&gguf) => Ok(Found::Gguf(folder.join(first))),
        ([], gguf) => ambiguous(&[&dense[..], gguf].concat()),
        (indices, gguf) => ambiguous(&[indices, gguf].concat()),
    }
}

/// Sorted names of the files in a folder, without hidden files.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>, WeightsError> {
    let failed = |source| io_error(folder, "listing the folder", source);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.into_string().ok().filter(|name| !name.starts_with('.')));
    }
    names.sort();
    Ok(names)
}

/// Whether files of GGUF, which are sorted, are one file or all files of one model.
fn are_one_model(names: &[&String]) -> bool {
    let first = names.first().and_then(|name| split_name(name));
    let parts = names.iter().map(|name| split_name(name));
    names.len() == 1
        || first.is_some_and(|(prefix, _, _)| {
            parts.enumerate().all(|(index, part)| part == Some((prefix, index as u64 + 1, names.len() as u64)))
        })
}

/// Prefix, number and count of `PREFIX-00001-of-00003.gguf`.
fn split_name(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

/// The further files of a GGUF model of `count` files, whose first is `first`.
pub(super) fn further_files(first: &Path, count: u64) -> Result<Vec<PathBuf>, WeightsError> {
    let name = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some((prefix, 1, in_name)) = split_name(name).filter(|(_, _, in_name)| *in_name == count) else {
        let problem = format!(
            "its metadata says that it is one of {count} files; open the first of them, with its original name that \
             ends with `-00001-of-{count:05}.gguf`"
        );
        return Err(malformed(first, problem));
    };
    // A file that is missing ends the search, so that a hostile count costs nothing.
    let existing = |number: u64| {
        let file = first.with_file_name(format!("{prefix}-{number:05}-of-{in_name:05}.gguf"));
        if file.is_file() { Ok(file) } else { Err(WeightsError::MissingFile { by: first.to_owned(), file }) }
    };
    (2..=count).map(existing).collect()
}

/// A parsed index.
pub(super) struct Index {
    /// Files of the tensors.
    pub(super) files: BTreeMap<String, PathBuf>,
    /// Length of the index in bytes.
    pub(super) bytes: u64,
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

/// Reads an index. Its files are beside it or below, and exist.
pub(super) fn read_index(path: &Path) -> Result<Index, WeightsError> {
    let source = Source::open(path)?;
    if source.len > MAX_INDEX_BYTES {
        return Err(malformed(
            path,
            format!("an index has at most {MAX_INDEX_BYTES} bytes, and it has {}", source.len),
        ));
    }
    let raw = serde_json::from_reader::<_, RawIndex>(source.reader());
    let raw = raw.map_err(|error| malformed(path, format!("it is not an index of tensors: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files = BTreeMap::new();
    for (tensor, name) in raw.weight_map {
        let mut components = Path::new(&name).components().peekable();
        let inside =
            components.peek().is_some() && components.all(|component| matches!(component, Component::Normal(_)));
        if !inside {
            return Err(WeightsError::OutsideFolder { index: path.to_owned(), name, tensor });
        }
        files.insert(tensor, folder.join(name));
    }
    let missing = files.values().find(|file| !file.is_file());
    match missing {
        Some(file) => Err(WeightsError::MissingFile { by: path.to_owned(), file: file.clone() }),
        None => Ok(Index { files, bytes: source.len }),
    }
}
