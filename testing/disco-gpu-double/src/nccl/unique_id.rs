//! Unique ids. The ranks of one communicator join by an id, which is used once. The process that made the id is the
//! host.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use super::abi::{Code, UniqueId};
use super::across::{host, link};
use super::background::Failure;
use super::clique::Clique;
use super::text;
use crate::sync::lock;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// Identifies this image of the double; a process may have several images.
static HOST_ID: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()));
/// Cliques by the number of their id; `None` once all ranks have joined.
static CLIQUES: Mutex<BTreeMap<u64, Option<Arc<Clique>>>> = Mutex::new(BTreeMap::new());

const ID_MAGIC: &[u8; 16] = b"disco gpu double";

/// Makes an id: magic, host and number. Ranks of other processes may connect from now on.
pub(crate) fn make() -> UniqueId {
    let mut internal = [0; 128];
    let words = [*HOST_ID, NEXT.fetch_add(1, Relaxed)].map(u64::to_le_bytes);
    let bytes = ID_MAGIC.iter().chain(words.as_flattened());
    for (to, from) in internal.iter_mut().zip(bytes) {
        *to = *from;
    }
    let id = UniqueId { internal };
    if let Ok(address) = address(&id) {
        host::listen(&address);
    }
    id
}

/// The clique of an id; connects to the host if the id is of another process.
pub(crate) fn clique_of(id: &UniqueId, ranks: usize) -> Result<Arc<Clique>, Code> {
    let clique = match host_of(id) {
        Some(host) if host == *HOST_ID => find(id, ranks),
        Some(_) => link::open(id, ranks),
        None => Err(Failure(Code::INVALID_ARGUMENT, "the unique id is not from ncclGetUniqueId".to_owned())),
    };
    clique.map_err(|Failure(code, why)| text::refuse(code, why))
}

/// The clique of an id that this process has made.
pub(crate) fn find(id: &UniqueId, ranks: usize) -> Result<Arc<Clique>, Failure> {
    let mut cliques = lock(&CLIQUES);
    let entry = cliques.entry(number(id)).or_insert_with(|| Some(Arc::new(Clique::new(ranks))));
    let Some(clique) = entry else {
        return Err(Failure(Code::INVALID_USAGE, "the unique id was used before".to_owned()));
    };
    if clique.ranks() != ranks {
        let why = format!("ranks disagree on the number of ranks: {ranks} and {}", clique.ranks());
        return Err(Failure(Code::INVALID_ARGUMENT, why));
    }
    Ok(Arc::clone(clique))
}

/// Marks that all ranks of an id have joined, so that the id can't be used again.
pub(crate) fn close(id: &UniqueId) {
    lock(&CLIQUES).insert(number(id), None);
}

/// Name of the socket on which the host of an id listens.
pub(crate) fn address(id: &UniqueId) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("disco-gpu-double-{:016x}", word(id, 16)))
}

fn host_of(id: &UniqueId) -> Option<u64> {
    id.internal.starts_with(ID_MAGIC).then(|| word(id, 16))
}

fn number(id: &UniqueId) -> u64 {
    word(id, 24)
}

fn word(id: &UniqueId, at: usize) -> u64 {
    id.internal[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}
