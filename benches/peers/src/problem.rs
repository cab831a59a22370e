//! Calls that every framework supports, with their operands, and their files for programs in other languages.

use std::fs;
use std::path::Path;

use meganeura_bench::noise;
use serde_json::{Value, json};

use crate::comparison::Result;

/// Operation of a problem. [`Problem::operands`] specifies the shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Matmul `x w`.
    Matmul,
    /// Perceptron `relu(x w1) w2`.
    Mlp,
    /// Softmax over the last axis.
    Softmax,
    /// Layer norm over the last axis, with weight and bias, and `eps` 1e-5.
    LayerNorm,
    /// GELU with the error function.
    Gelu,
    /// Convolution of 3x3, with one row of zero padding around the images.
    Conv,
}

/// An operand with its numbers.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

impl Operand {
    /// Creates numbers between `-scale` and `scale`, different for each `salt`.
    pub(crate) fn random(name: &str, shape: &[usize], scale: f32, salt: usize) -> Self {
        let count: usize = shape.iter().product();
        let data = noise(count + 97 * salt).split_off(97 * salt);
        Operand {
            name: name.to_owned(),
            shape: shape.to_vec(),
            data: data.into_iter().map(|x| x * scale).collect(),
        }
    }

    /// Returns the numbers as little-endian bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.data.iter().flat_map(|x| x.to_le_bytes()).collect()
    }
}

/// Workload for a program in another language: its kind, its operands and other settings.
pub(crate) struct Handout<'a> {
    pub(crate) kind: String,
    pub(crate) operands: &'a [Operand],
    pub(crate) settings: Value,
    /// The workload as an ONNX model, if there is one.
    pub(crate) onnx: Option<Vec<u8>>,
}

impl Handout<'_> {
    /// Writes `problem.json`, a file of numbers for each operand, and `model.onnx`.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let of = |o: &Operand| json!({ "name": o.name, "shape": o.shape });
        let operands: Vec<Value> = self.operands.iter().map(of).collect();
        let about = json!({ "kind": self.kind, "operands": operands, "settings": self.settings });
        fs::write(folder.join("problem.json"), about.to_string())?;
        for operand in self.operands {
            fs::write(folder.join(format!("{}.f32", operand.name)), operand.bytes())?;
        }
        if let Some(model) = &self.onnx {
            fs::write(folder.join("model.onnx"), model)?;
        }
        Ok(())
    }
}

/// Single call that all frameworks compute.
#[derive(Clone)]
pub(crate) struct Problem {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The input `x` first, then the weights `w1`, `w2`, which frameworks may lay out as they like.
    pub(crate) operands: Vec<Operand>,
}

impl Problem {
    fn new(name: &'static str, kind: Kind, shapes: &[&[usize]]) -> Self {
        // Weights of a size that keeps results near 1.
        let scale = |shape: &[usize]| (shape[0] as f32).sqrt().recip();
        let operand = |(i, shape): (usize, &&[usize])| match i {
            0 => Operand::random("x", shape, 1.0, 0),
            _ => Operand::random(&format!("w{i}"), shape, scale(shape), i),
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
}
