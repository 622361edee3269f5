//! How the ranks of a communicator agree to share memory, and exchange the handles of their memory.
//!
//! ```text
//! each rank                                                    through the session's store
//! INTRODUCTION  host, bus id of its device; or a refusal   ──▶ all ranks
//!   hosts differ: all decline          two ranks on one device: an error
//! decides the topology from the mesh of all devices, allocates its memory
//! OFFER         mesh, topology, handles; or a refusal      ──▶ all ranks
//!   meshes or topologies differ: all decline
//! opens the handles of its peers, writes a pattern to each
//! REPORT        nothing; or a refusal                      ──▶ all ranks
//! checks the patterns, and that signal words end the waits of streams
//! REPORT        nothing; or a refusal, for each step       ──▶ all ranks
//!   a refusal of any rank: all close the memory of their peers, and decline
//! ```
//!
//! The result is equal on all ranks: either all share memory, or all decline with the same reason, and their
//! collectives go through the vendor's library. One deadline applies to all steps together; its error names the ranks
//! that are absent.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::wire::{Reader, Writer};
use disco_core::{Error, Rank, Result, Store, attendance};

use super::survey;
use super::topology::{Mesh, Topology};
use crate::driver::BusId;

/// The rendezvous of the ranks of one communicator.
#[derive(Debug)]
pub struct Rendezvous {
    store: Arc<dyn Store>,
    /// Prefix of the keys in the store: equal on all ranks, and different from that of each other rendezvous.
    name: String,
    rank: usize,
    size: usize,
    start: Instant,
    deadline: Duration,
    shares_devices: bool,
    /// The reason why this rank declines, if it does.
    refusal: Option<String>,
}

/// The machine and the device of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "tests write some")]
pub struct Introduction {
    /// The host name.
    pub host: String,
    /// The boot id, which differs between machines of the same name.
    pub boot: String,
    /// The address of the device.
    pub bus_id: BusId,
}

/// A rank's view of the topology, and the handles of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes one")]
pub struct Offer {
    /// The links between the devices, as this rank sees them.
    pub mesh: Mesh,
    /// The shape of these links.
    pub topology: Topology,
    /// The vendor's handles of the rank's memory.
    pub handles: Vec<u8>,
}

/// A decision that is equal on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "ranks either share memory or decline")]
pub enum Consensus<T> {
    /// All ranks take part. The value has the data of all ranks, in their order.
    Accepted(T),
    /// The ranks can't share memory, for this reason.
    Declined(String),
}

impl Introduction {
    /// For a device of this machine. Copies of a machine have the same host name, but different boot ids.
    pub fn here(bus_id: BusId) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { host: survey::host(), boot: boot.trim().to_owned(), bus_id }
    }
}

impl Rendezvous {
    /// A rendezvous that fails after `deadline`. `name` is equal on all ranks, and different from that of each other
    /// rendezvous.
    pub fn new(store: Arc<dyn Store>, name: String, (rank, size): (usize, usize), deadline: Duration) -> Self {
        Self { store, name, rank, size, start: Instant::now(), deadline, shares_devices: false, refusal: None }
    }

    /// Allows several ranks on one device: for tests on machines with fewer devices than ranks.
    #[must_use]
    pub fn sharing_devices(mut self) -> Self {
        self.shares_devices = true;
        self
    }

    /// Makes this rank decline in its introduction.
    pub(super) fn decline(&mut self, why: String) {
        self.refusal.get_or_insert(why);
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The time until the deadline.
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }

    /// The store, and the prefix of the keys.
    pub(super) fn store(&self) -> (Arc<dyn Store>, String) {
        (self.store.clone(), self.name.clone())
    }

