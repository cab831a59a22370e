//! Comparisons: `u32` results of 0 or 1, with NumPy broadcasting.

use super::binary::{broadcast, call, shape_pairs};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::ops::sample::{Fill, Sample, SampleInput, Sizes};
use crate::ops::{Arity, Call, Cost, Doc, FusionRole, Gradient, Operator, RefCall, Semantics, expect_same_dtype};
use crate::shape::{Shape, TensorType};

/// A comparison operator: a row of the table.
pub(super) struct Compare {
    name: &'static str,
    formula: &'static str,
    reference: fn(&f64, &f64) -> bool,
    decompose: Option<fn(&mut Graph, Value, Value) -> NodeId>,
}

/// All operators of this table.
pub(super) static ROWS: &[Compare] = &[LESS_THAN, LESS_EQUAL, GREATER_THAN, GREATER_EQUAL, EQUAL, NOT_EQUAL];

const LESS_THAN: Compare = Compare {
    name: "core.less_than",
    formula: "1 if a < b, else 0 (also for NaN)",
    reference: f64::lt,
    decompose: None,
};

const LESS_EQUAL: Compare = Compare {
    name: "core.less_equal",
    formula: "1 if a <= b, else 0 (also for NaN)",
    reference: f64::le,
    decompose: Some(|g, a, b| {
        let less = g.less_than(a, b);
        let equal = g.equal(a, b);
        g.maximum(less, equal)
    }),
};

const GREATER_THAN: Compare = Compare {
    name: "core.greater_than",
    formula: "1 if a > b, else 0 (also for NaN)",
    reference: f64::gt,
    decompose: Some(|g, a, b| g.less_than(b, a)),
};

const GREATER_EQUAL: Compare = Compare {
    name: "core.greater_equal",
    formula: "1 if a >= b, else 0 (also for NaN)",
    reference: f64::ge,
    decompose: Some(|g, a, b| g.less_equal(b, a)),
};

const EQUAL: Compare = Compare {
    name: "core.equal",
    formula: "1 if a = b, else 0 (also for NaN)",
    reference: f64::eq,
    decompose: None,
};

const NOT_EQUAL: Compare = Compare {
    name: "core.not_equal",
    formula: "0 if a = b, else 1 (also for NaN)",
    reference: f64::ne,
    decompose: Some(|g, a, b| {
        let equal = g.equal(a, b);
        let one = g.scalar_of(DType::U32, 1.0);
        g.sub(one, equal)
    }),
};

impl Operator for Compare {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        format!("g.{}(a, b)", short_name(self.name))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "a, b: shapes that broadcast -> the broadcast shape",
            formula: self.formula,
            source: "IEEE 754 comparisons; NumPy broadcasting",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        let shape = Shape::broadcast(&call.inputs[0].shape, &call.inputs[1].shape)?;
        Ok(vec![TensorType::new(DType::U32, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        let reference = |call: &RefCall| vec![broadcast(call, |a, b| f64::from((self.reference)(&a, &b)))];
        match self.decompose {
            None => Semantics::primitive(reference),
            Some(decompose) => Semantics::both(reference, move |cx| {
                let (a, b) = (cx.inputs[0], cx.inputs[1]);
                Ok(vec![decompose(cx.graph, a, b).into()])
            }),
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (a, b) in shape_pairs(sizes) {
            let inputs = vec![SampleInput::f32(&a), SampleInput::f32(&b)];
            samples.push(Sample::new(format!("{a:?} {b:?}"), inputs, Attrs::new()));
        }
        for dtype in [DType::F32, DType::U32, DType::I32] {
            // Few distinct values, so that equal values are compared.
            let operand = |shape: &[usize]| SampleInput::filled(dtype, shape, Fill::Below(3));
            let inputs = vec![operand(&[9, 4]), operand(&[4])];
            samples.push(Sample::new(format!("ties {dtype}"), inputs, Attrs::new()));
        }
        samples
    }
}

macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($row:ident);)*) => {
        impl Graph {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
                static ROW: Compare = $row;
                call(self, &ROW, a.into(), b.into())
            })*
        }
    };
}

builders! {
    /// Returns 1 (`u32`) where `a < b`, else 0.
    less_than(LESS_THAN);
    /// Returns 1 (`u32`) where `a <= b`, else 0.
    less_equal(LESS_EQUAL);
    /// Returns 1 (`u32`) where `a > b`, else 0.
    greater_than(GREATER_THAN);
    /// Returns 1 (`u32`) where `a >= b`, else 0.
    greater_equal(GREATER_EQUAL);
    /// Returns 1 (`u32`) where `a = b`, else 0.
    equal(EQUAL);
    /// Returns 1 (`u32`) where `a` and `b` differ, else 0.
    not_equal(NOT_EQUAL);
}
