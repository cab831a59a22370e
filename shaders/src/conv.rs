//! Convolutions and their derivatives as contractions: patches of images are found as they are needed.

use meganeura_core::TensorType;
use meganeura_core::ops::{Call, Conv2dDims, ImageLayout};

use super::body::{Body, Def, Id};
use super::contraction::{Contraction, Found, Sizes};
use super::conv_kinds::{Of, convolution, kind, plane};
use super::conv_nhwc::ConvolutionNhwc;
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled};
use super::library;
use super::location::{self, Base};
use super::template::{Functions, Inlined, Template};
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
    // Each tap reads its element of the image.
    tiled::check_prologue(body, cx, a, None)?;
    let dims = match of {
        Of::Output => layout.conv2d(&call)?,
        Of::InputGrad => layout.conv2d_input_grad(&call)?,
        Of::WeightGrad => layout.conv2d_weight_grad(&call)?,
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

/// Variables of the functions that find places: image, row and column.
const PLACE: [&str; 3] = ["image", "row", "column"];
const NEXT_PLACE: [&str; 3] = ["next_image", "next_row", "next_column"];

/// Constants with the elements, height and width of the planes whose places a function finds elements by, if it does.
fn places(function: &str) -> Option<[&'static str; 3]> {
    match function {
        "input_of_tap" => Some(["OUTPUT", "OUTPUT_H", "OUTPUT_W"]),
        "output_of_tap" => Some(["INPUT", "INPUT_H", "INPUT_W"]),
        _ => None,
    }
}

/// The names that variables of a function have in its statements.
fn variables(found: &Inlined, names: [&str; 3]) -> Result<[String; 3], String> {
    let known = names.map(|name| found.variable(name).map(str::to_owned));
    match known {
        [Some(image), Some(row), Some(column)] => Ok([image, row, column]),
        _ => Err("a place has no image, row or column".into()),
    }
}

struct Convolution {
    of: Of,
    dims: Conv2dDims,
    /// `x, w`, or `dy, w`, or `x, dy`.
    operands: [Id; 2],
    /// The operands of the dispatch that they are, where they are.
    stored: [Option<usize>; 2],
    /// The functions of the library that find elements.
    functions: Functions,
}

/// Channels of a group on the input's and on the output's side.
fn channels(dims: &Conv2dDims) -> [usize; 2] {
    [dims.c / dims.groups, dims.o / dims.groups]
}

/// The functions of the library that find elements, for some sizes.
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
    /// A variable with the element of a tensor that a function of the library finds, or with 0 where it is not inside.
    fn element(&self, e: &mut Emitter, tensor: usize, found: &Inlined) -> Result<String, String> {
        let id = self.operands[tensor];
        let index = e.bind(&found.value)?;
        let shape = &e.body.ty(id).shape;
        let value = e.value(id, &location::split(&Base::new(&index, shape.numel()), 1, shape))?;
        match found.variable("inside") {
            Some(inside) => e.bind(&format!("select(0.0, {value}, {inside})")),
            None => Ok(value),
        }
    }

    /// The tensor that an operand of the product is, the function of the library that finds its elements, and that
    /// function's channel and place.
    fn found_by<'a>(&self, operand: usize, line: &'a str, k: &'a str) -> (usize, &'static str, [&'a str; 2]) {
        match (self.of, operand) {
            (Of::Output, 0) => (1, "weight", [line, k]),
            (Of::Output, _) => (0, "input_of_tap", [k, line]),
            (Of::InputGrad, 0) => (1, "weight_of_input", [line, k]),
            (Of::InputGrad, _) => (0, "output_of_tap", [k, line]),
            (Of::WeightGrad, 0) => (1, "output", [line, k]),
            (Of::WeightGrad, _) => (0, "input_of_tap", [line, k]),
        }
    }

    /// Adds the statements of the function that finds an element, with the constants that it needs.
    fn find(&self, e: &mut Emitter, function: &str, [channel, at]: [&str; 2]) -> Result<Inlined, String> {
        match places(function) {
            None => self.statements(e, function, &["batch", channel, at]),
            Some([plane, _, width]) => {
                let place = self.statements(e, "place", &[at, plane, width])?;
                self.find_at(e, function, channel, &variables(&place, PLACE)?)
            }
        }
    }

    /// The same at a place that is known.
    fn find_at(&self, e: &mut Emitter, function: &str, tap: &str, place: &[String; 3]) -> Result<Inlined, String> {
        let [image, row, column] = place;
        self.statements(e, function, &["batch", tap, image, row, column])
    }

    fn statements(&self, e: &mut Emitter, function: &str, arguments: &[&str]) -> Result<Inlined, String> {
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
            Of::Output => (og, d.n * output, cg * taps),
            Of::InputGrad => (cg, d.n * input, og * taps),
            Of::WeightGrad => (og, cg * taps, d.n * output),
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
            Of::Output => operand == 0,
            Of::InputGrad => false,
            Of::WeightGrad => true,
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
        // Of a division for each element, one is left for all of them.
        let first = self.statements(e, "place", &[position, plane, width])?;
        let mut place = variables(&first, PLACE)?;
        // A first position behind the last one is none of an image that is there.
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
        // Four neighbours along the lines or the sum must be four neighbours in memory, from a multiple of four on: weights of
        // a channel are, and elements of a plane, unless the kernel has taps that move or leave the plane.
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

    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<Found, String> {
        let (_, function, arguments) = self.found_by(operand, line, k);
        let found = self.find(e, function, arguments)?;
        Ok(Found::always(e.bind(&found.value)?))
    }

    fn element_number(&self, e: &mut Emitter, template: Template) -> Result<Template, String> {
        let function = match self.of {
            Of::Output => "output",
            Of::InputGrad => "input",
            Of::WeightGrad => "weight",
        };
        e.module.declare(self.functions.declarations());
        let found = self.functions.inline(function, &["batch", "row", "column"], "")?;
        Ok(template.returns("element_number", &found.statements, &found.value))
    }
}
