//! A convolution followed by a batch norm, or both folded into one convolution.

use meganeura_core::graph::Value;
use meganeura_core::{Error, Graph, NodeId, Session};

use super::{BatchNorm, Conv2d, Conv2dConfig, scoped};

/// Convolution and batch norm (Ioffe and Szegedy, 2015).
///
/// At inference a batch norm multiplies each channel by a factor and adds a term, which can be
/// included in the preceding convolution: a *folded* layer is a convolution with a bias, whose
/// values [`ConvNorm::folded`] computes from a trained, unfolded one.
#[derive(Clone, Debug)]
pub struct ConvNorm {
    conv_name: String,
    norm_name: String,
    conv: Conv2d,
    norm: Option<BatchNorm>,
    eps: f32,
}

/// Number added to the variance: the default of [`BatchNorm`].
const EPS: f32 = 1e-5;

impl ConvNorm {
    /// Registers the convolution (without a bias) and the batch norm of `outputs` channels, or, if
    /// `folded`, only the convolution with a bias.
    #[track_caller]
    pub fn new(
        g: &mut Graph,
        [conv_name, norm_name]: [&str; 2],
        conv: Conv2dConfig,
        outputs: usize,
        folded: bool,
    ) -> Self {
        g.at_caller(|g| ConvNorm {
            conv_name: conv_name.to_owned(),
            norm_name: norm_name.to_owned(),
            conv: conv.bias(folded).build(g, conv_name),
            norm: (!folded).then(|| BatchNorm::new(g, norm_name, outputs)),
            eps: EPS,
        })
    }

    /// Applies the layer to
    /// `x [batch, inputs, height, width] -> [batch, outputs, height', width']`, with the sizes of
    /// the convolution.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let y = self.conv.forward(g, x);
        match &self.norm {
            Some(norm) => norm.forward(g, y),
            None => y,
        }
    }

    /// Computes weight and bias of the folded convolution, by their names, from a session that has
    /// the trained, unfolded layer: `w' = w s` and `b' = bias - running_mean s` with
    /// `s = weight / sqrt(running_var + eps)` of each output channel.
    ///
    /// # Errors
    /// A session without these parameters and states, or one where their sizes do not match.
    pub fn folded(&self, trained: &mut Session) -> Result<[(String, Vec<f32>); 2], Error> {
        let name = |child| scoped(&self.conv_name, child);
        let norm = |child| scoped(&self.norm_name, child);
        let mut weight = trained.try_read_parameter(&name("weight"))?;
        let gamma = trained.try_read_parameter(&norm("weight"))?;
        let beta = trained.try_read_parameter(&norm("bias"))?;
        let mean = trained.try_read_state(&norm("running_mean"))?;
        let var = trained.try_read_state(&norm("running_var"))?;
        let channels = gamma.len();
        let fits = [beta.len(), mean.len(), var.len()] == [channels; 3];
        if !fits || channels == 0 || !weight.len().is_multiple_of(channels) {
            return Err(Error::misuse(
                format!(
                    "'{}' has {} weights, which do not match '{}' with {channels} channels",
                    self.conv_name,
                    weight.len(),
                    self.norm_name
                ),
                "pass the session of the model that this one was folded from",
            ));
        }
        let per_channel = weight.len() / channels;
        let mut bias = Vec::with_capacity(channels);
        for (channel, taps) in weight.chunks_exact_mut(per_channel.max(1)).enumerate() {
            // In f64: this is computed once, and its rounding error is permanent.
            let scale = f64::from(gamma[channel]) / (f64::from(var[channel]) + f64::from(self.eps)).sqrt();
            taps.iter_mut().for_each(|w| *w = (f64::from(*w) * scale) as f32);
            bias.push((f64::from(beta[channel]) - f64::from(mean[channel]) * scale) as f32);
        }
        Ok([(name("weight"), weight), (name("bias"), bias)])
    }
}
