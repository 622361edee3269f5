//! Connections of a rank to all others: the higher rank of each pair connects to the lower one, and if it does not reach it, the
//! lower one to the higher one.

use std::collections::BTreeMap;
use std::iter;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Error, Rank, Result, Store, attendance};

use crate::alarm::Alarm;
use crate::contact::Contact;
use crate::dial::{Dial, Reached, Wanted};
use crate::handshake;
use crate::link::{self, Link};
use crate::listeners::Listeners;
use crate::neighbours::Neighbours;
use crate::party::Party;

/// How long before the deadline the attempts end, so that the error has the addresses that were tried.
const REPORT_TIME: Duration = Duration::from_millis(200);
/// Handshakes at a time, beyond one for each rank.
const MORE_HANDSHAKES: usize = 16;
/// How long the lower rank of a pair waits for the higher one before it connects itself, and what each rank adds to it: ranks
/// that share a processor make their handshakes one after the other.
const HEAD_START: Duration = Duration::from_secs(1);
const HEAD_START_OF_RANK: Duration = Duration::from_millis(20);
/// Interval at which a rank looks for an abort while it waits for the addresses of others, and for the failure of another rank:
/// longer than a round trip to the store, after which a wait has its answer.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a rank that connects looks for new connections and for an abort, and what each rank adds to it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const POLL_INTERVAL_OF_RANK: Duration = Duration::from_micros(100);
/// The most ranks without a connection whose addresses are in an error.
const MAX_NAMED: usize = 4;

/// The connections of a rank, by rank; none to itself.
pub(crate) type Links = Vec<Option<Box<dyn Link>>>;

/// Connects a rank to all others.
///
/// # Errors
/// [`Error::Deadline`] with the ranks that have not arrived, or with the addresses that both ranks of a pair have tried;
/// [`Error::Aborted`], also after another rank has failed; errors of the store.
pub(crate) fn connect(party: &Arc<Party>, store: &dyn Store, alarm: &Alarm) -> Result<(Links, Arc<[Contact]>)> {
    let connected = party.record(store, try_to_connect(party, store, alarm));
    // All ranks have read it, since each has a connection to this one; or they fail, too, for the recorded error.
    let deleted = store.delete(&party.contact_key(party.rank));
    let connected = connected?;
    deleted.map(|_| connected)
}

fn try_to_connect(party: &Arc<Party>, store: &dyn Store, alarm: &Alarm) -> Result<(Links, Arc<[Contact]>)> {
    let end = Instant::now() + party.deadline;
    let listeners = Listeners::bind()?;
    let neighbours = Arc::new(Neighbours::of(party));
    let memory = neighbours.offer();
    let own = Contact { memory, ..Contact::of(&listeners, &party.network, party.encrypts)? };
    tracing::debug!(rank = party.rank, addresses = ?own.addresses, "listens");
    let contacts = contacts(party, store, alarm, &own, end)?;
    let (sender, receiver) = mpsc::channel();
    let mut gathering = Gathering {
        party,
        store,
        neighbours: &neighbours,
        contacts: &contacts,
        links: (0..party.size).map(|_| None).collect(),
        tried: BTreeMap::new(),
        wanted: Wanted::new(party.size),
        sender,
        receiver,
        handshakes: Arc::default(),
        end,
    };
    gathering.run(alarm, &listeners)?;
    let Gathering { links, tried, .. } = gathering;
    for peer in tried.into_keys() {
        store.delete(&party.tried_key(party.rank, peer))?;
    }
    Ok((links, contacts))
}

/// Writes this rank's contact to the store and reads those of the others.
fn contacts(party: &Party, store: &dyn Store, alarm: &Alarm, own: &Contact, end: Instant) -> Result<Arc<[Contact]>> {
    store.set(&party.contact_key(party.rank), &own.write())?;
    let wait = |peer: usize| loop {
        alarm.check()?;
        let left = end.saturating_duration_since(Instant::now());
        match store.wait(&party.contact_key(peer), left.min(STORE_INTERVAL)) {
            Ok(bytes) => return Contact::read(&bytes),
            Err(Error::Deadline { .. }) if left > STORE_INTERVAL => party.check_others(store)?,
            Err(Error::Deadline { .. }) => {
                let is_missing = |rank: &usize| matches!(store.get(&party.contact_key(*rank)), Ok(None));
                return Err(party.late(attendance::describe_missing(&ranks((peer..party.size).filter(is_missing)))));
            }
            Err(error) => return Err(error),
        }
    };
    (0..party.size).map(wait).collect()
}

