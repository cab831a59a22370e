//! Conversion between the bytes of a plan and numbers or structures of numbers.

use crate::types::{Attribute, Buffer, Dispatch, Operand, Plan, Program, ProgramStep, Segment, Slot};

/// Structures in a plan that can be read directly from its bytes.
///
/// # Safety
/// Any bytes must be a valid value of the type, and it must have no padding between or after its
/// fields.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($ty:ty),*) => {
        // SAFETY: each consists of numbers, and of structures of numbers, without gaps: padding is
        // declared as reserved fields.
        $(unsafe impl Plain for $ty {})*
    };
}

plain!(
    i64,
    Plan,
    Buffer,
    Dispatch,
    Segment,
    Operand,
    Attribute,
    Program,
    ProgramStep,
    Slot
);

/// Reads the value at this offset, if it is within the bytes.
pub fn read<T: Plain>(bytes: &[u8], offset: u64) -> Option<T> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..)?.get(..size_of::<T>())?;
    // SAFETY: there are enough bytes, and any bytes are a value of the type.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Returns the bytes of values.
pub fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the values are borrowed, and all of their bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
