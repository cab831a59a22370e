//! Calls that a library of the device may compute instead of generated kernels: matmuls and convolutions.

use meganeura_core::DType;
use meganeura_core::ops::Conv2dDims;

use super::conv_kinds::ConvTensor;

/// A call of a library of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LibraryCall {
    /// A matmul.
    Matmul(LibraryMatmul),
    /// A convolution or one of its derivatives.
    Convolution(LibraryConvolution),
}

impl LibraryCall {
    /// Returns the operation on the result.
    pub fn epilogue(&self) -> LibraryEpilogue {
        match self {
            LibraryCall::Matmul(matmul) => matmul.epilogue,
            LibraryCall::Convolution(convolution) => convolution.epilogue,
        }
    }
}

/// A matmul that a library of the device may compute: `[batch, m, k]` times `[batch, k, n]`, with sums in `f32`. Its
/// launch binds both operands, the result, the workspace, and the operands of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryMatmul {
    /// Number of matrices of a batch.
    pub batch: usize,
    /// Number of rows of the first operand and of the result.
    pub m: usize,
    /// Number of columns of the second operand and of the result.
    pub n: usize,
    /// Length of the summed dimension.
    pub k: usize,
    /// Operands. Both have the same dtype, `f16` or `f32`.
    pub operands: [LibraryOperand; 2],
    /// Dtype of the result, `f16` or `f32`. The result is stored in row-major order.
    pub result: DType,
    /// Operation that the library applies to the result of the matmul.
    pub epilogue: LibraryEpilogue,
}

/// An operand of a library matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryOperand {
    /// Type of the operand, `f16` or `f32`.
    pub dtype: DType,
    /// True if the matrices of the operand are stored transposed: as `[k, m]` or `[n, k]`.
    pub transposed: bool,
    /// Distance between two matrices of the batch, in elements; 0 if all matrices are the same.
    pub stride: usize,
}

/// A convolution, or one of its derivatives, that a library of the device may compute, with operands in `f16` and sums
/// in `f32`. Images are `[batch, height, width, channels]`, weights
/// `[out channels, kernel height, kernel width, channels]`. Its launch binds both operands (`x, w`, or `dy, w`, or
/// `x, dy`), the result, the workspace, and the operands of the epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LibraryConvolution {
    /// The computed tensor.
    pub tensor: ConvTensor,
    /// Sizes, with one group.
    pub dims: Conv2dDims,
    /// Dtype of the result, `f16` or `f32`.
    pub result: DType,
    /// Divisor of the result of the convolution, a power of two. Gradients could otherwise exceed the range of `f16`.
    pub divisor: u32,
    /// Operation that the library applies to the result of the convolution.
    pub epilogue: LibraryEpilogue,
}

/// An operation on the result of a library call. Its operands are the last buffers of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LibraryEpilogue {
    /// Additions and a ReLU: `result + addend + bias`, and `max(0, ..)` of the sum. Nothing of it is the plain result.
    Sum {
        /// True if a tensor of the result's type and layout is added. It is the first operand of the epilogue.
        addend: bool,
        /// True if a vector is added to each row: one number for each column or channel, of the result's dtype. It is
        /// the last operand of the epilogue.
        bias: bool,
        /// True if negative sums are replaced by 0.
        relu: bool,
    },
    /// Multiplies by one `f32` in device memory.
    Scale,
}

impl LibraryEpilogue {
    /// No operation.
    pub const PLAIN: LibraryEpilogue = LibraryEpilogue::Sum {
        addend: false,
        bias: false,
        relu: false,
    };
}

/// A library of the device.
pub trait DeviceLibrary {
    /// Returns true if the library should compute a call. Before it, operands of `rounded_bytes` bytes have to be
    /// rounded to `f16`. With `is_followed`, another launch computes the epilogue from its result.
    fn takes(&self, call: &LibraryCall, rounded_bytes: usize, is_followed: bool) -> bool;

    /// Returns the size of the workspace of each call in bytes.
    fn workspace_bytes(&self) -> usize;
}
