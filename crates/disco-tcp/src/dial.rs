//! The connection of a rank to another one.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::Result;

use crate::contact::Contact;
use crate::handshake::{self, Proved};
use crate::link::Link;
use crate::neighbours::Neighbours;
use crate::party::Party;
use crate::race::Race;

/// Pause after an attempt at all addresses of a rank.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Time until a connection that this rank has not chosen counts as failed.
const CHOICE_TIME: Duration = Duration::from_secs(1);

/// The result of an attempt to connect.
pub(crate) enum Reached {
    /// A connection to a lower rank, which this rank may choose.
    Proved(Proved),
    /// The connection to a higher rank, which that rank has chosen.
    Chosen(usize, Box<dyn Link>),
    /// Nothing at any address of a rank: why not, as text.
    Nothing(usize, String),
}

impl Reached {
    /// At the higher rank, the connection at once; at the lower one, the connection once the higher rank chooses it.
    ///
    /// # Errors
    /// The higher rank does not choose it.
    pub(crate) fn of(party: &Party, proved: Proved, end: Instant) -> Result<Self> {
        let peer = proved.peer;
        if peer < party.rank {
            return Ok(Self::Proved(proved));
        }
        proved.wait_until_chosen(end).map(|link| Self::Chosen(peer, link))
    }
}

/// Whether a rank still looks for a connection to each other one. Ends the attempts of all threads when it is dropped.
pub(crate) struct Wanted(Arc<[AtomicBool]>);

impl Wanted {
    pub(crate) fn new(size: usize) -> Self {
        Self((0..size).map(|_| AtomicBool::new(true)).collect())
    }

    /// There is a connection to this rank.
    pub(crate) fn end(&self, peer: usize) {
        self.0[peer].store(false, Ordering::Relaxed);
    }

    /// For a thread.
    pub(crate) fn share(&self) -> Arc<[AtomicBool]> {
        self.0.clone()
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.iter().for_each(|is_wanted| is_wanted.store(false, Ordering::Relaxed));
    }
}

/// The attempts to connect to a rank.
pub(crate) struct Dial {
    pub(crate) party: Arc<Party>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) contacts: Arc<[Contact]>,
    pub(crate) peer: usize,
    /// The addresses of the rank, in the order in which they are tried.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) end: Instant,
    pub(crate) wanted: Arc<[AtomicBool]>,
    pub(crate) sender: Sender<Reached>,
}

impl Dial {
    /// Tries all addresses until the rank has a connection, or `end` has passed.
    pub(crate) fn run(&self) {
        while self.is_wanted() {
            let failed = self.attempt();
            let text: Vec<_> = failed.into_iter().map(|(address, why)| format!("{address}: {why}")).collect();
            if !self.is_wanted() || self.sender.send(Reached::Nothing(self.peer, text.join(", "))).is_err() {
                return;
            }
            if Instant::now() + RETRY_DELAY > self.end {
                return;
            }
            thread::sleep(RETRY_DELAY);
        }
    }

    fn is_wanted(&self) -> bool {
        self.wanted[self.peer].load(Ordering::Relaxed)
    }

    /// Tries each address once. Returns why each has failed.
    fn attempt(&self) -> Vec<(SocketAddr, String)> {
        let mut race = Race::new(self.addresses.clone(), self.end);
        thread::scope(|scope| {
            loop {
                match race.next(|| self.is_wanted()) {
                    // An address that accepts may never answer the handshake, so the race goes on meanwhile.
                    Ok(Some((address, stream))) => {
                        let settle = race.settler();
                        let failed = settle.clone();
                        let lead = move || _ = settle.send((address, self.lead(stream)));
                        let thread = thread::Builder::new().name("disco-tcp-lead".into());
                        if let Err(error) = thread.spawn_scoped(scope, lead) {
                            _ = failed.send((address, error.to_string()));
                        }
                    }
                    Ok(None) => return,
                    Err(error) => return tracing::debug!(%error, "no wait for connections"),
                }
            }
        });
        race.into_failed()
    }

    /// Makes the handshake of a connection and hands it over. Returns, while the rank has none, why this is not the one.
    fn lead(&self, stream: TcpStream) -> String {
        let proved = handshake::lead(&self.party, &self.neighbours, &self.contacts, self.peer, stream, self.end);
        match proved.and_then(|proved| Reached::of(&self.party, proved, self.end)) {
            Ok(reached) => {
                if self.sender.send(reached).is_ok() {
                    self.wait_for_choice();
                }
                "the connection has failed".to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// Gives this rank time to choose the connection that was made.
    fn wait_for_choice(&self) {
        let end = self.end.min(Instant::now() + CHOICE_TIME);
        while self.is_wanted() && Instant::now() < end {
            thread::sleep(RETRY_DELAY);
        }
    }
}
