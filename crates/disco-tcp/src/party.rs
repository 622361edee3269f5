//! The ranks of a communicator that connect to each other.

use std::sync::Arc;
use std::time::Duration;

use disco_core::link::Descriptors;
use disco_core::{Error, Result, Store};
use disco_engine::token::Token;

use crate::contact::{Contact, Network};
use crate::machines::Machines;

/// The ranks that connect.
#[derive(Clone, Debug)]
pub(crate) struct Party {
    /// Begins the keys of the communicator in the session's store.
    pub(crate) name: String,
    /// Both ends of a connection prove that they have it.
    pub(crate) key: Token,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) machines: Arc<Machines>,
    /// How the ranks of a machine share memory.
    pub(crate) descriptors: Arc<dyn Descriptors>,
    /// Whether the rank asks for encrypted connections to other machines.
    pub(crate) encrypts: bool,
    /// The addresses that the rank tries, and gives to the others.
    pub(crate) network: Network,
    /// Limit of the wait for all ranks.
    pub(crate) deadline: Duration,
}

impl Party {
    /// Whether the connection to another rank is encrypted: if it leaves the machine, and one of its ends asks for it.
    pub(crate) fn encrypts(&self, peer: usize, contact: &Contact) -> bool {
        self.machines.of(self.rank) != self.machines.of(peer) && (self.encrypts || contact.encrypts)
    }

    /// The key in the store of a rank's contact.
    pub(crate) fn contact_key(&self, rank: usize) -> String {
        format!("{}: contact of rank {rank}", self.name)
    }

    /// The key in the store of the addresses of rank `to` at which rank `from` has not reached it.
    pub(crate) fn tried_key(&self, from: usize, to: usize) -> String {
        format!("{}: rank {from} tries rank {to}", self.name)
    }

    /// The key in the store of the error of the first rank that does not connect.
    fn unconnected_key(&self) -> String {
        format!("{}: not connected", self.name)
    }

    /// Writes an error for the other ranks, which then wait no longer. An abort ends their waits already.
    pub(crate) fn record<T>(&self, store: &dyn Store, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && !matches!(error, Error::Aborted { .. })
        {
            let text = format!("rank {}: {error}", self.rank);
            // Without the store, the other ranks wait until their deadline.
            _ = store.compare_and_set(&self.unconnected_key(), None, text.as_bytes());
        }
        result
    }

    /// Fails once another rank has [recorded](Self::record) an error.
    ///
    /// # Errors
    /// [`Error::Aborted`]; errors of the store.
    pub(crate) fn check_others(&self, store: &dyn Store) -> Result<()> {
        let recorded = store.get(&self.unconnected_key())?;
        recorded
            .map_or(Ok(()), |text| Err(Error::Aborted { cause: String::from_utf8_lossy(&text).into_owned().into() }))
    }

    /// The error of the connect deadline.
    pub(crate) fn late(&self, state: String) -> Error {
        Error::Deadline { operation: "connect".into(), after: self.deadline, state }
    }
}

#[cfg(test)]
mod tests {
    use disco_core::link::Shared;

    use super::*;

    #[test]
    fn connections_that_leave_a_machine_are_encrypted_if_one_end_asks_for_it() {
        let network = Network { interfaces: Vec::new(), uplink: None };
        let machines = Arc::new(Machines::new([0, 0, 1].into_iter()));
        let (name, key, deadline) = ("test".to_owned(), Token::new("a secret of many words").unwrap(), Duration::ZERO);
        let descriptors = Arc::new(Shared::default());
        let party = Party { name, key, rank: 1, size: 3, machines, descriptors, encrypts: false, network, deadline };
        let contact = |encrypts| Contact { host: "a".into(), addresses: Vec::new(), encrypts, memory: None };
        let asking = Party { encrypts: true, ..party.clone() };
        let encrypts = |party: &Party, encrypts| [0, 2].map(|peer| party.encrypts(peer, &contact(encrypts)));
        assert_eq!([encrypts(&party, false), encrypts(&party, true)], [[false, false], [false, true]]);
        assert_eq!(encrypts(&asking, false), [false, true]);
    }
}
