//! The blocks of a paged key-value cache: their users and their contents, which other sequences may
//! reuse.

use std::collections::{BTreeMap, HashMap};

/// The content of a full block: the identity of the previous block, and its own tokens.
type Content = (Identity, Box<[u32]>);

/// Identity of a prefix that consists of full blocks; each prefix of tokens (and adapter) has a unique one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(u64);

impl Identity {
    /// Identity of the empty prefix, for sequences that use the model without adapters.
    pub(super) const START: Identity = Identity(0);

    /// Returns the identity of the empty prefix for sequences that use the adapter with this index: the adapter changes
    /// their keys and values.
    pub(super) fn start(adapter: Option<usize>) -> Self {
        adapter.map_or(Identity::START, |adapter| Identity(u64::MAX - adapter as u64))
    }
}

/// The state of a block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Number of sequences that use it.
    users: usize,
    /// Content of the block, if other sequences may find it.
    content: Option<Content>,
    /// Time when the last user released the block, counted in calls of [`BlockPool::release`].
    left: u64,
}

/// All blocks of a cache. An unused block keeps its content until it is evicted: the least recently
/// used block is evicted first.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks without content.
    free: Vec<usize>,
    /// Reusable full blocks by their content: the index of the block, and the identity of the prefix that ends with it.
    known: HashMap<Content, (usize, Identity)>,
    /// Unused blocks with reusable content, by the time when they were released.
    unused: BTreeMap<u64, usize>,
    next_identity: u64,
    clock: u64,
}

impl BlockPool {
    pub(super) fn new(blocks: usize) -> Self {
        BlockPool {
            blocks: vec![Block::default(); blocks],
            free: (0..blocks).rev().collect(),
            known: HashMap::new(),
            unused: BTreeMap::new(),
            next_identity: 1,
            clock: 0,
        }
    }

    /// Returns the number of blocks in use.
    pub(super) fn used(&self) -> usize {
        self.blocks.len() - self.free.len() - self.unused.len()
    }

    /// Returns the number of available blocks.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// Takes a block for writing, for one user; `None` if all are in use.
    pub(super) fn take(&mut self) -> Option<usize> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.unused.pop_first()?;
                if let Some(content) = self.blocks[block].content.take() {
                    self.known.remove(&content);
                }
                block
            }
        };
        self.blocks[block].users = 1;
        Some(block)
    }

    /// Finds a block that contains these tokens after the prefix `before`, and adds a user.
    pub(super) fn find(&mut self, before: Identity, tokens: &[u32]) -> Option<(usize, Identity)> {
        // The map's key owns its tokens.
        let &(block, identity) = self.known.get(&(before, tokens.into()))?;
        let entry = &mut self.blocks[block];
        if entry.users == 0 {
            self.unused.remove(&entry.left);
        }
        entry.users += 1;
        Some((block, identity))
    }

    /// Makes a block that is full of these tokens available to other sequences. If such a block
    /// already exists, this one stays private to its user.
    pub(super) fn publish(&mut self, block: usize, before: Identity, tokens: &[u32]) -> Identity {
        let content: Content = (before, tokens.into());
        if let Some(&(_, identity)) = self.known.get(&content) {
            return identity;
        }
        let identity = Identity(self.next_identity);
        self.next_identity += 1;
        self.blocks[block].content = Some(content.clone());
        self.known.insert(content, (block, identity));
        identity
    }

    /// Removes one user of each block of a sequence.
    pub(super) fn release(&mut self, blocks: &[usize]) {
        // Blocks are released from the end of the sequence, so that its last blocks are evicted first: a prefix is
        // reused more often than its continuation.
        for &block in blocks.iter().rev() {
            let entry = &mut self.blocks[block];
            entry.users -= 1;
            if entry.users > 0 {
                continue;
            }
            match entry.content {
                None => self.free.push(block),
                Some(_) => {
                    self.clock += 1;
                    entry.left = self.clock;
                    self.unused.insert(self.clock, block);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_blocks_are_found_until_their_place_is_needed() {
        let mut pool = BlockPool::new(3);
        let [a, b] = [(); 2].map(|()| pool.take().expect("a block"));
        let first = pool.publish(a, Identity::START, &[1, 2]);
        let second = pool.publish(b, first, &[3, 4]);
        assert_ne!(first, second);
        // The same tokens after other blocks are another block.
        assert_eq!(pool.find(Identity::START, &[3, 4]), None);
        assert_eq!(pool.find(first, &[3, 4]), Some((b, second)));
        pool.release(&[b]);
        pool.release(&[a, b]);
        assert_eq!((pool.used(), pool.available()), (0, 3));
        assert_eq!(pool.find(Identity::START, &[1, 2]), Some((a, first)));
        pool.release(&[a]);
        // First the free block, then the least recently used ones.
        let taken: Vec<usize> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 3);
        assert_eq!(taken[1..], [b, a]);
        assert_eq!(pool.find(Identity::START, &[1, 2]), None);
        assert_eq!(pool.find(first, &[3, 4]), None);
    }

    #[test]
    fn a_second_block_of_the_same_tokens_stays_private() {
        let mut pool = BlockPool::new(2);
        let [a, b] = [(); 2].map(|()| pool.take().expect("a block"));
        let first = pool.publish(a, Identity::START, &[1]);
        assert_eq!(pool.publish(b, Identity::START, &[1]), first);
        pool.release(&[b]);
        pool.release(&[a]);
        assert_eq!(pool.find(Identity::START, &[1]), Some((a, first)));
        assert_eq!(pool.take(), Some(b));
        assert_eq!(pool.take(), None);
    }
}
