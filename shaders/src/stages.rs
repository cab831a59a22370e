//! Bodies that need several kernels: reductions over different axes, several contractions, or both.
//!
//! Such a body is cut at the results of its reductions and contractions, its *anchors*. Consecutive reductions of the
//! same shape over the same axes form one stage. Every other anchor is a separate stage. Anchors that later stages
//! need are stored in scratch. All other values are recomputed from operands and anchors when they are needed. An
//! attention, for example, stores its scores, but not the values that are derived from them.

use std::collections::HashMap;

use meganeura_core::backend::KernelDesc;
use meganeura_core::{Shape, TensorType};

use super::body::{Body, Def, Id, Node};
use super::families::compile_body;
use super::kernel::{CompileCx, Compiled, Memory, Source};
use super::pointwise::is_half;
use super::roles::Role;

/// Maximum number of stages of a dispatch.
const MAX_STAGES: usize = 12;

/// The kind of the anchors of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Reductions of values of this shape over these axes.
    Rows(Shape, Vec<usize>),
    /// A contraction.
    Product(Id),
    /// No anchors. The stage computes results that no other stage can compute.
    Loose,
}

/// A planned kernel, with the anchors and results of the body that it computes.
#[derive(Debug)]
struct Stage {
    kind: Kind,
    /// Position in the order of stages. Stages with the same position do not depend on each other.
    level: usize,
    anchors: Vec<Id>,
    /// Results of the dispatch that the stage computes.
    outputs: Vec<usize>,
}

/// Compiles the launches of a body, stage by stage.
pub(super) fn compile(body: &Body, cx: &CompileCx) -> Result<Compiled, String> {
    let mut stages = stages(body)?;
    place_outputs(body, cx, &mut stages);
    loop {
        let (at, reason) = match compile_stages(body, cx, &stages) {
            Ok(compiled) => return Ok(compiled),
            Err(failed) => failed,
        };
        // Results that the stage cannot compute are moved to the last stage.
        let last = stages.len() - 1;
        match stages.get_mut(at).map(|s| std::mem::take(&mut s.outputs)) {
            Some(outputs) if at < last && !outputs.is_empty() => stages[last].outputs.extend(outputs),
            _ => return Err(reason),
        }
    }
}

/// Compiles all stages. The last one contains the results that fit no other stage. An error includes the index of its
/// stage.
fn compile_stages(body: &Body, cx: &CompileCx, stages: &[Stage]) -> Result<Compiled, (usize, String)> {
    let whole = |reason: String| (stages.len(), reason);
    if stages.len() > MAX_STAGES {
        return Err(whole("it needs too many kernels".into()));
    }
    let needed = kept(body, stages);
    let numbers: HashMap<Id, usize> = needed.iter().enumerate().map(|(number, &id)| (id, number)).collect();
    let mut all = Compiled {
        scratch: needed.iter().map(|&id| 4 * body.ty(id).numel()).collect(),
        ..Compiled::default()
    };
    let parts: Vec<Part> = stages.iter().map(|stage| Part::of(body, stage, &numbers)).collect();
    check_overwritten(cx, stages, &parts).map_err(whole)?;
    for (at, (stage, part)) in stages.iter().zip(&parts).enumerate() {
        if part.body.results.is_empty() {
            continue;
        }
        let made = part.compile(body, cx, stage, &numbers, all.scratch.len());
        let made = made.map_err(|reason| (at, reason))?;
        all.launches.extend(made.launches);
        all.scratch.extend(made.scratch);
    }
    Ok(all)
}

fn is_anchor(body: &Body, id: Id) -> bool {
    matches!(body.role(id), Some(Role::Reduction | Role::Contraction))
}

/// Returns the nearest anchors that a value is computed from, without their own dependencies. For an anchor, these
/// are the anchors of its operands.
fn anchors_below(body: &Body, id: Id) -> Vec<Id> {
    let mut found = Vec::new();
    let mut seen = vec![false; body.nodes.len()];
    let mut open = body.inputs(id).to_vec();
    while let Some(next) = open.pop() {
        if std::mem::replace(&mut seen[next], true) {
            continue;
        }
        if is_anchor(body, next) {
            found.push(next)
        } else {
            open.extend(body.inputs(next))
        }
    }
    found.sort_unstable();
    found
}

