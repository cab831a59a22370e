//! The element type of key-value caches.

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
    /// 8.5 bits per number: blocks of 32 integers of 8 bits with a common scale in `f16`, about a quarter of the memory
    /// of `F32`. A number is off by at most 1/254 of the largest magnitude of its block, plus the rounding of the scale:
    /// 2^-11 of the number if the largest magnitude is from 0.008 to 8.3e6. Smaller blocks lose more, and magnitudes above
    /// become infinite. Rows of keys, and of values, must have a multiple of [64](CacheType::Q8_MULTIPLE) numbers.
    Q8,
}

impl CacheType {
    /// All types, the widest first.
    pub const ALL: [CacheType; 3] = [CacheType::F32, CacheType::F16, CacheType::Q8];

    /// Numbers of a row that a cache of [`CacheType::Q8`] needs a multiple of: two blocks of 32.
    pub const Q8_MULTIPLE: usize = 64;

    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Q8 => "q8",
        }
    }

    /// Returns the type of this [name](CacheType::name).
    pub fn from_name(name: &str) -> Option<Self> {
        CacheType::ALL.into_iter().find(|ty| ty.name() == name)
    }
}
