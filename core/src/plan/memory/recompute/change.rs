//! A change that drops one value between two uses and recomputes it later: the steps that must be repeated for it, its
//! gain, and its application.

use super::steps::{Slot, Step, Steps};

/// Maximum number of copies that one change may make.
const MAX_COPIES: usize = 48;

/// Maximum number of levels by which an existing copy runs earlier, to make another copy unnecessary.
const HOIST: usize = 6;

/// Thresholds that are tried: a value is kept longer, instead of being recomputed, if it has at most the saved bytes
/// divided by this.
const KEPT_LONGER: [usize; 3] = [usize::MAX, 16, 1];

/// A change: a value is dropped after one use and recomputed for a later one.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Index of the dropped instance (the value as one step computed it).
    instance: usize,
    /// Level of the recomputation; all later readers use the copy.
    level: usize,
    /// Dispatches that are repeated, each with the level of its copy.
    copies: Vec<(usize, usize)>,
    /// Existing copies that run earlier than before, each with its new level.
    hoists: Vec<(usize, usize)>,
    /// Instances that are kept longer than before, each with the last level that needs it.
    kept: Vec<(usize, usize)>,
    /// Estimated additional time in picoseconds.
    cost: u64,
    /// Reduction of the excess over the limit, in bytes times levels.
    gain: u64,
}

impl Change {
    fn score(&self) -> f64 {
        self.gain as f64 / self.cost.max(1) as f64
    }
}

/// A gap between two uses of an instance, and an upper bound of the benefit of dropping it.
struct Gap {
    instance: usize,
    level: usize,
    bound: f64,
}

impl Steps {
    /// Returns for each level the number of levels before it that need more bytes than the limit.
    fn excess_levels(&self, limit: usize) -> Vec<usize> {
        let mut sum = 0;
        let count = self.live.iter().map(|&bytes| {
            sum += usize::from(bytes > limit);
            sum
        });
        std::iter::once(0).chain(count).collect()
    }

    /// Returns the gaps that overlap levels above the limit, the most promising first.
    fn gaps(&self, limit: usize) -> Vec<Gap> {
        let excess = self.excess_levels(limit);
        let mut gaps = Vec::new();
        for (id, instance) in self.instances.iter().enumerate() {
            let (Some(first), step) = (self.first(id), &self.steps[instance.step]) else {
                continue;
            };
            let origin = &self.origins[step.origin];
            if !origin.repeatable
                || self.readers[id].is_empty()
                || !matches!(self.steps[step.origin].outputs[instance.port], Slot::Made(_))
            {
                continue;
            }
            let bytes: usize = step.outputs.iter().map(|slot| self.size(*slot)).sum();
            let mut before = first;
            for &(level, _) in &self.readers[id] {
                // Levels between the two uses, without that of the copy.
                let over = if level > before + 2 {
                    excess[level - 1] - excess[before + 1]
                } else {
                    0
                };
                if over > 0 {
                    let moves = before == first && !origin.writes;
                    let cost = if moves { 1 } else { origin.cost.max(1) };
                    gaps.push(Gap {
                        instance: id,
                        level: level - 1,
                        bound: bytes as f64 * over as f64 / cost as f64,
                    });
                }
                before = level;
            }
        }
        gaps.sort_by(|a, b| {
            b.bound
                .total_cmp(&a.bound)
                .then(a.instance.cmp(&b.instance))
                .then(a.level.cmp(&b.level))
        });
        gaps
    }

    fn size(&self, slot: Slot) -> usize {
        match slot {
            Slot::Made(id) => self.instances[id].bytes,
            Slot::Fixed(_) => 0,
        }
    }

    /// Returns the change with the largest reduction per time; `None` if no change reduces the
    /// excess.
    pub(super) fn best_change(&self, limit: usize) -> Option<Change> {
        let mut best: Option<Change> = None;
        for gap in self.gaps(limit) {
            if best.as_ref().is_some_and(|b| b.score() >= gap.bound) {
                break;
            }
            let bytes = self.instances[gap.instance].bytes;
            for share in KEPT_LONGER {
                let Some(change) = self.change(&gap, bytes / share, limit) else {
                    continue;
                };
                // A change with a single action has no alternatives.
                let alone = change.copies.len() + change.hoists.len() + change.kept.len() == 1;
                if change.gain > 0 && best.as_ref().is_none_or(|b| change.score() > b.score()) {
                    best = Some(change);
                }
                if alone {
                    break;
                }
            }
        }
        best
    }

