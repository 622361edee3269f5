//! Connections that a process accepts, as the host of communicators whose unique ids it has made.

use std::collections::BTreeMap;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once};
use std::thread;

use super::exit;
use super::message::{Child, Hosted, Reply, Request};
use super::proxy::Proxy;
use super::wire::{self, Sender};
use crate::cuda::device;
use crate::nccl::abi::Code;
use crate::nccl::background::Failure;
use crate::nccl::clique::Clique;
use crate::nccl::comm::{self, Comm};
use crate::nccl::unique_id;
use crate::sync::lock;

/// Communicators that splits have made for ranks of other processes, until their connections come.
static CHILDREN: Mutex<BTreeMap<u64, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// Accepts connections from now on, for as long as the process lives. Where the system has no socket for that, other processes are
/// refused, and threads of this one are ranks all the same.
pub(crate) fn listen(address: &SocketAddr) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(listener) = UnixListener::bind_addr(address) else { return };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(&stream));
            }
        });
    });
}

/// Serves one rank of one communicator, until its connection ends.
fn serve(stream: &UnixStream) -> Option<()> {
    let _open = exit::Open::new();
    let sender = Sender::new(stream.try_clone().ok()?);
    let (proxy, id) = match next(stream)? {
        Request::Open { id, ranks } => {
            let clique = match unique_id::find(&id, ranks) {
                Ok(clique) => clique,
                Err(refusal) => return Some(sender.send(&Reply::Placed(Err(refusal)).write())),
            };
            sender.send(&Reply::Placed(Ok(())).write());
            let Request::Join { rank, device } = next(stream)? else { return None };
            match member(&clique, rank, device) {
                Ok(comm) => (Proxy::new(comm, clique, rank, sender), Some(id)),
                Err(refusal) => return Some(sender.send(&Reply::Joined(Err(refusal)).write())),
            }
        }
        Request::Child { token } => {
            let comm = claim(token)?;
            sender.send(&Reply::Placed(Ok(())).write());
            let seat = comm.seat_if_any()?;
            let (clique, rank) = (Arc::clone(&seat.clique), seat.rank);
            (Proxy::new(comm, clique, rank, sender), None)
        }
        _ => return None,
    };
    proxy.serve(id, || next(stream));
    Some(())
}

fn next(stream: &UnixStream) -> Option<Request> {
    Request::read(&wire::read(stream).ok()?)
}

/// A communicator for a rank of another process: it has a seat, and no handle.
fn member(clique: &Arc<Clique>, rank: usize, device: usize) -> Result<Arc<Comm>, Failure> {
    let no_device = |code: crate::cuda::abi::Code| {
        let why = format!("the process that has made the unique id has no device {device}: CUDA error {}", code.0);
        Failure(Code::SYSTEM_ERROR, why)
    };
    device::init().map_err(no_device)?;
    let device = device::find(device as i32).map_err(no_device)?;
    if rank >= clique.ranks() {
        return Err(Failure(Code::INVALID_ARGUMENT, format!("there is no rank {rank} of {}", clique.ranks())));
    }
    let comm = Comm::new(device, true);
    comm.sit(Arc::clone(clique), rank);
    Ok(comm)
}

/// Keeps what a split has made for a rank of another process until that connects.
pub(crate) fn offer(comm: &Arc<Comm>) -> Option<Child> {
    let seat = comm.seat_if_any()?;
    let token = NEXT_TOKEN.fetch_add(1, Relaxed);
    lock(&CHILDREN).insert(token, Arc::clone(comm));
    Some(Child { token, rank: seat.rank, ranks: seat.clique.ranks(), hosted: hosted(&seat.clique) })
}

/// What was kept under a token. None: it was claimed before.
pub(crate) fn claim(token: u64) -> Option<Arc<Comm>> {
    lock(&CHILDREN).remove(&token)
}

/// Whether this process has ranks of a communicator: those have handles.
pub(crate) fn hosted(clique: &Arc<Clique>) -> Hosted {
    let is_of = |comm: &Arc<Comm>| comm.seat_if_any().is_some_and(|seat| Arc::ptr_eq(&seat.clique, clique));
    Hosted { has_ranks: comm::all().iter().any(is_of) }
}
