//! Files of one worker's parts: safetensors, written once and read in parts.
//!
//! ```text
//! n: u64 little-endian │ n bytes of JSON: name → { dtype, shape, data_offsets: [start, end] } │ data
//! ```

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};

use crate::checksum::Checksum;
use crate::index::{self, Part};
use crate::message::{Fault, Written};

/// Bytes of one write, and between two checks of a cancelled save.
const CHUNK_BYTES: usize = 4 << 20;

/// Bytes between two waits for the disk, so that progress is progress of the disk.
const SYNC_BYTES: usize = 1 << 30;

/// A tensor to write.
pub(crate) struct Source<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    pub(crate) bytes: &'a [u8],
}

/// Writes a new shard and waits for the disk. `advance` gets the size of each write, and returns an error to end the
/// save. Returns the shard, and the position and the checksum of each source.
pub(crate) fn write(
    path: &Path,
    metadata: Map<String, Value>,
    sources: &[Source<'_>],
    advance: impl Fn(usize) -> io::Result<()>,
) -> Result<(Written, Vec<(u64, Checksum)>), Fault> {
    // Large elements first, so that all are aligned.
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sources[*index].dtype.bitsize()));
    let (header, mut places) = header(metadata, sources, &order);
    let failed = |operation| move |error: io::Error| Fault::io(path, operation, &error);
    let mut file = File::create_new(path).map_err(failed("creating the shard"))?;
    file.write_all(&header).map_err(failed("writing the shard"))?;
    let mut unsynced = 0;
    for index in order {
        let mut hasher = crc32fast::Hasher::new();
        for chunk in sources[index].bytes.chunks(CHUNK_BYTES) {
            hasher.update(chunk);
            file.write_all(chunk).map_err(failed("writing the shard"))?;
            unsynced += chunk.len();
            if unsynced >= SYNC_BYTES {
                file.sync_data().map_err(failed("writing the shard to the disk"))?;
                unsynced = 0;
            }
            advance(chunk.len()).map_err(failed("writing the shard"))?;
        }
        places[index].1 = hasher.into();
    }
    file.sync_all().map_err(failed("writing the shard to the disk"))?;
    let bytes = places.iter().zip(sources).map(|((start, _), source)| start + source.bytes.len() as u64);
    let header_bytes = header.len() as u64;
    let bytes = bytes.max().unwrap_or(header_bytes);
    Ok((Written { bytes, header_bytes, header_crc32: Checksum::of(&header) }, places))
}

/// The bytes before the data, and the position of each source in the file.
fn header(metadata: Map<String, Value>, sources: &[Source<'_>], order: &[usize]) -> (Vec<u8>, Vec<(u64, Checksum)>) {
    let mut tensors = Map::from_iter([("__metadata__".to_owned(), Value::Object(metadata))]);
    let (mut starts, mut start) = (vec![0; sources.len()], 0);
    for index in order {
        let Source { name, dtype, shape, bytes } = sources[*index];
        let end = start + bytes.len();
        let info = TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) };
        tensors.insert(name.to_owned(), json!(info));
        (starts[*index], start) = (start, end);
    }
    let mut text = Value::Object(tensors).to_string();
    // Spaces up to a multiple of 8, which aligns the data.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let header = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let places = starts.into_iter().map(|start| ((header.len() + start) as u64, Checksum::of(&[])));
    (header.clone(), places.collect())
}

/// An opened shard, whose length and header are those of the index.
pub(crate) struct Shard {
    path: PathBuf,
    file: File,
}

impl Shard {
    pub(crate) fn open(folder: &Path, entry: &index::Shard) -> Result<Self, Fault> {
        let path = folder.join(&entry.file);
        let mut file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Fault::damaged(&path, "the file does not exist on this worker's machine"),
            _ => Fault::io(&path, "opening the shard", &error),
        })?;
        let failed = |error: io::Error| Fault::io(&path, "reading the shard", &error);
        let found = file.metadata().map_err(failed)?.len();
        if found != entry.bytes {
            return Err(Fault::damaged(&path, format!("it has {found} bytes, expected {}", entry.bytes)));
        }
        let mut hasher = crc32fast::Hasher::new();
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
        let mut hasher = crc32fast::Hasher::new();
        self.seek(part)?;
        for chunk in target.chunks_mut(CHUNK_BYTES) {
            self.read_chunk(what, chunk)?;
            hasher.update(chunk);
        }
        check(&self.path, what, hasher.into(), part.crc32)
    }

    /// Reads part `what` and compares the checksum.
    pub(crate) fn verify(&mut self, what: &str, part: &Part) -> Result<(), Fault> {
        let mut hasher = crc32fast::Hasher::new();
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
    match found == expected {
        true => Ok(()),
        false => Err(Fault::damaged(path, format!("{what} has the checksum {found}, expected {expected}"))),
    }
}
