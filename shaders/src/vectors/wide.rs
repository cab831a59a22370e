//! Products of few rows whose operands lie along the summed dimension: threads read four terms at a time, and all that
//! they need of the matrix, if that is not too much, before they wait for anything else.

use std::fmt::Write as _;

use super::super::emit::Emitter;
use super::super::fold::{pairwise, sum};
use super::super::kernel::{CompileCx, Launch};
use super::super::sums::{Element, Sink};
use super::super::tiled::{Products, Sizes};
use super::{ENOUGH_GROUPS, MOST_STAGED, THREADS};

/// Terms that are read together.
pub(super) const WIDTH: usize = 4;
/// Threads that share the sum of a column.
const LANES: usize = 32;
/// Columns of a workgroup for each column of a thread.
const ACROSS: usize = THREADS / LANES;
/// Columns of a thread, the most first: each reads rows once for all of them.
pub(super) const COLUMNS: [usize; 3] = [4, 2, 1];
/// Rows from which on their vectors are not read all at once: there are too many for the registers.
const SOME_ROWS: usize = 4;
/// Most sums of a thread.
const MOST_SUMS: usize = 32;
/// Most vectors of the matrix that a thread has on their way.
const MOST_LOADS: usize = 16;
/// Vectors of rows that a thread computes together.
const MOST_STAGED_TOGETHER: usize = 2;
/// Sums of each thread that are in shared memory together, if rows are not there too: all devices have 16 KB.
const TOGETHER: usize = 8;
/// Most threads that add up the sums of a column.
const ADDERS: usize = 8;
/// Sums of a column in shared memory, one more than there are, which keeps columns apart in its banks.
const STRIDE: usize = LANES + 1;

/// A launch of such a product.
pub(crate) struct Wide<'a> {
    products: &'a dyn Products,
    sizes: Sizes,
    /// Columns of a thread.
    columns: usize,
    parts: usize,
    /// Terms of a part.
    length: usize,
}

impl<'a> Wide<'a> {
    /// So many columns of a thread, or as many as are commonly the best; `None` where operands have no such vectors, or there
    /// were too many sums.
    pub(super) fn new(
        products: &'a dyn Products,
        cx: &CompileCx,
        parts: usize,
        columns: Option<usize>,
    ) -> Option<Self> {
        let sizes = products.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let has_vectors = |operand| {
            let stored = products.stored(operand).filter(|_| products.is_along_k(operand));
            stored.is_some_and(|stored| cx.has_vectors(stored))
        };
        let length = k.div_ceil(parts.max(1)).next_multiple_of(WIDTH);
        let staged = products.stored(0).is_none() && m * length <= MOST_STAGED;
        if k == 0 || !k.is_multiple_of(WIDTH) || !has_vectors(1) || !(staged || has_vectors(0)) {
            return None;
        }
        let groups = |columns: &usize| batch * parts * n.div_ceil(columns * ACROSS);
        let mut fitting = COLUMNS.into_iter().filter(|columns| m * columns <= MOST_SUMS);
        let columns = fitting.find(|fitting| match columns {
            Some(columns) => *fitting == columns,
            None => *fitting == 1 || groups(fitting) >= ENOUGH_GROUPS,
        })?;
        Some(Wide {
            products,
            sizes,
            columns,
            parts: k.div_ceil(length),
            length,
        })
    }

    /// Columns of a thread.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// A launch that gives each sum to a sink.
    pub(super) fn launch(&self, mut e: Emitter, sink: &Sink) -> Result<Launch, String> {
        let Sizes { batch, n, k, .. } = self.sizes;
        let (columns, length) = (self.columns, self.length);
        let across = n.div_ceil(columns * ACROSS);
        let sums = self.sums();
        let (results, adders) = self.adders(self.together());
        let _ = writeln!(
            e.module.items,
            "var<workgroup> sums: array<f32, {}>;\nvar<workgroup> few: array<f32, {}>;",
            self.together() * ACROSS * STRIDE,
            results * adders,
        );
        let before = std::mem::take(&mut e.code);
        let mut code = format!(
            "let first_column = group_number % {across}u * {}u;\nlet batch = group_number / {across}u % {batch}u;\n\
             let part = group_number / {}u;\nlet slot = local % {LANES}u;\n\
             let first_vector = part * {}u;\nlet end = min(first_vector + {}u, {}u);\n",
            columns * ACROSS,
            across * batch,
            length / WIDTH,
            length / WIDTH,
            k / WIDTH,
        );
        for c in 0..columns {
            let _ = writeln!(
                code,
                "let column_{c} = min(first_column + {}u + local / {LANES}u, {}u);",
                c * ACROSS,
                n - 1
            );
        }
        for sum in 0..sums {
            let _ = writeln!(code, "var sum_{sum} = 0.0;");
        }
        let (rounds, count) = (self.rounds(), self.vectors().div_ceil(self.rounds()));
        let (fetch, multiply) = (self.fetch(&mut e, count)?, self.multiply(&mut e, count)?);
        let staging = self.stage(&mut e)?;
        match rounds {
            // What comes before needs none of the matrix, which is on its way meanwhile.
            1 => {
                let _ = write!(code, "let k = first_vector + slot;\n{fetch}{before}{staging}{multiply}");
            }
            _ => {
                let _ = write!(
                    code,
                    "{before}{staging}for (var k = first_vector + slot; k < end; k += {}u) {{\n{fetch}{multiply}}}\n",
                    count * LANES
                );
            }
        }
        self.add_up(&mut code, sink);
        e.module.finish(&code, THREADS, across * batch * self.parts)
    }

