//! Operation graphs of cuDNN: a convolution and its epilogue.

use std::ffi::c_void;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendHeurMode_t as Heuristic, cudnnBackendNumericalNote_t as Note,
    cudnnConvolutionMode_t as Mode, cudnnDataType_t as DataType, cudnnPointwiseMode_t as Pointwise,
};
use meganeura_core::DType;
use meganeura_core::ops::Conv2dDims;
use meganeura_shaders::{ConvTensor, LibraryConvolution, LibraryEpilogue};

use super::descriptor::{Descriptor, Functions};

/// Maximum number of engines that are tried.
const ENGINES: usize = 16;
/// Maximum number of notes about an engine.
const NOTES: usize = 16;
/// Alignment of all buffers in bytes.
const ALIGNMENT: i64 = 16;

/// Tensors of an operation graph, with their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tensor {
    /// First operand: `x`, or `dy` for the gradient by the images.
    A = 1,
    /// Second operand: `w`, or `dy` for the gradient by the weights.
    B = 2,
    /// Result of the last operation.
    Result = 3,
    /// Tensor that the epilogue adds.
    Addend = 4,
    /// Vector that the epilogue adds to each row.
    Bias = 5,
    /// Result of the convolution, and of the first and the second addition, if another operation follows.
    Product = 6,
    FirstSum = 7,
    SecondSum = 8,
}

/// An operation graph and the descriptors that it refers to.
pub(super) struct OperationGraph {
    functions: Functions,
    graph: Descriptor,
    _parts: Vec<Descriptor>,
}

/// Shapes of the tensors of a convolution, in the library's order of axes: `[batch, channels, height, width]`.
struct Shapes {
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
}

impl Shapes {
    fn of(d: &Conv2dDims) -> Self {
        Shapes {
            x: [d.n, d.c, d.input[0], d.input[1]],
            w: [d.o, d.c, d.kernel[0], d.kernel[1]],
            y: [d.n, d.o, d.output[0], d.output[1]],
        }
    }
}

fn data_type(dtype: DType) -> DataType {
    match dtype {
        DType::F16 => DataType::CUDNN_DATA_HALF,
        _ => DataType::CUDNN_DATA_FLOAT,
    }
}

impl OperationGraph {
    /// Creates the graph of a convolution.
    ///
    /// # Errors
    /// The library refuses it.
    pub(super) fn of(
        functions: Functions,
        handle: *mut c_void,
        convolution: &LibraryConvolution,
    ) -> Result<Self, String> {
        let d = &convolution.dims;
        let Shapes { x, w, y } = Shapes::of(d);
        let LibraryEpilogue::Sum { addend, bias, relu } = convolution.epilogue else {
            return Err("convolutions have no factor".into());
        };
        let (a, b, result) = match convolution.tensor {
            ConvTensor::Output => (x, w, y),
            ConvTensor::InputGrad => (y, w, x),
            ConvTensor::WeightGrad => (x, y, w),
        };
        let mut parts = Vec::new();
        let mut operations = Vec::new();
        let a = tensor(functions, Tensor::A, a, DType::F16, false)?;
        let b = tensor(functions, Tensor::B, b, DType::F16, false)?;
        // The results of all operations: only the last one is in memory.
        let following = usize::from(addend) + usize::from(bias) + usize::from(relu);
        let names = [Tensor::Product, Tensor::FirstSum, Tensor::SecondSum];
        let mut results = Vec::with_capacity(following + 1);
        for name in names.into_iter().take(following) {
            results.push(tensor(functions, name, result, DType::F32, true)?);
        }
        results.push(tensor(functions, Tensor::Result, result, convolution.result, false)?);
        let options = options(functions, d)?;
        operations.push(convolve(functions, convolution, &options, [&a, &b, &results[0]])?);
        let mut values = results.windows(2);
        let sums = [
            (addend, Tensor::Addend, result),
            (bias, Tensor::Bias, [1, result[1], 1, 1]),
        ];
        for ((_, name, shape), value) in sums.into_iter().filter(|(is_added, ..)| *is_added).zip(&mut values) {
            let added = tensor(functions, name, shape, convolution.result, false)?;
            let add = pointwise(functions, Pointwise::CUDNN_POINTWISE_ADD)?;
            operations.push(apply(functions, &add, &value[0], Some(&added), &value[1])?);
            parts.extend([added, add]);
        }
        if let Some(value) = values.next().filter(|_| relu) {
            let relu = pointwise(functions, Pointwise::CUDNN_POINTWISE_RELU_FWD)?;
            operations.push(apply(functions, &relu, &value[0], None, &value[1])?);
            parts.push(relu);
        }
        let mut graph = functions.descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set_handle(Attribute::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)?;
        let all: Vec<&Descriptor> = operations.iter().collect();
        graph.set_descriptors(Attribute::CUDNN_ATTR_OPERATIONGRAPH_OPS, &all)?;
        graph.finalize()?;
        parts.extend([a, b, options]);
        parts.extend(results);
        parts.extend(operations);
        Ok(OperationGraph {
            functions,
            graph,
            _parts: parts,
        })
    }

