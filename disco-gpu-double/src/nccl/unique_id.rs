//! Unique ids: each is a place where as many ranks meet as they say, once.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::abi::{Code, UniqueId};
use super::clique::Clique;
use super::text;
use crate::sync::lock;

static NEXT: AtomicU64 = AtomicU64::new(1);
/// By number; none: all have met there.
static PLACES: Mutex<BTreeMap<u64, Option<Arc<Clique>>>> = Mutex::new(BTreeMap::new());

const MARK: &[u8; 16] = b"disco gpu double";

/// A new id: the mark, the process, and a number.
pub(crate) fn make() -> UniqueId {
    let mut internal = [0; 128];
    let words = [u64::from(process::id()), NEXT.fetch_add(1, Relaxed)].map(u64::to_le_bytes);
    let bytes = MARK.iter().chain(words.as_flattened());
    for (to, from) in internal.iter_mut().zip(bytes) {
        *to = *from;
    }
    UniqueId { internal }
}

/// Where to meet the other ranks.
pub(crate) fn place(id: &UniqueId, ranks: usize) -> Result<Arc<Clique>, Code> {
    let number = number(id)?;
    let mut places = lock(&PLACES);
    let place = places.entry(number).or_insert_with(|| Some(Arc::new(Clique::new(ranks))));
    let Some(clique) = place else {
        return Err(text::refuse(Code::INVALID_USAGE, "the unique id was used before"));
    };
    if clique.ranks() != ranks {
        let why = format!("a rank says that there are {ranks} ranks, and another {}", clique.ranks());
        return Err(text::refuse(Code::INVALID_ARGUMENT, why));
    }
    Ok(Arc::clone(clique))
}

/// All have met.
pub(crate) fn close(id: &UniqueId) {
    if let Ok(number) = number(id) {
        lock(&PLACES).insert(number, None);
    }
}

fn number(id: &UniqueId) -> Result<u64, Code> {
    let word = |at: usize| id.internal[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    if !id.internal.starts_with(MARK) {
        return Err(text::refuse(Code::INVALID_ARGUMENT, "the unique id is not from ncclGetUniqueId"));
    }
    if word(16) != u64::from(process::id()) {
        return Err(text::refuse(
            Code::SYSTEM_ERROR,
            "the unique id is of another process: ranks of the double are threads",
        ));
    }
    Ok(word(24))
}
