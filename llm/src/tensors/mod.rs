//! Tensors in files of any format, and their conversion to parameters of a session.

pub(crate) mod arrangement;
mod blocks;
pub(crate) mod convert;
pub(crate) mod element;
pub(crate) mod layout;
pub(crate) mod shard;
#[cfg(test)]
mod tests;
