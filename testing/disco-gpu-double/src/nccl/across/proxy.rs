//! The proxy of a rank of another process, in the host. Its threads do the work that the rank's own threads would do in
//! one process.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::call::SentCall;
use super::host;
use super::message::{Child, Reply, Request};
use super::wire::Sender;
use crate::nccl::abi::{Code, SPLIT_NO_COLOR, UniqueId};
use crate::nccl::background::Failure;
use crate::nccl::clique::{Clique, CliqueState};
use crate::nccl::comm::{Comm, Membership};
use crate::nccl::connection::{self, Connection};
use crate::nccl::lifecycle;
use crate::nccl::split::{self, SplitArgs};
use crate::nccl::unit::Unit;
use crate::sync::lock;

/// The proxy of one rank of one communicator.
pub(crate) struct Proxy {
    comm: Arc<Comm>,
    clique: Arc<Clique>,
    rank: usize,
    sender: Sender,
    /// Whether the rank has left or aborted the communicator.
    has_left: AtomicBool,
    /// Whether the connection has ended.
    is_disconnected: AtomicBool,
    /// Tokens of the rank's child communicators.
    children: Mutex<Vec<u64>>,
}

/// Jobs of the proxy's worker thread, which wait for other ranks. They run one after the other.
enum Job {
    Join(UniqueId),
    Unit { first_collective: u64, calls: Vec<SentCall> },
    ConfirmStop,
}

/// Events of the clique that were sent to the rank.
#[derive(Default)]
struct SentReplies {
    failure: bool,
    connections: BTreeSet<(usize, Connection)>,
    abort: bool,
    all_left: bool,
}

