//! Exchanges between the ranks of a communicator through the session's store.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use disco_core::{Error, Result, Store, attendance};

use crate::abi::UniqueId;
use crate::library::Library;
use crate::p2p::shares_devices;
use crate::runtime::Runtime;

/// The view that one communicator has of the session's store.
#[derive(Debug)]
pub(crate) struct Meeting {
    store: Arc<dyn Store>,
    /// Prefix of the keys: equal on all ranks, and different from that of each other communicator.
    name: String,
}

impl Meeting {
    pub(crate) fn new(store: Arc<dyn Store>, id: &UniqueId) -> Self {
        let name = id.0.iter().fold("ccl ".to_owned(), |mut name, byte| {
            // Writing to a `String` can't fail.
            _ = write!(name, "{byte:02x}");
            name
        });
        Self { store, name }
    }

    /// For a communicator that is split off this one.
    pub(crate) fn child(&self, name: String) -> Self {
        Self { store: self.store.clone(), name }
    }

    /// Gathers the bytes of all ranks, in the order of ranks.
    fn exchange(
        &self,
        what: &str,
        position: (usize, usize),
        bytes: &[u8],
        operation: &str,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>> {
        attendance::all_gather(&*self.store, &format!("{}: {what}", self.name), position, bytes, operation, deadline)
    }

    /// The store, and a prefix for the keys of another exchange `what`.
    pub(crate) fn store_and_key(&self, what: &str) -> (Arc<dyn Store>, String) {
        (self.store.clone(), format!("{}: {what}", self.name))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Refuses two ranks on one device, with an error on all ranks that names both ranks. With `DISCO_SHARE_DEVICES=1`,
    /// checks instead that the library supports shared devices.
    pub(crate) fn check_devices(
        &self,
        library: &Library,
        runtime: &Runtime,
        (rank, size): (usize, usize),
        deadline: Duration,
    ) -> Result<()> {
        let identity = runtime.driver().identity();
        // A rank whose query fails takes part as well, since the other ranks wait for it.
        let own = identity.as_ref().map_or_else(|_| format!("of rank {rank}"), String::clone);
        let all = self.exchange("device", (rank, size), own.as_bytes(), "connect", deadline)?;
        identity?;
        for (second, device) in all.iter().enumerate() {
            if let Some(first) = all[..second].iter().position(|earlier| earlier == device) {
                let device = String::from_utf8_lossy(device);
                if shares_devices()? {
                    return library
                        .check_sharing(&format!("rank {first} and rank {second} are both on device {device}"));
                }
                return Err(Error::invalid(format!(
                    "rank {first} and rank {second} are both on device {device}, and {} supports one rank per device: \
                     give each worker its own device with `--devices`, or start no more workers than devices",
                    library.backend()
                )));
            }
        }
        Ok(())
    }

    /// Splits without `ncclCommSplit`: the first rank of each color makes a unique id, and the other ranks of the color
    /// read it from the store. Returns this rank in the child, the number of ranks in the child, and the unique id.
    /// `split` is the number of the split, equal on all ranks.
    pub(crate) fn split(
        &self,
        library: &Library,
        (own, size): (usize, usize),
        (split, color, key): (u64, i32, i32),
        deadline: Duration,
    ) -> Result<Option<(usize, usize, UniqueId)>> {
        let (what, words) = (format!("split {split}"), [color.to_le_bytes(), key.to_le_bytes()].concat());
        let all = self.exchange(&what, (own, size), &words, "split", deadline)?;
        if color < 0 {
            return Ok(None);
        }
        let number = |bytes: &[u8]| bytes.try_into().map(i32::from_le_bytes).unwrap_or_default();
        let mut members: Vec<(i32, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, words)| words.len() == 8 && number(&words[..4]) == color)
            .map(|(rank, words)| (number(&words[4..]), rank))
            .collect();
        members.sort_unstable();
        let me = members.iter().position(|(_, rank)| *rank == own).unwrap_or_default();
        let key = format!("{}, {what}: unique id of color {color}", self.name);
        if me == 0 {
            self.store.set(&key, &library.unique_id()?.0)?;
        }
        let id = self.store.wait(&key, deadline)?;
        let id =
            id.try_into().map_err(|_| Error::protocol("split: the unique id in the store does not have 128 bytes"))?;
        Ok(Some((me, members.len(), UniqueId(id))))
    }
}
