//! Errors of opening, splitting and reading weights.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use disco_core::suggestion::did_you_mean;

use crate::weights::Encoding;

/// A failure to open, split, read or write weights. Each text names the file, the tensor and the remedy, where they
/// are known.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A call of the operating system failed.
    #[error("`{}`: {operation} failed: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation.
        operation: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The path does not name weights.
    #[error(
        "`{}` is no file of weights; pass a `.safetensors` or `.gguf` file, an index (`.json`) or a folder with them",
        path.display()
    )]
    UnknownFormat {
        /// The path that was opened.
        path: PathBuf,
    },
    /// The first bytes of a file are those of another format.
    #[error("`{}` is {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The kind of the file, and a remedy.
        what: &'static str,
    },
    /// A folder has no weights.
    #[error("the folder `{}` has no `.safetensors` or `.gguf` file{}", folder.display(), OtherWeights(other))]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// Files of other formats that it has.
        other: Vec<String>,
    },
    /// A folder has more than one model.
    #[error("the folder `{}` has several models: {}; pass the path of one of them", folder.display(), found.join(", "))]
    Ambiguous {
        /// The folder.
        folder: PathBuf,
        /// File names of the models.
        found: Vec<String>,
    },
    /// A folder has an adapter, which changes the results of its model.
    #[error(
        "the folder `{}` has the file `{file}` of an adapter, and adapters in the folder of a model are not applied; \
         pass the adapter's folder beside the model (`--adapter`), or the path of the model's own file or index",
        folder.display()
    )]
    Adapter {
        /// The folder.
        folder: PathBuf,
        /// The name of a file of the adapter.
        file: String,
    },
    /// The header of a file breaks the rules of its format.
    #[error("`{}` is malformed: {problem}; the file is damaged or comes from a faulty program", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The rule that the header breaks.
        problem: String,
    },
    /// A file is shorter than its header says.
    #[error(
        "`{}` is truncated: {part} needs bytes {}..{}, and the file has {len}; copy or download the file again",
        file.display(), needs.start, needs.end
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The header or the tensor, as text.
        part: String,
        /// Positions in the file of the needed bytes.
        needs: Range<u64>,
        /// The length of the file in bytes.
        len: u64,
    },
    /// An index names a file outside of its folder.
    #[error(
        "the index `{}` names the file `{name}` for tensor `{tensor}`, which is outside of the folder of the index; \
         an index may only name files beside it",
        index.display()
    )]
    OutsideFolder {
        /// The index.
        index: PathBuf,
        /// The file as the index writes it.
        name: String,
        /// A tensor that the index assigns to the file.
        tensor: String,
    },
    /// An index, or the first file of several, names a file that does not exist.
    #[error("`{}` names the file `{}`, which does not exist; copy or download the missing file", by.display(), file.display())]
    MissingFile {
        /// The index or the first file.
        by: PathBuf,
        /// The missing file.
        file: PathBuf,
    },
    /// A file lacks a tensor that the index assigns to it.
    #[error(
        "the index `{}` assigns tensor `{tensor}` to `{}`, and that file lacks the tensor; index and files are of \
         different models",
        index.display(), file.display()
    )]
    NotInFile {
        /// The index.
        index: PathBuf,
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Two files have a tensor of the same name.
    #[error(
        "tensor `{tensor}` is in `{}` and in `{}`; a folder without an index may have each tensor once",
        first.display(), second.display()
    )]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// The first file with this tensor.
        first: PathBuf,
        /// The second file with this tensor.
        second: PathBuf,
    },
    /// No file has the tensor.
    #[error("`{}` has no tensor `{tensor}`{}", weights.display(), did_you_mean(similar.as_deref()))]
    UnknownTensor {
        /// The path that was opened.
        weights: PathBuf,
        /// The name that was asked for.
        tensor: String,
        /// The most similar name that exists.
        similar: Option<String>,
    },
    /// A tensor has another shape than the program expects.
    #[error("`{}`: tensor `{tensor}` has the shape {found:?}, and the model expects {expected:?}", file.display())]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the program expects.
        expected: Vec<usize>,
    },
    /// A tensor has a type that is not known, so that the tensors behind it can't be found.
    #[error(
        "`{}`: tensor `{tensor}` has the type {kind}, which is unsupported; the file is newer than this program, or damaged",
        file.display()
    )]
    UnknownType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type as the file writes it.
        kind: String,
    },
    /// candle has no type for the elements of a tensor.
    #[error(
        "`{}`: tensor `{tensor}` has elements of {encoding}, which candle can't hold; the file is not damaged, use the \
         model in another type",
        file.display()
    )]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Encoding of the tensor.
        encoding: Encoding,
    },
    /// A tensor without quantisation blocks was read as a quantised tensor.
    #[error("`{}`: tensor `{tensor}` has elements of {encoding} and is not quantised; read it as a dense tensor", file.display())]
    NotQuantized {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Encoding of the tensor.
        encoding: Encoding,
    },
    /// A range begins or ends inside of a quantisation block.
    #[error(
        "`{}`: columns {}..{} of tensor `{tensor}` cut a block of {encoding}, which has {block} elements; split in \
         units of {block}, or read the tensor dequantised",
        file.display(), range.start, range.end
    )]
    CutBlock {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Encoding of the tensor.
        encoding: Encoding,
        /// Elements per block.
        block: usize,
        /// The range along the last dimension.
        range: Range<usize>,
    },
    /// A part is not inside of its tensor.
    #[error("`{}`: tensor `{tensor}` of shape {shape:?} has no part {part}: {problem}", file.display())]
    NoSuchPart {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape of the whole tensor.
        shape: Vec<usize>,
        /// The part, as text.
        part: String,
        /// The reason.
        problem: String,
    },
    /// A rule of a plan does not fit a tensor.
    #[error("tensor `{tensor}` of shape {shape:?} can't be split over {size} ranks by `{rule}`: {problem}")]
    NoSplit {
        /// The tensor.
        tensor: String,
        /// Shape of the whole tensor.
        shape: Vec<usize>,
        /// Number of ranks.
        size: usize,
        /// The rule as the plan prints it.
        rule: String,
        /// The reason.
        problem: String,
    },
    /// A line of a plan's text is not a rule.
    #[error("line {line} of the split plan, `{text}`, is not a rule: {problem}")]
    NotARule {
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
        /// The reason.
        problem: String,
    },
    /// There is not enough memory for a part of a tensor.
    #[error(
        "`{}`: no room for {bytes} bytes of host memory for tensor `{tensor}`; use more ranks, a smaller element type \
         or a machine with more memory",
        file.display()
    )]
    OutOfMemory {
        /// The file.
        file: PathBuf,
        /// The tensor, or the header.
        tensor: String,
        /// Size of the request.
        bytes: usize,
    },
    /// candle failed.
    #[error("`{}`: candle could not {operation} tensor `{tensor}`: {source}", file.display())]
    Candle {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The operation.
        operation: &'static str,
        /// The error of candle.
        source: Box<candle_core::Error>,
    },
    /// There is no saved shard of this rank.
    #[error("there is no file `{}` of rank {rank} of {size}; {}", file.display(), FoundShards(found))]
    NoShard {
        /// The file that is missing.
        file: PathBuf,
        /// The rank.
        rank: usize,
        /// Number of ranks.
        size: usize,
        /// Files of other ranks beside it.
        found: Vec<String>,
    },
    /// A saved shard does not fit the session that loads it.
    #[error("the shard `{}` was saved with {what} {saved}, and this session has {wanted}; save the shards again", file.display())]
    OtherShard {
        /// The file.
        file: PathBuf,
        /// The property that differs.
        what: &'static str,
        /// The property in the file.
        saved: String,
        /// The property in this session.
        wanted: String,
    },
}

/// The files of other formats in a folder without weights.
struct OtherWeights<'a>(&'a [String]);

impl fmt::Display for OtherWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            other => write!(
                f,
                "; it has `{}`, which is not read: save the model as safetensors with transformers' `save_pretrained`",
                other.join("`, `")
            ),
        }
    }
}

/// The shards that a folder has instead of the missing one.
struct FoundShards<'a>(&'a [String]);

impl fmt::Display for FoundShards<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("the folder has no shards of this name"),
            found => write!(f, "the folder has {}: save the shards again for this number of ranks", found.join(", ")),
        }
    }
}
