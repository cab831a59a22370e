//! Tensors on the host: weights, inputs, results, and values that are known at import.

use half::{bf16, f16};
use meganeura_core::DType;
use meganeura_core::graph::ConstantData;
use meganeura_core::host_memory::room;

use crate::element::ElementType;
use crate::small::SmallFloat;

/// A tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    element: ElementType,
    dims: Vec<usize>,
    pub(crate) data: Data,
}

/// Elements; all integers and booleans use one representation, `f16` and `bf16` are widened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Int(Vec<i64>),
}

/// Returns the number of elements, if it fits into a `usize` and an allocation.
pub(crate) fn element_count(dims: &[usize]) -> Option<usize> {
    let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    // The limit keeps the number of bits in range for every type.
    count.filter(|&n| n <= isize::MAX as usize / 64)
}

impl Tensor {
    /// Creates a tensor from `f32` elements. Panics if their number does not match the dimensions.
    pub fn f32(dims: &[usize], data: Vec<f32>) -> Self {
        Tensor::new(ElementType::F32, dims, Data::F32(data))
    }

    /// Creates a tensor from `i64` elements. Panics like [`Tensor::f32`].
    pub fn i64(dims: &[usize], data: Vec<i64>) -> Self {
        Tensor::new(ElementType::I64, dims, Data::Int(data))
    }

    /// Creates a tensor from integers of any integer type or booleans, wrapped to the type. Panics like [`Tensor::f32`], and for
    /// a floating-point type.
    pub fn integers(element: ElementType, dims: &[usize], mut data: Vec<i64>) -> Self {
        assert!(!element.is_float(), "{element} is not an integer type");
        data.iter_mut().for_each(|v| *v = element.wrap(*v));
        Tensor::new(element, dims, Data::Int(data))
    }

    /// Creates a tensor from `f64` elements, rounded to a floating-point type. Panics like [`Tensor::f32`], and for an integer
    /// type.
    pub fn floats(element: ElementType, dims: &[usize], data: Vec<f64>) -> Self {
        let data = match element {
            ElementType::F64 => Data::F64(data),
            ElementType::F32 => Data::F32(data.into_iter().map(|v| v as f32).collect()),
            ElementType::F16 => Data::F32(data.into_iter().map(|v| f16::from_f64(v).to_f32()).collect()),
            ElementType::BF16 => Data::F32(data.into_iter().map(|v| bf16::from_f64(v).to_f32()).collect()),
            _ => match SmallFloat::of(element) {
                Some(small) => Data::F32(data.into_iter().map(|v| small.round(v)).collect()),
                None => panic!("{element} is not a floating-point type"),
            },
        };
        Tensor::new(element, dims, data)
    }

    /// Reads a tensor from a single `TensorProto` message, the format of ONNX's test cases (`input_0.pb`).
    ///
    /// # Errors
    /// [`crate::Error::Broken`] if the bytes are not such a message, or the type is not supported.
    pub fn from_proto(bytes: &[u8]) -> crate::Result<Self> {
        use prost::Message;
        let proto =
            crate::proto::TensorProto::decode(bytes).map_err(|e| crate::Error::broken(format!("no tensor: {e}")))?;
        crate::read::read_tensor(&proto, None).map_err(|e| crate::Error::broken(e.message()))
    }

    /// Creates a scalar integer.
    pub(crate) fn scalar_i64(value: i64) -> Self {
        Tensor::i64(&[], vec![value])
    }

    pub(crate) fn new(element: ElementType, dims: &[usize], data: Data) -> Self {
        let found = data.len();
        assert_eq!(Some(found), element_count(dims), "elements of a tensor {dims:?}");
        Tensor {
            element,
            dims: dims.to_vec(),
            data,
        }
    }

