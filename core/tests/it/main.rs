//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are
//! separate.

mod attention;
mod attributes;
mod capped_attention;
#[path = "../common/mod.rs"]
mod common;
mod communicators;
mod compositions;
mod decompositions;
mod experts;
mod gradients;
mod hostile;
mod losses;
mod meaning_basic;
#[path = "../common/mutation.rs"]
mod mutation;
mod printing;
mod quantized;
mod rejections_attention;
mod rejections_basic;
mod rejections_nn;
mod rejections_recurrent;
mod rope_speeds;
mod signatures;
mod splice;
