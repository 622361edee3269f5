//! Files of one worker's parts: safetensors, written once and read in parts.
//!
//! ```text
//! n: u64 little-endian │ n bytes of JSON: name → { dtype, shape, data_offsets: [start, end] } │ data
//! ```

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};

use crate::checksum::Checksum;
use crate::index::{self, Part};
use crate::message::{Fault, Written};
use crate::output::{BLOCK_BYTES, Output};

/// Bytes of one write, and between two checks of a cancelled save.
const CHUNK_BYTES: usize = 4 << 20;

/// Operations for messages.
const RESERVING: &str = "reserving space for the shard";
pub(crate) const WRITING: &str = "writing the shard";
const SYNCING: &str = "writing the shard to the disk";

/// Bytes between two waits for the disk, so that progress is progress of the disk.
const SYNC_BYTES: usize = 1 << 30;

/// A tensor to write.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: usize,
}

/// The places of tensors in a new shard.
#[derive(Debug)]
pub(crate) struct Places {
    /// The bytes before the data.
    header: Vec<u8>,
    /// Positions of the tensors in the list of sources, in the order of the data.
    order: Vec<usize>,
    /// The bytes of each source in the file.
    pub(crate) ranges: Vec<Range<usize>>,
    /// Bytes of the file.
    pub(crate) bytes: usize,
}

impl Places {
    pub(crate) fn new(metadata: Map<String, Value>, sources: &[Source]) -> Self {
        // Large elements first, so that all are aligned.
        let mut order: Vec<usize> = (0..sources.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(sources[*index].dtype.bitsize()));
        let mut tensors = Map::from_iter([("__metadata__".to_owned(), Value::Object(metadata))]);
        let (mut ranges, mut start) = (vec![0..0; sources.len()], 0);
        for index in &order {
            let Source { name, dtype, shape, bytes } = &sources[*index];
            let end = start + bytes;
            let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (start, end) };
            tensors.insert(name.clone(), json!(info));
            (ranges[*index], start) = (start..end, end);
        }
        let mut text = Value::Object(tensors).to_string();
        // Spaces up to a multiple of 8, which aligns the data.
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let header = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        for range in &mut ranges {
            *range = range.start + header.len()..range.end + header.len();
        }
        let bytes = header.len() + start;
        Self { header, order, ranges, bytes }
    }

    /// Adds the bytes of `window` to the checksums of their sources. Windows follow each other; `done` counts the sources,
    /// in the order of the data, that end in earlier windows.
    fn hash(&self, memory: &[u8], window: Range<usize>, done: &mut usize, hashers: &mut [Hasher]) {
        while let Some(index) = self.order.get(*done) {
            let Range { start, end } = self.ranges[*index];
            let part = start.max(window.start)..end.min(window.end);
            if !part.is_empty() {
                hashers[*index].update(&memory[part]);
            }
            if end > window.end {
                return;
            }
            *done += 1;
        }
    }
}

/// Writes a new shard and waits for the disk. `memory` has the bytes of the sources at their places in the file, begins
/// at the address of a block, and ends with the last block of the file or later. `advance` gets the size of each write,
/// and returns an error to end the save. Returns the shard, and the checksum of each source.
pub(crate) fn write(
    path: &Path,
    places: &Places,
    memory: &mut [u8],
    advance: impl Fn(usize) -> io::Result<()>,
) -> Result<(Written, Vec<Checksum>), Fault> {
    let failed = |operation| move |error: io::Error| Fault::io(path, operation, &error);
    let (header_bytes, bytes) = (places.header.len(), places.bytes as u64);
    memory[..header_bytes].copy_from_slice(&places.header);
    let memory = &memory[..places.bytes.next_multiple_of(BLOCK_BYTES)];
    let mut output = Output::create(path).map_err(failed("creating the shard"))?;
    output.reserve(bytes).map_err(failed(RESERVING))?;
    let mut hashers = vec![Hasher::new(); places.ranges.len()];
    let (mut hashed, mut start, mut unsynced) = (0, 0, 0);
    for chunk in memory.chunks(CHUNK_BYTES) {
        places.hash(memory, start..start + chunk.len(), &mut hashed, &mut hashers);
        start += chunk.len();
        output.write(chunk).map_err(failed(WRITING))?;
        unsynced += chunk.len();
        if unsynced >= SYNC_BYTES {
            output.sync().map_err(failed(SYNCING))?;
            unsynced = 0;
        }
        advance(chunk.len()).map_err(failed(WRITING))?;
    }
    output.finish(bytes).map_err(failed(SYNCING))?;
    let checksums = hashers.into_iter().map(Checksum::from).collect();
    let header_crc32 = Checksum::of(&places.header);
    Ok((Written { bytes, header_bytes: header_bytes as u64, header_crc32 }, checksums))
}

