//! NHWC convolutions and their derivatives as contractions. Rows of results are positions, and the sum runs over the
//! channels of the positions that the kernel covers. They use the kernels of row-major matmuls. These kernels load
//! vectors of channels and compute their locations.

use meganeura_core::ops::Conv2dDims;

use super::body::Id;
use super::contraction::{Contraction, ElementLocation, Sizes};
use super::conv_kinds::{ConvTensor, StoredConvolution, kind, plane};
use super::emit::Emitter;
use super::library;
use super::location::{self, Base};
use super::template::{Functions, InlinedCall, Template};

pub(super) struct ConvolutionNhwc {
    of: ConvTensor,
    dims: Conv2dDims,
    /// Operands of the contraction: `x, w`, or `dy, w`, or `x, dy`.
    operands: [Id; 2],
    /// Index of each of these operands among the operands of the dispatch, if it is in memory.
    stored: [Option<usize>; 2],
    /// The library functions that locate elements.
    functions: Functions,
}

impl ConvolutionNhwc {
    pub(super) fn new(
        of: ConvTensor,
        dims: Conv2dDims,
        operands: [Id; 2],
        stored: [Option<usize>; 2],
    ) -> Result<Self, String> {
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

    /// Returns the tensor that an operand of the contraction reads, the library function that locates its elements,
    /// and the arguments of this function.
    fn found_by<'a>(&self, operand: usize, line: &'a str, k: &'a str) -> (usize, &'static str, [&'a str; 2]) {
        match (self.of, operand) {
            (ConvTensor::Output, 0) => (0, "input_of_tap", [k, line]),
            (ConvTensor::Output, _) => (1, "weight", [line, k]),
            (ConvTensor::InputGrad, 0) => (0, "output_of_tap", [k, line]),
            (ConvTensor::InputGrad, _) => (1, "weight_of_input", [line, k]),
            (ConvTensor::WeightGrad, 0) => (0, "input_of_tap", [line, k]),
            (ConvTensor::WeightGrad, _) => (1, "output", [line, k]),
        }
    }

    /// Returns the number of channels that are adjacent in memory, for the tensor of an operand of the contraction.
    fn channels(&self, operand: usize) -> usize {
        match (self.of, operand) {
            (ConvTensor::Output | ConvTensor::WeightGrad, 0) => self.dims.c,
            _ => self.dims.o,
        }
    }

    fn find(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<InlinedCall, String> {
        let (_, function, arguments) = self.found_by(operand, line, k);
        let suffix = e.fresh();
        e.module.declare(self.functions.declarations());
        let found = self.functions.inline(function, &arguments, &suffix)?;
        e.code.push_str(&found.statements);
        Ok(found)
    }
}

/// Returns the library functions that locate elements, for these sizes.
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
            ConvTensor::Output => (outputs, d.o, taps * d.c),
            ConvTensor::InputGrad => (inputs, d.c, taps * d.o),
            ConvTensor::WeightGrad => (taps * d.c, d.o, outputs),
        };
        Sizes { batch: 1, m, n, k }
    }

    fn kind(&self) -> String {
        kind(self.of, &self.dims)
    }

    fn is_along_k(&self, operand: usize) -> bool {
        match self.of {
            ConvTensor::Output => operand == 0,
            ConvTensor::InputGrad => true,
            ConvTensor::WeightGrad => false,
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

    fn convolution(&self) -> Option<StoredConvolution> {
        let [Some(a), Some(b)] = self.stored else { return None };
        Some(StoredConvolution {
            tensor: self.of,
            dims: self.dims,
            operands: [a, b],
        })
    }

    fn number_of(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<ElementLocation, String> {
        let found = self.find(e, operand, line, k)?;
        Ok(ElementLocation {
            number: e.bind(&found.value)?,
            inside: found.variable("inside").map(str::to_owned),
        })
    }
}
