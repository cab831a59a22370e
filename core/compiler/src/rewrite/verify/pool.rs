//! Candidates for the open parts of a pattern: types, attributes and values of constants.

use std::sync::Arc;

use crate::rewrite::attr::ints_text;
use crate::rewrite::pattern::{Build, Condition, Pattern, ScalarExpr, Step};
use crate::rewrite::scalar::Scalar;
use meganeura_core::attrs::AttrKind;
use meganeura_core::dtype::DType;
use meganeura_core::random::SplitMix64;
use meganeura_core::shape::{Shape, TensorType};

/// Maximum number of elements of a leaf.
const LEAF_ELEMENTS: usize = 1200;
/// Maximum number of candidate types for one leaf.
const MAX_TYPES: usize = 56;

/// Numbers and strings in a rule's text.
#[derive(Default)]
struct Literals {
    ints: Vec<i64>,
    floats: Vec<f64>,
    words: Vec<Arc<str>>,
}

impl Literals {
    fn of(pattern: &Pattern) -> Self {
        let mut found = Literals::default();
        for atom in &pattern.atoms {
            atom.scalars.iter().for_each(|s| found.expr(s));
        }
        for (condition, _) in &pattern.conditions {
            match condition {
                Condition::Holds(a) => found.expr(a),
                Condition::Equal(a, b) => {
                    found.expr(a);
                    found.expr(b);
                }
            }
        }
        for step in &pattern.head {
            match step {
                Step::Let(_, build) | Step::Make(build) => found.build(build),
                Step::LetScalar(_, expr) => found.expr(expr),
                Step::Union(a, b) => {
                    found.build(a);
                    found.build(b);
                }
            }
        }
        found
    }

    fn build(&mut self, build: &Build) {
        if let Build::Node { scalars, children, .. } = build {
            scalars.iter().for_each(|s| self.expr(s));
            children.iter().for_each(|c| self.build(c));
        }
    }

    fn expr(&mut self, expr: &ScalarExpr) {
        match expr {
            ScalarExpr::Literal(Scalar::Int(v)) => self.ints.push(*v),
            ScalarExpr::Literal(Scalar::Float(v)) => self.floats.push(*v),
            ScalarExpr::Literal(Scalar::Str(v)) => self.words.push(v.clone()),
            ScalarExpr::Literal(_) | ScalarExpr::Var(_) => {}
            ScalarExpr::Primitive(_, arguments) | ScalarExpr::Fact(_, arguments) => {
                arguments.iter().for_each(|a| self.expr(a));
            }
            ScalarExpr::NotEqual(sides) => sides.iter().for_each(|a| self.expr(a)),
        }
    }
}

/// See the [module documentation](self).
pub(super) struct Pool {
    literals: Literals,
    /// Sizes of axes for the current attempt.
    dims: Vec<usize>,
    /// Element types for the current attempt.
    dtypes: Vec<DType>,
    /// Random generator for all choices.
    pub(super) rng: SplitMix64,
}

impl Pool {
    /// Creates a pool for testing a rule with this pattern.
    pub(super) fn new(pattern: &Pattern, seed: u64) -> Self {
        Pool {
            literals: Literals::of(pattern),
            dims: Vec::new(),
            dtypes: Vec::new(),
            rng: SplitMix64::new(seed),
        }
    }

    /// Draws sizes and element types for an attempt.
    pub(super) fn begin(&mut self, attempt: u64) {
        let small = [2, 3, 5];
        let a = small[self.rng.below(small.len())];
        let b = small[self.rng.below(small.len())];
        let other = [1, 2, 3, 4, 6, 7][self.rng.below(6)];
        // Products of sizes let reshapes split and join axes.
        self.dims = if attempt.is_multiple_of(2) {
            vec![1, a, b, other]
        } else {
            vec![1, a, b, a * b]
        };
        self.dims.sort_unstable();
        self.dims.dedup();
        self.dtypes = vec![DType::F32];
        match attempt % 4 {
            2 => self.dtypes.push(DType::U32),
            3 => {
                let named = self.literals.words.iter().filter_map(|w| DType::from_name(w));
                let mut others: Vec<DType> = named.filter(|d| *d != DType::F32).collect();
                others.push(DType::I32);
                let at = self.rng.below(others.len());
                self.dtypes.insert(0, others[at]);
            }
            _ => {}
        }
    }

