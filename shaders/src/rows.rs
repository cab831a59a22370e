//! Bodies with reductions: sums and extremes over some axes, what is computed before, and what is computed from them
//! for the same row. Norms, softmaxes and losses are such bodies once they are overwritten apart.
//!
//! The kept axes of what is reduced number its *rows*, the reduced ones its *columns*. A workgroup has `width` rows of
//! `lanes` threads each. It goes over the columns once for every reduction that depends on another, and once more
//! where results have an element for each of them; few columns of a thread are written out instead, and read once
//! (`written.rs`). Long reductions with few rows are cut into parts, which a second
//! launch puts together.

mod layout;
mod ways;
mod written;

use std::fmt::Write as _;

use meganeura_core::{Shape, TensorType};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::fold::Fold;
use super::kernel::{CompileCx, Compiled, Launch};
use super::place::{self, Base, Index, Place};
use super::pointwise::is_half;
use super::roles::Role;
use super::scalar::{compute_type, wgsl_type};
use super::variants;
use super::variants::Candidate as _;
pub(super) use layout::Layout;

/// Threads of a workgroup.
pub(super) const THREADS: usize = 256;
/// Threads that a device should have at least; below, reductions are cut into parts.
const ENOUGH_THREADS: usize = 65_536;
/// Fewest columns of a part.
const SHORTEST_PART: usize = 2_048;
/// Most parts of a row.
const MOST_PARTS: usize = 256;
/// Longest row that every workgroup of a product reduces again.
const LONGEST_BEFORE_PRODUCT: usize = 16_384;
/// Columns that a thread has on their way from memory at the same time, where rows are long.
const WAYS: usize = 4;
/// Threads that put together what the lanes of a row have, each for some of them.
const JOINERS: usize = 16;

/// A reduction of a body.
#[derive(Clone, Debug)]
struct Reduction {
    id: Id,
    input: Id,
    fold: Fold,
    /// One more than the highest level of the reductions that it depends on.
    level: usize,
}

/// What all reductions of a body have in common.
#[derive(Clone)]
pub(super) struct Rows<'a> {
    body: &'a Body,
    reductions: Vec<Reduction>,
    /// What is reduced.
    domain: Shape,
    reduced: Vec<bool>,
    rows: usize,
    columns: usize,
    /// Columns of a thread whose code is written out; 0 where there is a loop.
    written_out: usize,
    /// Results with an element for each row, and for each element of the domain.
    by_row: Vec<usize>,
    by_element: Vec<usize>,
}

/// Launches for a body with reductions.
pub(super) fn compile(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let mut rows = Rows::of(body)?;
    for (output, ty) in cx.kernel.outputs.iter().enumerate() {
        rows.classify(output, ty)?;
    }
    if rows.rows == 0 {
        return Ok(Compiled::default());
    }
    // A body that does not fit a kernel has no ways: it is cut.
    let usual = rows.usual();
    let compiled = variants::scheduled(rows.compile(cx, &usual)?, &usual.schedule());
    let chosen = variants::chosen(
        cx,
        |precision| rows.class(cx, precision),
        || rows.all(),
        |way| rows.compile(cx, way),
    );
    Ok(chosen.unwrap_or(compiled))
}

impl<'a> Rows<'a> {
    /// The reductions of a body, none of whose results has a place yet.
    pub(super) fn of(body: &'a Body) -> Result<Self, String> {
        let mut levels = vec![0; body.nodes.len()];
        let mut reductions = Vec::new();
        let mut common: Option<(Shape, Vec<bool>)> = None;
        for id in 0..body.nodes.len() {
            let below = body.inputs(id).iter().map(|&i| levels[i]).max().unwrap_or(0);
            levels[id] = below;
            let Def::Call {
                op,
                attrs,
                inputs,
                role,
            } = &body.nodes[id].def
            else {
                continue;
            };
            if *role != Role::Reduction {
                continue;
            }
            let domain = body.ty(inputs[0]).shape.clone();
            let axes = domain.axes(attrs.ints("axes")?)?;
            let reduced = (0..domain.rank()).map(|a| axes.contains(&a)).collect();
            let one = (domain, reduced);
            if common.get_or_insert_with(|| one.clone()) != &one {
                return Err("its reductions are over different axes".into());
            }
            reductions.push(Reduction {
                id,
                input: inputs[0],
                fold: Fold::of(op)?,
                level: below,
            });
            levels[id] = below + 1;
        }
        let (domain, reduced) = common.ok_or("there is nothing to reduce")?;
        let size = |of: bool| -> usize {
            (0..domain.rank())
                .filter(|&a| reduced[a] == of)
                .map(|a| domain[a])
                .product()
        };
        let (rows, columns) = (size(false), size(true));
        Ok(Rows {
            body,
            reductions,
            rows,
            columns,
            written_out: 0,
            by_row: Vec::new(),
            by_element: Vec::new(),
            domain,
            reduced,
        })
    }

