//! Connections that a process accepts as the host of communicators.

use std::collections::BTreeMap;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Duration;

use super::exit;
use super::message::{Child, Hosted, Reply, Request};
use super::proxy::Proxy;
use super::wire::{self, Sender};
use crate::cuda::device;
use crate::nccl::abi::{Code, UniqueId};
use crate::nccl::background::Failure;
use crate::nccl::clique::Clique;
use crate::nccl::comm::{self, Comm};
use crate::nccl::unique_id;
use crate::sync::lock;

/// Communicators that splits have made for ranks of other processes, by token, until the ranks connect.
static CHILDREN: Mutex<BTreeMap<u64, Arc<Comm>>> = Mutex::new(BTreeMap::new());
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);
/// Pause after a failed accept.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Accepts connections in the background, until the process ends. If the socket can't be created, other
/// processes can't connect, but ranks of this process still work.
pub(crate) fn listen(address: &SocketAddr) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(listener) = UnixListener::bind_addr(address) else { return };
        thread::spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => _ = thread::spawn(move || serve(&stream)),
                    // Without a free file descriptor, the connection stays in the backlog.
                    Err(_) => thread::sleep(RETRY_INTERVAL),
                }
            }
        });
    });
}

/// Serves one rank of one communicator until its connection ends.
fn serve(stream: &UnixStream) {
    let _open = exit::OpenConnection::new();
    let Ok(sender) = Sender::new(stream) else { return };
    if let Some((proxy, id)) = accept(stream, sender) {
        proxy.serve(id, || next(stream));
    }
}

/// Handles the first requests of a connection. Returns the rank's proxy, and the unique id if the rank is still to
/// join. `None` if the connection is refused.
fn accept(stream: &UnixStream, sender: Sender) -> Option<(Arc<Proxy>, Option<UniqueId>)> {
    match next(stream)? {
        Request::Open { id, ranks } => {
            let id = UniqueId { internal: id.try_into().ok()? };
            let clique = unique_id::find(&id, ranks);
            let clique = clique.map_err(|refusal| sender.send(&Reply::Opened(Err(refusal)))).ok()?;
            sender.send(&Reply::Opened(Ok(())));
            let Request::Join { rank, device } = next(stream)? else { return None };
            let comm = new_member(&clique, rank, device);
            let comm = comm.map_err(|refusal| sender.send(&Reply::Joined(Err(refusal)))).ok()?;
            Some((Proxy::new(comm, clique, rank, sender), Some(id)))
        }
        Request::OpenChild { token } => {
            let comm = take_child(token)?;
            sender.send(&Reply::Opened(Ok(())));
            let membership = comm.membership_if_any()?;
            let (clique, rank) = (Arc::clone(&membership.clique), membership.rank);
            Some((Proxy::new(comm, clique, rank, sender), None))
        }
        _ => None,
    }
}

fn next(stream: &UnixStream) -> Option<Request> {
    wire::read(stream).ok()
}

/// Creates the communicator of a rank of another process, which has a membership but no handle.
fn new_member(clique: &Arc<Clique>, rank: usize, device: usize) -> Result<Arc<Comm>, Failure> {
    let no_device = |code: crate::cuda::abi::Code| {
        let why = format!("the process that made the unique id has no device {device}: CUDA error {}", code.0);
        Failure(Code::SYSTEM_ERROR, why)
    };
    device::init().map_err(no_device)?;
    let device = device::find(device as i32).map_err(no_device)?;
    if rank >= clique.ranks() {
        return Err(Failure(Code::INVALID_ARGUMENT, format!("there is no rank {rank} of {}", clique.ranks())));
    }
    let comm = Comm::new(device, true);
    comm.set_membership(Arc::clone(clique), rank);
    Ok(comm)
}

/// Stores the child communicator of a rank of another process until the rank connects.
pub(crate) fn register_child(comm: &Arc<Comm>) -> Option<Child> {
    let membership = comm.membership_if_any()?;
    let token = NEXT_TOKEN.fetch_add(1, Relaxed);
    lock(&CHILDREN).insert(token, Arc::clone(comm));
    Some(Child { token, rank: membership.rank, ranks: membership.clique.ranks(), hosted: hosted(&membership.clique) })
}

/// Removes and returns the communicator of a token. `None` if it was removed before.
pub(crate) fn take_child(token: u64) -> Option<Arc<Comm>> {
    lock(&CHILDREN).remove(&token)
}

/// Whether this process has ranks of a communicator, which are the ranks with handles.
pub(crate) fn hosted(clique: &Arc<Clique>) -> Hosted {
    let is_of =
        |comm: &Arc<Comm>| comm.membership_if_any().is_some_and(|membership| Arc::ptr_eq(&membership.clique, clique));
    Hosted { has_ranks: comm::all().iter().any(is_of) }
}
