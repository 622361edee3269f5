//! Allocates the blocks of the workers' key-value cache, and the states of linear attention that they keep for prefixes.
//!
//! A block is in one of three states: *in use* by one sequence or more, *idle* (in use by none, but its contents have a
//! digest, so that a later sequence can take it as it is), or *free*. Idle blocks are evicted, the least recently used one
//! first, once no block is free.

use std::collections::{BTreeMap, HashMap};

use super::prefix::Digest;

pub use disco_models::BLOCK as BLOCK_TOKENS;

/// The states of all blocks. The workers have the memory; block numbers are the same on all of them.
#[derive(Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Idle blocks by the time of their release.
    idle: BTreeMap<u64, u32>,
    by_digest: HashMap<Digest, u32>,
    /// Number of releases so far.
    clock: u64,
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    digest: Option<Digest>,
    /// When it was released last.
    released: u64,
}

impl Blocks {
    /// `count` free blocks.
    pub fn new(count: u32) -> Self {
        Self {
            blocks: vec![Block::default(); count as usize],
            free: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            by_digest: HashMap::new(),
            clock: 0,
        }
    }

    /// Number of all blocks.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Number of blocks that [`take`](Self::take) can give: the free and the idle ones.
    pub fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Number of sequences that use a block.
    pub fn users(&self, block: u32) -> u32 {
        self.blocks[block as usize].users
    }

