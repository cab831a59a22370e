//! Tensors as files store them, whatever the format of the file, and as parameters of a session.

mod blocks;
pub(crate) mod convert;
pub(crate) mod element;
pub(crate) mod layout;
pub(crate) mod shard;
#[cfg(test)]
mod tests;
