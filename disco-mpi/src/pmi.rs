//! A process manager for a rank without a launcher: the part of PMI-1 that MPICH and Intel MPI use.
//!
//! Each rank has a manager of its own, in its process, and a socket to it for requests and answers. Both are lines of
//! `key=value` words that begin with `cmd`. Ranks put values under keys, and get the values of other ranks after a
//! barrier. The managers keep values and barriers in the session's store, so ranks may be on several machines.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco_core::{Error, Result, Store};

/// The longest accepted line.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// The rank of a manager, and where its values are.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) store: Arc<dyn Store>,
    /// Starts all keys in the store.
    pub(crate) key: String,
    /// Name of the session's values, the same on all ranks. MPICH names its files in shared memory by it, so no other
    /// session of a machine may have it.
    pub(crate) name: String,
    pub(crate) size: usize,
    /// Number of consecutive ranks on each machine.
    pub(crate) per_machine: usize,
    /// Limit for each wait for the other ranks.
    pub(crate) limit: Duration,
}

/// Serves the rank of this process on a new thread, until the rank closes its socket. Returns the socket of the rank.
///
/// # Errors
/// The system can't create the sockets or the thread.
pub(crate) fn serve(peer: Peer) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let manager = Manager { peer, barriers: 0 };
    thread::Builder::new().name("disco-pmi".into()).spawn(move || manager.run(&ours))?;
    Ok(theirs.into())
}

struct Manager {
    peer: Peer,
    /// Number of finished barriers.
    barriers: u64,
}

impl Manager {
    fn run(mut self, socket: &UnixStream) {
        let mut lines = BufReader::new(socket);
        loop {
            let mut line = Vec::new();
            let read = (&mut lines).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
            if !matches!(read, Ok(1..)) || line.last() != Some(&b'\n') {
                break;
            }
            let line = String::from_utf8_lossy(&line);
            let answered = self.answer(line.trim_end()).and_then(|answer| {
                let sent = (&mut &*socket).write_all(format!("{answer}\n").as_bytes());
                sent.map_err(|error| Error::system("the answer can't be sent", error))
            });
            if let Err(error) = answered {
                tracing::warn!(%error, request = line.trim_end(), "a PMI request of MPI has failed");
                break;
            }
        }
        // The shutdown ends the rank's wait for an answer.
        _ = socket.shutdown(Shutdown::Both);
    }

    fn answer(&mut self, line: &str) -> Result<String> {
        let Peer { store, key, name, size, .. } = &self.peer;
        let word = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let value_key = || format!("{key}: value {}", word("key").unwrap_or_default());
        Ok(match word("cmd").unwrap_or_default() {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0".to_owned(),
            "get_appnum" => "cmd=appnum appnum=0 rc=0".to_owned(),
            "get_universe_size" => format!("cmd=universe_size size={size} rc=0"),
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={name} rc=0"),
            "put" => {
                // The value is the rest of the line: it may have spaces.
                let value = line.split_once("value=").map_or("", |(_, value)| value);
                store.set(&value_key(), value.as_bytes())?;
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "get" => match self.get(word("key").unwrap_or_default(), &value_key())? {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
            },
            "barrier_in" => {
                self.barrier()?;
                "cmd=barrier_out rc=0".to_owned()
            }
            "finalize" => "cmd=finalize_ack rc=0".to_owned(),
            // Aborts and unknown requests.
            _ => return Err(Error::invalid("the request is not supported")),
        })
    }

    fn get(&self, key: &str, value_key: &str) -> Result<Option<String>> {
        let Peer { store, size, per_machine, .. } = &self.peer;
        if key == "PMI_process_mapping" {
            // From machine 0 on, so many machines with so many ranks each.
            return Ok(Some(format!("(vector,(0,{},{per_machine}))", size / per_machine)));
        }
        Ok(store.get(value_key)?.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    /// Waits until all ranks are in the barrier. The last one wakes the others.
    fn barrier(&mut self) -> Result<()> {
        let Peer { store, key, size, limit, .. } = &self.peer;
        let key = |what: &str| format!("{key}: barrier {} {what}", self.barriers);
        if store.add(&key("count"), 1)? == *size as i64 {
            store.set(&key("done"), b"")?;
        }
        store.wait(&key("done"), *limit)?;
        self.barriers += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use disco_core::Link;

    use super::*;

    fn rank(store: &Arc<dyn Store>, limit: Duration) -> UnixStream {
        let (key, name) = ("mpi".into(), "disco-7".into());
        let peer = Peer { store: store.clone(), key, name, size: 4, per_machine: 2, limit };
        serve(peer).unwrap().into()
    }

    fn ask(socket: &UnixStream, line: &str) -> String {
        (&mut &*socket).write_all(format!("{line}\n").as_bytes()).unwrap();
        receive(socket)
    }

    fn receive(socket: &UnixStream) -> String {
        let mut line = String::new();
        BufReader::with_capacity(1, socket).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn ranks_get_the_values_of_other_ranks_after_a_barrier() {
        let store = Link::bare(Arc::default()).store();
        let ranks: [UnixStream; 4] = std::array::from_fn(|_| rank(&store, Duration::from_secs(10)));
        let [a, b, ..] = &ranks;
        assert_eq!(
            ask(a, "cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
        );
        assert_eq!(ask(b, "cmd=get_universe_size"), "cmd=universe_size size=4 rc=0\n");
        assert_eq!(ask(b, "cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=disco-7 rc=0\n");
        assert_eq!(ask(a, "cmd=put kvsname=k key=card-0 value=shm id=7"), "cmd=put_result rc=0 msg=success\n");
        for _ in 0..2 {
            ranks[1..].iter().for_each(|mut rank| rank.write_all(b"cmd=barrier_in\n").unwrap());
            assert_eq!(ask(a, "cmd=barrier_in"), "cmd=barrier_out rc=0\n");
            ranks[1..].iter().for_each(|rank| assert_eq!(receive(rank), "cmd=barrier_out rc=0\n"));
        }
        assert_eq!(ask(b, "cmd=get kvsname=k key=card-0"), "cmd=get_result rc=0 msg=success value=shm id=7\n");
        assert_eq!(ask(b, "cmd=get kvsname=k key=card-9"), "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
        assert_eq!(
            ask(b, "cmd=get key=PMI_process_mapping"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))\n"
        );
        // An invalid request disconnects its rank only.
        assert_eq!(ask(a, "what?"), "");
        assert_eq!(ask(b, "cmd=finalize"), "cmd=finalize_ack rc=0\n");
    }

    #[test]
    fn a_rank_whose_peers_do_not_come_is_disconnected_at_the_limit() {
        let store = Link::bare(Arc::default()).store();
        let (lonely, start) = (rank(&store, Duration::from_millis(50)), Instant::now());
        assert_eq!(ask(&lonely, "cmd=barrier_in"), "");
        assert!(start.elapsed() >= Duration::from_millis(50));
    }
}
