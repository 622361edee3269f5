//! Memory of each rank that all ranks of a machine reach.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, OnceLock};

use disco_core::tensor::Storage;
use disco_core::{DType, Error, Rank, Result, Shape, Tensor};

use super::decision::Decision;
use super::memory::{Base, Memory};
use super::memory_descriptor::MemoryDescriptor;
use super::rendezvous::{Consensus, Introduction, Offer, Rendezvous};
use super::self_test;
use super::stream::P2pStream;
use super::topology::{Ends, Mesh, RANKS, Topology};
use super::word_table::WordTable;
use crate::driver::BusId;
use crate::polling;
use crate::runtime::Runtime;

/// A buffer of each rank, in plain device memory, that every rank reads and writes: by [lanes](P2pStream), or as tensors
/// ([`Workspace::p2p_buffer`]). Who uses it sees to the order itself, with signals, barriers or collectives. What a collective writes
/// is none of it: peers may read it before it is whole.
///
/// Dropping it waits for nothing: peers' memory is closed when this rank's streams are done, and own memory is freed when all peers have
/// closed it, whoever drops theirs first. Tensors of it keep it.
#[derive(Clone)]
pub struct Workspace {
    memory: Arc<Memory>,
}

/// What ranks have come to.
#[non_exhaustive]
#[derive(Debug)]
pub struct MeetOutcome {
    /// Their memory.
    pub workspace: Workspace,
    /// What their devices are to each other.
    pub decision: Decision,
    /// How many ranks are on the device that most are on.
    pub max_ranks_per_device: u32,
    /// What each rank has said besides, by rank.
    pub notes: Vec<Vec<u8>>,
}

/// Bytes of each rank's buffer where nobody says otherwise, as in the reference (PyTorch's `IntraNodeComm`): 10 MiB. Kernels have as
/// many besides.
pub const DEFAULT_BUFFER_BYTES: usize = 10 << 20;

impl Workspace {
    /// Meets the other ranks, each with a buffer of so many bytes, and makes sure that each reaches the others' memory. `links` finds
    /// the links between all ranks' devices; what `note` says, after that was decided, all ranks get to know.
    ///
    /// # Errors
    /// Two ranks are on one device, and may not be; [`Error::Deadline`], which names who has not come; those of the store;
    /// `DISCO_P2P_TOPOLOGY` asks for what can't be.
    pub fn meet(
        runtime: &Arc<Runtime>,
        rendezvous: &Rendezvous,
        bytes: usize,
        links: impl FnOnce(&[BusId]) -> Result<Mesh>,
        note: impl FnOnce(&Decision) -> Vec<u8>,
    ) -> Result<Consensus<MeetOutcome>> {
        let size = rendezvous.size();
        if !RANKS.contains(&size) {
            return Ok(Consensus::Declined(format!("{size} ranks, where {} to {} can", RANKS.start(), RANKS.end())));
        }
        runtime.make_current()?;
        let place = runtime.driver().peers().and_then(|peers| peers.bus_id().map_err(|error| error.to_string()));
        let sites = match rendezvous.introduce(place.map(Introduction::here))? {
            Consensus::Declined(why) => return Ok(Consensus::Declined(why)),
            Consensus::Accepted(sites) => sites,
        };
        let mesh = links(&sites);
        let decision = Decision::of(size, &mesh);
        let offered = match &decision {
            Ok(decision) => offer(runtime, rendezvous, bytes, mesh, decision, note(decision)),
            Err(error) => Err(error.to_string()),
        };
        // The others wait for it, also where it can't.
        let (memory, own) = match offered {
            Ok((memory, offer)) => (Some(memory), Ok(offer)),
            Err(why) => (None, Err(why)),
        };
        let descriptors = rendezvous.offer(own)?;
        let decision = decision?;
        let descriptors = match (descriptors, memory) {
            (Consensus::Accepted(descriptors), Some(memory)) => join(memory, rendezvous, &descriptors)?,
            (Consensus::Accepted(_), None) => Consensus::Declined("this rank has nothing to offer".to_owned()),
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

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    /// Bytes of each rank's buffer.
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// A part of a rank's buffer, from a byte on that is a multiple of the dtype's size, as a tensor of this rank's device: the reference's
    /// `get_p2p_buffer`. It has what was there.
    ///
    /// # Errors
    /// There is no such rank, or not so much room; the offset does not fit the dtype.
    pub fn p2p_buffer(&self, rank: Rank, offset: usize, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        if !offset.is_multiple_of(dtype.size()) {
            return Err(Error::invalid(format!("p2p_buffer: byte {offset} is none where a {dtype} may begin")));
        }
        Tensor::in_new_storage(dtype, shape, |bytes| {
            let place = self.memory.place("p2p_buffer", rank, offset, bytes)?;
            let (device, keeper) = (self.memory.runtime.device(), Box::new(self.memory.clone()));
            // SAFETY: it is so many bytes that the device reaches for as long as the memory is kept; any bytes are elements.
            Ok(unsafe { Storage::from_raw(place, bytes, device, keeper) })
        })
    }

    /// Copies and words on the worker's own stream, in order with its collectives.
    pub fn main(&self) -> P2pStream<'_> {
        P2pStream::main(&self.memory)
    }

    /// Copies and words on a second stream.
    ///
    /// # Errors
    /// It can't be made.
    pub fn side(&self) -> Result<P2pStream<'_>> {
        P2pStream::side(&self.memory)
    }