    /// Exchanges the locations of all ranks. `own` is this rank's location, or the reason why it declines.
    ///
    /// # Errors
    /// Two ranks are on one device; [`Error::Deadline`] names the absent ranks; the errors of the store.
    pub fn introduce(&self, own: Result<Introduction, String>) -> Result<Consensus<Vec<BusId>>> {
        let own = self.refusal.clone().map_or(own, Err).map(|own| write_introduction(&own));
        let all = match self.exchange("introduction", own)? {
            Consensus::Declined(why) => return Ok(Consensus::Declined(why)),
            Consensus::Accepted(all) => all,
        };
        let all: Vec<Introduction> = all.iter().map(|bytes| read_introduction(bytes)).collect::<Result<_>>()?;
        for (rank, other) in all.iter().enumerate() {
            if (&other.host, &other.boot) != (&all[0].host, &all[0].boot) {
                let another = if other.host == all[0].host { "another " } else { "" };
                let (first, second) = (&all[0].host, &other.host);
                return Ok(Consensus::Declined(format!("rank 0 is on {first}, and rank {rank} on {another}{second}")));
            }
        }
        for (second, introduction) in all.iter().enumerate().filter(|_| !self.shares_devices) {
            if let Some(first) = all[..second].iter().position(|earlier| earlier.bus_id == introduction.bus_id) {
                return Err(Error::invalid(format!(
                    "rank {first} and rank {second} are both on device {}: give each worker its own device with \
                     `--devices`",
                    introduction.bus_id
                )));
            }
        }
        Ok(Consensus::Accepted(all.into_iter().map(|introduction| introduction.bus_id).collect()))
    }

    /// Exchanges the handles of all ranks, if all ranks see the same links. `own` is this rank's offer, or the reason
    /// why it declines.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the absent ranks; the errors of the store.
    pub fn offer(&self, own: Result<Offer, String>) -> Result<Consensus<Vec<Vec<u8>>>> {
        let bytes = own.map(|Offer { mesh, topology, handles }| {
            let view = view(&mesh, &topology);
            [&(view.len() as u32).to_le_bytes()[..], view.as_bytes(), &handles].concat()
        });
        let all = match self.exchange("offer", bytes)? {
            Consensus::Declined(why) => return Ok(Consensus::Declined(why)),
            Consensus::Accepted(all) => all,
        };
        let all: Vec<(&[u8], &[u8])> = all.iter().map(|bytes| read_offer(bytes)).collect::<Result<_>>()?;
        for (rank, (theirs, _)) in all.iter().enumerate() {
            if *theirs != all[0].0 {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (first, other) = (text(all[0].0), text(theirs));
                return Ok(Consensus::Declined(format!("rank 0 sees {first}, and rank {rank} {other}")));
            }
        }
        Ok(Consensus::Accepted(all.into_iter().map(|(_, handles)| handles.to_vec()).collect()))
    }

    /// Exchanges the results of a step after the offer. `own` is this rank's result, or the reason why it declines.
    /// Each step has its own name.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the absent ranks; the errors of the store.
    pub fn report(&self, step: &str, own: Result<(), String>) -> Result<Consensus<()>> {
        Ok(match self.exchange(step, own.map(|()| Vec::new()))? {
            Consensus::Accepted(_) => Consensus::Accepted(()),
            Consensus::Declined(why) => Consensus::Declined(why),
        })
    }

    /// Gathers the bytes of all ranks. A rank that declines sends its reason, so that no rank waits for it.
    fn exchange(&self, what: &str, own: Result<Vec<u8>, String>) -> Result<Consensus<Vec<Vec<u8>>>> {
        let own = match own {
            Ok(bytes) => [&[TAG_OK][..], &bytes].concat(),
            Err(why) => [&[TAG_REFUSED][..], why.as_bytes()].concat(),
        };
        let (prefix, left) = (format!("{}: {what}", self.name), self.time_left());
        let gathered = attendance::all_gather(&*self.store, &prefix, (self.rank, self.size), &own, "meet", left);
        let mut all = gathered.map_err(|error| match error {
            Error::Deadline { operation, state, .. } => Error::Deadline { operation, after: self.deadline, state },
            other => other,
        })?;
        for (rank, bytes) in all.iter_mut().enumerate() {
            match bytes.split_first() {
                Some((&TAG_OK, _)) => _ = bytes.remove(0),
                Some((&TAG_REFUSED, why)) => {
                    let (rank, why) = (Rank::new(rank as u32), String::from_utf8_lossy(why));
                    return Ok(Consensus::Declined(format!("{rank}: {why}")));
                }
                _ => return Err(malformed()),
            }
        }
        Ok(Consensus::Accepted(all))
    }
}

/// First byte of a message: data follows, or the reason of a refusal.
const TAG_OK: u8 = 0;
const TAG_REFUSED: u8 = 1;