    /// Returns configurations of engines, the fastest first by the library's estimate.
    ///
    /// # Errors
    /// The library has no heuristics for the graph.
    pub(super) fn engines(&self) -> Result<Vec<Descriptor>, String> {
        let mut all = Vec::new();
        let mut why = None;
        for mode in [Heuristic::CUDNN_HEUR_MODE_A, Heuristic::CUDNN_HEUR_MODE_FALLBACK] {
            match self.engines_of(mode) {
                Ok(found) => all.extend(found),
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(why) if all.is_empty() => Err(why),
            _ => Ok(all),
        }
    }

    fn engines_of(&self, mode: Heuristic) -> Result<Vec<Descriptor>, String> {
        let mut heuristic = self.functions.descriptor(Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
        heuristic.set_descriptors(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[&self.graph])?;
        let mode = mode as u32;
        heuristic.set_choice(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, mode)?;
        heuristic.finalize()?;
        let kind = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        heuristic.descriptors(Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, ENGINES)
    }

    /// Builds an engine.
    ///
    /// # Errors
    /// The engine does not support the graph or the device, adds up in `f16`, or needs more than `workspace` bytes.
    pub(super) fn plan(
        &self,
        handle: *mut c_void,
        engine: &Descriptor,
        workspace: usize,
    ) -> Result<Descriptor, String> {
        let notes = engine.descriptors(
            Attribute::CUDNN_ATTR_ENGINECFG_ENGINE,
            Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR,
            1,
        )?;
        let notes = notes.first().ok_or("a configuration has no engine")?.choices(
            Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
            Type::CUDNN_TYPE_NUMERICAL_NOTE,
            NOTES,
        )?;
        if notes.contains(&(Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION as u32)) {
            return Err("it adds up in f16".into());
        }
        let mut plan = self
            .functions
            .descriptor(Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
        plan.set_handle(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)?;
        plan.set_descriptors(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[engine])?;
        plan.finalize()?;
        let needed = plan.int(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        if usize::try_from(needed).is_ok_and(|needed| needed <= workspace) {
            Ok(plan)
        } else {
            Err(format!("it needs a workspace of {needed} bytes"))
        }
    }
}

/// Creates a tensor with channels last. A virtual tensor is a value between two operations, without memory.
fn tensor(
    functions: Functions,
    name: Tensor,
    shape: [usize; 4],
    dtype: DType,
    is_virtual: bool,
) -> Result<Descriptor, String> {
    let [n, c, h, w] = shape.map(|size| size as i64);
    let mut tensor = functions.descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    let dtype = data_type(dtype) as u32;
    tensor.set_choice(
        Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE,
        Type::CUDNN_TYPE_DATA_TYPE,
        dtype,
    )?;
    tensor.set_ints(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, &[n, c, h, w])?;
    tensor.set_ints(Attribute::CUDNN_ATTR_TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?;
    tensor.set_ints(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[name as i64])?;
    tensor.set_ints(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[ALIGNMENT])?;
    if is_virtual {
        tensor.set_bool(Attribute::CUDNN_ATTR_TENSOR_IS_VIRTUAL, true)?;
    }
    tensor.finalize()?;
    Ok(tensor)
}

/// Creates the description of the window.
fn options(functions: Functions, d: &Conv2dDims) -> Result<Descriptor, String> {
    let pair = |pair: [usize; 2]| pair.map(|size| size as i64);
    let mut options = functions.descriptor(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let (float, mode) = (DataType::CUDNN_DATA_FLOAT as u32, Mode::CUDNN_CROSS_CORRELATION as u32);
    options.set_choice(
        Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
        Type::CUDNN_TYPE_DATA_TYPE,
        float,
    )?;
    options.set_choice(
        Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
        Type::CUDNN_TYPE_CONVOLUTION_MODE,
        mode,
    )?;
    options.set_ints(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2])?;
    options.set_ints(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, &pair(d.dilation))?;
    options.set_ints(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &pair(d.stride))?;
    options.set_ints(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &pair(d.padding))?;
    options.set_ints(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &pair(d.padding))?;
    options.finalize()?;
    Ok(options)
}

/// Creates the operation that computes a tensor of a convolution: both operands, and the result.
fn convolve(
    functions: Functions,
    convolution: &LibraryConvolution,
    options: &Descriptor,
    [a, b, result]: [&Descriptor; 3],
) -> Result<Descriptor, String> {
    use Attribute as A;
    let (kind, described, factors, operands) = match convolution.tensor {
        ConvTensor::Output => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
            [
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, a),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, b),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, result),
            ],
        ),
        ConvTensor::InputGrad => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
            [
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, a),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, b),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, result),
            ],
        ),
        ConvTensor::WeightGrad => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
            [
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
            [
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, a),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, b),
                (A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, result),
            ],
        ),
    };
    let mut operation = functions.descriptor(kind)?;
    operation.set_descriptors(described, &[options])?;
    for (name, tensor) in operands {
        operation.set_descriptors(name, &[tensor])?;
    }
    let factor = 1.0 / convolution.divisor as f32;
    for (name, factor) in factors.into_iter().zip([factor, 0.0]) {
        operation.set_float(name, factor)?;
    }
    operation.finalize()?;
    Ok(operation)
}

