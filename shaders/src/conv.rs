//! Convolutions and their derivatives as contractions without an im2col buffer. The locations of the elements of
//! patches are computed when the elements are loaded.

use meganeura_core::TensorType;
use meganeura_core::ops::{Call, Conv2dDims, ImageLayout};

use super::body::{Body, Def, Id};
use super::contraction::{Contraction, ElementLocation, Sizes};
use super::conv_kinds::{ConvTensor, convolution, kind, plane};
use super::conv_nhwc::ConvolutionNhwc;
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled};
use super::library;
use super::location::{self, Base};
use super::template::{Functions, InlinedCall, Template};
use super::tiled;

pub(super) fn compile(body: &Body, id: Id, cx: &CompileCx) -> Result<Compiled, String> {
    let Def::Call { op, attrs, inputs, .. } = &body.nodes[id].def else {
        return Err("there is no convolution".into());
    };
    let &[a, b] = &inputs[..] else {
        return Err("a convolution has two operands".into());
    };
    let inputs: Vec<TensorType> = inputs.iter().map(|&i| body.ty(i).clone()).collect();
    let call = Call {
        attrs,
        inputs: &inputs,
        outputs: std::slice::from_ref(body.ty(id)),
    };
    let (of, layout) = convolution(op).ok_or("it is no convolution")?;
    // Each tap reads its own element of the image.
    tiled::check_prologue(body, cx, a, None)?;
    let dims = match of {
        ConvTensor::Output => layout.conv2d(&call)?,
        ConvTensor::InputGrad => layout.conv2d_input_grad(&call)?,
        ConvTensor::WeightGrad => layout.conv2d_weight_grad(&call)?,
    };
    let operands = [a, b];
    let stored = operands.map(|id| match body.nodes[id].def {
        Def::Operand(index) => Some(index),
        _ => None,
    });
    match layout {
        ImageLayout::Nchw => tiled::compile(
            body,
            id,
            cx,
            &Convolution {
                of,
                functions: functions(&dims)?,
                dims,
                operands,
                stored,
            },
        ),
        ImageLayout::Nhwc => tiled::compile(body, id, cx, &ConvolutionNhwc::new(of, dims, operands, stored)?),
    }
}

/// Variables of the functions that compute positions: image, row and column.
const PLACE: [&str; 3] = ["image", "row", "column"];
const NEXT_PLACE: [&str; 3] = ["next_image", "next_row", "next_column"];

/// Returns the names of the constants with the number of elements, the height and the width of the plane that the
/// positions of a function belong to. Returns `None` for functions that take no positions.
fn places(function: &str) -> Option<[&'static str; 3]> {
    match function {
        "input_of_tap" => Some(["OUTPUT", "OUTPUT_H", "OUTPUT_W"]),
        "output_of_tap" => Some(["INPUT", "INPUT_H", "INPUT_W"]),
        _ => None,
    }
}

/// Returns the names of the function's variables in the inlined statements.
fn variables(found: &InlinedCall, names: [&str; 3]) -> Result<[String; 3], String> {
    let known = names.map(|name| found.variable(name).map(str::to_owned));
    match known {
        [Some(image), Some(row), Some(column)] => Ok([image, row, column]),
        _ => Err("a place has no image, row or column".into()),
    }
}

struct Convolution {
    of: ConvTensor,
    dims: Conv2dDims,
    /// Operands of the contraction: `x, w`, or `dy, w`, or `x, dy`.
    operands: [Id; 2],
    /// Index of each of these operands among the operands of the dispatch, if it is in memory.
    stored: [Option<usize>; 2],
    /// The library functions that locate elements.
    functions: Functions,
}

/// Returns the number of channels of a group on the input side and on the output side.
fn channels(dims: &Conv2dDims) -> [usize; 2] {
    [dims.c / dims.groups, dims.o / dims.groups]
}

/// Returns the library functions that locate elements, for these sizes.
fn functions(dims: &Conv2dDims) -> Result<Functions, String> {
    let (d, [group_inputs, group_outputs]) = (dims, channels(dims));
    Template::new(library::CONVOLUTION)
        .sizes([("IMAGES", d.n), ("INPUTS", d.c), ("OUTPUTS", d.o)])
        .sizes([("GROUP_INPUTS", group_inputs), ("GROUP_OUTPUTS", group_outputs)])
        .sizes([("INPUT_H", d.input[0]), ("INPUT_W", d.input[1])])
        .sizes([("OUTPUT_H", d.output[0]), ("OUTPUT_W", d.output[1])])
        .sizes([("KERNEL_H", d.kernel[0]), ("KERNEL_W", d.kernel[1])])
        .sizes([("STRIDE_H", d.stride[0]), ("STRIDE_W", d.stride[1])])
        .sizes([("DILATION_H", d.dilation[0]), ("DILATION_W", d.dilation[1])])
        .sizes([("PADDING_H", d.padding[0]), ("PADDING_W", d.padding[1])])
        .functions()
}

impl Convolution {
    /// Returns a variable with the element that a library function locates, or 0 if the element is not inside.
    fn element(&self, e: &mut Emitter, tensor: usize, found: &InlinedCall) -> Result<String, String> {
        let id = self.operands[tensor];
        let index = e.bind(&found.value)?;
        let shape = &e.body.ty(id).shape;
        let value = e.value(id, &location::split(&Base::new(&index, shape.numel()), 1, shape))?;
        match found.variable("inside") {
            Some(inside) => e.bind(&format!("select(0.0, {value}, {inside})")),
            None => Ok(value),
        }
    }