fn write_introduction(Introduction { host, boot, bus_id: BusId { domain, bus, device } }: &Introduction) -> Vec<u8> {
    let mut bytes = Writer::default();
    [domain, bus, device].into_iter().for_each(|number| bytes.u32(*number));
    bytes.bytes(boot.as_bytes());
    bytes.bytes(host.as_bytes());
    bytes.into_bytes()
}

fn read_introduction(bytes: &[u8]) -> Result<Introduction> {
    let mut bytes = Reader::new(bytes);
    let (domain, bus, device) = (bytes.u32()?, bytes.u32()?, bytes.u32()?);
    let mut text = || String::from_utf8(bytes.bytes()?.into()).map_err(|_| malformed());
    Ok(Introduction { boot: text()?, host: text()?, bus_id: BusId { domain, bus, device } })
}

fn read_offer(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(malformed)
}

/// A rank's view of the links as a text. Equal views give equal texts.
fn view(mesh: &Mesh, topology: &Topology) -> String {
    let rows: Vec<String> = mesh.rows().iter().map(|row| format!("{row:?}")).collect();
    format!("{topology} by {}", rows.join(" "))
}

fn malformed() -> Error {
    Error::protocol("a peer has sent an invalid message to the peer-to-peer rendezvous")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use disco_core::store::View;

    use super::super::topology::Ends;
    use super::*;

    const TEST_DEADLINE: Duration = Duration::from_secs(60);

    /// Runs `part` on a thread for each rank of `present`, and returns the results.
    fn ranks<T: Send + 'static>(
        size: usize,
        present: impl IntoIterator<Item = usize>,
        deadline: Duration,
        part: impl Fn(&Rendezvous) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let store = Arc::new(View::default());
        let start = |rank: usize| {
            let (store, part) = (store.clone(), part.clone());
            thread::spawn(move || part(&Rendezvous::new(store, "p2p".into(), (rank, size), deadline)))
        };
        let threads: Vec<_> = present.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn here(rank: usize) -> Introduction {
        Introduction {
            host: "a machine".into(),
            boot: "a".into(),
            bus_id: BusId { domain: 0, bus: rank as u32, device: 0 },
        }
    }

    fn switched(switches: usize) -> Offer {
        let mesh = Mesh::new(&vec![Ends { peers: Vec::new(), switches: switches as u32 }; 3]);
        Offer { topology: Topology::of(&mesh), mesh, handles: vec![7; 128] }
    }

    #[test]
    fn ranks_of_one_machine_get_the_devices_and_handles_of_all_ranks() {
        let met = ranks(3, 0..3, TEST_DEADLINE, |rendezvous| {
            let sites = rendezvous.introduce(Ok(here(rendezvous.rank))).unwrap();
            let offer = Offer { handles: vec![rendezvous.rank as u8; 128], ..switched(6) };
            let handles = rendezvous.offer(Ok(offer)).unwrap();
            (sites, handles, rendezvous.report("found", Ok(())).unwrap())
        });
        let sites: Vec<BusId> = (0..3).map(|rank| here(rank).bus_id).collect();
        let handles: Vec<Vec<u8>> = (0..3).map(|rank| vec![rank; 128]).collect();
        for rank in met {
            assert_eq!(
                rank,
                (Consensus::Accepted(sites.clone()), Consensus::Accepted(handles.clone()), Consensus::Accepted(()))
            );
        }
    }

    #[test]
    fn ranks_of_several_machines_all_decline_with_the_same_reason() {
        let met = ranks(3, 0..3, TEST_DEADLINE, |rendezvous| {
            let host = if rendezvous.rank == 2 { "another" } else { "a machine" };
            rendezvous.introduce(Ok(Introduction { host: host.into(), ..here(rendezvous.rank) })).unwrap()
        });
        let declined = Consensus::Declined("rank 0 is on a machine, and rank 2 on another".to_owned());
        assert!(met.iter().all(|met| *met == declined), "{met:?}");
        // Copies of a machine have the same host name and bus ids.
        let met = ranks(2, 0..2, TEST_DEADLINE, |rendezvous| {
            rendezvous.introduce(Ok(Introduction { boot: format!("{}", rendezvous.rank), ..here(0) })).unwrap()
        });
        let declined = Consensus::Declined("rank 0 is on a machine, and rank 1 on another a machine".to_owned());
        assert!(met.iter().all(|met| *met == declined), "{met:?}");
    }

    #[test]
    fn two_ranks_on_one_device_are_an_error_unless_devices_are_shared() {
        let met = ranks(3, 0..3, TEST_DEADLINE, |rendezvous| rendezvous.introduce(Ok(here(rendezvous.rank.min(1)))));
        for met in met {
            let error = met.unwrap_err().to_string();
            assert_eq!(
                error,
                "rank 1 and rank 2 are both on device 0000:01:00.0: give each worker its own device with `--devices`"
            );
        }
        for met in ranks(3, 0..3, TEST_DEADLINE, |rendezvous| {
            let rendezvous =
                Rendezvous::new(rendezvous.store.clone(), "shared".into(), (rendezvous.rank, 3), TEST_DEADLINE);
            rendezvous.sharing_devices().introduce(Ok(here(7)))
        }) {
            assert_eq!(met.unwrap(), Consensus::Accepted(vec![here(7).bus_id; 3]));
        }
    }

    #[test]
    fn ranks_that_see_different_links_all_decline() {
        let met = ranks(3, 0..3, TEST_DEADLINE, |rendezvous| {
            rendezvous.offer(Ok(switched(if rendezvous.rank == 1 { 4 } else { 6 }))).unwrap()
        });
        for met in met {
            let Consensus::Declined(why) = met else { panic!("{met:?}") };
            let (first, second) = why.split_once(", and rank 1 ").unwrap();
            assert_eq!(first, "rank 0 sees fully_connected by [0, 6, 6] [6, 0, 6] [6, 6, 0]");
            assert_eq!(second, "fully_connected by [0, 4, 4] [4, 0, 4] [4, 4, 0]");
        }
    }

    #[test]
    fn the_refusal_of_one_rank_ends_the_step_on_all_ranks() {
        let met = ranks(3, 0..3, TEST_DEADLINE, |rendezvous| {
            let own = if rendezvous.rank == 1 { Err("no room for 10 MiB".to_owned()) } else { Ok(switched(6)) };
            (
                rendezvous.offer(own).unwrap(),
                rendezvous.report("found", if rendezvous.rank == 2 { Err("IPC".into()) } else { Ok(()) }),
            )
        });
        for (offer, report) in met {
            assert_eq!(offer, Consensus::Declined("rank 1: no room for 10 MiB".into()));
            assert_eq!(report.unwrap(), Consensus::Declined("rank 2: IPC".into()));
        }
    }

    #[test]
    fn an_absent_rank_is_named_at_the_deadline() {
        let deadline = Duration::from_millis(200);
        let met = ranks(3, 0..2, deadline, |rendezvous| rendezvous.introduce(Ok(here(rendezvous.rank))));
        for met in met {
            assert_eq!(met.unwrap_err().to_string(), "meet: no end after 200ms: rank 2 has not arrived");
        }
        let met = ranks(3, 0..3, deadline, |rendezvous| {
            rendezvous.introduce(Ok(here(rendezvous.rank))).unwrap();
            if rendezvous.rank == 0 { None } else { Some(rendezvous.offer(Ok(switched(6)))) }
        });
        for met in met.into_iter().flatten() {
            assert_eq!(met.unwrap_err().to_string(), "meet: no end after 200ms: rank 0 has not arrived");
        }
    }

    #[test]
    fn an_invalid_message_of_a_peer_is_an_error() {
        for garbage in [&[][..], &[9], &[TAG_OK, 1, 2], &[TAG_OK, 255, 255, 255, 255, 0]] {
            let store = Arc::new(View::default());
            let meet = |what: &str| {
                store.set(&format!("p2p: {what} of rank 1"), garbage).unwrap();
                Rendezvous::new(store.clone(), "p2p".into(), (0, 2), TEST_DEADLINE)
            };
            assert!(meet("introduction").introduce(Ok(here(0))).is_err(), "{garbage:?}");
            assert!(meet("offer").offer(Ok(switched(6))).is_err(), "{garbage:?}");
        }
    }
}
