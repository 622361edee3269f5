//! A buffer of each rank that all ranks of the machine can access.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, OnceLock};

use disco_core::tensor::Storage;
use disco_core::{AbortCause, DType, Error, Rank, Result, Shape, Tensor};

use super::decision::Decision;
use super::memory::{Memory, RankMemory};
use super::memory_descriptor::MemoryDescriptor;
use super::rendezvous::{Consensus, Introduction, Offer, Rendezvous};
use super::self_test;
use super::stream::P2pStream;
use super::topology::{Ends, Mesh, RANKS, Topology};
use super::word_table::WordTable;
use crate::driver::BusId;
use crate::polling;
use crate::runtime::Runtime;

/// A buffer of each rank in device memory, which all ranks can read and write: by [streams](P2pStream), or as tensors
/// ([`Workspace::p2p_buffer`]). The program orders accesses itself, by signals, barriers or collectives. The output of
/// a collective must not be in a buffer, since peers could read it before it is complete.
///
/// Drop does not wait: a teardown thread closes the memory of peers once this rank's streams are done, and frees this
/// rank's memory once all peers have closed it. Tensors of a buffer keep the workspace alive.
#[derive(Clone)]
pub struct Workspace {
    memory: Arc<Memory>,
}

/// The result of [`Workspace::meet`].
#[non_exhaustive]
#[derive(Debug)]
pub struct MeetOutcome {
    /// The shared memory.
    pub workspace: Workspace,
    /// The shape of the ranks' devices.
    pub decision: Decision,
    /// The largest number of ranks that share a device.
    pub max_ranks_per_device: u32,
    /// The note of each rank, by rank.
    pub notes: Vec<Vec<u8>>,
}

/// Default size of each rank's buffer, as in PyTorch's `IntraNodeComm`: 10 MiB. Kernels have another buffer of this
/// size.
pub const DEFAULT_BUFFER_BYTES: usize = 10 << 20;

impl Workspace {
    /// Agrees with all ranks to share a buffer of `bytes` bytes each, and tests that each rank can access the memory of
    /// each other rank. `links` queries the links between the devices of all ranks. `note` returns data that all ranks
    /// get from this rank, after the decision on the topology.
    ///
    /// # Errors
    /// Two ranks are on one device; [`Error::Deadline`] names the absent ranks; `DISCO_P2P_TOPOLOGY` is not possible
    /// for these devices; the errors of the store.
    pub fn meet(
        runtime: &Arc<Runtime>,
        rendezvous: &Rendezvous,
        bytes: usize,
        links: impl FnOnce(&[BusId]) -> Result<Mesh>,
        note: impl FnOnce(&Decision) -> Vec<u8>,
    ) -> Result<Consensus<MeetOutcome>> {
        let size = rendezvous.size();
        if !RANKS.contains(&size) {
            return Ok(Consensus::Declined(format!(
                "peer-to-peer memory needs {} to {} ranks, and the communicator has {size}",
                RANKS.start(),
                RANKS.end()
            )));
        }
        runtime.make_current()?;
        let bus_id = runtime.driver().peers().and_then(|peers| peers.bus_id().map_err(|error| error.to_string()));
        let sites = match rendezvous.introduce(bus_id.map(Introduction::here))? {
            Consensus::Declined(why) => return Ok(Consensus::Declined(why)),
            Consensus::Accepted(sites) => sites,
        };
        let mesh = links(&sites);
        let decision = Decision::of(size, &mesh);
        let offered = match &decision {
            Ok(decision) => offer(runtime, rendezvous, bytes, mesh, decision, note(decision)),
            Err(error) => Err(error.to_string()),
        };
        // A rank without an offer takes part as well, since the other ranks wait for it.
        let (memory, own) = match offered {
            Ok((memory, offer)) => (Some(memory), Ok(offer)),
            Err(why) => (None, Err(why)),
        };
        let descriptors = rendezvous.offer(own)?;
        let decision = decision?;
        let descriptors = match (descriptors, memory) {
            (Consensus::Accepted(descriptors), Some(memory)) => join(memory, rendezvous, &descriptors)?,
            (Consensus::Accepted(_), None) => Consensus::Declined("this rank has no shared memory".to_owned()),
            (Consensus::Declined(why), _) => Consensus::Declined(why),
        };
        Ok(match descriptors {
            Consensus::Accepted((memory, notes)) => {
                let on = |site: &BusId| sites.iter().filter(|other| *other == site).count() as u32;
                let max_ranks_per_device = sites.iter().map(on).max().unwrap_or(1);
                Consensus::Accepted(MeetOutcome { workspace: Self { memory }, decision, max_ranks_per_device, notes })
            }
            Consensus::Declined(why) => Consensus::Declined(why),
        })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        Rank::new(self.memory.rank as u32)
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// The size of each rank's buffer in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// Returns a part of a rank's buffer as a tensor, without a copy, like PyTorch's `get_p2p_buffer`. The tensor
    /// starts at byte `offset`, a multiple of the dtype's size.
    ///
    /// # Errors
    /// The rank does not exist; the tensor exceeds the buffer; the offset is not a multiple of the dtype's size.
    pub fn p2p_buffer(&self, rank: Rank, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        if !offset.is_multiple_of(dtype.size()) {
            return Err(Error::invalid(format!(
                "p2p_buffer: offset {offset} is not a multiple of {}, the size of {dtype}",
                dtype.size()
            )));
        }
        Tensor::in_new_storage(dtype, shape, |bytes| {
            let address = self.memory.buffer_address("p2p_buffer", rank, offset, bytes)?;
            let (device, keeper) = (self.memory.runtime.device(), Box::new(self.memory.clone()));
            // SAFETY: the range has `bytes` bytes that the device can access while `keeper` lives. Every bit pattern is
            // a valid element.
            Ok(unsafe { Storage::from_raw(address, bytes, device, keeper) })
        })
    }

    /// Copies and signals on the worker's stream, in order with its collectives.
    pub fn main(&self) -> P2pStream<'_> {
        P2pStream::main(&self.memory)
    }

