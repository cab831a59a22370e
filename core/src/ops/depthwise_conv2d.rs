//! Depthwise convolution: a builder method that calls a convolution with a group for each channel.

use super::Conv2dOptions;
use crate::NodeId;
use crate::graph::{Graph, Value};

impl Graph {
    /// Computes the convolution of each channel of `x [n, c, h, w]` with a kernel of its own,
    /// `weight [c, 1, kh, kw]`: [`Graph::conv2d`] with `c` groups.
    #[track_caller]
    pub fn depthwise_conv2d(
        &mut self,
        x: impl Into<Value>,
        weight: impl Into<Value>,
        stride: [u32; 2],
        padding: [u32; 2],
        dilation: [u32; 2],
    ) -> NodeId {
        let (x, weight) = (x.into(), weight.into());
        let mut groups = 1;
        if let (Some(xt), Some(wt)) = (self.ty(x), self.ty(weight)) {
            let channels = xt.shape.get(1).copied().unwrap_or(0);
            if xt.shape.rank() != 4 || wt.shape.rank() != 4 || wt.shape[..2] != [channels, 1] {
                let message = format!(
                    "the operands are {xt} and {wt}; it takes [batch, channels, height, width] and [channels, 1, kernel height, kernel width]"
                );
                return self.report("depthwise_conv2d", message, "give each channel one kernel");
            }
            match u32::try_from(channels) {
                Ok(channels) if channels > 0 => groups = channels,
                _ => {
                    let message = format!("{channels} channels cannot be groups");
                    return self.report("depthwise_conv2d", message, "give it at least one channel");
                }
            }
        }
        let options = Conv2dOptions {
            stride,
            padding,
            dilation,
            groups,
        };
        self.conv2d(x, weight, options)
    }
}
