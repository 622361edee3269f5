//! A race of connections to several addresses of one machine, as in RFC 8305.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Time after which the next address is tried, too, while the last one has not answered (RFC 8305, 8).
const STAGGER: Duration = Duration::from_millis(250);
/// Limit for one address.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest sleep of a wait, after which the caller may end the race.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// Connections that are being made.
pub(crate) struct Race {
    /// The addresses that are not tried yet, the next one last.
    waiting: Vec<SocketAddr>,
    running: Vec<(SocketAddr, TcpStream, Instant)>,
    /// Addresses that have accepted and whose handshakes go on.
    handshakes: usize,
    settler: Sender<(SocketAddr, String)>,
    settled: Receiver<(SocketAddr, String)>,
    /// When the next address is tried.
    next: Instant,
    end: Instant,
    /// Addresses without a connection, and why.
    failed: Vec<(SocketAddr, String)>,
}

impl Race {
    /// A race to `addresses`, in this order, until `end`.
    pub(crate) fn new(mut addresses: Vec<SocketAddr>, end: Instant) -> Self {
        addresses.reverse();
        let (settler, settled) = mpsc::channel();
        let (running, next, failed) = (Vec::new(), Instant::now(), Vec::new());
        Self { waiting: addresses, running, handshakes: 0, settler, settled, next, end, failed }
    }

    /// For an address that has accepted: takes the reason for which its handshake has failed.
    pub(crate) fn settler(&self) -> Sender<(SocketAddr, String)> {
        self.settler.clone()
    }

    /// Waits for the next address that accepts, while the handshakes of earlier addresses go on. Returns `None` once all others have
    /// failed, or `is_wanted` returns false.
    ///
    /// # Errors
    /// The wait fails.
    pub(crate) fn next(&mut self, is_wanted: impl Fn() -> bool) -> io::Result<Option<(SocketAddr, TcpStream)>> {
        while is_wanted() && Instant::now() < self.end {
            let is_idle = self.running.is_empty() && self.handshakes == 0;
            if is_idle || self.next <= Instant::now() {
                match self.waiting.pop() {
                    Some(address) => self.start(address),
                    None if is_idle => return Ok(None),
                    None => {}
                }
            }
            if let Some(index) = self.wait()? {
                let (address, stream, _) = self.running.swap_remove(index);
                match sockopt::socket_error(&stream)? {
                    Ok(()) => {
                        self.handshakes += 1;
                        return Ok(Some((address, stream)));
                    }
                    Err(error) => self.fail(address, io::Error::from(error).to_string()),
                }
            }
            self.end_late_ones();
        }
        let late = std::mem::take(&mut self.running);
        self.failed.extend(late.into_iter().map(|(address, ..)| (address, "no answer".to_owned())));
        Ok(None)
    }

    /// The addresses without a connection, and why, once all handshakes are over.
    pub(crate) fn into_failed(mut self) -> Vec<(SocketAddr, String)> {
        self.failed.extend(self.settled.try_iter());
        self.failed
    }

    fn start(&mut self, address: SocketAddr) {
        let begin = || {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            match connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
                Err(error) => Err(error),
            }
        };
        self.next = Instant::now() + STAGGER;
        match begin() {
            Ok(stream) => self.running.push((address, stream, Instant::now())),
            Err(error) => self.fail(address, io::Error::from(error).to_string()),
        }
    }

    fn settle(&mut self, address: SocketAddr, why: String) {
        self.handshakes -= 1;
        self.fail(address, why);
    }

    /// Notes why an address has failed. The next one is tried at once.
    fn fail(&mut self, address: SocketAddr, why: String) {
        self.failed.push((address, why));
        self.next = Instant::now();
    }

    fn end_late_ones(&mut self) {
        let is_late = |(_, _, start): &mut (_, _, Instant)| start.elapsed() >= ATTEMPT_TIMEOUT;
        let late: Vec<_> = self.running.extract_if(.., is_late).collect();
        for (address, ..) in late {
            self.fail(address, format!("no answer within {ATTEMPT_TIMEOUT:?}"));
        }
    }

    /// Waits until a handshake fails, a connection is made or fails, or the next address is to be tried. Returns the index of the
    /// connection.
    fn wait(&mut self) -> io::Result<Option<usize>> {
        let until_next = self.next.saturating_duration_since(Instant::now());
        let sleep = if self.waiting.is_empty() { MAX_SLEEP } else { until_next.min(MAX_SLEEP) };
        if self.running.is_empty() {
            if let Ok((address, why)) = self.settled.recv_timeout(sleep) {
                self.settle(address, why);
            }
            return Ok(None);
        }
        while let Ok((address, why)) = self.settled.try_recv() {
            self.settle(address, why);
        }
        let mut fds: Vec<_> = self.running.iter().map(|(_, stream, _)| PollFd::new(stream, PollFlags::OUT)).collect();
        let limit = Timespec { tv_sec: 0, tv_nsec: sleep.subsec_nanos().into() };
        match poll(&mut fds, Some(&limit)) {
            Ok(_) => Ok(fds.iter().position(|fd| !fd.revents().is_empty())),
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_accepts_wins_and_those_before_it_that_refuse_are_named() {
        let end = Instant::now() + Duration::from_secs(60);
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut race = Race::new(vec![closed, open.local_addr().unwrap()], end);
        let (address, _stream) = race.next(|| true).unwrap().unwrap();
        assert_eq!(address, open.local_addr().unwrap());
        assert_eq!(race.failed, [(closed, "Connection refused (os error 111)".to_owned())]);
        race.settler().send((address, "another key".to_owned())).unwrap();
        assert!(race.next(|| true).unwrap().is_none());
        assert_eq!(race.failed[1], (address, "another key".to_owned()));
    }

    #[test]
    fn the_next_address_is_tried_while_the_handshake_of_one_that_accepts_goes_on() {
        let both = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = both.each_ref().map(|listener| listener.local_addr().unwrap());
        let mut race = Race::new(addresses.into(), Instant::now() + Duration::from_secs(60));
        let reached = [(); 2].map(|()| race.next(|| true).unwrap().unwrap().0);
        assert_eq!(reached, addresses);
        race.settler().send((reached[0], "no answer".to_owned())).unwrap();
        assert_eq!(race.into_failed(), [(reached[0], "no answer".to_owned())]);
    }

    #[test]
    fn an_address_that_does_not_answer_delays_the_next_one_a_little() {
        // The queue of the listener is full, so packets of further connections are dropped.
        let full = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let _first = TcpStream::connect(full.local_addr().unwrap()).unwrap();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = vec![full.local_addr().unwrap(), open.local_addr().unwrap()];
        let mut race = Race::new(addresses, Instant::now() + Duration::from_secs(60));
        let (address, _stream) = race.next(|| true).unwrap().unwrap();
        assert_eq!((address, race.failed.len(), race.running.len()), (open.local_addr().unwrap(), 0, 1));
    }
}
