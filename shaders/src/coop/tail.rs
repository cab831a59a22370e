//! The blocks after the last full wave of blocks.
//!
//! A device runs a limited number of workgroups at a time. If there are a few blocks more than a multiple of this
//! number, they take as long as another full wave. These blocks are split along the sum into parts that fill a wave,
//! as "stream-K" does with all blocks (Osama, Merrill, Cecka, Garland and Owens, 2023). The other blocks are computed
//! as usual. A second launch adds up the parts.

use super::super::body::Id;
use super::super::contraction::Sizes;
use super::super::emit::Emitter;
use super::super::epilogue::{self, PARTIAL, SumConsumer};
use super::super::files;
use super::super::kernel::Launch;
use super::super::template::Template;
use super::{Blocks, KSplit};

/// Minimum number of terms for which blocks are split. On an H200, storing and adding up parts takes 35 to 50 us,
/// while a wave of 1,024 terms takes 36 us and a wave of 4,096 terms takes 140 us.
const LONG_SUM: usize = 2048;

/// The last blocks of a contraction. Several workgroups each compute a part of the sums of such a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Number of blocks before the tail, each computed by one workgroup.
    pub(crate) whole: usize,
    /// Number of blocks that are split.
    pub(crate) blocks: usize,
    /// Division of the sums of these blocks into parts.
    pub(super) cut: KSplit,
}

impl Tail {
    /// Returns the blocks after the last full wave of `groups` workgroups. Returns `None` unless splitting them
    /// occupies more of the device.
    pub(super) fn new(
        groups: usize,
        max_resident_workgroups: usize,
        k: usize,
        step: usize,
        prefetch: usize,
    ) -> Option<Self> {
        let blocks = groups.checked_rem(max_resident_workgroups)?;
        if blocks == 0 || groups < max_resident_workgroups || k < LONG_SUM {
            return None;
        }
        let cut = KSplit::new(k, step, max_resident_workgroups / blocks);
        // The first steps of the last part are fetched without a bounds check, so there must be enough of them.
        (cut.parts > 1 && cut.last_steps >= prefetch).then_some(Tail {
            whole: groups - blocks,
            blocks,
            cut,
        })
    }

    /// Returns the number of parts of each block.
    pub(crate) fn parts(&self) -> usize {
        self.cut.parts
    }

    /// Returns the number of workgroups of the first launch.
    pub(super) fn groups(&self) -> usize {
        self.whole + self.blocks * self.parts()
    }
}

impl<'a> Blocks<'a> {
    /// Splits the blocks after the last full wave, if the number of resident workgroups is known and the blocks can
    /// be split.
    pub(super) fn with_tail(mut self) -> Self {
        let block = &self.block;
        if self.cut.parts == 1 && block.depths == 1 {
            let groups = block.groups(&self.sizes);
            self.tail = Tail::new(
                groups,
                self.config.max_resident_workgroups as usize,
                self.sizes.k,
                block.step,
                block.prefetch,
            );
        }
        self
    }

    pub(crate) fn tail(&self) -> Option<Tail> {
        self.tail
    }

    /// Returns the number of elements of a block.
    fn elements(&self) -> usize {
        self.block.rows * self.block.columns
    }

    /// Returns the size of the stored parts in bytes.
    pub(crate) fn tail_bytes(&self) -> usize {
        let parts = self.tail.map_or(0, |tail| tail.blocks * tail.parts());
        PARTIAL.storage_bytes(parts * self.elements()).unwrap_or(usize::MAX)
    }

    /// Compiles the second launch, which adds up the parts of each element of the split blocks.
    pub(crate) fn join(&self, mut e: Emitter, id: Id, outputs: &[usize], tail: &Tail) -> Result<Launch, String> {
        let Sizes { m, n, .. } = self.sizes;
        let template = self
            .contraction
            .element_number(&mut e, Template::new(files::SPLIT_K_JOIN))?;
        let template = template
            .flag("TAIL", true)
            .sizes([
                ("M", m),
                ("N", n),
                ("ROWS", self.block.rows),
                ("COLUMNS", self.block.columns),
            ])
            .size("TAIL_FIRST", tail.whole);
        let sink = SumConsumer::Finish(epilogue::epilogue(&mut e, id, outputs, 1)?);
        epilogue::add_up(e, &sink, template, [tail.blocks * self.elements(), tail.parts()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_a_wave() {
        let tail = |groups, max_resident_workgroups, k| {
            Tail::new(groups, max_resident_workgroups, k, 32, 1).map(|t| (t.whole, t.blocks, t.parts()))
        };
        assert_eq!(tail(288, 264, 4096), Some((264, 24, 11)));
        assert_eq!(tail(352, 264, 4096), Some((264, 88, 3)));
        assert_eq!(tail(1024, 264, 4096), None, "most of a wave");
        assert_eq!(tail(528, 264, 4096), None);
        assert_eq!(tail(200, 264, 4096), None, "less than one");
        assert_eq!(tail(288, 0, 4096), None, "not known");
        assert_eq!(tail(288, 264, 1024), None, "too short");
        assert_eq!(tail(265, 264, 2048), Some((264, 1, 8)));
    }

    #[test]
    fn parts_are_all_terms() {
        for k in [2048, 2049, 2500, 3001, 4097] {
            for max_resident_workgroups in [2, 7, 40] {
                if let Some(tail) = Tail::new(max_resident_workgroups + 1, max_resident_workgroups, k, 32, 1) {
                    let before = (tail.parts() - 1) * tail.cut.length;
                    assert!(before < k && k <= before + tail.cut.length, "{tail:?}");
                    assert!(tail.blocks * tail.parts() <= max_resident_workgroups);
                }
            }
        }
    }
}
