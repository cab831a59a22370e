//! Device limits and features that kernels depend on.

/// Use of cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopConfig {
    /// Rows and columns of a tile: 8 or 16.
    pub tile_size: u32,
    /// True if operands are rounded to `f16`; sums are always `f32`.
    pub use_f16_input: bool,
    /// Threads of a subgroup, which compute a tile together.
    pub subgroup_size: u32,
    /// Minimum number of workgroups of two by two tiles for which a product uses cooperative matrices, commonly
    /// [`MIN_COOP_WORKGROUPS`](super::coop::MIN_COOP_WORKGROUPS); with 0, every product uses them.
    pub min_workgroups: u32,
    /// Maximum number of workgroups of large blocks that the device runs at a time; 0 if unknown.
    pub max_resident_workgroups: u32,
    /// True if few rows of a large matrix are multiplied in wide blocks. On an H200, wide blocks are 1.4 times as fast through
    /// NVRTC, but only 0.92 times as fast through Vulkan, for 16 rows of `q4` matrices of a model of 8B parameters.
    pub wide_rows: bool,
}

/// Optional device features that kernels may use, except cooperative matrices. None is enabled by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Threads of every subgroup, if a subgroup consists of consecutive threads of a workgroup and supports additions.
    pub subgroup_size: Option<u32>,
    /// True if the device converts `f16` to `f32` exactly, including small numbers, infinities and NaN.
    pub exact_f16: bool,
    /// Size of a workgroup's shared memory in bytes; 0 if unknown.
    pub workgroup_bytes: u32,
}

impl Features {
    /// Returns the bytes of shared memory that kernels may use: at least the 16 KiB that every device has.
    pub fn workgroup_bytes(&self) -> usize {
        const EVERYWHERE: u32 = 16 << 10;
        const MOST: u32 = 48 << 10;
        self.workgroup_bytes.clamp(EVERYWHERE, MOST) as usize
    }
}

/// Limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cooperative matrices that kernels may use. With `use_f16_input`, operands of matmuls are rounded to `f16`.
    pub coop: Option<CoopConfig>,
    /// Optional features that kernels may use.
    pub features: Features,
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
}

impl Default for Limits {
    /// Returns limits without cooperative matrices and other features, with the largest buffer that every Vulkan device can bind.
    fn default() -> Self {
        Limits {
            coop: None,
            features: Features::default(),
            max_buffer_bytes: 1 << 27,
        }
    }
}
