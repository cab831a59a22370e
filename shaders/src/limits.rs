//! Limits and features of a device on which kernels depend.

/// Configuration of cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoopConfig {
    /// Number of rows and columns of a tile: 8 or 16.
    pub tile_size: u32,
    /// True if operands are rounded to `f16`; sums are always `f32`.
    pub use_f16_input: bool,
    /// Number of threads of a subgroup. They compute a tile together.
    pub subgroup_size: u32,
    /// A contraction uses cooperative matrices if it has at least this number of workgroups of two by two tiles, usually
    /// [`MIN_COOP_WORKGROUPS`](super::coop::MIN_COOP_WORKGROUPS). With 0, every contraction uses them.
    pub min_workgroups: u32,
    /// Maximum number of workgroups with large blocks that the device runs at the same time; 0 if unknown.
    pub max_resident_workgroups: u32,
    /// True if few rows of a large matrix are multiplied in wide blocks. For 16 rows of `q4` matrices of a model with
    /// 8 billion parameters on an H200, wide blocks are 1.4 times as fast through NVRTC, but only 0.92 times as fast
    /// through Vulkan.
    pub wide_rows: bool,
}

/// Optional device features that kernels may use, except cooperative matrices. None is enabled by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Number of threads of every subgroup, if a subgroup consists of consecutive threads of a workgroup and supports
    /// additions.
    pub subgroup_size: Option<u32>,
    /// True if the device converts `f16` to `f32` exactly, including subnormal numbers, infinities and NaN.
    pub exact_f16: bool,
    /// Size of the shared memory of a workgroup in bytes; 0 if unknown.
    pub workgroup_bytes: u32,
}

impl Features {
    /// Returns the number of bytes of shared memory that kernels may use: at least the 16 KiB that every device has.
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
    /// Size of the largest buffer in bytes.
    pub max_buffer_bytes: u64,
}

impl Default for Limits {
    /// Returns limits without cooperative matrices and optional features. The largest buffer is one that every Vulkan
    /// device can bind.
    fn default() -> Self {
        Limits {
            coop: None,
            features: Features::default(),
            max_buffer_bytes: 1 << 27,
        }
    }
}
