//! Convolutions of images with channels last, and their derivatives, as contractions: rows of results are places, and what is
//! summed up are the channels of the places that a kernel covers. So are matmuls by rows, whose kernels these are, with
//! operands that are found as they are needed, by vectors of channels.

use meganeura_core::ops::Conv2dDims;

use super::body::Id;
use super::contraction::{Contraction, Found, Sizes};
use super::conv_kinds::{Of, kind, plane};
use super::emit::Emitter;
use super::library;
use super::location::{self, Base};
use super::template::{Functions, Inlined, Template};

pub(super) struct ConvolutionNhwc {
    of: Of,
    dims: Conv2dDims,
    /// `x, w`, or `dy, w`, or `x, dy`.
    operands: [Id; 2],
    /// The operands of the dispatch that they are, where they are.
    stored: [Option<usize>; 2],
    /// The functions of the library that find elements.
    functions: Functions,
}

impl ConvolutionNhwc {
    pub(super) fn new(of: Of, dims: Conv2dDims, operands: [Id; 2], stored: [Option<usize>; 2]) -> Result<Self, String> {
        if dims.groups != 1 {
            return Err("images with channels last have no kernel for groups".into());
        }
        Ok(ConvolutionNhwc {
            of,
            functions: functions(&dims)?,
            dims,
            operands,
            stored,
        })
    }

    /// The tensor that an operand of the product is, the function of the library that finds its elements, and that
    /// function's arguments.
    fn found_by<'a>(&self, operand: usize, line: &'a str, k: &'a str) -> (usize, &'static str, [&'a str; 2]) {
        match (self.of, operand) {
            (Of::Output, 0) => (0, "input_of_tap", [k, line]),
            (Of::Output, _) => (1, "weight", [line, k]),
            (Of::InputGrad, 0) => (0, "output_of_tap", [k, line]),
            (Of::InputGrad, _) => (1, "weight_of_input", [line, k]),
            (Of::WeightGrad, 0) => (0, "input_of_tap", [line, k]),
            (Of::WeightGrad, _) => (1, "output", [line, k]),
        }
    }

    /// The channels that are neighbours in memory, of the tensor that an operand of the product is.
    fn channels(&self, operand: usize) -> usize {
        match (self.of, operand) {
            (Of::Output | Of::WeightGrad, 0) => self.dims.c,
            _ => self.dims.o,
        }
    }

    fn find(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<Inlined, String> {
        let (_, function, arguments) = self.found_by(operand, line, k);
        let suffix = e.fresh();
        e.module.declare(self.functions.declarations());
        let found = self.functions.inline(function, &arguments, &suffix)?;
        e.code.push_str(&found.statements);
        Ok(found)
    }
}

/// The functions of the library that find elements, for some sizes.
fn functions(d: &Conv2dDims) -> Result<Functions, String> {
    Template::new(library::CONVOLUTION_NHWC)
        .sizes([("IMAGES", d.n), ("INPUTS", d.c), ("OUTPUTS", d.o)])
        .sizes([("INPUT_H", d.input[0]), ("INPUT_W", d.input[1])])
        .sizes([("OUTPUT_H", d.output[0]), ("OUTPUT_W", d.output[1])])
        .sizes([("KERNEL_H", d.kernel[0]), ("KERNEL_W", d.kernel[1])])
        .sizes([("STRIDE_H", d.stride[0]), ("STRIDE_W", d.stride[1])])
        .sizes([("DILATION_H", d.dilation[0]), ("DILATION_W", d.dilation[1])])
        .sizes([("PADDING_H", d.padding[0]), ("PADDING_W", d.padding[1])])
        .functions()
}

impl Contraction for ConvolutionNhwc {
    fn sizes(&self) -> Sizes {
        let d = &self.dims;
        let (inputs, outputs, taps) = (d.n * plane(d.input), d.n * plane(d.output), plane(d.kernel));
        let (m, n, k) = match self.of {
            Of::Output => (outputs, d.o, taps * d.c),
            Of::InputGrad => (inputs, d.c, taps * d.o),
            Of::WeightGrad => (taps * d.c, d.o, outputs),
        };
        Sizes { batch: 1, m, n, k }
    }

    fn kind(&self) -> String {
        kind(self.of, &self.dims)
    }

    fn is_along_k(&self, operand: usize) -> bool {
        match self.of {
            Of::Output => operand == 0,
            Of::InputGrad => true,
            Of::WeightGrad => false,
        }
    }

    fn is_by_rows(&self) -> bool {
        true
    }

    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String> {
        let (tensor, ..) = self.found_by(operand, line, k);
        let found = self.find(e, operand, line, k)?;
        let id = self.operands[tensor];
        let index = e.bind(&found.value)?;
        let shape = &e.body.ty(id).shape;
        let value = e.value(id, &location::split(&Base::new(&index, shape.numel()), 1, shape))?;
        match found.variable("inside") {
            Some(inside) => e.bind(&format!("select(0.0, {value}, {inside})")),
            None => Ok(value),
        }
    }

    fn stored(&self, operand: usize) -> Option<usize> {
        let (tensor, ..) = self.found_by(operand, "", "");
        self.stored[tensor].filter(|_| self.channels(operand).is_multiple_of(4))
    }

    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<Found, String> {
        let found = self.find(e, operand, line, k)?;
        Ok(Found {
            number: e.bind(&found.value)?,
            inside: found.variable("inside").map(str::to_owned),
        })
    }
}
