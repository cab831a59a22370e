//! Tests of packed parameters (several stored as one tensor): results equal those without packing, and users see only
//! the names of the sources.

mod graphs;
mod models;
mod names;
mod training;
mod updates;
