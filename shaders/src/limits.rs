//! What a device offers to kernels.

/// How cooperative matrices are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopConfig {
    /// Rows and columns of a tile: 8 or 16.
    pub tile_size: u32,
    /// Whether operands are rounded to `f16`; sums are in `f32` in any case.
    pub use_f16_input: bool,
    /// Threads of a subgroup, which compute a tile together.
    pub subgroup_size: u32,
    /// Workgroups of two by two tiles from which on a product is given to the units, commonly
    /// [`MIN_COOP_WORKGROUPS`](super::coop::MIN_COOP_WORKGROUPS); with 0, every product is.
    pub min_workgroups: u32,
    /// Workgroups of large blocks that the device runs at a time; 0 if that is not known.
    pub max_resident_workgroups: u32,
}

/// What kernels may use of a device beside cooperative matrices, if it is there. None of it by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Threads of every subgroup, where these are consecutive ones of a workgroup and kernels may add up over them.
    pub subgroup_size: Option<u32>,
    /// Whether its own conversion from `f16` to `f32` is exact: small numbers, infinities and NaN included.
    pub exact_f16: bool,
    /// Size of a workgroup's shared memory in bytes; 0 if unknown.
    pub workgroup_bytes: u32,
}

impl Features {
    /// Bytes of shared memory that kernels may use: at least the 16 KiB that every device has.
    pub fn workgroup_bytes(&self) -> usize {
        const EVERYWHERE: u32 = 16 << 10;
        const MOST: u32 = 48 << 10;
        self.workgroup_bytes.clamp(EVERYWHERE, MOST) as usize
    }
}

/// What a device has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cooperative matrices that kernels may use. With `use_f16_input`, operands of matmuls are rounded to `f16`.
    pub coop: Option<CoopConfig>,
    /// What kernels may use that not every device has.
    pub features: Features,
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
}

impl Default for Limits {
    /// No cooperative matrices or other features, and the largest buffer that every Vulkan device binds.
    fn default() -> Self {
        Limits {
            coop: None,
            features: Features::default(),
            max_buffer_bytes: 1 << 27,
        }
    }
}
