//! Numbers and structures of numbers as the bytes that they are in a plan.

use crate::types::{Attribute, Buffer, Dispatch, Operand, Plan, Program, ProgramStep, Segment, Slot};

/// Structures that a plan consists of.
///
/// # Safety
/// Any bytes are a value of the type, and it has no bytes between its fields or behind them.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($ty:ty),*) => {
        // SAFETY: each consists of numbers, and of structures of numbers, that fill it: what would lie between is
        // declared as reserved.
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

/// The value at that place, if it is there.
pub fn read<T: Plain>(bytes: &[u8], offset: u64) -> Option<T> {
    let start = usize::try_from(offset).ok()?;
    let bytes = bytes.get(start..)?.get(..size_of::<T>())?;
    // SAFETY: there are as many bytes, and any bytes are a value of the type.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of values.
pub fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the values are borrowed, and all of their bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}
