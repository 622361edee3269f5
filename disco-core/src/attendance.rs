//! Attendance of ranks at an operation. Vendor libraries don't report the ranks that they wait for, so a rank that
//! waits long announces its arrival in the session's store.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::id::Rank;
use crate::store::Store;

/// Grace period for ranks that announce themselves late.
const ANNOUNCE_GRACE: Duration = Duration::from_millis(300);

/// The longest wait before a rank announces itself.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// The text of an error about ranks that have not arrived.
pub fn describe_missing(missing: &[Rank]) -> String {
    match missing {
        [] => "all ranks have arrived, but too late".to_owned(),
        [one] => format!("{one} has not arrived"),
        several => format!("{} have not arrived", several.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Gathers `value` of each rank through a store and returns the values in rank order. Collective over all `size` ranks;
/// `rank` is the caller's. `prefix` is the same on all ranks and different for each call.
///
/// # Errors
/// [`Error::Deadline`] of `operation` with the ranks that have not arrived; errors of the store.
///
/// ```
/// # use std::{sync::Arc, thread, time::Duration};
/// use disco_core::{Link, attendance};
///
/// // Each rank publishes its address, as a backend does in `connect`.
/// let (link, limit) = (Link::bare(Arc::default()), Duration::from_secs(10));
/// let addresses = |rank| {
///     let address = format!("host{rank}:4000");
///     attendance::all_gather(&*link.store(), "addresses", (rank, 2), address.as_bytes(), "connect", limit)
/// };
/// let both = thread::scope(|scope| [0, 1].map(|rank| scope.spawn(move || addresses(rank))).map(|rank| rank.join()));
/// assert!(both.iter().all(|all| all.as_ref().unwrap().as_ref().unwrap() == &[b"host0:4000", b"host1:4000"]));
/// ```
pub fn all_gather(
    store: &dyn Store,
    prefix: &str,
    (rank, size): (usize, usize),
    value: &[u8],
    operation: &str,
    deadline: Duration,
) -> Result<Vec<Vec<u8>>> {
    let key = |rank: usize| format!("{prefix} of rank {rank}");
    store.set(&key(rank), value)?;
    let start = Instant::now();
    let mut all = Vec::with_capacity(size);
    for rank in 0..size {
        match store.wait(&key(rank), deadline.saturating_sub(start.elapsed())) {
            Ok(bytes) => all.push(bytes),
            Err(Error::Deadline { .. }) => {
                let is_missing = |rank: &usize| matches!(store.get(&key(*rank)), Ok(None));
                let missing: Vec<Rank> = (rank..size).filter(is_missing).map(|rank| Rank::new(rank as u32)).collect();
                let state = describe_missing(&missing);
                return Err(Error::Deadline { operation: operation.to_owned(), after: deadline, state });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Whether a rank that has waited for `waited` announces itself: after a quarter of `deadline`, at most 1 s.
pub fn is_long(waited: Duration, deadline: Duration) -> bool {
    waited > (deadline / 4).min(MAX_SILENCE)
}

/// Announces from any thread that a rank waits in an operation.
#[derive(Clone, Debug)]
pub struct Announcer {
    store: Arc<dyn Store>,
    key: String,
}

impl Announcer {
    /// Announces that the rank waits in operation `number`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn announce(&self, number: u64) -> Result<()> {
        self.store.set(&self.key, &number.to_le_bytes())
    }
}

/// The arrivals of the ranks of one communicator, kept in a store.
#[derive(Debug)]
pub struct Attendance {
    store: Arc<dyn Store>,
    /// Name of the communicator: the same on all ranks and unique in the store.
    name: String,
    rank: usize,
    size: usize,
    splits: u64,
    /// The operation that this rank announced last.
    announced: Cell<Option<u64>>,
}

impl Attendance {
    /// The attendance of a communicator of `size` ranks, seen by `rank`. `name` is the same on all ranks and unique in
    /// `store`.
    pub fn new(store: Arc<dyn Store>, name: String, rank: usize, size: usize) -> Self {
        Self { store, name, rank, size, splits: 0, announced: Cell::new(None) }
    }

    /// The prefix of this communicator's keys in the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts a split and returns its number, which is the same on all ranks. Ranks that join no child call it too.
    pub fn split(&mut self) -> u64 {
        self.splits += 1;
        self.splits
    }

    /// The attendance of the child with `color` of the last split, in which this rank is `rank` of `size`.
    pub fn child(&self, color: u32, rank: usize, size: usize) -> Self {
        Self::new(self.store.clone(), format!("{}, split {} color {color}", self.name, self.splits), rank, size)
    }

    /// Checks a wait in operation `number`. A rank that waits long announces itself before the deadline, so that its
    /// peers don't report it as missing.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the ranks that have not arrived, once `waited` exceeds `deadline`; errors of the store.
    pub fn check_wait(
        &self,
        number: u64,
        waited: Duration,
        deadline: Duration,
        operation: impl FnOnce() -> String,
    ) -> Result<()> {
        match waited {
            _ if waited > deadline => {
                Err(Error::Deadline { operation: operation(), after: deadline, state: self.describe_missing(number) })
            }
            _ if is_long(waited, deadline) => self.announce(number),
            _ => Ok(()),
        }
    }

    /// Announces, once per operation, that this rank waits in operation `number`.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn announce(&self, number: u64) -> Result<()> {
        if self.announced.replace(Some(number)) == Some(number) {
            return Ok(());
        }
        self.announcer().announce(number)
    }

    /// A handle with which another thread announces this rank.
    pub fn announcer(&self) -> Announcer {
        Announcer { store: self.store.clone(), key: self.key(self.rank) }
    }

    /// The text of a deadline error: the ranks that have not arrived at operation `number`.
    pub fn describe_missing(&self, number: u64) -> String {
        match self.missing(number).as_deref() {
            Err(error) => format!("the missing ranks are unknown, because the session's store failed: {error}"),
            Ok([]) => "all ranks have arrived; set DISCO_CHECK=1 to check that they call the same operation".to_owned(),
            Ok(missing) => describe_missing(missing),
        }
    }

    fn missing(&self, number: u64) -> Result<Vec<Rank>> {
        self.announce(number)?;
        let (start, mut missing) = (Instant::now(), (0..self.size).collect::<Vec<_>>());
        loop {
            for index in (0..missing.len()).rev() {
                let announced = self.store.get(&self.key(missing[index]))?.and_then(|bytes| bytes.try_into().ok());
                if announced.is_some_and(|bytes| u64::from_le_bytes(bytes) >= number) {
                    missing.remove(index);
                }
            }
            if missing.is_empty() || start.elapsed() > ANNOUNCE_GRACE {
                return Ok(missing.into_iter().map(|rank| Rank::new(rank as u32)).collect());
            }
            thread::sleep(ANNOUNCE_GRACE / 10);
        }
    }

    fn key(&self, rank: usize) -> String {
        format!("{}: rank {rank} waits in", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::View;

    #[test]
    fn ranks_that_announced_the_operation_are_present() {
        let store = Arc::new(View::default());
        let attendance = |rank| Attendance::new(store.clone(), "a communicator".into(), rank, 3);
        let (first, second) = (attendance(0), attendance(1));
        // Number 0, before the first operation, counts as an operation.
        second.announce(0).unwrap();
        assert_eq!(first.describe_missing(0), "rank 2 has not arrived");
        // A rank that announced an earlier operation counts as missing.
        assert_eq!(first.describe_missing(1), "rank 1, rank 2 have not arrived");
        second.announce(1).unwrap();
        attendance(2).announce(2).unwrap();
        assert!(first.describe_missing(1).starts_with("all ranks have arrived"));
    }

    #[test]
    fn all_gather_returns_all_values_or_names_the_missing_ranks() {
        let store = Arc::new(View::default());
        let show = |rank: usize, prefix: &'static str, deadline: Duration| {
            let store = store.clone();
            thread::spawn(move || all_gather(&*store, prefix, (rank, 3), &[rank as u8], "meet", deadline))
        };
        let all = [0, 1, 2].map(|rank| show(rank, "first", Duration::from_secs(60)));
        all.into_iter().for_each(|all| assert_eq!(all.join().unwrap().unwrap(), [[0], [1], [2]]));
        let alone = show(1, "second", Duration::from_millis(5)).join().unwrap().unwrap_err().to_string();
        assert_eq!(alone, "meet: no end after 5ms: rank 0, rank 2 have not arrived");
    }

    #[test]
    fn children_have_the_same_name_on_all_ranks_after_a_split_that_left_ranks_out() {
        let store = Arc::new(View::default());
        let mut all = [0, 1].map(|rank| Attendance::new(store.clone(), "a communicator".into(), rank, 2));
        all.iter_mut().for_each(|attendance| assert_eq!(attendance.split(), 1));
        _ = all[0].child(0, 0, 1);
        all.iter_mut().for_each(|attendance| assert_eq!(attendance.split(), 2));
        let [first, second] = [0, 1].map(|rank: usize| all[rank].child(7, rank, 2));
        assert_eq!(first.name(), second.name());
        assert_ne!(first.name(), all[0].child(8, 0, 1).name());
    }
}