/// Assigns the anchors to stages, in topological order.
fn stages(body: &Body) -> Result<Vec<Stage>, String> {
    let mut stages: Vec<Stage> = Vec::new();
    let mut stage_of: HashMap<Id, usize> = HashMap::new();
    for id in (0..body.nodes.len()).filter(|&id| is_anchor(body, id)) {
        if is_half(body.ty(id)) {
            return Err(format!("it has a reduction or contraction in {}", body.ty(id).dtype));
        }
        let kind = kind(body, id)?;
        let after = |below: &Id| {
            let stage = &stages[stage_of[below]];
            stage.level + usize::from(stage.kind != kind)
        };
        let level = anchors_below(body, id).iter().map(after).max().unwrap_or(0);
        let same = |s: &Stage| s.kind == kind && s.level == level;
        let at = stages.iter().position(same).unwrap_or_else(|| {
            stages.push(Stage {
                kind,
                level,
                anchors: Vec::new(),
                outputs: Vec::new(),
            });
            stages.len() - 1
        });
        stages[at].anchors.push(id);
        stage_of.insert(id, at);
    }
    stages.sort_by_key(|s| s.level);
    Ok(stages)
}

fn kind(body: &Body, id: Id) -> Result<Kind, String> {
    match &body.nodes[id].def {
        Def::Call {
            attrs,
            inputs,
            role: Role::Reduction,
            ..
        } => {
            let shape = body.ty(inputs[0]).shape.clone();
            let axes = shape.axes(attrs.ints("axes")?)?;
            Ok(Kind::Rows(shape, axes))
        }
        _ => Ok(Kind::Product(id)),
    }
}

/// Assigns every result to the last stage that it depends on, if this stage can compute it. Otherwise assigns it to a
/// separate stage at the end.
fn place_outputs(body: &Body, cx: &CompileCx, stages: &mut Vec<Stage>) {
    let end = stages.last().map_or(0, |s| s.level + 1);
    let mut loose = Vec::new();
    for (output, ty) in cx.kernel.outputs.iter().enumerate() {
        let id = body.results[output];
        let needed = if is_anchor(body, id) {
            vec![id]
        } else {
            anchors_below(body, id)
        };
        let uses = |s: &Stage| s.anchors.iter().any(|a| needed.contains(a));
        let last = stages.iter().filter(|s| uses(s)).map(|s| s.level).max();
        let mut at = (0..stages.len()).filter(|&i| Some(stages[i].level) == last && uses(&stages[i]));
        match (at.next(), at.next()) {
            (Some(at), None) if yields(body, &stages[at], ty) => stages[at].outputs.push(output),
            _ => loose.push(output),
        }
    }
    stages.push(Stage {
        kind: Kind::Loose,
        level: end,
        anchors: Vec::new(),
        outputs: loose,
    });
}

/// Returns true if a stage can also compute a result of this type.
fn yields(body: &Body, stage: &Stage, ty: &TensorType) -> bool {
    let fits = match &stage.kind {
        Kind::Rows(shape, axes) => {
            let columns: usize = axes.iter().map(|&a| shape[a]).product();
            ty.numel() == shape.numel() || ty.numel() * columns == shape.numel()
        }
        Kind::Product(id) => ty.numel() == body.ty(*id).numel(),
        Kind::Loose => true,
    };
    fits && !is_half(ty)
}

/// Returns the anchors that other stages need.
fn kept(body: &Body, stages: &[Stage]) -> Vec<Id> {
    let mut kept = Vec::new();
    for stage in stages {
        let roots = stage.anchors.iter().flat_map(|&id| anchors_below(body, id));
        let results = stage.outputs.iter().flat_map(|&output| match body.results[output] {
            id if is_anchor(body, id) => vec![id],
            id => anchors_below(body, id),
        });
        kept.extend(roots.chain(results).filter(|id| !stage.anchors.contains(id)));
    }
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// The body of a stage, and the sources of its operands.
struct Part {
    body: Body,
    operands: Vec<Origin>,
    /// Anchors that the part stores in scratch, after the results of the dispatch.
    leaves: Vec<Id>,
}

/// The value of the whole body to which an operand of a part refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Operand(usize),
    Anchor(Id),
}

