//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are
//! separate.

#[path = "../common/mod.rs"]
mod common;
mod decode;
mod distributed;
mod encoder;
mod hostile;
mod images;
mod layer_errors;
mod layers;
mod messy_tables;
mod model;
mod model_ranks;
mod models;
mod rank_masks;
#[path = "../common/ranks.rs"]
mod ranks;
mod recurrent;
mod remainder;
mod runs;
mod tables;
mod tabm;
mod token_weights;
mod trainer;
mod wild_tables;
mod zero1;