    /// Where a rank's memory starts, for this one's device: [`STATE_BYTES`](super::STATE_BYTES) that kernels have.
    pub fn state(&self, rank: usize) -> *mut u8 {
        self.memory.at(rank, 0)
    }

    /// Where a rank's buffer for kernels starts, for this one's device: as many bytes as the other, which they leave alone. There is none
    /// where no topology is known.
    pub fn kernels_buffer(&self, rank: usize) -> *mut u8 {
        self.memory.kernels_buffer(rank)
    }

    /// Ends all waits for signals, now and to come: nothing is enqueued any more. From any thread; waits for nothing.
    pub fn abort(&self, cause: &Arc<str>) {
        self.memory.signals.mark_broken(cause);
        Memory::release(&self.memory);
    }

    /// Gives it up. Where nobody else has it, this waits, not for long, until peers have closed this rank's memory: those of a process
    /// that ends may have work under way.
    pub fn leave(self) {
        Memory::leave(self.memory);
    }

    /// Keeps something until the streams are done with all that is enqueued while anybody has this; then it is dropped with the
    /// device current.
    pub fn keep(&self, what: Box<dyn Any + Send>) {
        self.memory.keep(what);
    }

    /// The device and its stream.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.memory.runtime
    }

    /// The wait that a stream is held up by, in words, as far as is known.
    pub fn stalled_on(&self) -> Option<String> {
        self.memory.signals.stalled_on(self.memory.runtime.driver())
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.memory)
    }
}

/// This rank's memory, and what it tells its peers of that.
fn offer(
    runtime: &Arc<Runtime>,
    rendezvous: &Rendezvous,
    bytes: usize,
    mesh: Result<Mesh>,
    decision: &Decision,
    note: Vec<u8>,
) -> Result<(Memory, Offer), String> {
    let (place, words) = ((rendezvous.rank(), rendezvous.size()), |error: Error| error.to_string());
    let has_kernels = decision.topology != Topology::Unknown;
    let memory = Memory::new(runtime, place, bytes, has_kernels, rendezvous.deadline()).map_err(words)?;
    if !polling::wait_up_to(rendezvous.left(), || runtime.is_idle().unwrap_or(true)) {
        return Err(format!("{} has other work, which does not end", runtime.device()));
    }
    let own = memory.at(memory.rank, 0);
    // SAFETY: it was allocated there.
    let export = runtime.driver().peers().and_then(|peers| unsafe { peers.export(own) }.map_err(words));
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
    // Links that nobody knows are none.
    let mesh = mesh.unwrap_or_else(|_| Mesh::new(&vec![Ends::default(); rendezvous.size()]));
    Ok((memory, Offer { mesh, topology: decision.topology, handles: descriptor.write() }))
}

