//! A walk from the roots. It finds the reachable classes, their order, and the groups of classes that can be on a
//! common cycle.

use super::flat::{FlatClasses, NONE};

/// Classes reachable from the roots.
#[derive(Default)]
pub(super) struct Walk {
    /// Classes in post-order: children first, except across back edges.
    pub order: Vec<u32>,
    /// Position of each class in that order; [`NONE`] if unreachable.
    pub position: Vec<u32>,
    /// Group of each class: classes of one group reach each other. [`NONE`] if unreachable.
    pub group: Vec<u32>,
    /// Number of classes of each group.
    pub group_size: Vec<u32>,
}

/// Tarjan's algorithm with an explicit stack, for deep graphs.
struct Tarjan<'a> {
    flat: &'a FlatClasses,
    walk: Walk,
    index: Vec<u32>,
    low: Vec<u32>,
    visited: u32,
    open: Vec<u32>,
    frames: Vec<Frame>,
}

/// A class on the stack of the walk, with the indices of its next choice and next child.
struct Frame {
    class: u32,
    choice: usize,
    child: usize,
}

/// Walks from the roots through the choices of `alive`, without entering the classes of `skip`.
pub(super) fn walk(flat: &FlatClasses, alive: &[bool], skip: &[bool]) -> Walk {
    let n = flat.len();
    let mut tarjan = Tarjan {
        flat,
        walk: Walk {
            order: Vec::with_capacity(n),
            position: vec![NONE; n],
            group: vec![NONE; n],
            group_size: Vec::new(),
        },
        index: vec![NONE; n],
        low: vec![NONE; n],
        visited: 0,
        open: Vec::new(),
        frames: Vec::new(),
    };
    for &root in &flat.roots {
        if tarjan.index[root as usize] == NONE && !skip[root as usize] {
            tarjan.enter(root);
            tarjan.run(alive, skip);
        }
    }
    tarjan.walk
}

impl Tarjan<'_> {
    fn enter(&mut self, class: u32) {
        self.index[class as usize] = self.visited;
        self.low[class as usize] = self.visited;
        self.visited += 1;
        self.open.push(class);
        let choice = self.flat.choices(class).start;
        self.frames.push(Frame {
            class,
            choice,
            child: 0,
        });
    }

    fn run(&mut self, alive: &[bool], skip: &[bool]) {
        while let Some(frame) = self.frames.last_mut() {
            let c = frame.class as usize;
            if frame.choice == self.flat.choices(frame.class).end {
                let class = frame.class;
                self.frames.pop();
                self.leave(class);
                continue;
            }
            let children = self.flat.children(frame.choice);
            if !alive[frame.choice] || frame.child == children.len() {
                frame.choice += 1;
                frame.child = 0;
                continue;
            }
            let x = children[frame.child];
            frame.child += 1;
            if skip[x as usize] {
                continue;
            }
            if self.index[x as usize] == NONE {
                self.enter(x);
            } else if self.walk.group[x as usize] == NONE {
                self.low[c] = self.low[c].min(self.index[x as usize]);
            }
        }
    }

    fn leave(&mut self, class: u32) {
        let c = class as usize;
        self.walk.position[c] = self.walk.order.len() as u32;
        self.walk.order.push(class);
        if let Some(parent) = self.frames.last() {
            let p = parent.class as usize;
            self.low[p] = self.low[p].min(self.low[c]);
        }
        if self.low[c] != self.index[c] {
            return;
        }
        let group = self.walk.group_size.len() as u32;
        let mut size = 0;
        while let Some(x) = self.open.pop() {
            self.walk.group[x as usize] = group;
            size += 1;
            if x == class {
                break;
            }
        }
        self.walk.group_size.push(size);
    }
}

impl Walk {
    /// Returns `true` if a class can be on a cycle.
    pub(super) fn cyclic(&self, class: u32) -> bool {
        let group = self.group[class as usize];
        group != NONE && self.group_size[group as usize] > 1
    }
}