fn ranks(numbers: impl Iterator<Item = usize>) -> Vec<Rank> {
    numbers.map(|rank| Rank::new(rank as u32)).collect()
}

/// The connections that a rank has so far.
struct Gathering<'a> {
    party: &'a Arc<Party>,
    store: &'a dyn Store,
    neighbours: &'a Arc<Neighbours>,
    contacts: &'a Arc<[Contact]>,
    links: Links,
    /// For each rank that was not reached at any address, why not. Also in the store, for the error of that rank.
    tried: BTreeMap<usize, String>,
    wanted: Wanted,
    /// For the results of threads.
    sender: Sender<Reached>,
    receiver: Receiver<Reached>,
    /// Handshakes that threads answer.
    handshakes: Arc<AtomicUsize>,
    end: Instant,
}

impl Gathering<'_> {
    /// Connects, and accepts connections, until there is one to each rank.
    fn run(&mut self, alarm: &Alarm, listeners: &Listeners) -> Result<()> {
        let (start, size) = (Instant::now(), self.party.size as u32);
        let interval = POLL_INTERVAL + size * POLL_INTERVAL_OF_RANK;
        let mut next_look = start + STORE_INTERVAL;
        let mut dials_up = Some(start + HEAD_START + size * HEAD_START_OF_RANK);
        (0..self.party.rank).try_for_each(|peer| self.dial(peer))?;
        while self.missing().next().is_some() {
            alarm.check()?;
            iter::from_fn(|| listeners.accept()).take(MORE_HANDSHAKES).for_each(|stream| self.answer(stream));
            if let Ok(reached) = self.receiver.recv_timeout(interval) {
                self.take(reached)?;
            }
            let now = Instant::now();
            if dials_up.take_if(|time| *time <= now).is_some() {
                let above: Vec<_> = self.missing().filter(|peer| *peer > self.party.rank).collect();
                above.into_iter().try_for_each(|peer| self.dial(peer))?;
            }
            if next_look <= now {
                self.party.check_others(self.store)?;
                next_look = now + STORE_INTERVAL;
            }
            if now > self.end {
                return Err(self.late());
            }
        }
        Ok(())
    }

    /// The ranks to which there is no connection.
    fn missing(&self) -> impl Iterator<Item = usize> {
        (0..self.party.size).filter(|peer| *peer != self.party.rank && self.links[*peer].is_none())
    }

    /// Keeps the first connection to each rank; others are closed.
    fn take(&mut self, reached: Reached) -> Result<()> {
        match reached {
            Reached::Proved(proved) if self.links[proved.peer].is_none() => {
                let peer = proved.peer;
                match proved.choose() {
                    Ok(link) => self.keep(peer, link),
                    Err(error) => tracing::debug!(peer, %error, "a connection has failed"),
                }
            }
            Reached::Chosen(peer, link) if self.links[peer].is_none() => self.keep(peer, link),
            Reached::Nothing(peer, why) if self.links[peer].is_none() && self.tried.get(&peer) != Some(&why) => {
                self.store.set(&self.party.tried_key(self.party.rank, peer), why.as_bytes())?;
                self.tried.insert(peer, why);
            }
            Reached::Proved(_) | Reached::Chosen(..) | Reached::Nothing(..) => {}
        }
        Ok(())
    }

    fn keep(&mut self, peer: usize, link: Box<dyn Link>) {
        self.wanted.end(peer);
        self.links[peer] = Some(link::counted(link, &self.contacts[peer].host));
    }

    /// The error after the deadline: the addresses that both ranks of each pair have tried.
    fn late(&self) -> Error {
        let (me, contacts) = (self.party.rank, self.contacts);
        let told = |text: Option<String>| text.filter(|it| !it.is_empty()).unwrap_or_else(|| "no address".to_owned());
        let describe = |peer: usize| {
            let theirs = self.store.get(&self.party.tried_key(peer, me)).ok().flatten();
            let theirs = told(theirs.map(|text| String::from_utf8_lossy(&text).into_owned()));
            let ours = told(self.tried.get(&peer).cloned());
            let (here, there) = (&contacts[me].host, &contacts[peer].host);
            format!(
                "no connection to rank {peer} on {there}: rank {me} on {here} tried {ours}; rank {peer} tried {theirs}"
            )
        };
        let (named, count) = (self.missing().take(MAX_NAMED).map(describe), self.missing().count());
        let more = (count > MAX_NAMED).then(|| format!("and none to {} more ranks", count - MAX_NAMED));
        self.party.late(named.chain(more).collect::<Vec<_>>().join("; "))
    }

    /// Connects to a rank on a thread.
    fn dial(&self, peer: usize) -> Result<()> {
        let (party, contact) = (self.party, &self.contacts[peer]);
        let dial = Dial {
            party: party.clone(),
            neighbours: self.neighbours.clone(),
            contacts: self.contacts.clone(),
            peer,
            addresses: contact.in_order(&party.network),
            end: self.end - REPORT_TIME.min(party.deadline / 4),
            wanted: self.wanted.share(),
            sender: self.sender.clone(),
        };
        spawn("disco-tcp-dial", move || dial.run())
    }

    /// Answers the handshake of a connection on a thread, unless too many others do.
    fn answer(&self, stream: TcpStream) {
        let (party, neighbours, contacts) = (self.party.clone(), self.neighbours.clone(), self.contacts.clone());
        let (sender, end) = (self.sender.clone(), self.end);
        let (count, one_more) = OneMore::of(&self.handshakes);
        if count >= self.party.size + MORE_HANDSHAKES {
            return;
        }
        let run = move || {
            let _until_it_ends = one_more;
            let proved = handshake::follow(&party, &neighbours, &contacts, stream);
            match proved.and_then(|proved| Reached::of(&party, proved, end)) {
                Ok(reached) => drop(sender.send(reached)),
                Err(error) => tracing::debug!(%error, "a connection was refused"),
            }
        };
        if let Err(error) = spawn("disco-tcp-admit", run) {
            tracing::debug!(%error, "a connection was refused");
        }
    }
}

