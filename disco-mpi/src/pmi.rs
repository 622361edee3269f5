//! A process manager for ranks without a launcher: the part of PMI-1 that MPICH and Intel MPI use.
//!
//! Each rank has a socket for requests and answers. Both are lines of `key=value` words that begin with `cmd`. Ranks
//! put values under keys, and get the values of other ranks after a barrier.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use rustix::event::{self, PollFd, PollFlags};

/// The longest accepted line.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Serves `ranks` ranks on a new thread, until all have closed their sockets. Returns the sockets of the ranks, in rank
/// order.
///
/// # Errors
/// The system can't create the sockets or the thread.
pub(crate) fn serve(ranks: usize) -> io::Result<Vec<OwnedFd>> {
    let pairs: Vec<_> = (0..ranks).map(|_| UnixStream::pair()).collect::<io::Result<_>>()?;
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let clients = ours.into_iter().map(|socket| Client {
        socket,
        unread: Vec::new(),
        is_in_barrier: false,
        is_open: true,
        has_finalized: false,
    });
    let manager =
        Manager { clients: clients.collect(), values: HashMap::new(), name: format!("disco-{}", std::process::id()) };
    thread::Builder::new().name("disco-pmi".into()).spawn(|| manager.run())?;
    Ok(theirs.into_iter().map(OwnedFd::from).collect())
}

struct Manager {
    clients: Vec<Client>,
    values: HashMap<String, String>,
    /// Name of the key-value space.
    name: String,
}

struct Client {
    socket: UnixStream,
    /// Received bytes of an incomplete line.
    unread: Vec<u8>,
    is_in_barrier: bool,
    is_open: bool,
    has_finalized: bool,
}

impl Manager {
    fn run(mut self) {
        while self.clients.iter().any(|client| client.is_open) {
            for index in self.wait() {
                // A rank that has ended, or that sends an invalid request, is no longer served.
                if let Err(error) = self.listen(index) {
                    let client = &mut self.clients[index];
                    client.is_open = false;
                    // The shutdown ends the rank's wait for an answer.
                    _ = client.socket.shutdown(Shutdown::Both);
                    if error.kind() != io::ErrorKind::UnexpectedEof {
                        tracing::warn!(rank = index, %error, "a rank of MPI has sent an unsupported PMI request");
                    }
                    self.end_barrier_without(index);
                }
            }
        }
    }

    /// Waits until some clients have sent bytes, and returns their indices.
    fn wait(&self) -> Vec<usize> {
        let open: Vec<usize> = (0..self.clients.len()).filter(|&index| self.clients[index].is_open).collect();
        let mut polled: Vec<_> =
            open.iter().map(|&index| PollFd::new(&self.clients[index].socket, PollFlags::IN)).collect();
        // An error is ignored: a signal ends the poll early, and the caller polls again.
        _ = event::poll(&mut polled, None);
        let ready = polled.iter().map(|polled| !polled.revents().is_empty());
        open.iter().copied().zip(ready).filter_map(|(index, ready)| ready.then_some(index)).collect()
    }

    fn listen(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        let mut chunk = [0; 4096];
        let count = client.socket.read(&mut chunk)?;
        client.unread.extend_from_slice(&chunk[..count]);
        if count == 0 || client.unread.len() > MAX_LINE_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some(end) = self.clients[index].unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.clients[index].unread.drain(..=end).collect();
            self.answer(index, String::from_utf8_lossy(&line).trim_end())?;
        }
        Ok(())
    }

    fn answer(&mut self, index: usize, line: &str) -> io::Result<()> {
        let word = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let answer = match word("cmd").unwrap_or_default() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0".to_owned(),
            "get_appnum" => "cmd=appnum appnum=0 rc=0".to_owned(),
            "get_universe_size" => format!("cmd=universe_size size={} rc=0", self.clients.len()),
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={} rc=0", self.name),
            "put" => {
                // The value is the rest of the line: it may have spaces.
                let value = line.split_once("value=").map_or("", |(_, value)| value);
                self.values.insert(word("key").unwrap_or_default().to_owned(), value.to_owned());
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "get" => match self.get(word("key").unwrap_or_default()) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
            },
            "barrier_in" => {
                self.clients[index].is_in_barrier = true;
                return self.end_barrier();
            }
            "finalize" => {
                self.clients[index].has_finalized = true;
                "cmd=finalize_ack rc=0".to_owned()
            }
            // Aborts and unknown requests.
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, line.to_owned())),
        };
        self.clients[index].send(&answer)
    }

    fn get(&self, key: &str) -> Option<String> {
        match key {
            // All ranks are on one host.
            "PMI_process_mapping" => Some(format!("(vector,(0,1,{}))", self.clients.len())),
            key => self.values.get(key).cloned(),
        }
    }

    /// Disconnects the ranks in a barrier after a rank has ended without finalising, because the barrier can't
    /// complete.
    fn end_barrier_without(&mut self, index: usize) {
        if !self.clients[index].has_finalized {
            for client in self.clients.iter().filter(|client| client.is_in_barrier) {
                _ = client.socket.shutdown(Shutdown::Both);
            }
        }
    }

    /// Answers all ranks once all are in the barrier.
    fn end_barrier(&mut self) -> io::Result<()> {
        if self.clients.iter().all(|client| client.is_in_barrier) {
            for client in &mut self.clients {
                client.is_in_barrier = false;
                // An error is ignored: the next read from this client reports that the rank has ended.
                _ = client.send("cmd=barrier_out rc=0");
            }
        }
        Ok(())
    }
}

impl Client {
    fn send(&mut self, line: &str) -> io::Result<()> {
        self.socket.write_all(format!("{line}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn ask(socket: &UnixStream, line: &str) -> String {
        (&*socket).write_all(format!("{line}\n").as_bytes()).unwrap();
        receive(socket)
    }

    fn receive(socket: &UnixStream) -> String {
        let mut line = String::new();
        BufReader::with_capacity(1, socket).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn ranks_get_the_values_of_other_ranks_after_a_barrier() {
        let [a, b] = serve(2).unwrap().into_iter().map(UnixStream::from).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(
            ask(&a, "cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
        );
        assert_eq!(ask(&b, "cmd=get_universe_size"), "cmd=universe_size size=2 rc=0\n");
        assert_eq!(ask(&a, "cmd=put kvsname=k key=card-0 value=shm id=7"), "cmd=put_result rc=0 msg=success\n");
        (&a).write_all(b"cmd=barrier_in\n").unwrap();
        assert_eq!(ask(&b, "cmd=barrier_in"), "cmd=barrier_out rc=0\n");
        assert_eq!(receive(&a), "cmd=barrier_out rc=0\n");
        assert_eq!(ask(&b, "cmd=get kvsname=k key=card-0"), "cmd=get_result rc=0 msg=success value=shm id=7\n");
        assert_eq!(ask(&b, "cmd=get kvsname=k key=card-9"), "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
        assert_eq!(
            ask(&b, "cmd=get key=PMI_process_mapping"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))\n"
        );
        // An invalid request disconnects its client only.
        (&a).write_all(b"what?\n").unwrap();
        assert_eq!(ask(&b, "cmd=finalize"), "cmd=finalize_ack rc=0\n");
    }
}
