//! Fallible allocation of host memory whose size depends on models, batches and files: running out of it is an error,
//! not an abort.

use crate::error::{Error, Result};

/// Allocates an empty vector with the capacity `len`; `what` describes the values in the error.
///
/// # Errors
/// [`Error::HostMemory`].
pub fn room<T>(what: &str, len: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    match values.try_reserve_exact(len) {
        Ok(()) => Ok(values),
        Err(_) => Err(Error::HostMemory {
            what: what.to_owned(),
            bytes: len.saturating_mul(size_of::<T>()),
        }),
    }
}

/// Returns `len` copies of a value.
///
/// # Errors
/// As [`room`].
pub fn filled<T: Clone>(what: &str, len: usize, value: T) -> Result<Vec<T>> {
    let mut values = room(what, len)?;
    values.resize(len, value);
    Ok(values)
}

/// Collects an iterator into a vector that is allocated first.
///
/// # Errors
/// As [`room`].
pub fn collected<T>(what: &str, values: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = room(what, values.len())?;
    all.extend(values);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_memory_for_is_named() {
        assert_eq!(filled("a list", 3, 7u8).expect("three bytes"), [7; 3]);
        assert_eq!(collected("a list", [1, 2].iter()).expect("two"), [&1, &2]);
        for error in [
            filled("the gradient", usize::MAX / 8, 0.0f32).map(drop),
            filled("the gradient", usize::MAX, 0.0f32).map(drop),
        ] {
            let text = error.expect_err("more than there can be").to_string();
            assert!(text.contains("the gradient") && text.contains("help"), "{text}");
        }
    }
}
