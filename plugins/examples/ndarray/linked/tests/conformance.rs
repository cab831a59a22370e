//! Everything that every backend has to get right.

meganeura_conformance::conformance!(meganeura_ndarray::NdArray);