    /// Draws one of the sizes.
    pub(super) fn dim(&mut self) -> usize {
        self.dims[self.rng.below(self.dims.len())]
    }

    /// Returns `true` with a probability of one half.
    pub(super) fn coin(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.rng.below(i + 1));
        }
    }

    /// Returns candidate types for a leaf, based on the types of existing values.
    pub(super) fn types(&mut self, known: &[TensorType]) -> Vec<TensorType> {
        let mut shapes: Vec<Vec<usize>> = vec![vec![]];
        for &a in &self.dims {
            shapes.push(vec![a]);
            shapes.extend(self.dims.iter().map(|&b| vec![a, b]));
        }
        for rank in [3, 3, 3, 3, 3, 3, 4, 4, 4, 4] {
            shapes.push((0..rank).map(|_| self.dim()).collect());
        }
        for ty in known {
            shapes.extend(neighbours(ty.shape.dims()));
        }
        self.shuffle(&mut shapes);
        let mut types: Vec<TensorType> = Vec::new();
        if self.coin() {
            types.extend(known.iter().cloned());
            self.shuffle(&mut types);
        }
        for dims in shapes {
            if let Ok(shape) = Shape::new(&dims)
                && shape.numel() <= LEAF_ELEMENTS
            {
                let dtypes = self.dtypes.iter();
                types.extend(dtypes.map(|&dtype| TensorType::new(dtype, shape.clone())));
            }
        }
        let mut kept: Vec<TensorType> = Vec::new();
        for ty in types {
            if !kept.contains(&ty) && ty.numel() <= LEAF_ELEMENTS {
                kept.push(ty);
            }
        }
        kept.truncate(MAX_TYPES);
        kept
    }

    /// Returns candidate types for a constant: mostly a scalar, else as in [`Pool::types`].
    pub(super) fn constant_types(&mut self, known: &[TensorType]) -> Vec<TensorType> {
        let mut types: Vec<TensorType> = Vec::new();
        for &dtype in &self.dtypes {
            types.push(TensorType::new(dtype, Shape::scalar()));
        }
        let all = self.types(known);
        types.extend(all);
        if self.rng.below(3) == 0 {
            self.shuffle(&mut types);
        }
        types.truncate(MAX_TYPES);
        types
    }

    /// Returns candidate values for a constant: numbers in the rule, numbers of elements and their quotients.
    pub(super) fn values(&mut self, known: &[TensorType]) -> Vec<f64> {
        let mut sizes: Vec<f64> = Vec::new();
        for ty in known {
            sizes.push(ty.numel() as f64);
            sizes.extend(ty.shape.dims().iter().map(|&d| d as f64));
        }
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let mut values = vec![1.0, 0.5, 2.0, 0.0, -1.0, 1e-5];
        for &n in sizes.iter().filter(|n| **n > 1.0) {
            values.extend([n, 1.0 / n, -1.0 / n]);
            values.extend(sizes.iter().filter(|m| **m > 1.0).map(|m| n / m));
        }
        self.shuffle(&mut values);
        let mut named = self.literals.floats.clone();
        self.shuffle(&mut named);
        named.extend(values);
        named
    }

    /// Returns candidate values for an attribute; `operands` are the types of the call's operands, `sampled` the values
    /// in the operator's samples.
    pub(super) fn scalars(
        &mut self,
        kind: AttrKind,
        operands: &[TensorType],
        known: &[TensorType],
        sampled: &[Scalar],
    ) -> Vec<Scalar> {
        let mut list: Vec<Scalar> = match kind {
            AttrKind::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
            AttrKind::Int => {
                let mut ints = vec![-1, 0, 1, 2, 3];
                ints.extend(&self.literals.ints);
                ints.extend(operands.iter().flat_map(|t| t.shape.dims()).map(|&d| d as i64));
                ints.sort_unstable();
                ints.dedup();
                ints.into_iter().map(Scalar::Int).collect()
            }
            AttrKind::Float => {
                let mut floats = vec![1.0, 0.5, 2.0, 1e-5];
                floats.extend(&self.literals.floats);
                floats.into_iter().map(Scalar::Float).collect()
            }
            AttrKind::DType => DType::ALL.iter().map(|d| Scalar::Str(d.name().into())).collect(),
            AttrKind::Ints => {
                let lists = int_lists(operands, known);
                lists.iter().map(|l| Scalar::Str(ints_text(l).into())).collect()
            }
            _ => Vec::new(),
        };
        if matches!(kind, AttrKind::Str | AttrKind::Ints) {
            list.extend(self.literals.words.iter().cloned().map(Scalar::Str));
        }
        list.extend(sampled.iter().cloned());
        self.shuffle(&mut list);
        list
    }
}