/// Counts a handshake until it is dropped.
struct OneMore(Arc<AtomicUsize>);

impl OneMore {
    /// Returns how many there were before.
    fn of(count: &Arc<AtomicUsize>) -> (usize, Self) {
        (count.fetch_add(1, Ordering::Relaxed), Self(count.clone()))
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|error| Error::system("connect: no thread can be started", error))
}

#[cfg(test)]
mod tests {
    use disco_core::Link as Session;
    use disco_engine::token::Token;

    use super::*;
    use crate::contact::Network;
    use crate::machines::Machines;

    #[test]
    fn a_rank_that_does_not_connect_ends_the_wait_of_the_others() {
        let link = Session::bare(Arc::default());
        let (store, alarm) = (link.store(), Alarm::new(None).unwrap());
        let connect = |rank, interfaces| {
            let network = Network { interfaces, uplink: None };
            let (name, key) = ("test".to_owned(), Token::new("a secret of many words").unwrap());
            let deadline = Duration::from_secs(600);
            let machines = Arc::new(Machines::new([0, 1].into_iter()));
            let descriptors = link.descriptors().clone();
            let party = Party { name, key, rank, size: 2, machines, descriptors, encrypts: true, network, deadline };
            super::connect(&Arc::new(party), &*store, &alarm).map(drop).unwrap_err()
        };
        let cause = connect(1, vec!["nothing0".to_owned()]);
        let Error::Aborted { cause: told } = connect(0, Vec::new()) else { panic!("it waits until its deadline") };
        assert_eq!([0, 1].map(|rank| store.get(&format!("test: contact of rank {rank}")).unwrap()), [None, None]);
        assert_eq!(told.to_string(), format!("rank 1: {cause}"));
    }
}