/// Creates the description of an elementwise function, computed in `f32`.
fn pointwise(functions: Functions, mode: Pointwise) -> Result<Descriptor, String> {
    let mut function = functions.descriptor(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
    let (mode, float) = (mode as u32, DataType::CUDNN_DATA_FLOAT as u32);
    function.set_choice(
        Attribute::CUDNN_ATTR_POINTWISE_MODE,
        Type::CUDNN_TYPE_POINTWISE_MODE,
        mode,
    )?;
    function.set_choice(
        Attribute::CUDNN_ATTR_POINTWISE_MATH_PREC,
        Type::CUDNN_TYPE_DATA_TYPE,
        float,
    )?;
    function.finalize()?;
    Ok(function)
}

/// Creates the operation that applies an elementwise function to one or two tensors.
fn apply(
    functions: Functions,
    function: &Descriptor,
    x: &Descriptor,
    other: Option<&Descriptor>,
    y: &Descriptor,
) -> Result<Descriptor, String> {
    let mut operation = functions.descriptor(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
    operation.set_descriptors(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &[function])?;
    operation.set_descriptors(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &[x])?;
    if let Some(other) = other {
        operation.set_descriptors(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &[other])?;
    }
    operation.set_descriptors(Attribute::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &[y])?;
    operation.finalize()?;
    Ok(operation)
}