impl Part {
    fn of(whole: &Body, stage: &Stage, kept: &HashMap<Id, usize>) -> Self {
        let leaves: Vec<Id> = stage.anchors.iter().copied().filter(|a| kept.contains_key(a)).collect();
        let mut part = Part {
            body: Body {
                nodes: Vec::new(),
                results: Vec::new(),
            },
            operands: Vec::new(),
            leaves,
        };
        let mut known = HashMap::new();
        let results = stage.outputs.iter().map(|&output| whole.results[output]);
        let roots: Vec<Id> = results.chain(part.leaves.clone()).collect();
        for root in roots {
            let id = part.take(whole, stage, root, &mut known);
            part.body.results.push(id);
        }
        part
    }

    /// Copies a value and its dependencies into the part.
    fn take(&mut self, whole: &Body, stage: &Stage, id: Id, known: &mut HashMap<Id, Id>) -> Id {
        if let Some(&at) = known.get(&id) {
            return at;
        }
        let mut node: Node = whole.nodes[id].clone();
        let origin = match &mut node.def {
            Def::Operand(operand) => Some(Origin::Operand(*operand)),
            _ if is_anchor(whole, id) && !stage.anchors.contains(&id) => Some(Origin::Anchor(id)),
            Def::Call { inputs, .. } => {
                for input in inputs {
                    *input = self.take(whole, stage, *input, known);
                }
                None
            }
            Def::Constant(_) => None,
        };
        if let Some(origin) = origin {
            node.def = Def::Operand(self.operands.len());
            self.operands.push(origin);
        }
        self.body.nodes.push(node);
        known.insert(id, self.body.nodes.len() - 1);
        self.body.nodes.len() - 1
    }

    fn compile(
        &self,
        whole: &Body,
        cx: &CompileCx,
        stage: &Stage,
        numbers: &HashMap<Id, usize>,
        first_scratch: usize,
    ) -> Result<Compiled, String> {
        let scratch = |id: &Id| Memory::Scratch(numbers[id]);
        let (mut inputs, mut types) = (Vec::new(), Vec::new());
        for origin in &self.operands {
            match origin {
                Origin::Operand(i) => {
                    inputs.push(cx.inputs[*i]);
                    types.push(cx.kernel.inputs[*i].clone());
                }
                Origin::Anchor(id) => {
                    inputs.push(Source::Memory(scratch(id)));
                    types.push(whole.ty(*id).clone());
                }
            }
        }
        let own = stage
            .outputs
            .iter()
            .map(|&o| (cx.outputs[o], cx.kernel.outputs[o].clone()));
        let left = self.leaves.iter().map(|id| (scratch(id), whole.ty(*id).clone()));
        let (outputs, output_types): (Vec<Memory>, Vec<TensorType>) = own.chain(left).unzip();
        let kernel = KernelDesc {
            inputs: &types,
            outputs: &output_types,
            ..cx.kernel
        };
        compile_body(&self.body, &cx.part(kernel, inputs, outputs, first_scratch))
    }
}

/// Returns an error if a later stage reads an operand that a stage overwrites.
fn check_overwritten(cx: &CompileCx, stages: &[Stage], parts: &[Part]) -> Result<(), String> {
    for (i, stage) in stages.iter().enumerate() {
        for &output in &stage.outputs {
            let written = Source::Memory(cx.outputs[output]);
            let reads = |part: &Part| {
                let mut operands = part.operands.iter();
                operands.any(|o| matches!(o, Origin::Operand(k) if cx.inputs[*k] == written))
            };
            if parts[i + 1..].iter().any(reads) {
                return Err("it reads what it has overwritten".into());
            }
        }
    }
    Ok(())
}