/// An opened shard. Its length and the checksum of its header are the same as in the index.
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
}

impl Shard {
    pub(crate) fn open(folder: &Path, entry: &index::Shard) -> Result<Self, Fault> {
        let path = folder.join(&entry.file);
        let mut file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Fault::damaged(&path, "the file does not exist; the machines of all workers must share the folder")
            }
            _ => Fault::io(&path, "opening the shard", &error),
        })?;
        let failed = |error: io::Error| Fault::io(&path, "reading the shard", &error);
        let found = file.metadata().map_err(failed)?.len();
        if found != entry.bytes {
            return Err(Fault::damaged(&path, format!("it has {found} bytes, expected {}", entry.bytes)));
        }
        let mut hasher = Hasher::new();
        let mut header = (&mut file).take(entry.header_bytes);
        let mut buffer = vec![0; CHUNK_BYTES.min(entry.header_bytes as usize)];
        loop {
            match header.read(&mut buffer).map_err(failed)? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            }
        }
        check(&path, "its header", hasher.into(), entry.header_crc32)?;
        Ok(Self { path, file })
    }

    /// Reads part `what` into `target`, which has its size, and compares the checksum.
    pub(crate) fn read(&mut self, what: &str, part: &Part, target: &mut [u8]) -> Result<(), Fault> {
        let mut hasher = Hasher::new();
        self.seek(part)?;
        for chunk in target.chunks_mut(CHUNK_BYTES) {
            self.read_chunk(what, chunk)?;
            hasher.update(chunk);
        }
        check(&self.path, what, hasher.into(), part.crc32)
    }

    /// Reads part `what` and compares the checksum.
    pub(crate) fn verify(&mut self, what: &str, part: &Part) -> Result<(), Fault> {
        let mut hasher = Hasher::new();
        self.seek(part)?;
        let mut rest = part.bytes();
        let mut buffer = vec![0; rest.min(CHUNK_BYTES as u64) as usize];
        while rest > 0 {
            let chunk = &mut buffer[..rest.min(CHUNK_BYTES as u64) as usize];
            self.read_chunk(what, chunk)?;
            hasher.update(chunk);
            rest -= chunk.len() as u64;
        }
        check(&self.path, what, hasher.into(), part.crc32)
    }

    fn seek(&mut self, part: &Part) -> Result<(), Fault> {
        let sought = self.file.seek(SeekFrom::Start(part.offset));
        sought.map(drop).map_err(|error| Fault::io(&self.path, "reading the shard", &error))
    }

    fn read_chunk(&mut self, what: &str, chunk: &mut [u8]) -> Result<(), Fault> {
        self.file.read_exact(chunk).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::damaged(&self.path, format!("it ends inside of {what}")),
            _ => Fault::io(&self.path, "reading the shard", &error),
        })
    }
}

fn check(path: &Path, what: &str, found: Checksum, expected: Checksum) -> Result<(), Fault> {
    if found == expected {
        Ok(())
    } else {
        Err(Fault::damaged(path, format!("{what} has the checksum {found}, expected {expected}")))
    }
}
