//! The memory through which the ranks of a machine reach each other: the rings of a rank are in a segment that its neighbours map.
//!
//! ```text
//! segment   u64 mark, 128 bytes │ a ring to each neighbour, in the order of their ranks, 256.5 KiB each
//! ```
//!
//! The name and the mark of the segment are in the rank's [contact](crate::contact). The handshake tells each end whether the
//! other one has mapped its segment; otherwise their bytes go over TCP.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disco_core::link::{Descriptors, SharedFd};
use disco_core::shared_memory::Segment;
use disco_core::{Error, Result};
use disco_engine::random;

use crate::contact::{Contact, Offer};
use crate::machines::Machines;
use crate::party::Party;
use crate::ring::{Memory, Reader, Rings, Writer};

/// Bytes before the first ring.
const MARK_BYTES: usize = 128;
/// Limit of the wait for a descriptor.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The segment of a rank, and the way to those of its neighbours. Neighbours can map it until it is dropped.
#[derive(Debug)]
pub(crate) struct Neighbours {
    own: Option<(Arc<Segment>, Offer)>,
    descriptors: Arc<dyn Descriptors>,
    machines: Arc<Machines>,
    rank: usize,
}

impl Neighbours {
    /// The neighbours of a rank. Without memory for the rings, they are reached over TCP.
    pub(crate) fn of(party: &Party) -> Self {
        let (machines, rank, descriptors) = (party.machines.clone(), party.rank, party.descriptors.clone());
        let count = machines.neighbours(rank).count();
        let own = (count > 0).then(|| share(&*descriptors, count)).transpose();
        let own = own.inspect_err(|error| tracing::debug!(%error, "no shared memory for the ranks of this machine"));
        Self { own: own.ok().flatten(), descriptors, machines, rank }
    }

    /// What the neighbours need to map this rank's segment.
    pub(crate) fn offer(&self) -> Option<Offer> {
        self.own.as_ref().map(|(_, offer)| *offer)
    }

    /// The rings between this rank and a neighbour; `None` if there are none, also on another machine.
    pub(crate) fn rings(&self, peer: usize, contact: &Contact) -> Option<Rings> {
        let there = self.place(peer, self.rank)?;
        let outgoing = Writer::new(Memory::new(self.own.as_ref()?.0.clone(), self.place(self.rank, peer)?));
        let opened = open(&*self.descriptors, contact.memory?, there + Memory::BYTES);
        let opened = opened.inspect_err(|error| tracing::debug!(peer, %error, "no shared memory"));
        Some(Rings { outgoing, incoming: Reader::new(Memory::new(Arc::new(opened.ok()?), there)) })
    }

    /// Where the ring from a rank to its neighbour begins in the segment of the former.
    fn place(&self, from: usize, to: usize) -> Option<usize> {
        let is_neighbour = self.machines.of(from) == self.machines.of(to);
        let place = self.machines.neighbours(from).position(|rank| rank == to).filter(|_| is_neighbour)?;
        Some(MARK_BYTES + place * Memory::BYTES)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        if let Some((_, offer)) = &self.own {
            self.descriptors.unshare(SharedFd::from_bits(offer.name));
        }
    }
}

/// A segment with rings to this number of neighbours.
fn share(descriptors: &dyn Descriptors, neighbours: usize) -> Result<(Arc<Segment>, Offer)> {
    let mark = random::bytes().map(u64::from_le_bytes);
    let mark = mark.map_err(|error| Error::system("no random number for shared memory", error))?;
    let segment = Segment::create(MARK_BYTES + neighbours * Memory::BYTES)?;
    segment.words()[0].store(mark, Ordering::Relaxed);
    let fd = segment.as_fd().try_clone_to_owned();
    let fd = fd.map_err(|error| Error::system(format!("{segment:?} can't be shared"), error))?;
    let name = descriptors.share(fd)?.to_bits();
    Ok((Arc::new(segment), Offer { name, mark }))
}

/// Maps the segment of a neighbour, which has this size at least.
fn open(descriptors: &dyn Descriptors, offer: Offer, bytes: usize) -> Result<Segment> {
    let fd = descriptors.receive(SharedFd::from_bits(offer.name), RECEIVE_TIMEOUT)?;
    let segment = Segment::open(fd, bytes)?;
    if segment.words()[0].load(Ordering::Relaxed) != offer.mark {
        return Err(Error::protocol("the descriptor that a rank of this machine has named is not its shared memory"));
    }
    Ok(segment)
}

#[cfg(test)]
mod tests {
    use disco_core::link::Shared;
    use disco_engine::token::Token;

    use super::*;
    use crate::contact::Network;

    #[test]
    fn ranks_of_a_machine_have_rings_to_each_other_unless_the_segment_is_another_one() {
        let descriptors = Arc::new(Shared::default());
        let ranks = [0, 1, 2].map(|rank| {
            let (name, key) = ("test".to_owned(), Token::new("a secret of many words").unwrap());
            let machines = Arc::new(Machines::new([0, 7, 0].into_iter()));
            let (network, descriptors, deadline) = (Network::default(), descriptors.clone(), Duration::ZERO);
            let party = Party { name, key, rank, size: 3, machines, descriptors, encrypts: true, network, deadline };
            Neighbours::of(&party)
        });
        let contact = |rank: usize| {
            let memory = ranks[rank].offer();
            Contact { host: "a".into(), addresses: Vec::new(), encrypts: true, memory }
        };
        assert_eq!([0, 1, 2].map(|rank| ranks[rank].offer().is_some()), [true, false, true]);
        let (mut one, mut other) = (ranks[0].rings(2, &contact(2)).unwrap(), ranks[2].rings(0, &contact(0)).unwrap());
        let mut bytes = [0; 4];
        assert_eq!(one.outgoing.write([b"a", b"b"]).unwrap().0, 2);
        assert_eq!((other.incoming.read(&mut bytes).unwrap().0, &bytes[..2]), (2, &b"ab"[..]));
        assert_eq!(other.outgoing.write([b"xyz", b""]).unwrap().0, 3);
        assert_eq!((one.incoming.read(&mut bytes).unwrap().0, &bytes[..3]), (3, &b"xyz"[..]));

        assert!(ranks[0].rings(1, &contact(1)).is_none(), "another machine");
        let wrong = contact(2).memory.map(|offer| Offer { mark: offer.mark ^ 1, ..offer });
        assert!(ranks[0].rings(2, &Contact { memory: wrong, ..contact(2) }).is_none(), "another segment");
    }
}