    /// Returns the change for a gap; `None` if there is none. Values of up to `small` bytes are kept longer instead of
    /// recomputed.
    fn change(&self, gap: &Gap, small: usize, limit: usize) -> Option<Change> {
        let step = &self.steps[self.instances[gap.instance].step];
        let mut change = Change {
            instance: gap.instance,
            level: gap.level,
            copies: Vec::new(),
            hoists: Vec::new(),
            kept: Vec::new(),
            cost: 0,
            gain: 0,
        };
        let done = self.supply(step.origin, gap.level, small, &mut change);
        if !done {
            return None;
        }
        if self.is_dropped(&change) {
            change.cost -= self.origins[step.origin].cost.min(change.cost);
        }
        change.gain = self.gain(&change, limit);
        Some(change)
    }

    /// Returns `true` if no reader of the instance remains after the change, so that the step that computes it is
    /// dropped.
    fn is_dropped(&self, change: &Change) -> bool {
        let step = &self.steps[self.instances[change.instance].step];
        let idle = |slot: &Slot| match *slot {
            Slot::Made(id) => self.readers[id].first().is_none_or(|r| r.0 > change.level),
            Slot::Fixed(_) => false,
        };
        step.outputs.iter().all(idle)
    }

    /// Makes the results of a dispatch available at a level: plans a copy of the dispatch at this level or before, and
    /// everything that the copy needs.
    fn supply(&self, origin: usize, level: usize, small: usize, change: &mut Change) -> bool {
        let facts = &self.origins[origin];
        if !facts.repeatable || level <= facts.level || change.copies.len() >= MAX_COPIES {
            return false;
        }
        // Before it is applied, a change lists copies by their origin, which is the index of the
        // original step.
        let mut planned = change.copies.iter_mut().chain(&mut change.hoists);
        if let Some(entry) = planned.find(|entry| self.steps[entry.0].origin == origin) {
            if entry.1 <= level {
                return true;
            }
            entry.1 = level;
        } else {
            match self.copy_after(origin, level) {
                Some(step) if !change.copies.is_empty() => change.hoists.push((step, level)),
                _ => {
                    change.copies.push((origin, level));
                    change.cost += facts.cost;
                }
            }
        }
        for &value in &facts.reads {
            let coming = change.copies.iter().chain(&change.hoists);
            let mut coming = coming.filter(|(i, _)| self.steps[*i].origin == self.maker(value));
            if coming.any(|(_, at)| *at < level) || self.is_alive(value, level) {
                continue;
            }
            let Some(last) = self.nearest(value, level) else {
                return false;
            };
            if change.kept.iter().any(|&(id, until)| id == last && until >= level) {
                continue;
            }
            if self.bytes(value) > small {
                let before = change.clone();
                if self.supply(self.maker(value), level - 1, small, change) {
                    continue;
                }
                *change = before;
            }
            change.kept.push((last, level));
        }
        true
    }

    /// Returns an existing copy that runs at most [`HOIST`] levels after a level.
    fn copy_after(&self, origin: usize, level: usize) -> Option<usize> {
        let copies = self.steps.iter().enumerate().skip(self.origins.len());
        let soon = |s: &Step| !s.dropped && s.origin == origin && s.level > level && s.level <= level + HOIST;
        copies
            .filter(|(_, s)| soon(s))
            .min_by_key(|(_, s)| s.level)
            .map(|(i, _)| i)
    }

    /// Returns the reduction of the excess over the limit, in bytes times levels.
    fn gain(&self, change: &Change, limit: usize) -> u64 {
        let mut delta = vec![0i64; self.live.len() + 1];
        let mut add = |from: usize, to: usize, bytes: i64| {
            if from <= to {
                delta[from] += bytes;
                delta[to + 1] -= bytes;
            }
        };
        let is_dropped = self.is_dropped(change);
        let step = &self.steps[self.instances[change.instance].step];
        for slot in &step.outputs {
            let Slot::Made(id) = *slot else { continue };
            let (bytes, level) = (self.instances[id].bytes as i64, change.level);
            let (first, last) = (step.level, self.readers[id].last().map_or(step.level, |r| r.0));
            let kept = self.readers[id]
                .iter()
                .rev()
                .find(|r| r.0 <= level)
                .map_or(first, |r| r.0);
            add(first, last, -bytes);
            if !is_dropped {
                add(first, if last > level { kept } else { last }, bytes);
            }
            add(level, last.max(level), bytes);
        }
        for &(origin, level) in &change.copies[1..] {
            let last = self.last_need(origin, level, change);
            for slot in &self.steps[origin].outputs {
                add(level, last, self.size(*slot) as i64);
            }
        }
        for &(step, level) in &change.hoists {
            for slot in &self.steps[step].outputs {
                add(level, self.steps[step].level - 1, self.size(*slot) as i64);
            }
        }
        for (i, &(id, until)) in change.kept.iter().enumerate() {
            let longer = |&(other, level): &(usize, usize)| other == id && level > until;
            if !change.kept.iter().any(longer) && !change.kept[..i].contains(&(id, until)) {
                let last = self.life(id).map_or(until, |life| life.1);
                add(last + 1, until, self.instances[id].bytes as i64);
            }
        }
        let over = |bytes: i64| (bytes - limit as i64).max(0);
        let (mut sum, mut gain) = (0, 0);
        for (&live, delta) in self.live.iter().zip(&delta) {
            sum += delta;
            gain += over(live as i64) - over(live as i64 + sum);
        }
        gain.max(0) as u64
    }

