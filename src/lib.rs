//! Neural-network training and inference on any hardware.
//!
//! ```
//! use meganeura::{Graph, build_session};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", &[4, 2]);
//! let w = g.parameter("w", &[2, 1]);
//! let y = g.matmul(x, w);
//! let t = g.input("t", &[4, 1]);
//! let loss = g.mse_loss(y, t);
//! g.set_outputs(vec![loss]);
//! ```

pub use meganeura_core::*;
pub use meganeura_cpu as cpu;
pub use meganeura_nn as nn;
