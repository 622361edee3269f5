//! Copies by several threads.

#![allow(unsafe_code)]

use std::array;
use std::collections::HashMap;
use std::ops::Range;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Builder, Scope};

use disco_core::tensor::{Access, Storage};
use disco_core::{Result, processors};

use super::chunk::{Arrived, CHUNK_BYTES, Chunk, Part};
use super::rotation::Rotation;
use crate::runtime::Runtime;

/// The smallest copy of several threads.
const MIN_BYTES: usize = 4 << 20;
/// Maximum number of threads of a copy. Eight fill or empty chunks faster than the link of an H100 copies them.
const MAX_THREADS: usize = 8;
/// Number of chunks of each thread.
const CHUNKS_PER_THREAD: usize = 2;
/// Unit of the shares of threads that deliver pieces.
const BLOCK_BYTES: usize = 256 << 10;
const THREAD_NAME: &str = "disco-ccl-copy";

/// Whether several threads run a copy of this size.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes >= MIN_BYTES && processors() > 1
}

/// The rotations of the threads of a copy, from all rotations of a stream's threads, which `all` gets at the first call.
pub(super) fn rotations<'a>(
    all: &'a mut Vec<Rotation>,
    stall_flag: &Arc<AtomicBool>,
    bytes: usize,
) -> &'a mut [Rotation] {
    if all.is_empty() {
        all.resize_with(MAX_THREADS.min(processors()), || Rotation::new(CHUNKS_PER_THREAD, stall_flag.clone()));
    }
    // To start a thread takes about as long as to fill a chunk.
    let count = all.len().min(bytes.div_ceil(CHUNKS_PER_THREAD * CHUNK_BYTES));
    &mut all[..count]
}

/// Copies `bytes` bytes in chunks, on a thread for each rotation: calls `copy_part` for each chunk. Each thread takes the
/// next chunk of the copy, so the others do the work of a thread that starts late. If the copy is to a host tensor,
/// `claim` is the claim of its storage, and all pieces are delivered that the stream passes while it makes progress.
///
/// # Errors
/// Errors of the driver and of `copy_part`.
pub(super) fn copy(
    rotations: &mut [Rotation],
    runtime: &Arc<Runtime>,
    bytes: usize,
    claim: Option<&Access>,
    copy_part: impl Fn(&mut Chunk, Part) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let copy_chunks = |rotation: &mut Rotation| {
        runtime.make_current()?;
        while let Some(start) = take(&next, CHUNK_BYTES, bytes) {
            rotation.copy_chunk(runtime, start..bytes.min(start + CHUNK_BYTES), claim, &copy_part)?;
        }
        claim.map_or(Ok(()), |claim| rotation.drain(claim))
    };
    // After an error, the other threads start no more chunks.
    on_threads(rotations, |rotation| copy_chunks(rotation).inspect_err(|_| next.store(bytes, Ordering::Relaxed)))
}

/// Delivers pieces to their host tensors, on several threads if there are many bytes.
///
/// # Errors
/// [`Error::Busy`](disco_core::Error::Busy): the program views one of the tensors. All other tensors get their pieces.
pub(super) fn deliver(mut pieces: Vec<Arrived<'_>>) -> Result<()> {
    // One claim for all pieces in a storage, since threads deliver them at the same time.
    let mut claims = HashMap::<*const Storage, Result<Access>>::new();
    pieces.retain(|piece| {
        let storage = piece.tensor.storage();
        claims.entry(Arc::as_ptr(storage)).or_insert_with(|| storage.write()).is_ok()
    });
    let bytes: usize = pieces.iter().map(Arrived::byte_len).sum();
    let shares = if is_large(bytes) { MAX_THREADS.min(processors()) } else { 1 };
    let next = AtomicUsize::new(0);
    let delivered = on_threads(&mut vec![(); shares], |()| {
        while let Some(share) = take(&next, 1, shares) {
            for piece in &pieces {
                for range in blocks_of_share(piece, share, shares) {
                    // SAFETY: the storage is claimed, and a byte of it is in one share only, whatever the piece.
                    unsafe { piece.deliver(range) };
                }
            }
        }
        Ok(())
    });
    delivered.and(claims.into_values().try_for_each(|claim| claim.map(drop)))
}