/// All ranks' memory, and what each has said besides.
type Joined = (Arc<Memory>, Vec<Vec<u8>>);

/// Opens all peers' memory, and makes sure of it.
fn join(mut memory: Memory, rendezvous: &Rendezvous, descriptors: &[Vec<u8>]) -> Result<Consensus<Joined>> {
    let descriptors: Vec<MemoryDescriptor> =
        descriptors.iter().map(|bytes| MemoryDescriptor::read(bytes)).collect::<Result<_>>()?;
    memory.is_shown_to_peers(rendezvous.store());
    if let Some(other) = descriptors.iter().position(|descriptor| descriptor.bytes != descriptors[0].bytes) {
        let (first, second) = (descriptors[0].bytes, descriptors[other].bytes);
        return Ok(Consensus::Declined(format!("rank 0 has a buffer of {first} bytes, and rank {other} of {second}")));
    }
    let opened = open(&mut memory, &descriptors);
    let (memory, nonces): (_, Vec<u64>) =
        (Arc::new(memory), descriptors.iter().map(|descriptor| descriptor.nonce).collect());
    let written = opened.and_then(|()| self_test::write_patterns(&memory, nonces[memory.rank], rendezvous.left()));
    if let Consensus::Declined(why) = rendezvous.report("written", written)? {
        return Ok(Consensus::Declined(why));
    }
    if let Consensus::Declined(why) =
        rendezvous.report("found", self_test::check_patterns(&memory, &nonces, rendezvous.left()))?
    {
        return Ok(Consensus::Declined(why));
    }
    if let Consensus::Declined(why) =
        rendezvous.report("words", self_test::exchange_signals(&memory, rendezvous.left()))?
    {
        return Ok(Consensus::Declined(why));
    }
    // One after the other, so that the others can help one whose stream hangs.
    for turn in 0..memory.size() {
        let released = if turn == memory.rank { self_test::check_release(&memory, rendezvous.left()) } else { Ok(()) };
        if let Consensus::Declined(why) = rendezvous.report(&format!("poke {turn}"), released)? {
            if turn != memory.rank {
                self_test::release_peer(&memory, turn, rendezvous.left());
            }
            return Ok(Consensus::Declined(why));
        }
    }
    Ok(Consensus::Accepted((memory, descriptors.into_iter().map(|descriptor| descriptor.note).collect())))
}

fn open(memory: &mut Memory, descriptors: &[MemoryDescriptor]) -> Result<(), String> {
    let runtime = memory.runtime.clone();
    let (peers, own) = (runtime.driver().peers()?, memory.rank);
    for (rank, descriptor) in descriptors.iter().enumerate().filter(|(rank, _)| *rank != own) {
        let peer = Rank::new(rank as u32);
        let base = match descriptor.process == process() {
            true => {
                let words = WordTable::of_peer(&descriptor.words, descriptors.len());
                let words = words.ok_or_else(|| format!("{peer} tells of {} words", descriptor.words.len()))?;
                peers.enable_access(descriptor.ordinal).map(|()| Base::direct(descriptor.address as usize, words))
            }
            false => {
                let export = descriptor.export().map_err(|why| format!("{peer} can't share its memory: {why}"))?;
                peers.open(export).map(Base::opened)
            }
        };
        memory.add(rank, base.map_err(|error| format!("the memory of {peer}: {error}"))?);
    }
    Ok(())
}

/// What tells this process from all others.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(random_u64)
}

fn random_u64() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
