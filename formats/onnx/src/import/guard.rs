//! Checks that 64-bit integers stay within the 32 bits that a graph has for them.
//!
//! A node whose result can leave 32 bits gets a flag in the graph. `Runner` reads one number that combines all flags after
//! each step. Nodes whose operands have small ranges get no flag.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, Value};

use super::flag::{Guard, GuardKind};
use super::{Call, Importer, Operand, Source, node_place, operator_name};
use crate::element::ElementType;
use crate::ops::{Overflow, ranges};

/// Maximum number of terms: sums of one byte of each term, with a carry, fit into `i32`.
const MAX_SUMMED: usize = 1 << 22;

impl Importer<'_> {
    /// Returns the guards of nodes that a result of the model depends on.
    pub(super) fn live_guards(&mut self) -> Vec<Guard> {
        let nodes = self.graph.nodes();
        let mut live = vec![false; nodes.len()];
        let mut open: Vec<usize> = self.graph.outputs().iter().map(|v| v.node.index()).collect();
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut live[at], true) {
                open.extend(nodes[at].inputs.iter().map(|v| v.node.index()));
            }
        }
        let mut guards = std::mem::take(&mut self.guards);
        guards.retain(|guard| live[guard.result.node.index()]);
        guards
    }
}

impl Call<'_, '_> {
    /// Adds a guard of an overflow to the graph: in each step, no element of `flag` may be raised. `result` is the checked
    /// result.
    pub(crate) fn guard(&mut self, flag: impl Into<Value>, result: Value, element: ElementType) {
        self.guard_kind(GuardKind::Overflow, flag, result, element);
    }

    /// Adds a guard that raises an error if an element of `unknown` is not 0.
    pub(crate) fn guard_category(&mut self, unknown: impl Into<Value>, result: Value) {
        self.guard_kind(GuardKind::Category, unknown, result, ElementType::F32);
    }

    fn guard_kind(&mut self, kind: GuardKind, flag: impl Into<Value>, result: Value, element: ElementType) {
        let mut flag = flag.into();
        let graph = &mut self.importer.graph;
        let dims = graph.shape(flag).to_vec();
        if dims.contains(&0) {
            return;
        }
        if !dims.is_empty() {
            let axes: Vec<i32> = (0..dims.len() as i32).collect();
            flag = graph.max(flag, &axes, false).into();
        }
        // A branch that is not taken is computed as well.
        for condition in &self.importer.conditions {
            flag = self.importer.graph.logical_and(flag, *condition).into();
        }
        self.importer.guards.push(Guard {
            place: self.importer.full_name(node_place(self.node)),
            operator: operator_name(self.node),
            kind,
            element,
            flag,
            result,
        });
    }

    /// Returns the range of the integers of operand `i`; `None` for floats.
    pub(crate) fn range(&self, i: usize) -> Option<(i64, i64)> {
        self.inputs.get(i)?.as_ref()?.range()
    }

    /// Stores the ranges of integer results, and guards 64-bit results that may leave 32 bits.
    pub(super) fn check_integers(&mut self, results: &mut [Operand]) -> Result<(), String> {
        for (i, result) in results.iter_mut().enumerate() {
            let Some((low, high)) = result.element.graph_range() else {
                continue;
            };
            let Source::Node(value) = result.source else { continue };
            let is_wide = result.element.bits() == 64;
            if let Some((least, most)) = ranges::of(self, i) {
                let fits = least >= i128::from(low) && most <= i128::from(high);
                if fits || is_wide {
                    // The range can be clipped, because values outside of it are an error of the step.
                    let clip = |v: i128| v.clamp(low.into(), high.into()) as i64;
                    result.range = Some((clip(least), clip(most)));
                }
                if fits {
                    continue;
                }
            }
            if is_wide {
                self.check_overflow(value, result.element)?;
            }
        }
        Ok(())
    }

    /// Guards a result of arithmetic on 64-bit integers.
    fn check_overflow(&mut self, result: Value, element: ElementType) -> Result<(), String> {
        let flag = match self.op.overflow {
            Overflow::Products(operands) => self.differs_from_floats(operands, result)?,
            Overflow::Sums(operands) => self.sums_leave(operands, element)?,
            Overflow::Scatter => match &*self.string("reduction", "none")? {
                "add" => self.sums_leave(&[0, 2], element)?,
                "mul" => self.differs_from_floats(&[0, 2], result)?,
                _ => return Ok(()),
            },
            Overflow::None => return Ok(()),
        };
        self.guard(flag, result, element);
        Ok(())
    }

