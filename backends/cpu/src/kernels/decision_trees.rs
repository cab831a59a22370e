//! Kernel that traverses decision trees.

use meganeura_core::DType;
use meganeura_core::ops::NAN_IS_TRUE;

use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.decision_trees",
    supports: |call| match call.inputs[0].dtype {
        DType::F32 => Ok(()),
        other => Err(format!("the features are {other}")),
    },
    compile: |cx| {
        if cx.attrs().bool("strict")? {
            compile::<true>(cx)
        } else {
            compile::<false>(cx)
        }
    },
}];

/// Number of rows that are traversed together. The processor loads their nodes at the same time.
const LANES: usize = 16;
/// Number of rows of a task. The nodes of a tree stay in the cache for all of them.
const TASK_ROWS: usize = 256;

/// Tables of the nodes of all trees.
struct Nodes<'n> {
    features: &'n [u32],
    thresholds: &'n [f32],
    children: &'n [u32],
    depth: usize,
}

impl Nodes<'_> {
    /// Returns the leaves that rows reach from a root. `rows` has `width` features for each lane.
    #[inline(always)]
    fn leaves<const STRICT: bool, const COUNT: usize>(&self, root: u32, rows: &[f32], width: usize) -> [u32; COUNT] {
        let last = self.features.len() as u32 - 1;
        let mut at = [root.min(last); COUNT];
        for _ in 0..self.depth {
            let mut moved = 0;
            for (lane, at) in at.iter_mut().enumerate() {
                let node = *at as usize;
                let word = self.features[node];
                let feature = ((word & !NAN_IS_TRUE) as usize).min(width - 1);
                let (value, threshold) = (rows[lane * width + feature], self.thresholds[node]);
                let test = if STRICT { value < threshold } else { value <= threshold };
                let is_true = test | (value.is_nan() & (word & NAN_IS_TRUE != 0));
                let child = self.children[2 * node + usize::from(is_true)].min(last);
                moved |= child ^ *at;
                *at = child;
            }
            // All rows have reached leaves.
            if moved == 0 {
                break;
            }
        }
        at
    }
}

fn compile<const STRICT: bool>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, roots, features) = (cx.input::<f32>(0), cx.input::<u32>(1), cx.input::<u32>(2));
    let (thresholds, children) = (cx.input::<f32>(3), cx.input::<u32>(4));
    let out = cx.output::<u32>(0);
    let depth = cx.attrs().size("depth")?;
    let &[rows, width] = cx.input_type(0).shape.dims() else {
        return Err("the examples are no matrix".into());
    };
    let trees = roots.len();
    if out.len() == 0 {
        return Ok(Compiled::phases(Vec::new()));
    }
    // Few rows are divided by trees, too.
    let task_rows = rows.min(TASK_ROWS);
    let task_trees = (8 * TASK_ROWS / task_rows).max(1).min(trees);
    let blocks = trees.div_ceil(task_trees);
    Ok(Compiled::one(Task {
        tasks: rows.div_ceil(task_rows) * blocks,
        nanos: (out.len() as u64).saturating_mul(3 * depth as u64),
        body: move |task: usize, _: &RunCx| {
            let first_tree = task % blocks * task_trees;
            let first = task / blocks * task_rows;
            let count = task_rows.min(rows - first);
            // SAFETY: no task writes the operands.
            let (nodes, roots, x) = unsafe {
                let nodes = Nodes {
                    features: features.slice(0..features.len()),
                    thresholds: thresholds.slice(0..thresholds.len()),
                    children: children.slice(0..children.len()),
                    depth,
                };
                (
                    nodes,
                    roots.slice(0..trees),
                    x.slice(first * width..(first + count) * width),
                )
            };
            let roots = roots.iter().enumerate().skip(first_tree).take(task_trees);
            for (tree, &root) in roots {
                let store = |row: usize, leaf: u32| {
                    let place = (first + row) * trees + tree;
                    // SAFETY: only this task writes the leaves of these rows and trees.
                    unsafe { out.slice_mut(place..place + 1)[0] = leaf };
                };
                let whole = count / LANES * LANES;
                for start in (0..whole).step_by(LANES) {
                    let leaves: [u32; LANES] = nodes.leaves::<STRICT, LANES>(root, &x[start * width..], width);
                    leaves
                        .into_iter()
                        .enumerate()
                        .for_each(|(lane, leaf)| store(start + lane, leaf));
                }
                for row in whole..count {
                    let [leaf] = nodes.leaves::<STRICT, 1>(root, &x[row * width..], width);
                    store(row, leaf);
                }
            }
        },
    }))
}
