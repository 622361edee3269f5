//! Elements of parameters from files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use disco_core::{Error, Result, Tensor, WorkerContext};
use md5::{Digest as _, Md5};

use super::cache::{DataFile, Parameter};

/// Opens a file and checks its size, and its MD5 sum if the metadata has one.
///
/// # Errors
/// The file can't be read, or has another size or sum than the metadata says.
pub(super) fn open(path: &Path, about: &DataFile) -> Result<File> {
    let failed = |error| Error::system(format!("can't open the weights `{}`", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?.len();
    if found != about.bytes {
        return Err(Error::invalid(format!(
            "the weights `{}` have {found} bytes, but the metadata says {}: the file is not complete, or is of another \
             model",
            path.display(),
            about.bytes
        )));
    }
    if let Some(sum) = &about.md5 {
        let unread = |error| Error::system(format!("can't read the weights `{}`", path.display()), error);
        let mut found = Md5::new();
        io::copy(&mut &file, &mut found).map_err(unread)?;
        if format!("{:x}", found.finalize()) != *sum {
            return Err(Error::invalid(format!(
                "the weights `{}` have another MD5 sum than the metadata says: the file is damaged, or is of another model",
                path.display()
            )));
        }
    }
    Ok(file)
}

/// Reads a parameter into a tensor on the worker's device.
///
/// # Errors
/// The file can't be read; the device has too little memory.
pub(super) fn read(ctx: &mut WorkerContext, file: &File, path: &Path, parameter: &Parameter) -> Result<Tensor> {
    let tensor = ctx.empty(parameter.dtype, parameter.shape.clone())?;
    let host =
        if ctx.device().is_host() { tensor.clone() } else { Tensor::zeros(parameter.dtype, parameter.shape.clone())? };
    fill(file, &host, parameter).map_err(|error| {
        Error::system(format!("can't read parameter `{}` from `{}`", parameter.name, path.display()), error)
    })??;
    if !ctx.device().is_host() {
        ctx.queue().copy_in(&tensor, &host)?;
    }
    Ok(tensor)
}

/// Reads the elements. The outer error is the file's, the inner one the tensor's.
fn fill(file: &File, tensor: &Tensor, parameter: &Parameter) -> std::io::Result<Result<()>> {
    /// Bytes of halved elements that are read at once.
    const CHUNK_BYTES: usize = 1 << 16;
    let mut bytes = match tensor.bytes_mut() {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    if !parameter.is_halved {
        file.read_exact_at(&mut bytes, parameter.offset)?;
        return Ok(Ok(()));
    }
    let mut halves = [0; CHUNK_BYTES];
    let mut offset = parameter.offset;
    for elements in bytes.chunks_mut(2 * CHUNK_BYTES) {
        let halves = &mut halves[..elements.len() / 2];
        file.read_exact_at(halves, offset)?;
        offset += halves.len() as u64;
        for (element, half) in elements.chunks_exact_mut(4).zip(halves.chunks_exact(2)) {
            // The upper half is behind the lower one: elements are little-endian.
            element[..2].fill(0);
            element[2..].copy_from_slice(half);
        }
    }
    Ok(Ok(()))
}