    /// Vectors of a thread in a line.
    fn vectors(&self) -> usize {
        (self.length / WIDTH).div_ceil(LANES)
    }

    /// Rounds in which it reads them, each of about as many.
    fn rounds(&self) -> usize {
        self.vectors().div_ceil(MOST_LOADS / self.columns).max(1)
    }

    /// Sums of a thread: for each row, those of its columns.
    fn sums(&self) -> usize {
        self.sizes.m * self.columns
    }

    /// How many of these are in shared memory together.
    fn together(&self) -> usize {
        match self.is_staged() {
            true => 1,
            false => TOGETHER.min(self.sums()),
        }
    }

    /// Results of so many sums of a thread, and threads that add up those of each.
    fn adders(&self, sums: usize) -> (usize, usize) {
        let results = sums * ACROSS;
        // A power of two, as lanes are dealt out evenly.
        let adders = 1 << (THREADS / results).min(ADDERS).ilog2();
        (results, adders)
    }

    /// Whether rows are computed before the sums.
    fn is_staged(&self) -> bool {
        self.products.stored(0).is_none()
    }

    /// Code that computes the rows of a part, if they are not in memory. What a thread reads for them is on its way
    /// together.
    fn stage(&self, e: &mut Emitter) -> Result<String, String> {
        if !self.is_staged() {
            return Ok(String::new());
        }
        let (Sizes { m, k, .. }, width) = (self.sizes, self.length / WIDTH);
        let total = m * width;
        let _ = writeln!(e.module.items, "var<workgroup> staged: array<vec4<f32>, {total}>;");
        let mut code = String::new();
        for first in (0..total).step_by(THREADS * MOST_STAGED_TOGETHER) {
            let starts: Vec<usize> = (first..total).step_by(THREADS).take(MOST_STAGED_TOGETHER).collect();
            for start in &starts {
                let _ = write!(
                    code,
                    "let at_{start} = min(local + {start}u, {}u);\nlet staged_row_{start} = at_{start} / {width}u;\n\
                     let staged_k_{start} = (first_vector + at_{start} % {width}u) * {WIDTH}u;\n",
                    total - 1,
                );
            }
            let (own, values) = e.block(|e| {
                let mut value = |start: &usize, q: usize| {
                    let k = e.bind(&format!("min(staged_k_{start} + {q}u, {}u)", k - 1))?;
                    self.products.load(e, 0, &format!("staged_row_{start}"), &k)
                };
                let each = starts.iter().flat_map(|start| (0..WIDTH).map(move |q| (start, q)));
                each.map(|(start, q)| value(start, q)).collect::<Result<Vec<_>, _>>()
            })?;
            code.push_str(&own);
            // Threads beyond the end all store the last vector once more. Vectors are stored as a whole, as threads that
            // store elements of one may do so one after the other.
            for (start, value) in starts.iter().zip(values.chunks(WIDTH)) {
                let _ = writeln!(code, "staged[at_{start}] = vec4<f32>({});", value.join(", "));
            }
        }
        code.push_str("workgroupBarrier();\n");
        Ok(code)
    }

