//! The list of this crate's operators.
//!
//! The list is registered at startup like the lists of other crates, so that the importer does not depend on the files
//! of all operators.

use super::operator::{BuiltinOps, OnnxOp};
use super::{
    activation, attention, control, conv, deform, elementwise, features, fourier, group_query, index, known, layout,
    loss, matmul, microsoft_attention, ml, nbits, norm, pool, preview, qlinear, quantized, random, recurrent, reduce,
    resize, sample, sequence, signal, slice, softmax, state, unpool,
};

inventory::submit!(BuiltinOps(FAMILIES));

/// One table for each family.
const FAMILIES: &[&[OnnxOp]] = &[
    activation::OPS,
    attention::OPS,
    control::OPS,
    conv::OPS,
    deform::OPS,
    elementwise::OPS,
    features::OPS,
    fourier::OPS,
    group_query::OPS,
    index::OPS,
    known::OPS,
    layout::OPS,
    loss::OPS,
    matmul::OPS,
    microsoft_attention::OPS,
    ml::columns::OPS,
    ml::encode::OPS,
    ml::linear::OPS,
    ml::scale::OPS,
    ml::svm::OPS,
    ml::trees::OPS,
    nbits::OPS,
    norm::OPS,
    pool::OPS,
    preview::OPS,
    qlinear::OPS,
    quantized::OPS,
    random::OPS,
    recurrent::OPS,
    reduce::OPS,
    resize::OPS,
    sample::OPS,
    sequence::OPS,
    signal::OPS,
    slice::OPS,
    softmax::OPS,
    state::OPS,
    unpool::OPS,
];
