//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

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