    /// Code that reads vectors `b_<i>_<column>` of the matrix from the vector `k` on.
    fn fetch(&self, e: &mut Emitter, count: usize) -> Result<String, String> {
        let mut code = String::new();
        for i in 0..count {
            // Those beyond the end are read, but not used.
            let _ = writeln!(code, "let k_{i} = min(k + {}u, end - 1u);", i * LANES);
            for c in 0..self.columns {
                let vector = self.vector(e, &mut code, 1, &format!("column_{c}"), &format!("k_{i}"))?;
                let vector = self.within(i, vector);
                let _ = writeln!(code, "let b_{i}_{c} = {vector};");
            }
        }
        Ok(code)
    }

    /// Whether the `i`-th vector of each thread is within its part.
    fn is_within(&self, i: usize) -> bool {
        self.parts == 1 && self.rounds() == 1 && (i + 1) * LANES * WIDTH <= self.length
    }

    /// A vector that is zero where it is beyond the end. There are no branches for few rows, behind which loads would wait
    /// for each other.
    fn within(&self, i: usize, vector: String) -> String {
        match self.sizes.m >= SOME_ROWS || self.is_within(i) {
            true => vector,
            false => format!("select(vec4<f32>(), {vector}, k + {}u < end)", i * LANES),
        }
    }

    /// Code that multiplies these with the rows.
    fn multiply(&self, e: &mut Emitter, count: usize) -> Result<String, String> {
        let mut code = String::new();
        for i in 0..count {
            let branches = self.sizes.m >= SOME_ROWS;
            if branches {
                let _ = writeln!(code, "if (k + {}u < end) {{", i * LANES);
            }
            for row in 0..self.sizes.m {
                let vector = match self.is_staged() {
                    true => format!("staged[{}u + k_{i} - first_vector]", row * self.length / WIDTH),
                    false => self.vector(e, &mut code, 0, &format!("{row}u"), &format!("k_{i}"))?,
                };
                let vector = self.within(i, vector);
                let _ = writeln!(code, "let a_{i}_{row} = {vector};");
                for c in 0..self.columns {
                    let sum = row * self.columns + c;
                    for q in ['x', 'y', 'z', 'w'] {
                        let _ = writeln!(code, "sum_{sum} = fma(a_{i}_{row}.{q}, b_{i}_{c}.{q}, sum_{sum});");
                    }
                }
            }
            if branches {
                code.push_str("}\n");
            }
        }
        Ok(code)
    }

    /// A vector of an operand, the `k`-th of a line.
    fn vector(
        &self,
        e: &mut Emitter,
        code: &mut String,
        operand: usize,
        line: &str,
        k: &str,
    ) -> Result<String, String> {
        let (own, at) = e.block(|e| {
            let first = e.bind(&format!("{k} * {WIDTH}u"))?;
            self.products.number_of(e, operand, line, &first)
        })?;
        code.push_str(&own);
        let stored = self.products.stored(operand);
        let vector = stored.and_then(|stored| e.module.load_vector(stored, &format!("({at}) / {WIDTH}u")));
        vector.ok_or_else(|| "an operand of a product is not read by vectors".into())
    }

    /// Code that adds up the sums of the threads that share columns, some sums at a time.
    fn add_up(&self, code: &mut String, sink: &Sink) {
        let (sums, together, n) = (self.sums(), self.together(), self.sizes.n);
        for first in (0..sums).step_by(together) {
            let count = together.min(sums - first);
            let (results, adders) = self.adders(count);
            let number = self.products.number("own_row", "own_column");
            let done = sink.take(&[Element::new(&number, "sum")]);
            if first > 0 {
                code.push_str("workgroupBarrier();\n");
            }
            for i in 0..count {
                let _ = writeln!(
                    code,
                    "sums[({}u + local / {LANES}u) * {STRIDE}u + slot] = sum_{};",
                    i * ACROSS,
                    first + i
                );
            }
            let of_each = (0..LANES / adders).map(|i| format!("sums[at + {}u]", i * adders));
            let of_all = (0..adders).map(|i| format!("few[local * {adders}u + {i}u]"));
            let _ = write!(
                code,
                "workgroupBarrier();\nif (local < {0}u) {{\n\
                 let at = local / {adders}u * {STRIDE}u + local % {adders}u;\nfew[local] = {1};\n}}\n\
                 workgroupBarrier();\nif (local < {results}u) {{\nlet own = {first}u + local / {ACROSS}u;\n\
                 let own_row = own / {2}u;\n\
                 let own_column = first_column + own % {2}u * {ACROSS}u + local % {ACROSS}u;\n\
                 if (own_column < {n}u) {{\nlet sum = {3};\n{done}}}\n}}\n",
                results * adders,
                pairwise(of_each, sum),
                self.columns,
                pairwise(of_all, sum),
            );
        }
    }
}