/// Returns shapes that often occur together with a shape: the same shape with one size set to 1, or without one axis.
fn neighbours(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    for axis in 0..dims.len() {
        let mut one = dims.to_vec();
        one[axis] = 1;
        found.push(one);
        let mut less = dims.to_vec();
        less.remove(axis);
        found.push(less);
    }
    found
}

/// Returns lists of integers that may be valid for these operands: shapes to reshape or expand to, axes, permutations.
fn int_lists(operands: &[TensorType], known: &[TensorType]) -> Vec<Vec<i64>> {
    let mut lists: Vec<Vec<i64>> = Vec::new();
    let signed = |dims: &[usize]| -> Vec<i64> { dims.iter().map(|&d| d as i64).collect() };
    lists.extend(known.iter().map(|t| signed(t.shape.dims())));
    let Some(first) = operands.first() else {
        return lists;
    };
    let dims = first.shape.dims();
    let rank = dims.len();
    for axis in 0..=rank {
        let mut more = signed(dims);
        more.insert(axis, 1);
        // Broadcast the new axis, or an existing one.
        for size in [2, 3, 5] {
            let mut wider = more.clone();
            wider[axis] = size;
            lists.push(wider);
            if dims.get(axis) == Some(&1) {
                let mut wider = signed(dims);
                wider[axis] = size;
                lists.push(wider);
            }
        }
        lists.push(more);
    }
    for axis in 0..rank {
        for factor in (2..dims[axis]).filter(|f| dims[axis] % f == 0) {
            let mut split = signed(dims);
            split[axis] = factor as i64;
            split.insert(axis + 1, (dims[axis] / factor) as i64);
            lists.push(split);
        }
        if axis + 1 < rank {
            let mut joined = signed(dims);
            joined[axis] *= joined.remove(axis + 1);
            lists.push(joined);
        }
        lists.push(vec![axis as i64]);
        lists.extend((axis + 1..rank).map(|other| vec![axis as i64, other as i64]));
    }
    lists.push(vec![-1]);
    lists.push((0..rank as i64).collect());
    lists.push(vec![first.numel() as i64]);
    if (2..=4).contains(&rank) {
        permutations(rank, &mut Vec::new(), &mut lists);
    }
    lists.sort();
    lists.dedup();
    lists
}

fn permutations(rank: usize, begun: &mut Vec<i64>, found: &mut Vec<Vec<i64>>) {
    if begun.len() == rank {
        found.push(begun.clone());
        return;
    }
    for axis in 0..rank as i64 {
        if !begun.contains(&axis) {
            begun.push(axis);
            permutations(rank, begun, found);
            begun.pop();
        }
    }
}
