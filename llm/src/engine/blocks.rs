//! The blocks of a paged key-value cache: who has which, and what they hold that others may want.

use std::collections::{BTreeMap, HashMap};

/// A full block by what it holds: the block before it, by its identity, and its own tokens.
type Content = (Identity, Box<[u32]>);

/// Stands for a sequence of full blocks of tokens; none is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(u64);

impl Identity {
    /// Identity of no block: the beginning of sequences that use the model without adapters.
    pub(super) const START: Identity = Identity(0);

    /// The beginning of sequences that use an adapter, by its index: their keys and values differ from the model's own.
    pub(super) fn start(adapter: Option<usize>) -> Self {
        adapter.map_or(Identity::START, |adapter| Identity(u64::MAX - adapter as u64))
    }
}

/// What is known of a block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Sequences that use it.
    users: usize,
    /// What it holds, if others may find it.
    content: Option<Content>,
    /// When its last user left, in calls of [`BlockPool::release`].
    left: u64,
}

/// All blocks of a cache. A block that nobody uses keeps what it holds until another one is needed: the one that was left
/// longest ago goes first.
#[derive(Debug)]
pub(super) struct BlockPool {
    blocks: Vec<Block>,
    /// Blocks that hold nothing.
    free: Vec<usize>,
    /// Where full blocks are, and who they are.
    known: HashMap<Content, (usize, Identity)>,
    /// Blocks that nobody uses, but that may be wanted again, by when they were left.
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

    /// Blocks that somebody uses.
    pub(super) fn used(&self) -> usize {
        self.blocks.len() - self.free.len() - self.unused.len()
    }

    /// Blocks that can be had.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// A block to write, for one user; `None` if all are in use.
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

    /// A block that holds these tokens behind others, for one more user.
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

    /// Lets others find a block that is full of these tokens behind others. If there is such a block already, this one stays
    /// its user's own.
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

    /// One user less for each of the blocks of a sequence.
    pub(super) fn release(&mut self, blocks: &[usize]) {
        // A beginning is wanted more often than what follows it, and is of no use without: the end goes first.
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
        // The same tokens elsewhere are another block.
        assert_eq!(pool.find(Identity::START, &[3, 4]), None);
        assert_eq!(pool.find(first, &[3, 4]), Some((b, second)));
        pool.release(&[b]);
        pool.release(&[a, b]);
        assert_eq!((pool.used(), pool.available()), (0, 3));
        assert_eq!(pool.find(Identity::START, &[1, 2]), Some((a, first)));
        pool.release(&[a]);
        // The free one first, then what was left longest ago.
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