impl Proxy {
    /// Creates the proxy of a rank that has a membership.
    pub(crate) fn new(comm: Arc<Comm>, clique: Arc<Clique>, rank: usize, sender: Sender) -> Arc<Self> {
        let (has_left, is_disconnected) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { comm, clique, rank, sender, has_left, is_disconnected, children: Mutex::default() })
    }

    /// Serves the rank's requests until the connection ends. With an `id`, the rank joins the communicator first.
    pub(crate) fn serve(self: &Arc<Self>, id: Option<UniqueId>, mut next: impl FnMut() -> Option<Request>) {
        let (jobs, waiting) = mpsc::channel();
        let worker = Arc::clone(self);
        thread::spawn(move || waiting.into_iter().for_each(|job| worker.work(job)));
        // The worker receives until `jobs` is dropped, so sending does not fail.
        let enqueue = |job| _ = jobs.send(job);
        match id {
            Some(id) => enqueue(Job::Join(id)),
            None => self.watch(),
        }
        while let Some(request) = next() {
            match request {
                Request::Unit { first_collective, calls } => enqueue(Job::Unit { first_collective, calls }),
                Request::Connect { connections } => connection::request(&self.clique, self.rank, &connections),
                Request::Split { number, color, key } => self.split(number, color, key),
                Request::Stop => {
                    self.cancel_waits();
                    enqueue(Job::ConfirmStop);
                }
                Request::Leave => {
                    self.has_left.store(true, SeqCst);
                    self.clique.change(|state| state.has_finalized[self.rank] = true);
                }
                Request::Abort => self.abort(),
                Request::Open { .. } | Request::OpenChild { .. } | Request::Join { .. } => break,
            }
        }
        if !self.has_left.load(SeqCst) {
            self.abort();
        }
        self.is_disconnected.store(true, SeqCst);
        self.cancel_waits();
        // The rank has ended before it connected to these children.
        lock(&self.children).iter().filter_map(|&token| host::take_child(token)).for_each(|child| abort(&child));
    }

    /// Ends all waits of the rank in the host.
    fn cancel_waits(&self) {
        self.comm.set_aborted();
        self.clique.change(|_| ());
    }

    fn abort(&self) {
        self.has_left.store(true, SeqCst);
        abort(&self.comm);
    }

    fn send(&self, reply: &Reply) {
        self.sender.send(reply);
    }

    fn work(self: &Arc<Self>, job: Job) {
        match job {
            Job::Join(id) => self.join(&id),
            Job::Unit { first_collective, calls } => self.communicate(first_collective, &calls),
            Job::ConfirmStop => self.send(&Reply::Stopped),
        }
    }

    fn join(self: &Arc<Self>, id: &UniqueId) {
        let joined = lifecycle::join(&self.comm, &self.clique, self.rank, id);
        let has_joined = joined.is_ok();
        self.send(&Reply::Joined(joined.map(|()| host::hosted(&self.clique))));
        if has_joined {
            self.watch();
        }
    }

    fn communicate(&self, first_collective: u64, calls: &[SentCall]) {
        let opened = calls.iter().map(SentCall::open).collect::<Option<Vec<_>>>();
        let Some(calls) = opened else {
            let why = format!("rank {}: the memory of a call was freed, or the host cannot open it", self.rank);
            return self.send(&Reply::Failed(Failure(Code::UNHANDLED_CUDA_ERROR, why)));
        };
        let done =
            Unit::new(Arc::clone(&self.comm), calls, None).communicate(&self.clique, self.rank, first_collective);
        if done.is_ok() {
            // The rank must receive a failure before the completion of the unit.
            let failure = self.clique.lock().failure();
            failure.into_iter().for_each(|failure| self.send(&Reply::Failed(failure)));
            self.send(&Reply::Done);
        }
    }

    /// Takes part in a split, on a thread of its own, because units may run while the split waits for other ranks.
    fn split(self: &Arc<Self>, number: u64, color: i32, key: i32) {
        let own = Arc::clone(self);
        thread::spawn(move || {
            let child = (color != SPLIT_NO_COLOR).then(|| Comm::new(own.comm.device, true));
            let args = SplitArgs { color, key, child: child.clone() };
            if split::gather(&own.comm, number, args).is_ok() {
                let child = child.and_then(|child| own.register_child(&child));
                own.send(&Reply::Split { number, child });
            }
        });
    }

    /// Stores a child communicator until the rank connects to it.
    fn register_child(&self, child: &Arc<Comm>) -> Option<Child> {
        let mut children = lock(&self.children);
        if self.is_disconnected.load(SeqCst) {
            abort(child);
            return None;
        }
        let offered = host::register_child(child)?;
        children.push(offered.token);
        Some(offered)
    }

    /// Sends events of the clique to the rank until the connection ends.
    fn watch(self: &Arc<Self>) {
        let own = Arc::clone(self);
        thread::spawn(move || {
            let mut sent = SentReplies::default();
            while !own.is_disconnected.load(SeqCst) {
                let mut unsent = Vec::new();
                own.clique.wait_regardless(|state| {
                    unsent = sent.unsent(state);
                    !unsent.is_empty() || own.is_disconnected.load(SeqCst)
                });
                unsent.iter().for_each(|reply| own.send(reply));
            }
        });
    }
}

/// Aborts a communicator for a rank that has requested it or whose process has ended.
fn abort(comm: &Comm) {
    comm.set_aborted();
    if let Some(Membership { clique, rank }) = comm.membership_if_any() {
        clique.change(|state| {
            state.aborted_at.get_or_insert_with(Instant::now);
            state.has_finalized[*rank] = true;
        });
    }
}

impl SentReplies {
    /// Replies for the events that were not sent yet; marks them as sent.
    fn unsent(&mut self, state: &CliqueState) -> Vec<Reply> {
        let mut unsent = Vec::new();
        if let Some(failure) = state.failure().filter(|_| !self.failure) {
            self.failure = true;
            unsent.push(Reply::Failed(failure));
        }
        for (rank, connection) in state.requested_connections.difference(&self.connections) {
            unsent.push(Reply::ConnectionRequested(*rank, *connection));
        }
        self.connections.clone_from(&state.requested_connections);
        if state.aborted_at.is_some() && !self.abort {
            self.abort = true;
            unsent.push(Reply::PeerAborted);
        }
        if state.has_finalized.iter().all(|has| *has) && !self.all_left {
            self.all_left = true;
            unsent.push(Reply::AllLeft);
        }
        unsent
    }
}
