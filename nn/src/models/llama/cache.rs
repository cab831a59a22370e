//! The element type of key-value caches.

use meganeura_core::DType;

/// The storage type of keys and values in the caches of a [`LlamaConfig`](super::LlamaConfig) on
/// the device. Queries, and sums over keys, are always `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// 32 bits per number.
    #[default]
    F32,
    /// 16 bits per number, IEEE 754 binary16: half of the memory, and half of the bytes that attention reads. Numbers
    /// are rounded when they are written, by at most 2^-11 of their magnitude (2^-25 below 2^-14); magnitudes from
    /// 65,520 on become infinite.
    F16,
}

impl CacheType {
    /// All types, the widest first.
    pub const ALL: [CacheType; 2] = [CacheType::F32, CacheType::F16];

    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
        }
    }

    /// Returns the type of this [name](CacheType::name).
    pub fn from_name(name: &str) -> Option<Self> {
        CacheType::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Returns the element type of the caches.
    pub fn dtype(self) -> DType {
        match self {
            CacheType::F32 => DType::F32,
            CacheType::F16 => DType::F16,
        }
    }
}