/// The ranges of a piece that one of `shares` threads delivers: those whose blocks of memory have its number. So the
/// pieces with the same bytes of a tensor are delivered there by one thread, in their order.
fn blocks_of_share(piece: &Arrived<'_>, share: usize, shares: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, end) = (piece.to().addr(), piece.to().addr() + piece.byte_len());
    let blocks = start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES);
    blocks.filter(move |block| block % shares == share).map(move |block| {
        let (from, to) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        from.max(start) - start..to.min(end) - start
    })
}

/// Takes the next `count` numbers of those below `all`, and returns the first; none if all are taken.
fn take(next: &AtomicUsize, count: usize, all: usize) -> Option<usize> {
    Some(next.fetch_add(count, Ordering::Relaxed)).filter(|&number| number < all)
}

/// Calls `work` for each item, on a thread each, of which the calling thread is one. Returns when all threads have
/// ended. Items are left out if the system has no threads for them.
///
/// # Errors
/// An error of `work`.
fn on_threads<T: Send>(items: &mut [T], work: impl Fn(&mut T) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| start_tree(scope, items, &work))
}

/// [`on_threads`], where this thread has the first item, and starts two threads with half of the others each: so the
/// last thread starts after three times the start of a thread, not after seven times.
fn start_tree<'scope, T: Send>(
    scope: &'scope Scope<'scope, '_>,
    items: &'scope mut [T],
    work: &'scope (impl Fn(&mut T) -> Result<()> + Sync),
) -> Result<()> {
    let Some((first, others)) = items.split_first_mut() else { return Ok(()) };
    let half = others.len().div_ceil(2);
    let (left, right) = others.split_at_mut(half);
    let mut halves = [left, right].into_iter();
    let threads: [_; 2] = array::from_fn(|_| {
        let half = halves.next().filter(|half| !half.is_empty())?;
        let thread = Builder::new().name(THREAD_NAME.into());
        thread.spawn_scoped(scope, move || start_tree(scope, half, work)).ok()
    });
    threads.into_iter().flatten().fold(work(first), |outcome, thread| {
        outcome.and(thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload)))
    })
}

#[cfg(test)]
mod tests {
    use disco_core::{DType, Error, Tensor};

    use super::*;

    #[test]
    fn each_item_has_a_thread_of_its_own() {
        for count in 0..=MAX_THREADS {
            let mut threads = vec![None; count];
            on_threads(&mut threads, |thread| {
                assert!(thread.replace(thread::current().id()).is_none());
                Ok(())
            })
            .unwrap();
            assert!(threads.iter().enumerate().all(|(at, thread)| thread.is_some() && !threads[..at].contains(thread)));
            assert!(threads.first().is_none_or(|first| *first == Some(thread::current().id())));
        }
    }

    #[test]
    fn an_error_of_any_thread_is_returned_after_all_threads_have_ended() {
        for failing in 0..MAX_THREADS {
            let mut items: Vec<_> = (0..MAX_THREADS).map(|at| (at, false)).collect();
            let outcome = on_threads(&mut items, |(at, is_over)| {
                *is_over = true;
                if *at == failing { Err(Error::state("no")) } else { Ok(()) }
            });
            assert!(outcome.is_err() && items.iter().all(|(_, is_over)| *is_over));
        }
    }

    #[test]
    fn of_pieces_with_the_same_bytes_the_last_one_wins() {
        let tensor = Tensor::zeros(DType::U8, [3 * MIN_BYTES as i64]).unwrap();
        let viewed = Tensor::zeros(DType::U8, [1]).unwrap();
        let mut expected = vec![0; tensor.byte_len()];
        let contents: Vec<_> = (1..=100).map(|number| vec![number; number as usize * 4099]).collect();
        let mut pieces = vec![Arrived { tensor: &viewed, offset: 0, contents: &[7] }];
        for (at, contents) in contents.iter().enumerate() {
            let offset = at * 7_654_321 % (tensor.byte_len() - contents.len());
            expected[offset..offset + contents.len()].copy_from_slice(contents);
            pieces.push(Arrived { tensor: &tensor, offset, contents });
        }
        let view = viewed.bytes().unwrap();
        assert!(matches!(deliver(pieces), Err(Error::Busy(_))));
        drop(view);
        assert!(tensor.to_vec::<u8>().unwrap() == expected);
        assert_eq!(viewed.to_vec::<u8>().unwrap(), [0]);
    }
}
