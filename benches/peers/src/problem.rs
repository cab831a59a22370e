//! Calls that every framework has, with the numbers that all of them are given.

use std::error::Error;
use std::fs;
use std::path::Path;

use meganeura::bench::noise;
use serde_json::{Value, json};

/// What is computed. Shapes are those of [`Problem::operands`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `x w`.
    Matmul,
    /// `relu(x w1) w2`.
    Mlp,
    /// Over the last axis.
    Softmax,
    /// Over the last axis, with weight and bias, `eps` 1e-5.
    LayerNorm,
    /// With the error function.
    Gelu,
    /// 3x3, one zero around the images.
    Conv,
}

/// A tensor that is given.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

/// A call.
#[derive(Clone)]
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The input first, then the weights, which frameworks may lay out as they like.
    pub(crate) operands: Vec<Operand>,
}

impl Problem {
    fn new(name: &'static str, kind: Kind, shapes: &[&[usize]]) -> Self {
        // Not the same numbers in each, and weights of a size that keeps results near 1.
        let operand = |(i, shape): (usize, &&[usize])| {
            let count: usize = shape.iter().product();
            let scale = if i == 0 { 1.0 } else { (shape[0] as f32).sqrt().recip() };
            let data = noise(count + 97 * i).split_off(97 * i);
            Operand {
                shape: shape.to_vec(),
                data: data.into_iter().map(|x| x * scale).collect(),
            }
        };
        Problem {
            name,
            kind,
            operands: shapes.iter().enumerate().map(operand).collect(),
        }
    }

    pub(crate) fn all() -> Vec<Self> {
        vec![
            Problem::new("product of 512x512 matrices", Kind::Matmul, &[&[512, 512], &[512, 512]]),
            Problem::new(
                "product of a row by 1024x1024",
                Kind::Matmul,
                &[&[1, 1024], &[1024, 1024]],
            ),
            Problem::new(
                "perceptron 784-256-10, 32 rows",
                Kind::Mlp,
                &[&[32, 784], &[784, 256], &[256, 10]],
            ),
            Problem::new("softmax, 1024x1024", Kind::Softmax, &[&[1024, 1024]]),
            Problem::new("layer norm, 1024x768", Kind::LayerNorm, &[&[1024, 768], &[768], &[768]]),
            Problem::new("gelu, 1024x1024", Kind::Gelu, &[&[1024, 1024]]),
            Problem::new(
                "3x3 convolution, 64 to 64 channels, 56x56",
                Kind::Conv,
                &[&[1, 64, 56, 56], &[64, 64, 3, 3]],
            ),
        ]
    }

    /// Writes it for programs in other languages: `problem.json` and a file of numbers for each operand.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let shapes: Vec<Value> = self.operands.iter().map(|o| json!(o.shape)).collect();
        let about = json!({ "kind": format!("{:?}", self.kind), "shapes": shapes });
        fs::write(folder.join("problem.json"), about.to_string())?;
        for (i, operand) in self.operands.iter().enumerate() {
            let bytes: Vec<u8> = operand.data.iter().flat_map(|x| x.to_le_bytes()).collect();
            fs::write(folder.join(format!("{i}.f32")), bytes)?;
        }
        Ok(())
    }
}
