//! A rank of another process, in the host: threads that do for its communicator what the rank's own would do in one
//! process.

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
use crate::nccl::split::{self, Asked};
use crate::nccl::unit::Unit;
use crate::sync::lock;

/// The rank.
pub(crate) struct Proxy {
    comm: Arc<Comm>,
    clique: Arc<Clique>,
    rank: usize,
    sender: Sender,
    /// The rank has left the communicator, or aborted it.
    has_gone: AtomicBool,
    /// The connection has ended.
    is_over: AtomicBool,
    /// What splits have made for the rank, by token.
    children: Mutex<Vec<u64>>,
}

/// What waits for other ranks, one after the other.
enum Job {
    Join(UniqueId),
    Unit { first_step: u64, calls: Vec<SentCall> },
    Stopped,
}

/// What the rank has been told about the others.
#[derive(Default)]
struct Told {
    of_failure: bool,
    of_connections: BTreeSet<(usize, Connection)>,
    of_abort: bool,
    of_leaving: bool,
}

impl Proxy {
    /// Of a rank that has a membership.
    pub(crate) fn new(comm: Arc<Comm>, clique: Arc<Clique>, rank: usize, sender: Sender) -> Arc<Self> {
        let (has_gone, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { comm, clique, rank, sender, has_gone, is_over, children: Mutex::default() })
    }

    /// Does what the rank asks for, until its connection ends. The id: that by which it is to join, unless it has.
    pub(crate) fn serve(self: &Arc<Self>, id: Option<UniqueId>, mut next: impl FnMut() -> Option<Request>) {
        let (jobs, waiting) = mpsc::channel();
        let worker = Arc::clone(self);
        thread::spawn(move || waiting.into_iter().for_each(|job| worker.work(job)));
        // The worker ends when `jobs` is dropped, not before.
        let put = |job| _ = jobs.send(job);
        match id {
            Some(id) => put(Job::Join(id)),
            None => self.watch(),
        }
        while let Some(request) = next() {
            match request {
                Request::Unit { first_step, calls } => put(Job::Unit { first_step, calls }),
                Request::Connect { connections } => connection::ask(&self.clique, self.rank, &connections),
                Request::Split { number, color, key } => self.split(number, color, key),
                Request::Stop => {
                    self.give_up();
                    put(Job::Stopped);
                }
                Request::Leave => {
                    self.has_gone.store(true, SeqCst);
                    self.clique.change(|state| state.has_finalized[self.rank] = true);
                }
                Request::Abort => self.abort(),
                Request::Open { .. } | Request::Child { .. } | Request::Join { .. } => break,
            }
        }
        if !self.has_gone.load(SeqCst) {
            self.abort();
        }
        self.is_over.store(true, SeqCst);
        self.give_up();
        // The rank has ended before it knew of those.
        lock(&self.children).iter().filter_map(|&token| host::claim(token)).for_each(|child| abort(&child));
    }

    /// Ends all waits of the rank.
    fn give_up(&self) {
        self.comm.set_aborted();
        self.clique.change(|_| ());
    }

    fn abort(&self) {
        self.has_gone.store(true, SeqCst);
        abort(&self.comm);
    }

    fn send(&self, reply: &Reply) {
        self.sender.send(&reply.write());
    }

    fn work(self: &Arc<Self>, job: Job) {
        match job {
            Job::Join(id) => self.join(&id),
            Job::Unit { first_step, calls } => self.communicate(first_step, &calls),
            Job::Stopped => self.send(&Reply::Stopped),
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

    fn communicate(&self, first_step: u64, calls: &[SentCall]) {
        let opened = calls.iter().map(SentCall::open).collect::<Option<Vec<_>>>();
        let Some(calls) = opened else {
            let why = format!("rank {}: memory of a call was freed, or cannot be opened by the host", self.rank);
            return self.send(&Reply::Failed(Failure(Code::UNHANDLED_CUDA_ERROR, why)));
        };
        let done = Unit::new(Arc::clone(&self.comm), calls, None).communicate(&self.clique, self.rank, first_step);
        if done.is_ok() {
            // The rank hears of a failure before it goes on.
            let failure = self.clique.lock().failure();
            failure.into_iter().for_each(|failure| self.send(&Reply::Failed(failure)));
            self.send(&Reply::Done);
        }
    }

    /// A split waits for other ranks, beside units.
    fn split(self: &Arc<Self>, number: u64, color: i32, key: i32) {
        let own = Arc::clone(self);
        thread::spawn(move || {
            let child = (color != SPLIT_NO_COLOR).then(|| Comm::new(own.comm.device, true));
            let asked = Asked { color, key, child: child.clone() };
            if split::gather(&own.comm, number, asked).is_ok() {
                let child = child.and_then(|child| own.offer(&child));
                own.send(&Reply::Split { number, child });
            }
        });
    }

    /// Keeps what a split has made until the rank connects to it.
    fn offer(&self, child: &Arc<Comm>) -> Option<Child> {
        let mut children = lock(&self.children);
        if self.is_over.load(SeqCst) {
            abort(child);
            return None;
        }
        let offered = host::offer(child)?;
        children.push(offered.token);
        Some(offered)
    }

    /// Tells the rank what the others do, until the connection ends.
    fn watch(self: &Arc<Self>) {
        let own = Arc::clone(self);
        thread::spawn(move || {
            let mut told = Told::default();
            while !own.is_over.load(SeqCst) {
                let mut news = Vec::new();
                own.clique.wait_regardless(|state| {
                    news = told.news(state);
                    !news.is_empty() || own.is_over.load(SeqCst)
                });
                news.iter().for_each(|reply| own.send(reply));
            }
        });
    }
}

/// A rank aborts a communicator, or its process has ended.
fn abort(comm: &Comm) {
    comm.set_aborted();
    if let Some(Membership { clique, rank }) = comm.membership_if_any() {
        clique.change(|state| {
            state.aborted_at.get_or_insert_with(Instant::now);
            state.has_finalized[*rank] = true;
        });
    }
}

impl Told {
    /// What is new.
    fn news(&mut self, state: &CliqueState) -> Vec<Reply> {
        let mut news = Vec::new();
        if let Some(failure) = state.failure().filter(|_| !self.of_failure) {
            self.of_failure = true;
            news.push(Reply::Failed(failure));
        }
        for (rank, connection) in state.asked.difference(&self.of_connections) {
            news.push(Reply::Asked(*rank, *connection));
        }
        self.of_connections.clone_from(&state.asked);
        if state.aborted_at.is_some() && !self.of_abort {
            self.of_abort = true;
            news.push(Reply::PeerAborted);
        }
        if state.has_finalized.iter().all(|has| *has) && !self.of_leaving {
            self.of_leaving = true;
            news.push(Reply::AllLeft);
        }
        news
    }
}
