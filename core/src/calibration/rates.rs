//! The measured rates of a device.

use std::fmt;
use std::time::Duration;

/// Measured rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Duration of a step of one small call, from its submission until the wait for it ends.
    pub step: Duration,
    /// Time that one more dependent launch adds to a step.
    pub launch: Duration,
    /// Bytes read and written per second by copies of 64 MB.
    pub bytes_per_second: f64,
    /// Rows and columns of the square matrices that were multiplied: the largest size that was tried.
    pub edge: usize,
    /// FLOP/s of the matmul of these matrices in `f32`; a multiplication and an addition are two FLOPs.
    pub flops_per_second: f64,
    /// FLOP/s of the matmul with operands rounded to `f16`, if that is faster.
    pub mixed_flops_per_second: Option<f64>,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a step of one call {:.1} us, every further call {:.2} us, copies {:.1} GB/s, f32 matmul of {edge}x{edge} \
             {:.1} GFLOP/s",
            micros(self.step),
            micros(self.launch),
            self.bytes_per_second / 1e9,
            self.flops_per_second / 1e9,
            edge = self.edge,
        )?;
        match self.mixed_flops_per_second {
            Some(flops) => write!(f, ", in mixed precision {:.1} GFLOP/s", flops / 1e9),
            None => Ok(()),
        }
    }
}