    /// Returns the element type.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all elements as `f32`, rounded.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.data {
            Data::F32(data) => data.clone(),
            Data::F64(data) => data.iter().map(|&v| v as f32).collect(),
            Data::Int(data) => data.iter().map(|&v| v as f32).collect(),
        }
    }

    /// Returns all elements as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(data) => data.iter().map(|&v| v.into()).collect(),
            Data::F64(data) => data.clone(),
            Data::Int(data) => data.iter().map(|&v| v as f64).collect(),
        }
    }

    /// Returns all elements as `i64`; floats are truncated.
    pub fn to_i64(&self) -> Vec<i64> {
        match &self.data {
            Data::F32(data) => data.iter().map(|&v| v as i64).collect(),
            Data::F64(data) => data.iter().map(|&v| v as i64).collect(),
            Data::Int(data) => data.clone(),
        }
    }

    /// Returns all elements as the bits of `f16`, rounded.
    pub fn f16_bits(&self) -> Vec<u16> {
        self.to_f32().iter().map(|&v| f16::from_f32(v).to_bits()).collect()
    }

    /// Returns the integers of an integer or boolean tensor.
    pub(crate) fn ints(&self) -> Option<&[i64]> {
        match &self.data {
            Data::Int(data) => Some(data),
            _ => None,
        }
    }

    /// Returns the same elements in another shape with the same number of elements.
    pub(crate) fn reshaped(&self, dims: &[usize]) -> Self {
        Tensor::new(self.element, dims, self.data.clone())
    }

    /// Returns the elements at these positions, in a new shape.
    pub(crate) fn pick(&self, dims: &[usize], positions: impl Iterator<Item = usize>) -> Self {
        let data = match &self.data {
            Data::F32(data) => Data::F32(positions.map(|i| data[i]).collect()),
            Data::F64(data) => Data::F64(positions.map(|i| data[i]).collect()),
            Data::Int(data) => Data::Int(positions.map(|i| data[i]).collect()),
        };
        Tensor::new(self.element, dims, data)
    }

    /// Converts to another element type, by the rules of ONNX's Cast: floats to integers truncate, and integers wrap.
    pub(crate) fn cast(&self, to: ElementType) -> Self {
        if to.is_float() {
            return Tensor::floats(to, &self.dims, self.to_f64());
        }
        let data = match (&self.data, to) {
            (Data::Int(data), _) => data.clone(),
            (_, ElementType::Bool) => self.to_f64().iter().map(|&v| (v != 0.0) as i64).collect(),
            _ => self.to_i64(),
        };
        Tensor::integers(to, &self.dims, data)
    }

    /// Returns the elements as bytes of their type in a graph; an error contains the first integer that does not fit.
    pub(crate) fn graph_bytes(&self) -> Result<Vec<u8>, String> {
        let out_of_range = |v: &i64| {
            format!(
                "{v} does not fit into {}, the type for {} in a graph",
                self.element.dtype().name(),
                self.element
            )
        };
        let size = self.element.dtype().storage_bytes(self.len()).unwrap_or(usize::MAX);
        let mut bytes = room(&format!("a tensor {:?}", self.dims), size).map_err(|e| e.to_string())?;
        match (&self.data, self.element.dtype()) {
            (Data::Int(data), DType::I32) => {
                for v in data {
                    bytes.extend(i32::try_from(*v).map_err(|_| out_of_range(v))?.to_le_bytes());
                }
            }
            (Data::Int(data), _) => {
                for v in data {
                    bytes.extend(u32::try_from(*v).map_err(|_| out_of_range(v))?.to_le_bytes());
                }
            }
            // Avoids another copy, because `f32` weights are most of a model.
            (Data::F32(data), DType::F32) => bytes.extend(data.iter().flat_map(|v| v.to_le_bytes())),
            (_, DType::F16) => self
                .to_f32()
                .iter()
                .for_each(|&v| bytes.extend(f16::from_f32(v).to_le_bytes())),
            (_, DType::BF16) => self
                .to_f32()
                .iter()
                .for_each(|&v| bytes.extend(bf16::from_f32(v).to_le_bytes())),
            _ => self.to_f32().iter().for_each(|&v| bytes.extend(v.to_le_bytes())),
        }
        Ok(bytes)
    }

    /// Returns a finite element that `f32` cannot represent.
    pub(crate) fn beyond_f32(&self) -> Option<f64> {
        match &self.data {
            Data::F64(data) => data
                .iter()
                .copied()
                .find(|v| v.is_finite() && (*v as f32).is_infinite()),
            _ => None,
        }
    }

    /// Returns the elements as a constant of a graph; an error contains an integer that does not fit into the graph's
    /// type.
    pub(crate) fn to_constant(&self) -> Result<ConstantData, String> {
        let data = ConstantData::from_bytes(self.element.dtype(), self.graph_bytes()?);
        data.ok_or_else(|| format!("a constant of {} cannot be converted", self.element))
    }

    /// Creates a tensor of the model's type from the bytes of a graph's result; their number must match the dimensions.
    pub(crate) fn from_graph_bytes(element: ElementType, dims: &[usize], bytes: Vec<u8>) -> Self {
        let data = ConstantData::from_bytes(element.dtype(), bytes).map_or_else(Vec::new, |data| data.to_f64());
        if element.is_float() {
            Tensor::floats(element, dims, data)
        } else {
            Tensor::integers(element, dims, data.into_iter().map(|v| v as i64).collect())
        }
    }
}

impl Data {
    pub(crate) fn len(&self) -> usize {
        match self {
            Data::F32(data) => data.len(),
            Data::F64(data) => data.len(),
            Data::Int(data) => data.len(),
        }
    }
}