    /// Copies and signals on a second stream.
    ///
    /// # Errors
    /// The driver can't make the stream.
    pub fn side(&self) -> Result<P2pStream<'_>> {
        P2pStream::side(&self.memory)
    }

    /// The address of a rank's state of kernels, for this rank's device: [`STATE_BYTES`](super::STATE_BYTES).
    pub fn state(&self, rank: usize) -> *mut u8 {
        self.memory.address(rank, 0)
    }

    /// The address of a rank's second buffer, for this rank's device. Only kernels use it, and it has the size of the
    /// first buffer. It does not exist if the topology is unknown.
    pub fn kernels_buffer(&self, rank: usize) -> *mut u8 {
        self.memory.kernels_buffer(rank)
    }

    /// Ends all waits for signals, and makes later operations fail. From any thread; does not wait.
    pub fn abort(&self, cause: &AbortCause) {
        self.memory.signals.mark_broken(cause);
        Memory::release(&self.memory);
    }

    /// Drops this reference. If it is the last one, waits up to 2 s until peers have closed this rank's memory: if this
    /// process ended at once, work of peers could still use the memory.
    pub fn leave(self) {
        Memory::leave(self.memory);
    }

    /// Keeps a value until the workspace is dropped and its streams are done; then drops the value with the device
    /// current.
    pub fn keep(&self, what: Box<dyn Any + Send>) {
        self.memory.keep(what);
    }

    /// The device and the worker's stream.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.memory.runtime
    }

    /// Describes the first wait that a stream has not passed; None if no stream waits.
    pub fn stalled_on(&self) -> Option<String> {
        self.memory.signals.stalled_on(self.memory.runtime.driver())
    }
}

disco_core::format_as!(Debug for Workspace, |it| "{:?}", it.memory);

/// Allocates this rank's memory, and makes the offer for its peers.
fn offer(
    runtime: &Arc<Runtime>,
    rendezvous: &Rendezvous,
    bytes: usize,
    mesh: Result<Mesh>,
    decision: &Decision,
    note: Vec<u8>,
) -> Result<(Memory, Offer), String> {
    let (position, text) = ((rendezvous.rank(), rendezvous.size()), |error: Error| error.to_string());
    let has_kernels = decision.topology != Topology::Unknown;
    let memory = Memory::new(runtime, position, bytes, has_kernels, rendezvous.deadline()).map_err(text)?;
    if !polling::wait_up_to(rendezvous.time_left(), || runtime.is_idle().unwrap_or(true)) {
        return Err(format!("earlier work on {} does not complete within the deadline", runtime.device()));
    }
    let own = memory.address(memory.rank, 0);
    // SAFETY: `alloc_shared` of this driver allocated the memory.
    let export = runtime.driver().peers().and_then(|peers| unsafe { peers.export(own) }.map_err(text));
    let descriptor = MemoryDescriptor {
        process: process(),
        nonce: random_u64(),
        ordinal: runtime.device().ordinal,
        address: own as usize as u64,
        bytes: bytes as u64,
        words: memory.words_of(memory.rank).addresses().to_vec(),
        export,
        note,
    };
    // Unknown links count as no links.
    let mesh = mesh.unwrap_or_else(|_| Mesh::new(&vec![Ends::default(); rendezvous.size()]));
    Ok((memory, Offer { mesh, topology: decision.topology, handles: descriptor.write() }))
}

