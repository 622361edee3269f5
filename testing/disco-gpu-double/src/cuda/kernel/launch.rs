//! The memory of a launch: all spans that the kernel accesses, checked for access by its device.

use std::collections::BTreeMap;

use super::handshake::HandshakeState;
use super::params::{MAX_WORLD, Params, VECTOR};
use super::{Grid, Kernel};
use crate::cuda::abi::Code;
use crate::cuda::device::Device;
use crate::cuda::memory::Span;
use crate::cuda::word::Word;

/// A kernel, its parameters and its memory.
pub(super) struct Launch {
    pub(super) kernel: Kernel,
    pub(super) grid: Grid,
    pub(super) params: Params,
    /// This rank's state.
    pub(super) own: HandshakeState,
    /// States of the peers, by rank.
    pub(super) states: BTreeMap<usize, HandshakeState>,
    /// Shared buffers of this rank and of the peers, by rank.
    pub(super) data: BTreeMap<usize, Span>,
    /// The input; `None` without elements.
    pub(super) input: Option<Span>,
    pub(super) output: Option<Span>,
    pub(super) abort: Word,
    pub(super) report: Word,
}

impl Launch {
    /// Finds the memory of a launch. `None` if some memory does not exist or the device can't access it.
    pub(super) fn new(kernel: Kernel, grid: Grid, params: Params, device: &Device) -> Option<Self> {
        let rank = params.rank as usize;
        let peers = peers_of(kernel, &params)?;
        let bytes = params.count as usize * VECTOR;
        let (own_bytes, shared_bytes) = match kernel {
            Kernel::OneShot(_) | Kernel::TwoShot(_) => (bytes, bytes),
            Kernel::HybridCubeMesh(_) => (bytes, 2 * bytes),
            Kernel::Barrier => (0, 0),
        };
        let shared = |address: u64, bytes| vectors(address, bytes).filter(|span| span.check_access(device).is_ok());
        let own = |address| vectors(address, own_bytes).filter(|span| span.is_of(device));
        let state = |rank: usize| {
            let span = Span::find(params.state[rank] as usize, HandshakeState::BYTES)?;
            span.check_access(device).ok().and_then(|()| HandshakeState::new(span))
        };
        let word = |address: u64| Word::find(address).filter(|word| word.check_access(device).is_ok());
        let has_data = shared_bytes > 0;
        let data = peers.iter().copied().chain([rank]).filter(|_| has_data);
        let data = data.map(|rank| Some((rank, shared(params.data[rank], shared_bytes)?))).collect::<Option<_>>()?;
        let (input, output) =
            if has_data { (Some(own(params.input)?), Some(own(params.output)?)) } else { (None, None) };
        Some(Self {
            kernel,
            grid,
            params,
            own: state(rank)?,
            states: peers.iter().map(|&rank| Some((rank, state(rank)?))).collect::<Option<_>>()?,
            data,
            input,
            output,
            abort: word(params.abort)?,
            report: word(params.report)?,
        })
    }

    /// Checks that none of the memory was freed.
    pub(super) fn check(&self) -> Result<(), Code> {
        let states = self.states.values().chain([&self.own]).map(HandshakeState::span);
        states.chain(self.data.values()).chain(&self.input).chain(&self.output).try_for_each(Span::check)?;
        [&self.abort, &self.report].into_iter().try_for_each(Word::check)
    }
}

/// The ranks with which a launch makes handshakes. `None` if the parameters are invalid.
fn peers_of(kernel: Kernel, params: &Params) -> Option<Vec<usize>> {
    let world = params.world as usize;
    let is_possible = (1..=MAX_WORLD).contains(&world) && params.rank < params.world;
    let all = (1u32 << world.min(MAX_WORLD)) - 1;
    let mask = match kernel {
        Kernel::HybridCubeMesh(_) => params.near | 1u32.checked_shl(params.relay)?,
        _ => all,
    };
    let is_met = |rank: &usize| mask >> rank & 1 == 1 && *rank != params.rank as usize;
    (is_possible && mask & !all == 0).then(|| (0..world).filter(is_met).collect())
}

/// Memory at an address that is aligned to vectors.
fn vectors(address: u64, bytes: usize) -> Option<Span> {
    Span::find(address as usize, bytes).filter(|_| address.is_multiple_of(VECTOR as u64))
}
