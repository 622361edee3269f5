//! Matrices in memory that outlives their worker.
//!
//! ```text
//! memory   bytes of the parts of matrices, each at a multiple of 128
//!          the entries as JSON: by key, the matrices and where their parts are
//!          where the entries begin: 8 bytes, little endian
//! ```

#![allow(unsafe_code)] // Frozen memory, and a function of glibc.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsFd as _;

use candle_core::{Error, Result};
use disco_core::link::{Keeper, KeptName};
use disco_core::shared_memory::{Filling, Frozen};
use serde::{Deserialize, Serialize};

use crate::Matrix;
use crate::products::{self, Stored};

/// Matrices of a worker that its keeper keeps: the first worker that needs them makes them, and one that takes its place maps them, for
/// reading only. So it reads nothing of them from files.
#[derive(Debug)]
pub struct Shelf {
    name: KeptName,
    memory: RefCell<Memory>,
}

#[derive(Debug)]
enum Memory {
    Filling(Filling, Entries),
    Frozen(Frozen, Entries),
    /// It could not be filled, so that matrices stay in the worker's own memory.
    Full,
}

type Entries = HashMap<String, Entry>;

/// Matrices, and what else is to be known of them.
#[derive(Debug, Deserialize, Serialize)]
struct Entry {
    matrices: Vec<(Stored, Vec<Range<usize>>)>,
    numbers: Vec<usize>,
}

/// Matrices with some numbers, which a [`Shelf`] has beside them.
pub type Numbered = (Vec<Matrix>, Vec<usize>);

impl Shelf {
    /// The matrices that all workers of a keeper find under this name, or an empty shelf to be filled.
    ///
    /// # Errors
    /// Errors of the keeper and of the system.
    pub fn open(keeper: &dyn Keeper, name: &str) -> disco_core::Result<Self> {
        let name = KeptName::shared(name);
        let memory = match keeper.find(&name)? {
            Some(fd) => {
                // SAFETY: a shelf keeps memory only after it has frozen it, and no other code keeps memory under such a name.
                let frozen = unsafe { Frozen::open(fd) }?;
                let entries = entries(&frozen).ok_or_else(|| {
                    disco_core::Error::protocol(format!("the kept memory {:?} has no matrices", name.name))
                })?;
                Memory::Frozen(frozen, entries)
            }
            None => Memory::Filling(Filling::new()?, Entries::new()),
        };
        Ok(Self { name, memory: RefCell::new(memory) })
    }

    /// The matrices and numbers with a key, which `make` makes if they are not there. Matrices that are quantised blocks of candle stay in
    /// the worker's own memory.
    ///
    /// # Errors
    /// Errors of `make`; the matrices that are there are damaged.
    pub fn matrices<E: From<Error>>(
        &self,
        key: &str,
        make: impl FnOnce() -> std::result::Result<Numbered, E>,
    ) -> std::result::Result<Numbered, E> {
        if let Memory::Frozen(memory, entries) = &*self.memory.borrow()
            && let Some(Entry { matrices, numbers }) = entries.get(key)
        {
            let open = |(matrix, parts): &(Stored, Vec<Range<usize>>)| {
                let parts = parts.iter().map(|part| memory.bytes(part.clone()));
                products::open(matrix, parts.collect::<Option<_>>()?).map(Matrix::own)
            };
            let all = matrices.iter().map(open).collect::<Option<Vec<_>>>();
            let damaged = || Error::Msg(format!("the kept matrices {key:?} are damaged"));
            return Ok((all.ok_or_else(damaged)?, numbers.clone()));
        }
        let (made, numbers) = make()?;
        Ok((self.store(key, &made, &numbers)?.unwrap_or(made), numbers))
    }

    /// Moves matrices to the memory; `None` if they stay.
    fn store(&self, key: &str, made: &[Matrix], numbers: &[usize]) -> Result<Option<Vec<Matrix>>> {
        let mut memory = self.memory.borrow_mut();
        let Memory::Filling(filling, all) = &mut *memory else { return Ok(None) };
        let Some(made) = made.iter().map(Matrix::parts).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let (mut moved, mut matrices) = (Vec::new(), Vec::new());
        for (matrix, parts) in made {
            let parts = parts.into_iter().map(|part| filling.add(part)).collect::<disco_core::Result<Vec<_>>>();
            let Ok(parts) = parts else {
                tracing::warn!("no room to keep matrices: a worker that replaces this one reads them again");
                *memory = Memory::Full;
                return Ok(None);
            };
            let places = parts.iter().map(|part| part.range()).collect();
            let own = products::open(&matrix, parts).map(Matrix::own);
            moved.push(own.ok_or_else(|| Error::Msg(format!("the matrices {key:?} can't be kept")))?);
            matrices.push((matrix, places));
        }
        all.insert(key.to_owned(), Entry { matrices, numbers: numbers.to_vec() });
        Ok(Some(moved))
    }

    /// Gives the matrices to the keeper, unless it has them already.
    ///
    /// # Errors
    /// Errors of the keeper and of the system.
    pub fn keep(self, keeper: &dyn Keeper) -> disco_core::Result<()> {
        let Memory::Filling(mut filling, entries) = self.memory.into_inner() else { return Ok(()) };
        let entries = serde_json::to_vec(&entries).map_err(|error| disco_core::Error::state(error.to_string()))?;
        let start = filling.add(&entries)?.range().start as u64;
        filling.add(&start.to_le_bytes())?;
        let memory = filling.freeze()?.as_fd().try_clone_to_owned();
        let memory = memory.map_err(|error| disco_core::Error::system("matrices can't be kept", error))?;
        // If another worker has been faster, its matrices are the same.
        keeper.keep(&self.name, memory)?;
        trim();
        Ok(())
    }
}

/// Gives memory back to the system in which matrices were before: the allocator of glibc keeps much of it.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

/// The entries of a memory; `None` if it has none.
fn entries(memory: &Frozen) -> Option<Entries> {
    let end = memory.byte_len().checked_sub(size_of::<u64>())?;
    let start = u64::from_le_bytes(memory.bytes(end..memory.byte_len())?.as_chunks().0.first().copied()?);
    let text = memory.bytes(usize::try_from(start).ok()?..end)?;
    // Zeros are between the entries and the last number, which is aligned.
    serde_json::Deserializer::from_slice(&text).into_iter().next()?.ok()
}