/// The memory of all ranks, and their notes.
type Joined = (Arc<Memory>, Vec<Vec<u8>>);

/// Opens the memory of all peers, and runs the self-test.
fn join(mut memory: Memory, rendezvous: &Rendezvous, descriptors: &[Vec<u8>]) -> Result<Consensus<Joined>> {
    let descriptors: Vec<MemoryDescriptor> =
        descriptors.iter().map(|bytes| MemoryDescriptor::read(bytes)).collect::<Result<_>>()?;
    memory.enable_close_handshake(rendezvous.store());
    if let Some(other) = descriptors.iter().position(|descriptor| descriptor.bytes != descriptors[0].bytes) {
        let (first, second) = (descriptors[0].bytes, descriptors[other].bytes);
        return Ok(Consensus::Declined(format!("rank 0 has a buffer of {first} bytes, and rank {other} of {second}")));
    }
    let opened = open(&mut memory, &descriptors);
    let (memory, nonces): (_, Vec<u64>) =
        (Arc::new(memory), descriptors.iter().map(|descriptor| descriptor.nonce).collect());
    let written = opened.and_then(|()| self_test::write_patterns(&memory, nonces[memory.rank], rendezvous.time_left()));
    if let Consensus::Declined(why) = rendezvous.report("written", written)? {
        return Ok(Consensus::Declined(why));
    }
    if let Consensus::Declined(why) =
        rendezvous.report("found", self_test::check_patterns(&memory, &nonces, rendezvous.time_left()))?
    {
        return Ok(Consensus::Declined(why));
    }
    if let Consensus::Declined(why) =
        rendezvous.report("words", self_test::exchange_signals(&memory, rendezvous.time_left()))?
    {
        return Ok(Consensus::Declined(why));
    }
    // One rank after the other, so that the other ranks can release one whose streams are blocked.
    for turn in 0..memory.size() {
        let released =
            if turn == memory.rank { self_test::check_release(&memory, rendezvous.time_left()) } else { Ok(()) };
        if let Consensus::Declined(why) = rendezvous.report(&format!("release {turn}"), released)? {
            if turn != memory.rank {
                self_test::release_peer(&memory, turn, rendezvous.time_left());
            }
            return Ok(Consensus::Declined(why));
        }
    }
    Ok(Consensus::Accepted((memory, descriptors.into_iter().map(|descriptor| descriptor.note).collect())))
}

/// Opens the memory of all peers: directly in this process, by their handles in other processes.
fn open(memory: &mut Memory, descriptors: &[MemoryDescriptor]) -> Result<(), String> {
    let runtime = memory.runtime.clone();
    let (peers, own) = (runtime.driver().peers()?, memory.rank);
    for (rank, descriptor) in descriptors.iter().enumerate().filter(|(rank, _)| *rank != own) {
        let peer = Rank::new(rank as u32);
        let base = if descriptor.process == process() {
            let words = WordTable::of_peer(&descriptor.words, descriptors.len());
            let words =
                words.ok_or_else(|| format!("{peer} has sent {} addresses of signal words", descriptor.words.len()))?;
            peers.enable_access(descriptor.ordinal).map(|()| RankMemory::direct(descriptor.address as usize, words))
        } else {
            let export = descriptor.export().map_err(|why| format!("{peer} can't share its memory: {why}"))?;
            peers.open(export).map(RankMemory::opened)
        };
        memory.add(rank, base.map_err(|error| format!("can't open the memory of {peer}: {error}"))?);
    }
    Ok(())
}

/// A random number that identifies this process.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(random_u64)
}

/// A random number, from the seed of the standard library's hasher.
fn random_u64() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
