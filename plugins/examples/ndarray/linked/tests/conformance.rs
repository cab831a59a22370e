//! The conformance tests that every backend must pass.

meganeura_conformance::conformance!(meganeura_ndarray::NdArray);
