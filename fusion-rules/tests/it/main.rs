//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are separate.

mod by_name;
mod language_model;
mod models;
mod rules;
mod verify;
