//! Who has come: vendors' libraries do not say whom they wait for, so ranks that wait for long tell each other through the
//! session's store that they did come.

use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::id::Rank;
use crate::store::Store;

/// How long others may take to say so, who have come just now.
const GRACE: Duration = Duration::from_millis(300);

/// The longest that a rank waits in silence, times four.
const LONG: Duration = Duration::from_secs(4);

/// In words, that these ranks have not come.
pub fn absence(missing: &[Rank]) -> String {
    match missing {
        [] => "all have come, too late".to_owned(),
        [one] => format!("{one} has not come"),
        several => format!("{} have not come", several.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// What each rank shows, by rank, through a store: collective over all `size` ranks, of which this one is `rank`. `prefix` is alike on
/// all ranks, unlike that of any other gathering.
///
/// # Errors
/// [`Error::Deadline`] of `operation`, which names the ranks that have not come; those of the store.
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
                let state = absence(&missing);
                return Err(Error::Deadline { operation: operation.to_owned(), after: deadline, state });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// Whether a rank has waited for so long that its peers should know.
pub fn is_long(waited: Duration, deadline: Duration) -> bool {
    waited > deadline.min(LONG) / 4
}

/// One rank's word to its peers that it waits, which any thread may say.
#[derive(Clone, Debug)]
pub struct Voice {
    store: Arc<dyn Store>,
    key: String,
}

impl Voice {
    /// Says that the rank waits in operation `number`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn tell(&self, number: u64) -> Result<()> {
        self.store.set(&self.key, &number.to_le_bytes())
    }
}

/// The ranks of one communicator, as far as they can be asked.
#[derive(Debug)]
pub struct Roll {
    store: Arc<dyn Store>,
    /// Alike on all ranks, unlike that of any other communicator.
    name: String,
    rank: usize,
    size: usize,
    splits: u64,
    /// The operation that this rank has last said that it waits in.
    told: Cell<Option<u64>>,
}

impl Roll {
    /// That of rank `rank` of `size`.
    pub fn new(store: Arc<dyn Store>, name: String, rank: usize, size: usize) -> Self {
        Self { store, name, rank, size, splits: 0, told: Cell::new(None) }
    }

    /// What its keys in the store begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Another split, whether this rank will be in a child or not. Which one, alike on all ranks.
    pub fn split(&mut self) -> u64 {
        self.splits += 1;
        self.splits
    }

    /// That of a communicator which this split has made, and of which this rank is another.
    pub fn child(&self, color: u32, rank: usize, size: usize) -> Self {
        Self::new(self.store.clone(), format!("{}, split {} color {color}", self.name, self.splits), rank, size)
    }

    /// Whether to go on waiting in operation `number`, after so long: ranks that wait say so in good time for those that have waited
    /// longer.
    ///
    /// # Errors
    /// [`Error::Deadline`], which names the ranks that have not come; those of the store.
    pub fn go_on(
        &self,
        number: u64,
        waited: Duration,
        deadline: Duration,
        operation: impl FnOnce() -> String,
    ) -> Result<()> {
        match waited {
            _ if waited > deadline => {
                Err(Error::Deadline { operation: operation(), after: deadline, state: self.call(number) })
            }
            _ if is_long(waited, deadline) => self.tell(number),
            _ => Ok(()),
        }
    }

    /// Says, once, that this rank waits in operation `number`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn tell(&self, number: u64) -> Result<()> {
        if self.told.replace(Some(number)) == Some(number) {
            return Ok(());
        }
        self.voice().tell(number)
    }

    /// The word of this rank, for another thread.
    pub fn voice(&self) -> Voice {
        Voice { store: self.store.clone(), key: self.key(self.rank) }
    }

    /// In words, who is not in operation `number`, which this rank has waited in for too long.
    pub fn call(&self, number: u64) -> String {
        match self.missing(number).as_deref() {
            Err(error) => format!("who has not come can't be found out: {error}"),
            Ok([]) => "all ranks have come; DISCO_CHECK=1 tells whether they call the same".to_owned(),
            Ok(missing) => absence(missing),
        }
    }

    fn missing(&self, number: u64) -> Result<Vec<Rank>> {
        self.tell(number)?;
        let (start, mut missing) = (Instant::now(), (0..self.size).collect::<Vec<_>>());
        loop {
            for index in (0..missing.len()).rev() {
                let said = self.store.get(&self.key(missing[index]))?.and_then(|bytes| bytes.try_into().ok());
                if said.is_some_and(|bytes| u64::from_le_bytes(bytes) >= number) {
                    missing.remove(index);
                }
            }
            if missing.is_empty() || start.elapsed() > GRACE {
                return Ok(missing.into_iter().map(|rank| Rank::new(rank as u32)).collect());
            }
            thread::sleep(GRACE / 10);
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
    fn ranks_that_have_said_so_are_there() {
        let store = Arc::new(View::default());
        let roll = |rank| Roll::new(store.clone(), "a communicator".into(), rank, 3);
        let (first, second) = (roll(0), roll(1));
        // The number before the first operation is one, too.
        second.tell(0).unwrap();
        assert_eq!(first.call(0), "rank 2 has not come");
        // Whoever is behind is not there.
        assert_eq!(first.call(1), "rank 1, rank 2 have not come");
        second.tell(1).unwrap();
        roll(2).tell(2).unwrap();
        assert!(first.call(1).starts_with("all ranks have come"));
    }

    #[test]
    fn what_all_show_is_seen_by_all_and_who_does_not_come_is_named() {
        let store = Arc::new(View::default());
        let show = |rank: usize, prefix: &'static str, deadline: Duration| {
            let store = store.clone();
            thread::spawn(move || all_gather(&*store, prefix, (rank, 3), &[rank as u8], "meet", deadline))
        };
        let all = [0, 1, 2].map(|rank| show(rank, "first", Duration::from_secs(60)));
        all.into_iter().for_each(|all| assert_eq!(all.join().unwrap().unwrap(), [[0], [1], [2]]));
        let alone = show(1, "second", Duration::from_millis(5)).join().unwrap().unwrap_err().to_string();
        assert_eq!(alone, "meet: no end after 5ms: rank 0, rank 2 have not come");
    }

    #[test]
    fn children_have_one_name_also_after_a_split_that_left_ranks_out() {
        let store = Arc::new(View::default());
        let mut rolls = [0, 1].map(|rank| Roll::new(store.clone(), "a communicator".into(), rank, 2));
        rolls.iter_mut().for_each(|roll| assert_eq!(roll.split(), 1));
        _ = rolls[0].child(0, 0, 1);
        rolls.iter_mut().for_each(|roll| assert_eq!(roll.split(), 2));
        let [first, second] = [0, 1].map(|rank: usize| rolls[rank].child(7, rank, 2));
        assert_eq!(first.name(), second.name());
        assert_ne!(first.name(), rolls[0].child(8, 0, 1).name());
    }
}
