//! Packed parameters: the same numbers as unpacked ones, and the sources' names everywhere.

mod graphs;
mod models;
mod names;
mod training;
mod updates;
