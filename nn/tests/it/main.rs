//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

#[path = "../common/mod.rs"]
mod common;
mod decode;
mod distributed;
mod encoder;
mod hostile;
mod images;
mod layer_errors;
mod layers;
mod model;
mod model_ranks;
mod models;
#[path = "../common/ranks.rs"]
mod ranks;
mod recurrent;
mod remainder;
mod runs;
mod tables;
mod trainer;
mod zero1;
