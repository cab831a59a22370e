//! Admission of waiting sequences to the running ones.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Engine;
use super::inputs::BLOCK_ROWS;
use super::sequence::Sequence;

/// Sequences overtake only if they need at most this share (the inverse) of the cache.
const SHORT_SHARE: usize = 8;

impl Engine {
    /// Returns the number of running sequences of a group. A sequence without a group is a group by itself.
    fn running_of(&self, group: Option<u64>) -> usize {
        match group {
            Some(_) => self.running.iter().filter(|sequence| sequence.group == group).count(),
            None => 0,
        }
    }

    /// Returns the index of the next waiting sequence: the oldest one of the group with the fewest running sequences.
    /// Among groups with equally many, it is the group whose last turn (admission of a sequence), or else whose
    /// arrival, is longest ago, so that later requests do not overtake it. A quarter of the slots is for sequences
    /// without constraints, because masks may take seconds.
    fn next_waiting(&self) -> Option<usize> {
        self.next_waiting_of(|_| true)
    }

    /// Returns the index of the next of the waiting sequences that `fits` accepts, in the same order.
    fn next_waiting_of(&self, fits: impl Fn(&Sequence) -> bool) -> Option<usize> {
        let slots = self.options.sequences;
        let limit = if slots > 1 { slots - slots.div_ceil(4) } else { slots };
        let constrained = self.running.iter().filter(|sequence| !sequence.may_draft()).count();
        let waiting = self.waiting.iter().enumerate();
        let allowed = waiting
            .filter(|(_, sequence)| fits(sequence))
            .filter(|(_, sequence)| sequence.may_draft() || constrained < limit);
        let turn_of = |group: Option<u64>| group.and_then(|group| self.turns.get(&group)).copied();
        let key = |sequence: &Sequence| {
            let turn = turn_of(sequence.group).unwrap_or(sequence.arrival);
            (self.running_of(sequence.group), turn)
        };
        allowed.min_by_key(|(_, sequence)| key(sequence)).map(|(at, _)| at)
    }

    /// Records a turn of a group: the admission of one of its sequences.
    fn count_turn(&mut self, group: Option<u64>) {
        self.last_turn += 1;
        let Some(group) = group else { return };
        if self.turns.len() > self.waiting.len() {
            let waiting = &self.waiting;
            self.turns
                .retain(|group, _| waiting.iter().any(|sequence| sequence.group == Some(*group)));
        }
        self.turns.insert(group, self.last_turn);
    }

    /// Returns the maximum number of blocks that [`Engine::preempt_for_new_group`] can free. Each group keeps one sequence.
    fn preemptible_blocks(&self) -> usize {
        let mut kept: HashMap<u64, usize> = HashMap::new();
        let mut all = 0;
        for sequence in &self.running {
            let Some(group) = sequence.group else { continue };
            let blocks = sequence.blocks.len();
            let kept = kept.entry(group).or_insert(0);
            all += blocks;
            *kept = blocks.max(*kept);
        }
        all - kept.values().sum::<usize>()
    }

    /// Makes room for a group without running sequences by preempting a sequence of the group with the most running
    /// sequences: one in prefill if possible, and the one with the fewest computed tokens. Its cached prefix is reused if the
    /// prefix cache is enabled. Returns false if no group has several running sequences.
    fn preempt_for_new_group(&mut self) -> bool {
        let running = self.running.iter().enumerate();
        let several = running.filter(|(_, sequence)| self.running_of(sequence.group) > 1);
        let victim = several.max_by_key(|(_, sequence)| {
            let is_reading = sequence.due() > 1;
            (self.running_of(sequence.group), is_reading, Reverse(sequence.computed))
        });
        let Some((place, _)) = victim else { return false };
        let mut sequence = self.running.remove(place);
        sequence.give_back(&mut self.pool);
        self.counts.preemptions += 1;
        self.waiting.push_front(sequence);
        true
    }

    /// Admits a sequence that is short enough to overtake one for which there is no room: its whole text fits into the free
    /// blocks beyond the `promised` ones, and into a small part of the cache. Returns false if there is none, or if only sequences
    /// that have overtaken are running: these have to end, so that there will be room.
    fn admit_short(&mut self, promised: usize) -> bool {
        if self.running.iter().all(|sequence| sequence.has_overtaken) {
            return false;
        }
        let available = self.pool.available();
        let small = ((self.pool.used() + available) / SHORT_SHARE).max(1);
        let room = available.saturating_sub(promised).min(small);
        let Some(at) = self.next_waiting_of(|sequence| sequence.whole_len().div_ceil(BLOCK_ROWS) <= room) else {
            return false;
        };
        let Some(mut next) = self.waiting.remove(at) else {
            return false;
        };
        next.has_overtaken = true;
        next.record_cached();
        self.count_turn(next.group);
        self.running.push(next);
        true
    }

    /// Moves waiting sequences to the running ones, as long as there is room for their tokens and
    /// one more.
    ///
    /// Short sequences overtake the next one while there is no room for it.
    ///
    /// The loop ends: a sequence is only preempted for a group without running sequences, whose sequence is admitted
    /// next, and the preempted group keeps at least one running sequence.
    pub(super) fn admit(&mut self) {
        let mut has_preempted = false;
        while let Some(at) = self.next_waiting() {
            let is_new = self.running_of(self.waiting[at].group) == 0;
            if self.running.len() >= self.options.sequences {
                if is_new && self.preempt_for_new_group() {
                    has_preempted = true;
                    continue;
                }
                return;
            }
            let Some(mut next) = self.waiting.remove(at) else {
                return;
            };
            if self.options.prefix_cache {
                next.find_beginning(&mut self.pool, BLOCK_ROWS);
            }
            // Running sequences allocate their blocks gradually.
            let missing = |sequence: &Sequence| {
                (sequence.tokens.len() + 1)
                    .div_ceil(BLOCK_ROWS)
                    .saturating_sub(sequence.blocks.len())
            };
            let promised: usize = self.running.iter().map(missing).sum();
            if promised + missing(&next) > self.pool.available() && !self.running.is_empty() {
                let needed = promised + missing(&next);
                next.give_back(&mut self.pool);
                self.waiting.push_front(next);
                let suffices = needed <= self.pool.available() + self.preemptible_blocks();
                if is_new && suffices && self.preempt_for_new_group() {
                    has_preempted = true;
                    continue;
                }
                // The preempted sequence does not overtake.
                if !has_preempted && self.admit_short(promised) {
                    continue;
                }
                return;
            }
            next.has_overtaken = false;
            next.record_cached();
            self.count_turn(next.group);
            self.counts.cached_tokens += next.computed as u64;
            self.running.push(next);
        }
    }
}
