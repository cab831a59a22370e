//! Memory of buffers, by element type.

use meganeura_plugin_abi::view::{DType, OperandView};
use ndarray::{ArrayD, ArrayViewD, IxDyn};

/// Elements of a buffer. Half-precision numbers are stored as bits, because kernels only convert them.
#[derive(Clone, Debug)]
pub enum Data {
    F32(Vec<f32>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    Half(Vec<u16>),
}

/// An element type.
pub trait Element: Copy + Default {
    /// Returns the elements, if they have this type.
    fn of(data: &Data) -> Result<&[Self], String>;
}

macro_rules! element {
    ($($ty:ty => $variant:ident),*) => {
        $(impl Element for $ty {
            fn of(data: &Data) -> Result<&[Self], String> {
                match data {
                    Data::$variant(v) => Ok(v),
                    _ => Err("operands of different types".into()),
                }
            }
        })*
    };
}

element!(f32 => F32, u32 => U32, i32 => I32, u16 => Half);

/// Evaluates an expression for every element type.
macro_rules! each {
    ($data:expr, $v:ident => $body:expr) => {
        match $data {
            Data::F32($v) => $body,
            Data::U32($v) => $body,
            Data::I32($v) => $body,
            Data::Half($v) => $body,
        }
    };
}

impl Data {
    pub fn zeros(dtype: DType, len: usize) -> Self {
        match dtype {
            DType::F32 => Data::F32(vec![0.0; len]),
            DType::U32 => Data::U32(vec![0; len]),
            DType::I32 => Data::I32(vec![0; len]),
            DType::F16 | DType::BF16 => Data::Half(vec![0; len]),
        }
    }

    pub fn write(&mut self, start: usize, bytes: &[u8]) {
        each!(self, v => write(v, start, bytes));
    }

    pub fn read(&self, start: usize, bytes: &mut [u8]) {
        each!(self, v => read(v, start, bytes));
    }

    pub fn overwrite(&mut self, new: Data) -> Result<(), String> {
        match (self, new) {
            (Data::F32(old), Data::F32(new)) => replace(old, new),
            (Data::U32(old), Data::U32(new)) => replace(old, new),
            (Data::I32(old), Data::I32(new)) => replace(old, new),
            (Data::Half(old), Data::Half(new)) => replace(old, new),
            _ => return Err("a result does not have the type of its buffer".into()),
        }
        Ok(())
    }
}

fn replace<T: Copy>(old: &mut Vec<T>, new: Vec<T>) {
    match old.len() == new.len() {
        true => *old = new,
        false => old[..new.len()].copy_from_slice(&new),
    }
}

/// Storage of elements as bytes.
trait StoredElement: Copy {
    const SIZE: usize;
    fn bytes(self) -> [u8; 4];
    fn from_bytes(bytes: [u8; 4]) -> Self;
}

macro_rules! stored {
    ($($ty:ty, $size:literal, |$v:ident| $to:expr, |$b:ident| $from:expr;)*) => {
        $(impl StoredElement for $ty {
            const SIZE: usize = $size;
            fn bytes(self) -> [u8; 4] { let $v = self; $to }
            fn from_bytes($b: [u8; 4]) -> Self { $from }
        })*
    };
}

stored! {
    f32, 4, |v| v.to_le_bytes(), |b| f32::from_le_bytes(b);
    u32, 4, |v| v.to_le_bytes(), |b| u32::from_le_bytes(b);
    i32, 4, |v| v.to_le_bytes(), |b| i32::from_le_bytes(b);
    u16, 2, |v| [v.to_le_bytes()[0], v.to_le_bytes()[1], 0, 0], |b| u16::from_le_bytes([b[0], b[1]]);
}

/// Writes bytes from byte `start` on, which need not begin or end at element boundaries.
fn write<T: StoredElement>(values: &mut [T], start: usize, bytes: &[u8]) {
    if start % T::SIZE == 0 && bytes.len() % T::SIZE == 0 {
        let values = values[start / T::SIZE..].iter_mut();
        for (value, chunk) in values.zip(bytes.chunks_exact(T::SIZE)) {
            let mut word = [0; 4];
            word[..T::SIZE].copy_from_slice(chunk);
            *value = T::from_bytes(word);
        }
        return;
    }
    for (at, byte) in (start..).zip(bytes) {
        let mut word = values[at / T::SIZE].bytes();
        word[at % T::SIZE] = *byte;
        values[at / T::SIZE] = T::from_bytes(word);
    }
}

fn read<T: StoredElement>(values: &[T], start: usize, bytes: &mut [u8]) {
    if start % T::SIZE == 0 && bytes.len() % T::SIZE == 0 {
        for (value, chunk) in values[start / T::SIZE..].iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            chunk.copy_from_slice(&value.bytes()[..T::SIZE]);
        }
        return;
    }
    for (at, byte) in (start..).zip(bytes) {
        *byte = values[at / T::SIZE].bytes()[at % T::SIZE];
    }
}

/// Returns the elements of an operand as an array.
pub fn view<'a, T>(values: &'a [T], operand: &OperandView) -> Result<ArrayViewD<'a, T>, String> {
    let values = values
        .get(..operand.elements())
        .ok_or("an operand is larger than its buffer")?;
    ArrayViewD::from_shape(IxDyn(&operand.dims), values).map_err(|e| e.to_string())
}

/// Returns the elements of an array in row-major order.
pub fn elements<T: Clone>(array: ArrayD<T>) -> Vec<T> {
    match array.is_standard_layout() {
        true => {
            let (values, offset) = array.into_raw_vec_and_offset();
            match offset {
                None | Some(0) => values,
                Some(offset) => values[offset..].to_vec(),
            }
        }
        false => array.iter().cloned().collect(),
    }
}