    /// The reductions of one row that a product of that row depends on, which every workgroup of the product computes
    /// for itself; the given results are theirs.
    pub(super) fn before_product(body: &'a Body, results: &[usize], cx: &CompileCx) -> Result<Self, String> {
        let mut rows = Rows::of(body)?;
        if rows.rows != 1 || rows.columns > LONGEST_BEFORE_PRODUCT {
            return Err("there is more to reduce before the product than every workgroup should".into());
        }
        for &output in results {
            rows.classify(output, &cx.kernel.outputs[output])?;
        }
        rows.written_out = rows.written(&Layout::of_one_row());
        match rows.by_element.is_empty() {
            true => Ok(rows),
            false => Err("it stores what it multiplies".into()),
        }
    }

    /// Code that computes the reductions of the one row, at the beginning of a kernel.
    pub(super) fn begin(&self, e: &mut Emitter) -> Result<(), String> {
        let layout = Layout::of_one_row();
        e.code.push_str(&layout.row_of(self.rows, "0u"));
        self.reduce(e, &layout)?;
        self.store_rows(e, "group_number == 0u && local == 0u")
    }

    fn classify(&mut self, output: usize, ty: &TensorType) -> Result<(), String> {
        if is_half(ty) {
            return Err(format!("it has a result of {}", ty.dtype));
        }
        match ty.numel() {
            0 => {}
            n if n == self.rows => self.by_row.push(output),
            n if n == self.rows * self.columns => self.by_element.push(output),
            _ => return Err("a result has neither a row's nor an element's place".into()),
        }
        Ok(())
    }

    /// Whether rows can be cut into parts.
    fn can_be_cut(&self) -> bool {
        self.by_element.is_empty() && self.reductions.iter().all(|r| r.level == 0)
    }

    /// Parts into which rows are cut.
    fn parts(&self, layout: &Layout) -> usize {
        let threads = self.rows * layout.lanes;
        if !self.can_be_cut() || threads >= ENOUGH_THREADS {
            return 1;
        }
        let wanted = ENOUGH_THREADS.div_ceil(threads.max(1)).min(MOST_PARTS);
        wanted.min(self.columns / SHORTEST_PART).max(1)
    }

    /// Gives indices of the domain's elements the names of variables that have them.
    fn name_indices(&self, e: &mut Emitter, base: &Base, known: Place) {
        let whole = place::split(base, 1, &self.domain);
        for (index, name) in whole.into_iter().zip(known) {
            if index != Index::Zero && !name.wgsl().contains(' ') {
                e.name_index(index, &name.wgsl());
            }
        }
    }

    /// The place of an element of the domain by the number of its row and the variable of its column.
    fn place(&self, column: &str) -> Place {
        let dims = |of: bool| -> Vec<usize> { self.axes(of).map(|a| self.domain[a]).collect() };
        let place = |name: &str, of: bool| {
            let shape = Shape::new(&dims(of)).unwrap_or_else(|_| Shape::scalar());
            place::split(&Base::new(name, shape.numel()), 1, &shape).into_iter()
        };
        let (mut rows, mut columns) = (place("row", false), place(column, true));
        let mut next = |&reduced: &bool| if reduced { columns.next() } else { rows.next() };
        self.reduced.iter().map(|r| next(r).unwrap_or(Index::Zero)).collect()
    }