    /// Gives `count` blocks with one user each, or `None` if fewer are available. Evicts idle blocks if too few are free.
    pub fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.available() {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let block = self.free.pop().or_else(|| self.evict())?;
            self.blocks[block as usize].users = 1;
            taken.push(block);
        }
        Some(taken)
    }

    /// How many of `digests` have blocks, as many in a row as are found.
    pub fn find(&self, digests: &[Digest]) -> usize {
        digests.iter().take_while(|digest| self.by_digest.contains_key(digest)).count()
    }

    /// The last one of `digests` that has a block, by its place, and the block, which counts as used now.
    pub fn last(&mut self, digests: &[Digest]) -> Option<(usize, u32)> {
        let place = digests.iter().rposition(|digest| self.by_digest.contains_key(digest))?;
        let found = self.share(&digests[place..=place]);
        self.release(&found);
        Some((place, *found.first()?))
    }

    /// Frees the block with a digest, if it is idle.
    pub fn discard(&mut self, digest: &Digest) {
        let Some(&number) = self.by_digest.get(digest) else { return };
        let block = &mut self.blocks[number as usize];
        if block.users == 0 {
            self.idle.remove(&block.released);
            block.digest = None;
            self.by_digest.remove(digest);
            self.free.push(number);
        }
    }

    /// Adds a user to the blocks that hold the first of `digests`, as many in a row as are found, and gives them.
    pub fn share(&mut self, digests: &[Digest]) -> Vec<u32> {
        let shared: Vec<u32> = digests.iter().map_while(|digest| self.by_digest.get(digest).copied()).collect();
        for &block in &shared {
            let block = &mut self.blocks[block as usize];
            if block.users == 0 {
                self.idle.remove(&block.released);
            }
            block.users += 1;
        }
        shared
    }

    /// Makes a full block findable by its digest. The step that filled it must have succeeded. If another block has the
    /// same contents already, that one remains the one to be found.
    pub fn register(&mut self, block: u32, digest: Digest) {
        if self.by_digest.contains_key(&digest) || self.blocks[block as usize].digest.is_some() {
            return;
        }
        self.by_digest.insert(digest, block);
        self.blocks[block as usize].digest = Some(digest);
    }

    /// Removes one user from each block of a sequence's table. All blocks return here.
    pub fn release(&mut self, table: &[u32]) {
        // The end of a text is evicted before its beginning: a later block is of no use without those before it.
        for &number in table.iter().rev() {
            let block = &mut self.blocks[number as usize];
            debug_assert!(block.users > 0, "block {number} was released by a sequence that does not use it");
            block.users = block.users.saturating_sub(1);
            if block.users > 0 {
                continue;
            }
            if block.digest.is_some() {
                self.clock += 1;
                block.released = self.clock;
                self.idle.insert(self.clock, number);
            } else {
                self.free.push(number);
            }
        }
    }

    /// Forgets the contents of all blocks. Idle blocks become free; blocks in use remain so.
    pub fn forget(&mut self) {
        self.by_digest.clear();
        self.free.extend(std::mem::take(&mut self.idle).into_values());
        for block in &mut self.blocks {
            block.digest = None;
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, number) = self.idle.pop_first()?;
        if let Some(digest) = self.blocks[number as usize].digest.take() {
            self.by_digest.remove(&digest);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefix::Chain;
    use super::*;

    fn digests(count: u32) -> Vec<Digest> {
        let mut chain = Chain::new(0, 0);
        chain.extend(&(0..count * 16).collect::<Vec<_>>());
        chain.digests().to_vec()
    }

    /// Blocks of which the first `filled` hold the prefix of `digests` and are idle.
    fn idle(count: u32, filled: usize) -> Blocks {
        let mut blocks = Blocks::new(count);
        let table = blocks.take(filled).unwrap();
        for (&block, digest) in table.iter().zip(digests(filled as u32)) {
            blocks.register(block, digest);
        }
        blocks.release(&table);
        blocks
    }

    #[test]
    fn taking_more_blocks_than_available_takes_none() {
        let mut blocks = Blocks::new(3);
        assert_eq!(blocks.take(4), None);
        assert_eq!(blocks.take(3), Some(vec![0, 1, 2]));
        assert_eq!(blocks.available(), 0);
        assert_eq!(blocks.take(0), Some(vec![]));
    }

    #[test]
    fn an_unregistered_block_is_not_found() {
        let mut blocks = Blocks::new(2);
        let table = blocks.take(2).unwrap();
        blocks.release(&table);
        assert!(blocks.share(&digests(1)).is_empty());
        assert_eq!(blocks.available(), 2);
    }

    #[test]
    fn an_idle_block_is_found_and_then_in_use() {
        let mut blocks = idle(4, 2);
        let shared = blocks.share(&digests(3));
        assert_eq!(shared, [0, 1]);
        assert_eq!(blocks.available(), 2);
        assert_eq!(blocks.share(&digests(1)), [0]);
        assert_eq!([blocks.users(0), blocks.users(1)], [2, 1]);
        blocks.release(&shared);
        assert_eq!([blocks.users(0), blocks.users(1)], [1, 0]);
    }

    #[test]
    fn free_blocks_are_taken_before_idle_ones() {
        let mut blocks = idle(4, 2);
        assert_eq!(blocks.take(2), Some(vec![2, 3]));
        assert_eq!(blocks.share(&digests(2)).len(), 2);
    }

    #[test]
    fn the_end_of_the_text_released_first_is_evicted_first() {
        let mut blocks = idle(3, 3);
        let shared = blocks.share(&digests(1));
        blocks.release(&shared);
        assert_eq!(blocks.take(1), Some(vec![2]));
        assert_eq!(blocks.take(1), Some(vec![1]));
        assert_eq!(blocks.share(&digests(3)), [0]);
    }

    #[test]
    fn the_last_block_that_is_found_is_the_one_evicted_last() {
        let mut blocks = idle(3, 3);
        assert_eq!(blocks.find(&digests(4)), 3);
        assert_eq!(blocks.last(&digests(4)), Some((2, 2)));
        assert_eq!(blocks.take(2), Some(vec![1, 0]));
        assert_eq!((blocks.find(&digests(3)), blocks.last(&digests(3))), (0, Some((2, 2))));
        blocks.discard(&digests(3)[2]);
        assert_eq!((blocks.last(&digests(3)), blocks.available()), (None, 1));
    }

    #[test]
    fn of_two_blocks_with_equal_contents_the_first_is_found() {
        let mut blocks = idle(3, 1);
        let other = blocks.take(1).unwrap();
        blocks.register(other[0], digests(1)[0]);
        assert_eq!(blocks.share(&digests(1)), [0]);
        blocks.release(&[0]);
        blocks.release(&other);
        assert_eq!(blocks.available(), 3);
        assert_eq!(blocks.take(3).map(|taken| taken.len()), Some(3));
    }

    #[test]
    fn after_forget_no_block_is_found_and_idle_blocks_are_free() {
        let mut blocks = idle(3, 2);
        let used = blocks.share(&digests(1));
        blocks.forget();
        assert_eq!(blocks.available(), 2);
        assert!(blocks.share(&digests(2)).is_empty());
        blocks.release(&used);
        assert_eq!(blocks.take(3).map(|taken| taken.len()), Some(3));
    }
}