    /// Returns the last level at which the change itself reads the results of a copy.
    fn last_need(&self, origin: usize, level: usize, change: &Change) -> usize {
        let steps = change.copies.iter().chain(&change.hoists);
        let reads = |i: usize| {
            let values = &self.origins[self.steps[i].origin].reads;
            values.iter().any(|v| self.maker(*v) == origin)
        };
        let last = steps.filter(|(i, _)| reads(*i)).map(|(_, at)| *at).max();
        last.unwrap_or(level).max(level)
    }

    /// Applies the change to the list of steps.
    pub(super) fn apply(&mut self, change: &Change) {
        let old = self.steps[self.instances[change.instance].step].outputs.clone();
        let mut again = None;
        let mut moves: Vec<(usize, usize)> = change.hoists.clone();
        for (i, &(origin, level)) in change.copies.iter().enumerate() {
            let step = self.add_copy(origin, level);
            if i == 0 {
                again = Some(step);
            }
            moves.push((step, level));
        }
        moves.sort_by_key(|m| m.1);
        for &(step, level) in &moves {
            self.steps[step].level = level;
        }
        self.refresh();
        // Earlier levels first, so that later ones find their results.
        for &(step, level) in &moves {
            self.find_operands(step, level);
            self.refresh();
        }
        let new = again.map(|step| self.steps[step].outputs.clone());
        for (&from, to) in old.iter().zip(new.into_iter().flatten()) {
            if let Slot::Made(id) = from {
                let later = self.readers[id].iter().filter(|r| r.0 > change.level);
                let later: Vec<usize> = later.map(|r| r.1).collect();
                later.into_iter().for_each(|step| self.reread(step, from, to));
            }
        }
        self.drop_unread();
    }

    fn find_operands(&mut self, step: usize, level: usize) {
        for i in 0..self.steps[step].inputs.len() {
            if let Slot::Made(id) = self.steps[step].inputs[i]
                && let Some(nearest) = self.nearest(self.instances[id].value, level)
            {
                self.steps[step].inputs[i] = Slot::Made(nearest);
            }
        }
    }

    fn reread(&mut self, step: usize, from: Slot, to: Slot) {
        let inputs = self.steps[step].inputs.iter_mut();
        inputs.filter(|slot| **slot == from).for_each(|slot| *slot = to);
    }

    /// Removes copies that are unnecessary because there is enough memory without them, the most expensive ones first.
    pub(super) fn take_back(&mut self, limit: usize) {
        loop {
            let mut copies = self.repeated();
            copies.sort_by_key(|&i| (std::cmp::Reverse(self.origins[self.steps[i].origin].cost), i));
            let before = copies.len();
            for step in copies {
                if !self.steps[step].dropped {
                    self.undo_one(step, limit);
                }
            }
            if self.repeated().len() == before {
                return;
            }
        }
    }

    fn undo_one(&mut self, step: usize, limit: usize) {
        let level = self.steps[step].level;
        let mut delta = vec![0i64; self.live.len() + 1];
        let mut moves = Vec::new();
        for slot in &self.steps[step].outputs {
            let Slot::Made(id) = *slot else { return };
            let Some((_, last)) = self.life(id) else { return };
            let bytes = self.instances[id].bytes as i64;
            delta[level] -= bytes;
            delta[last + 1] += bytes;
            if self.readers[id].is_empty() {
                continue;
            }
            let Some(earlier) = self.nearest(self.instances[id].value, level) else {
                return;
            };
            let kept = self.life(earlier).map_or(level, |life| life.1);
            if kept < last {
                delta[kept + 1] += bytes;
                delta[last + 1] -= bytes;
            }
            moves.push((id, earlier));
        }
        let mut sum = 0;
        let fits = self.live.iter().zip(&delta).all(|(&live, d)| {
            sum += d;
            sum <= 0 || live as i64 + sum <= limit as i64
        });
        if !fits {
            return;
        }
        for (from, to) in moves {
            for (_, reader) in self.readers[from].clone() {
                self.reread(reader, Slot::Made(from), Slot::Made(to));
            }
        }
        self.drop_unread();
    }
}