    fn axes(&self, reduced: bool) -> impl Iterator<Item = usize> + '_ {
        (0..self.domain.rank()).filter(move |&a| self.reduced[a] == reduced)
    }

    /// The base of the domain's elements.
    fn element(&self) -> Base {
        Base::new("i", self.rows * self.columns)
    }

    fn row(&self) -> Base {
        Base::new("row", self.rows)
    }

    /// Fixes a value that has one element for each row.
    fn fix(&self, e: &mut Emitter, id: Id, variable: &str) {
        let shape = self.body.ty(id).shape.clone();
        let by_row = place::split(&self.row(), 1, &shape);
        // As it is met at an element of the domain: without the axes that were reduced.
        let dims: Vec<usize> = self.axes(false).map(|a| self.domain[a]).collect();
        let by_element = |base: Base| {
            let whole = place::split(&base, 1, &self.domain);
            let kept: Place = self.axes(false).map(|a| whole[a].clone()).collect();
            Shape::new(&dims).map(|s| place::terms(&kept, &s)).unwrap_or_default()
        };
        let mut places = vec![place::terms(&by_row, &shape), by_element(self.element())];
        places.extend((0..self.written_out).map(|number| by_element(self.written_element(number))));
        e.fix_terms(id, variable, places);
    }

    /// Code over the columns of a thread from `from` up to `to`.
    fn loop_over(&self, lanes: usize, from: &str, to: &str, code: &str) -> String {
        let number = place::linear(&self.place("column"), &self.domain);
        format!("for (var column = {from}; column < {to}; column += {lanes}u) {{\nlet i = {number};\n{code}}}\n")
    }

    /// An element's value within a loop over columns.
    fn in_loop<T>(
        &self,
        e: &mut Emitter,
        make: impl FnOnce(&mut Emitter, &Base) -> Result<T, String>,
    ) -> Result<(String, T), String> {
        let base = self.element();
        e.block(|e| {
            self.name_indices(e, &base, self.place("column"));
            make(e, &base)
        })
    }

    /// Accumulators of some reductions, and the loop that fills them.
    fn accumulate(
        &self,
        e: &mut Emitter,
        level: usize,
        lanes: usize,
        range: (&str, &str),
    ) -> Result<Vec<(Reduction, String)>, String> {
        if self.written_out > 0 {
            return self.accumulate_written(e, level, lanes);
        }
        let reductions: Vec<Reduction> = self.reductions.iter().filter(|r| r.level == level).cloned().collect();
        let ways = if self.columns >= 2 * WAYS * lanes { WAYS } else { 1 };
        let mut accumulators = Vec::new();
        for r in reductions {
            let dtype = self.body.ty(r.id).dtype;
            let names: Vec<String> = (0..ways).map(|_| e.fresh()).collect();
            for name in &names {
                let _ = writeln!(e.code, "var {name} = {};", r.fold.start(dtype));
            }
            accumulators.push((r, names));
        }
        let mut each = Vec::with_capacity(ways);
        for way in 0..ways {
            let (code, ()) = self.in_loop(e, |e, base| {
                for (r, names) in &accumulators {
                    let ty = self.body.ty(r.input).clone();
                    let value = e.value(r.input, &place::split(base, 1, &ty.shape))?;
                    let _ = writeln!(
                        e.code,
                        "{0} = {1};",
                        names[way],
                        r.fold.join(ty.dtype, &names[way], &value)
                    );
                }
                Ok(())
            })?;
            each.push(code);
        }
        let mut from = format!("{} + lane", range.0);
        if ways > 1 {
            let next = e.fresh();
            let number = place::linear(&self.place("column"), &self.domain);
            let _ = writeln!(
                e.code,
                "var {next} = {from};\nfor (; {next} + {}u < {}; {next} += {}u) {{",
                (ways - 1) * lanes,
                range.1,
                ways * lanes
            );
            for (way, code) in each.iter().enumerate() {
                let _ = writeln!(
                    e.code,
                    "{{\nlet column = {next} + {}u;\nlet i = {number};\n{code}}}",
                    way * lanes
                );
            }
            e.code.push_str("}\n");
            from = next;
        }
        let rest = self.loop_over(lanes, &from, range.1, &each[0]);
        e.code.push_str(&rest);
        let mut joined = Vec::with_capacity(accumulators.len());
        for (r, mut names) in accumulators {
            let dtype = self.body.ty(r.id).dtype;
            let first = names.remove(0);
            for name in names {
                let _ = writeln!(e.code, "{first} = {};", r.fold.join(dtype, &first, &name));
            }
            joined.push((r, first));
        }
        Ok(joined)
    }

    /// Joins the lanes of each row; every thread has the result.
    fn join_lanes(&self, e: &mut Emitter, layout: &Layout, r: &Reduction, accumulator: &str) -> Result<String, String> {
        if layout.lanes == 1 {
            return e.bind(accumulator);
        }
        let dtype = self.body.ty(r.id).dtype;
        let ty = wgsl_type(dtype);
        let shared = format!("shared_{ty}");
        let declaration = format!("var<workgroup> {shared}: array<{ty}, {THREADS}>;\n");
        if !e.module.items.contains(&declaration) {
            e.module.items.push_str(&declaration);
        }
        let width = layout.width;
        let at = |lane: &str| format!("{shared}[({lane}) * {width}u + row_here]");
        let mine = at("lane");
        let _ = writeln!(
            e.code,
            "workgroupBarrier();\n{mine} = {accumulator};\nworkgroupBarrier();"
        );
        // Two steps: each has a barrier, and waits for shared memory.
        if layout.lanes > JOINERS {
            let joined = r.fold.join(dtype, "joined", &at("other"));
            let _ = writeln!(
                e.code,
                "if (lane < {JOINERS}u) {{\nvar joined = {mine};\n\
                 for (var other = lane + {JOINERS}u; other < {}u; other += {JOINERS}u) {{\njoined = {joined};\n}}\n\
                 {mine} = joined;\n}}\nworkgroupBarrier();",
                layout.lanes,
            );
        }
        let each = (0..layout.lanes.min(JOINERS)).map(|lane| at(&format!("{lane}u")));
        e.bind(&r.fold.join_all(dtype, each))
    }

    /// Computes values of which there is one for each row as soon as what they depend on is there.
    fn hoist(&self, e: &mut Emitter) -> Result<(), String> {
        let count = self.body.nodes.len();
        let (mut depends, mut overwritten) = (vec![false; count], vec![false; count]);
        for id in 0..count {
            let inputs = self.body.inputs(id);
            depends[id] = inputs.iter().any(|&i| depends[i]);
            overwritten[id] = match self.body.nodes[id].def {
                Def::Operand(operand) => e.cx.is_overwritten(operand),
                _ => inputs.iter().any(|&i| overwritten[i]),
            };
            let is_reduction = self.body.role(id) == Some(Role::Reduction);
            depends[id] |= is_reduction;
            let ready = self.body.ty(id).numel() == self.rows && depends[id] && !overwritten[id];
            if is_reduction || !ready || self.body.role(id) != Some(Role::Pointwise) || !self.is_ready(e, id) {
                continue;
            }
            let place = place::split(&self.row(), 1, &self.body.ty(id).shape);
            let value = e.value(id, &place)?;
            self.fix(e, id, &value);
        }
        Ok(())
    }

    /// Whether all reductions that a value depends on have been computed.
    fn is_ready(&self, e: &Emitter, id: Id) -> bool {
        // A product that comes after the reductions has a variable, but only in what follows it.
        if e.is_fixed(id) && self.body.role(id) != Some(Role::Product) {
            return true;
        }
        !matches!(self.body.role(id), Some(Role::Reduction | Role::Product))
            && self.body.inputs(id).iter().all(|&i| self.is_ready(e, i))
    }

    /// Stores the results that have an element for each row.
    fn store_rows(&self, e: &mut Emitter, condition: &str) -> Result<(), String> {
        if self.by_row.is_empty() {
            return Ok(());
        }
        let base = self.row();
        let (code, ()) = e.writing_block(&base, |e| {
            let mut stores = String::new();
            for &output in &self.by_row {
                let id = self.body.results[output];
                let place = place::split(&base, 1, &self.body.ty(id).shape);
                let value = e.value(id, &place)?;
                stores.push_str(&e.module.store(output, "row", &value));
            }
            e.code.push_str(&stores);
            Ok(())
        })?;
        let _ = writeln!(e.code, "if ({condition}) {{\n{code}}}");
        Ok(())
    }

    fn store_elements(&self, e: &mut Emitter, layout: &Layout) -> Result<(), String> {
        if self.by_element.is_empty() {
            return Ok(());
        }
        let store = |e: &mut Emitter, base: &Base| {
            let mut stores = String::new();
            for &output in &self.by_element {
                let id = self.body.results[output];
                let place = place::split(base, 1, &self.body.ty(id).shape);
                let value = e.value(id, &place)?;
                stores.push_str(&e.module.store(output, &base.name, &value));
            }
            e.code.push_str(&stores);
            Ok(())
        };
        if self.written_out > 0 {
            return self.store_written(e, layout.lanes, store);
        }
        let (code, ()) = self.in_loop(e, store)?;
        let code = self.loop_over(layout.lanes, "lane", &format!("{}u", self.columns), &code);
        let _ = writeln!(e.code, "if (exists) {{\n{code}}}");
        Ok(())
    }

    fn check_size(&self) -> Result<(), String> {
        // Threads beyond the last row or column begin to count, but read nothing.
        match u32::try_from(self.rows.saturating_mul(self.columns).saturating_add(WAYS * THREADS)) {
            Ok(_) => Ok(()),
            Err(_) => Err("it has more elements than a kernel can number".into()),
        }
    }

    /// Everything in one launch.
    fn whole(&self, cx: &CompileCx, layout: &Layout) -> Result<Launch, String> {
        self.check_size()?;
        let mut e = Emitter::new(self.body, cx);
        e.module.kernel = "reduce";
        e.code = layout.row_of(self.rows, "group_number");
        self.reduce(&mut e, layout)?;
        self.store_elements(&mut e, layout)?;
        self.store_rows(&mut e, "exists && lane == 0u")?;
        let code = std::mem::take(&mut e.code);
        e.module.finish(&code, THREADS, self.rows.div_ceil(layout.width))
    }

    /// All reductions, each after those that it depends on, and what else there is one of for each row.
    fn reduce(&self, e: &mut Emitter, layout: &Layout) -> Result<(), String> {
        let levels = self.reductions.iter().map(|r| r.level + 1).max().unwrap_or(0);
        for level in 0..levels {
            let columns = format!("{}u", self.columns);
            for (r, accumulator) in self.accumulate(e, level, layout.lanes, ("0u", &columns))? {
                let value = self.join_lanes(e, layout, &r, &accumulator)?;
                self.fix(e, r.id, &value);
            }
            self.hoist(e)?;
        }
        Ok(())
    }

    /// The reductions of parts of the rows.
    fn partial(&self, cx: &CompileCx, layout: &Layout, parts: usize) -> Result<Launch, String> {
        self.check_size()?;
        let mut e = Emitter::new(self.body, cx);
        e.module.kernel = "reduce";
        let length = self.columns.div_ceil(parts);
        e.code = format!(
            "let part = group_number % {parts}u;\nlet row_group = group_number / {parts}u;\n{}\
             let first = part * {length}u;\nlet end = min(first + {length}u, {}u);\n",
            layout.row_of(self.rows, "row_group"),
            self.columns
        );
        for (number, (r, accumulator)) in self
            .accumulate(&mut e, 0, layout.lanes, ("first", "end"))?
            .into_iter()
            .enumerate()
        {
            let value = self.join_lanes(&mut e, layout, &r, &accumulator)?;
            // In the type that is computed with, also where the sum is of half precision.
            let dtype = compute_type(self.body.ty(r.id).dtype);
            let array = e.module.array(cx.scratch(number), dtype, true);
            let _ = writeln!(
                e.code,
                "if (exists && lane == 0u) {{\n{array}[row * {parts}u + part] = {value};\n}}"
            );
        }
        let code = std::mem::take(&mut e.code);
        e.module
            .finish(&code, THREADS, self.rows.div_ceil(layout.width) * parts)
    }

    /// What is computed from the parts: one thread for each row.
    fn join_parts(&self, cx: &CompileCx, parts: usize) -> Result<Launch, String> {
        let mut e = Emitter::new(self.body, cx);
        e.module.kernel = "reduce";
        e.code = format!(
            "let row = group_number * {THREADS}u + local;\nif (row >= {}u) {{\nreturn;\n}}\n",
            self.rows
        );
        for (number, r) in self.reductions.iter().enumerate() {
            let (name, dtype) = (e.fresh(), compute_type(self.body.ty(r.id).dtype));
            let array = e.module.array(cx.scratch(number), dtype, false);
            let part = format!("{array}[row * {parts}u + part]");
            let _ = writeln!(
                e.code,
                "var {name} = {};\nfor (var part = 0u; part < {parts}u; part += 1u) {{\n{name} = {};\n}}",
                r.fold.start(dtype),
                r.fold.join(dtype, &name, &part)
            );
            let value = e.bind(&name)?;
            self.fix(&mut e, r.id, &value);
        }
        self.store_rows(&mut e, "true")?;
        let code = std::mem::take(&mut e.code);
        e.module.finish(&code, THREADS, self.rows.div_ceil(THREADS))
    }
}