    /// Returns a flag that is raised if a result differs from the `f32` result by more than rounding: an overflow changes it by
    /// 2^32.
    fn differs_from_floats(&mut self, operands: &[usize], result: Value) -> Result<Value, String> {
        let floats = self.again(operands, ElementType::F32, &mut |call, x| call.as_f32(x))?;
        Ok(self.is_far(floats, result))
    }

    /// Returns a flag that is raised for integers that differ from their approximations in `floats` by more than 2^31.
    pub(crate) fn is_far(&mut self, floats: Value, integers: Value) -> Value {
        let integers = self.as_f32(integers);
        let graph = &mut self.importer.graph;
        let difference = graph.sub(floats, integers);
        let difference = graph.abs(difference);
        let most = graph.scalar_of(DType::F32, 2f64.powi(31));
        graph.greater_than(difference, most).into()
    }

    /// Returns a flag that is raised if sums exceed 32 bits. The check is exact: it sums the bytes of the operands and adds the
    /// carries.
    fn sums_leave(&mut self, operands: &[usize], element: ElementType) -> Result<Value, String> {
        let given = self.inputs.iter().enumerate();
        let given = given.filter(|(i, _)| operands.is_empty() || operands.contains(i));
        let terms: usize = given.filter_map(|(_, o)| o.as_ref()).map(Operand::elements).sum();
        if terms > MAX_SUMMED {
            return Err(format!(
                "expected at most {MAX_SUMMED} terms of {element}, found {terms}: their sum may leave the 32 bits of a graph"
            ));
        }
        let mut parts = Vec::with_capacity(4);
        for byte in 0..4 {
            let part = self.again(operands, ElementType::I32, &mut |call, x| {
                call.byte(x, byte, element.is_signed())
            })?;
            parts.push(part);
        }
        let carried = self.carried(&parts);
        let top = carried[3];
        let (low, high) = if element.is_signed() {
            (-128.0, 127.0)
        } else {
            (0.0, 255.0)
        };
        let (low, high) = (self.scalar(ElementType::I32, low), self.scalar(ElementType::I32, high));
        let graph = &mut self.importer.graph;
        let (below, above) = (graph.less_than(top, low), graph.greater_than(top, high));
        Ok(graph.logical_or(below, above).into())
    }

    /// Builds the node a second time, with other values of the type `element` for some operands (all, if the list is
    /// empty).
    fn again(
        &mut self,
        operands: &[usize],
        element: ElementType,
        f: &mut dyn FnMut(&mut Self, Value) -> Value,
    ) -> Result<Value, String> {
        let own = self.inputs.clone();
        for (i, operand) in own.iter().enumerate() {
            if let Some(operand) = operand.as_ref()
                && (operands.is_empty() || operands.contains(&i))
            {
                let value = self.importer.value(operand)?;
                let value = f(self, value);
                self.inputs[i] = Some(self.result(value, element));
            }
        }
        let built = (self.op.build)(self);
        self.inputs = own;
        let first = built?.into_iter().next().ok_or("the node has no results")?;
        self.importer.value(&first)
    }

    /// Returns byte `i` of 32-bit integers, as `i32`; the last byte of signed integers has their sign.
    pub(crate) fn byte(&mut self, x: Value, i: u32, is_signed: bool) -> Value {
        let graph = &mut self.importer.graph;
        let constant = |graph: &mut Graph, value: u32| graph.scalar_of(DType::U32, value.into());
        let (by, mask) = (constant(graph, 8 * i), constant(graph, 255));
        let bits = graph.cast(x, DType::U32);
        let shifted = graph.shift_right(bits, by);
        let byte = graph.bit_and(shifted, mask);
        if i < 3 || !is_signed {
            return graph.cast(byte, DType::I32).into();
        }
        // Flipping the sign bit adds 128 modulo 256.
        let sign = constant(graph, 128);
        let flipped = graph.bit_xor(byte, sign);
        let flipped = graph.cast(flipped, DType::I32);
        let offset = graph.scalar_of(DType::I32, 128.0);
        graph.sub(flipped, offset).into()
    }

    /// Returns `parts` with carries for the sum `parts[0] + 2^8 parts[1] + ...`: each digit includes the carry of the
    /// previous one, and is not reduced to a byte.
    pub(crate) fn carried(&mut self, parts: &[Value]) -> Vec<Value> {
        let mut digits: Vec<Value> = Vec::with_capacity(parts.len());
        for part in parts {
            let digit = match digits.last().copied() {
                None => *part,
                Some(before) => {
                    let low = self.byte(before, 0, false);
                    let graph = &mut self.importer.graph;
                    let base = graph.scalar_of(DType::I32, 256.0);
                    let high = graph.sub(before, low);
                    let carry = graph.div(high, base);
                    graph.add(*part, carry).into()
                }
            };
            digits.push(digit);
        }
        digits
    }
}
