//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

mod by_name;
mod language_model;
mod models;
mod rules;
mod verify;