    /// Returns the tensor that an operand of the contraction reads, the library function that locates its elements,
    /// and the channel and the position that this function takes.
    fn found_by<'a>(&self, operand: usize, line: &'a str, k: &'a str) -> (usize, &'static str, [&'a str; 2]) {
        match (self.of, operand) {
            (ConvTensor::Output, 0) => (1, "weight", [line, k]),
            (ConvTensor::Output, _) => (0, "input_of_tap", [k, line]),
            (ConvTensor::InputGrad, 0) => (1, "weight_of_input", [line, k]),
            (ConvTensor::InputGrad, _) => (0, "output_of_tap", [k, line]),
            (ConvTensor::WeightGrad, 0) => (1, "output", [line, k]),
            (ConvTensor::WeightGrad, _) => (0, "input_of_tap", [line, k]),
        }
    }

    /// Adds the statements of a function that locates an element, and the constants that it needs.
    fn find(&self, e: &mut Emitter, function: &str, [channel, at]: [&str; 2]) -> Result<InlinedCall, String> {
        match places(function) {
            None => self.statements(e, function, &["batch", channel, at]),
            Some([plane, _, width]) => {
                let place = self.statements(e, "place", &[at, plane, width])?;
                self.find_at(e, function, channel, &variables(&place, PLACE)?)
            }
        }
    }

    /// Adds the statements of a function for a position that is already computed.
    fn find_at(&self, e: &mut Emitter, function: &str, tap: &str, place: &[String; 3]) -> Result<InlinedCall, String> {
        let [image, row, column] = place;
        self.statements(e, function, &["batch", tap, image, row, column])
    }

    fn statements(&self, e: &mut Emitter, function: &str, arguments: &[&str]) -> Result<InlinedCall, String> {
        let suffix = e.fresh();
        e.module.declare(self.functions.declarations());
        let found = self.functions.inline(function, arguments, &suffix)?;
        e.code.push_str(&found.statements);
        Ok(found)
    }
}

impl Contraction for Convolution {
    fn sizes(&self) -> Sizes {
        let (d, [cg, og]) = (&self.dims, channels(&self.dims));
        let (input, output, taps) = (plane(d.input), plane(d.output), plane(d.kernel));
        let (m, n, k) = match self.of {
            ConvTensor::Output => (og, d.n * output, cg * taps),
            ConvTensor::InputGrad => (cg, d.n * input, og * taps),
            ConvTensor::WeightGrad => (og, cg * taps, d.n * output),
        };
        Sizes {
            batch: d.groups,
            m,
            n,
            k,
        }
    }

    fn kind(&self) -> String {
        kind(self.of, &self.dims)
    }

    fn is_along_k(&self, operand: usize) -> bool {
        match self.of {
            ConvTensor::Output => operand == 0,
            ConvTensor::InputGrad => false,
            ConvTensor::WeightGrad => true,
        }
    }

    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String> {
        let (tensor, function, arguments) = self.found_by(operand, line, k);
        let found = self.find(e, function, arguments)?;
        self.element(e, tensor, &found)
    }

    fn finds_together(&self, operand: usize) -> bool {
        places(self.found_by(operand, "", "").1).is_some()
    }

    fn load_together(
        &self,
        e: &mut Emitter,
        operand: usize,
        line: &str,
        k: &str,
        count: usize,
    ) -> Result<Vec<String>, String> {
        let (tensor, function, [tap, position]) = self.found_by(operand, line, k);
        let [plane, height, width] = places(function).ok_or("elements have no places")?;
        // Only the first element needs divisions; the next positions are computed by increments.
        let first = self.statements(e, "place", &[position, plane, width])?;
        let mut place = variables(&first, PLACE)?;
        // If the first position is past the end, it is clamped to an existing image.
        place[0] = e.bind(&format!("min({}, {}u)", place[0], self.dims.n.saturating_sub(1)))?;
        let mut elements = Vec::with_capacity(count);
        for i in 0..count {
            if i > 0 {
                let [image, row, column] = &place;
                let after = self.statements(e, "next_place", &[image, row, column, height, width])?;
                place = variables(&after, NEXT_PLACE)?;
            }
            let found = self.find_at(e, function, tap, &place)?;
            elements.push(self.element(e, tensor, &found)?);
        }
        Ok(elements)
    }

    fn stored(&self, operand: usize) -> Option<usize> {
        let (tensor, function, _) = self.found_by(operand, "", "");
        // Four elements that are adjacent along the lines or the summed dimension must be adjacent and aligned in
        // memory. This holds for the weights of a channel, and for the elements of a plane unless taps shift them or
        // read the padding.
        let d = &self.dims;
        let is_pointwise = d.kernel == [1, 1] && d.stride == [1, 1] && d.padding == [0, 0];
        let planes = |size: [usize; 2]| plane(size).is_multiple_of(4);
        let has_vectors = match function {
            "weight" => true,
            "weight_of_input" => plane(d.kernel) == 1,
            "output" => planes(d.output),
            _ => is_pointwise && planes(d.input),
        };
        self.stored[tensor].filter(|_| has_vectors)
    }

    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<ElementLocation, String> {
        let (_, function, arguments) = self.found_by(operand, line, k);
        let found = self.find(e, function, arguments)?;
        Ok(ElementLocation::always(e.bind(&found.value)?))
    }

    fn element_number(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        let function = match self.of {
            ConvTensor::Output => "output",
            ConvTensor::InputGrad => "input",
            ConvTensor::WeightGrad => "weight",
        };
        e.module.declare(self.functions.declarations());
        let found = self.functions.inline(function, &["batch", "row", "column"], "")?;
        Ok(template.returns("element_number", &found.statements, &found.value))
    }
}
