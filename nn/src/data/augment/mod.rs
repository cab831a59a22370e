//! Random changes of training examples that keep their labels valid.
//!
//! An [`Augmentation`] is a list of transforms that are applied one after the other, with new
//! random numbers for every example in every epoch. The result depends only on the seed, the epoch
//! and the example's row in the data set, so runs are reproducible for any batch size, order of the
//! examples and number of threads.
//!
//! ```
//! use meganeura_nn::data::{Augmentation, digits_split};
//!
//! # fn main() -> Result<(), meganeura_nn::data::DataError> {
//! let (train, _) = digits_split()?;
//! let augmentation = Augmentation::new().shift(1).noise(0.02);
//! augmentation.check(train.feature_shape())?;
//!
//! let mut image = train.features()[..64].to_vec();
//! augmentation.apply(&mut image, train.feature_shape(), 7, 0, 0);
//! assert_ne!(image, train.features()[..64]);
//! # Ok(())
//! # }
//! ```
//!
//! For training, set it as `TrainConfig::augmentation`; evaluation never sees it. As text (`--augment` of the
//! command line), the same is `shift=1,noise=0.02`.

use std::fmt;
use std::str::FromStr;

use meganeura_core::random::SplitMix64;

use super::error::DataError;
use super::prng::{AUGMENT_DOMAIN, derive_example};

/// A random change. Images have the shape `[channels, height, width]`, or `[height, width]`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Transform {
    /// Mirrors an image left to right, with this probability.
    Flip {
        /// Probability of mirroring an image, from 0 to 1.
        probability: f32,
    },
    /// Moves an image by up to this number of pixels along either axis, and fills with 0: the same
    /// as padding it with zeros and cropping it at random.
    Shift {
        /// Maximum distance in pixels, below height and width.
        pixels: usize,
    },
    /// Sets a square around a random pixel to 0, clipped to the image (DeVries and Taylor,
    /// "Improved regularization of convolutional neural networks with cutout", 2017).
    Cutout {
        /// Length of a side in pixels, at least 1.
        size: usize,
    },
    /// Sets a random rectangle to 0, with this probability (Zhong and others, "Random erasing data
    /// augmentation", 2017). As in the paper, it covers 2 to 40 % of the area and has an aspect
    /// ratio of 0.3 to 3.3.
    Erase {
        /// Probability of erasing a rectangle, from 0 to 1.
        probability: f32,
    },
    /// Adds normally distributed noise to every feature, of examples of any shape.
    Noise {
        /// Standard deviation, at least 0.
        deviation: f32,
    },
    /// Adds one uniform number in `-amount..amount` to all features of an example of any shape.
    Brightness {
        /// Maximum magnitude of the added number, at least 0.
        amount: f32,
    },
    /// Multiplies the distance of every feature from the example's mean by one uniform number in
    /// `1-amount..1+amount`, for examples of any shape.
    Contrast {
        /// Maximum relative change of the distances, from 0 to 1.
        amount: f32,
    },
}

impl Transform {
    /// Returns name and setting, as in the text form.
    fn parts(self) -> (&'static str, f64) {
        match self {
            Transform::Flip { probability } => ("flip", probability.into()),
            Transform::Shift { pixels } => ("shift", pixels as f64),
            Transform::Cutout { size } => ("cutout", size as f64),
            Transform::Erase { probability } => ("erase", probability.into()),
            Transform::Noise { deviation } => ("noise", deviation.into()),
            Transform::Brightness { amount } => ("brightness", amount.into()),
            Transform::Contrast { amount } => ("contrast", amount.into()),
        }
    }

    /// Checks the setting, and that it can be applied to examples of this shape.
    fn check(self, shape: &[usize]) -> Result<(), String> {
        let fraction = |value: f32| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err("use a number from 0 to 1".to_owned())
            }
        };
        let amount = |value: f32| {
            if value.is_finite() && value >= 0.0 {
                Ok(())
            } else {
                Err("use a finite number of at least 0".to_owned())
            }
        };
        match self {
            Transform::Flip { probability } | Transform::Erase { probability } => {
                fraction(probability)?;
                image(shape).map(|_| ())
            }
            Transform::Shift { pixels } => {
                let [_, height, width] = image(shape)?;
                if pixels < height.min(width) {
                    Ok(())
                } else {
                    Err(format!(
                        "images of {height}x{width} would be moved out of the frame; use fewer pixels"
                    ))
                }
            }
            Transform::Cutout { size: 0 } => Err("use a size of at least 1 pixel".to_owned()),
            Transform::Cutout { .. } => image(shape).map(|_| ()),
            Transform::Noise { deviation } => amount(deviation),
            Transform::Brightness { amount: by } => amount(by),
            Transform::Contrast { amount } => fraction(amount),
        }
    }

    fn apply(self, features: &mut [f32], [channels, height, width]: [usize; 3], rng: &mut SplitMix64) {
        match self {
            Transform::Flip { probability } => {
                if rng.unit() < f64::from(probability) {
                    features.chunks_exact_mut(width).for_each(<[f32]>::reverse);
                }
            }
            Transform::Shift { pixels } => {
                let mut draw = || rng.below(2 * pixels + 1) as isize - pixels as isize;
                let (down, right) = (draw(), draw());
                for plane in features.chunks_exact_mut(height * width) {
                    shift(plane, width, down, right);
                }
            }
            Transform::Cutout { size } => {
                let mut side = |length: usize| {
                    let centre = rng.below(length);
                    let start = centre.saturating_sub(size / 2);
                    // The square is clipped at the edges of the image.
                    (start, (centre + size.div_ceil(2)).min(length))
                };
                let (rows, columns) = (side(height), side(width));
                clear(features, [channels, height, width], rows, columns);
            }
            Transform::Erase { probability } => {
                if rng.unit() < f64::from(probability) {
                    erase(features, [channels, height, width], rng);
                }
            }
            Transform::Noise { deviation } => {
                for value in features {
                    *value += (f64::from(deviation) * rng.normal()) as f32;
                }
            }
            Transform::Brightness { amount } => {
                let by = (f64::from(amount) * (2.0 * rng.unit() - 1.0)) as f32;
                features.iter_mut().for_each(|value| *value += by);
            }
            Transform::Contrast { amount } => {
                let factor = 1.0 + f64::from(amount) * (2.0 * rng.unit() - 1.0);
                let sum: f64 = features.iter().copied().map(f64::from).sum();
                let mean = sum / features.len().max(1) as f64;
                for value in features {
                    *value = (mean + factor * (f64::from(*value) - mean)) as f32;
                }
            }
        }
    }
}

/// Formats name and setting, such as `shift=2`.
impl fmt::Display for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, setting) = self.parts();
        // The setting is an f32, so its shortest unique digits are those of f32.
        write!(f, "{name}={}", setting as f32)
    }
}

impl FromStr for Transform {
    type Err = String;

    /// Parses a name and, after `=`, its setting: `flip` (0.5 unless given), `shift`, `cutout`, `erase` (0.5
    /// unless given), `noise`, `brightness`, `contrast`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, setting) = match text.split_once('=') {
            Some((name, setting)) => (name.trim(), Some(setting.trim())),
            None => (text.trim(), None),
        };
        let number = |default: Option<f32>| match setting {
            Some(setting) => setting
                .parse()
                .map_err(|_| format!("'{setting}' in '{text}' is not a number")),
            None => default.ok_or_else(|| format!("'{name}' needs a setting, such as {name}=0.1")),
        };
        let pixels = || match setting {
            Some(setting) => setting
                .parse()
                .map_err(|_| format!("'{setting}' in '{text}' is not a whole number of pixels")),
            None => Err(format!("'{name}' needs a number of pixels, such as {name}=2")),
        };
        match name {
            "flip" => number(Some(0.5)).map(|probability| Transform::Flip { probability }),
            "shift" => pixels().map(|pixels| Transform::Shift { pixels }),
            "cutout" => pixels().map(|size| Transform::Cutout { size }),
            "erase" => number(Some(0.5)).map(|probability| Transform::Erase { probability }),
            "noise" => number(None).map(|deviation| Transform::Noise { deviation }),
            "brightness" => number(None).map(|amount| Transform::Brightness { amount }),
            "contrast" => number(None).map(|amount| Transform::Contrast { amount }),
            _ => Err(format!(
                "there is no augmentation '{name}'; use flip, shift, cutout, erase, noise, brightness or contrast"
            )),
        }
    }
}

/// A list of transforms in the order in which they are applied; see the
/// [module documentation](self).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Augmentation {
    transforms: Vec<Transform>,
}

impl Augmentation {
    /// Creates an augmentation without transforms.
    pub fn new() -> Self {
        Augmentation::default()
    }

    /// Returns true if there are no transforms.
    pub fn is_empty(&self) -> bool {
        self.transforms.is_empty()
    }

    /// Returns the transforms, first to last.
    pub fn transforms(&self) -> &[Transform] {
        &self.transforms
    }

    /// Adds a transform at the end.
    #[must_use]
    pub fn then(mut self, transform: Transform) -> Self {
        self.transforms.push(transform);
        self
    }

    /// Adds [`Transform::Flip`].
    #[must_use]
    pub fn flip(self, probability: f32) -> Self {
        self.then(Transform::Flip { probability })
    }

    /// Adds [`Transform::Shift`].
    #[must_use]
    pub fn shift(self, pixels: usize) -> Self {
        self.then(Transform::Shift { pixels })
    }

    /// Adds [`Transform::Cutout`].
    #[must_use]
    pub fn cutout(self, size: usize) -> Self {
        self.then(Transform::Cutout { size })
    }

    /// Adds [`Transform::Erase`].
    #[must_use]
    pub fn erase(self, probability: f32) -> Self {
        self.then(Transform::Erase { probability })
    }

    /// Adds [`Transform::Noise`].
    #[must_use]
    pub fn noise(self, deviation: f32) -> Self {
        self.then(Transform::Noise { deviation })
    }

    /// Adds [`Transform::Brightness`].
    #[must_use]
    pub fn brightness(self, amount: f32) -> Self {
        self.then(Transform::Brightness { amount })
    }

    /// Adds [`Transform::Contrast`].
    #[must_use]
    pub fn contrast(self, amount: f32) -> Self {
        self.then(Transform::Contrast { amount })
    }

    /// Checks all settings, and that the transforms can be applied to examples of this shape.
    ///
    /// # Errors
    ///
    /// [`DataError::Augment`] names the first transform that cannot be applied.
    pub fn check(&self, shape: &[usize]) -> Result<(), DataError> {
        for transform in &self.transforms {
            transform.check(shape).map_err(|reason| DataError::Augment {
                transform: transform.to_string(),
                reason,
            })?;
        }
        Ok(())
    }

    /// Changes the features of one example, `shape` elements, as determined by the seed, the epoch and the example's
    /// row. The features are unchanged if [`check`](Self::check) refuses the shape, or if their number differs.
    pub fn apply(&self, features: &mut [f32], shape: &[usize], seed: u64, epoch: u64, row: usize) {
        if self.is_empty() || self.check(shape).is_err() || features.len() != shape.iter().product::<usize>() {
            return;
        }
        // Only transforms of images use the sizes.
        let size = image(shape).unwrap_or([1, 1, features.len()]);
        let mut rng = derive_example(seed, AUGMENT_DOMAIN, epoch, row as u64);
        for transform in &self.transforms {
            transform.apply(features, size, &mut rng);
        }
    }
}

/// Formats all transforms, such as `flip=0.5,shift=2`.
impl fmt::Display for Augmentation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, transform) in self.transforms.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{transform}")?;
        }
        Ok(())
    }
}

impl FromStr for Augmentation {
    type Err = String;

    /// Parses transforms with commas between them, such as `flip,shift=2,noise=0.05`.
    fn from_str(text: &str) -> Result<Self, String> {
        let transforms: Result<_, String> = text.split(',').map(str::parse).collect();
        transforms.map(|transforms| Augmentation { transforms })
    }
}

/// Returns channels, height and width of an image.
fn image(shape: &[usize]) -> Result<[usize; 3], String> {
    match *shape {
        [channels, height, width] => Ok([channels, height, width]),
        [height, width] => Ok([1, height, width]),
        _ => Err(format!(
            "it needs images, [channels, height, width], but the examples have shape {shape:?}; omit it, or set the \
             shape with `Dataset::with_feature_shape`"
        )),
    }
}

/// Moves the rows and columns of one channel, and fills with 0. Distances are below the sizes.
fn shift(plane: &mut [f32], width: usize, down: isize, right: isize) {
    let rows = plane.len() / width;
    let (dy, dx) = (down.unsigned_abs(), right.unsigned_abs());
    // Rows move as a whole, so the columns are the only loop.
    let moved = (rows - dy) * width;
    if down >= 0 {
        plane.copy_within(..moved, dy * width);
        plane[..dy * width].fill(0.0);
    } else {
        plane.copy_within(dy * width.., 0);
        plane[moved..].fill(0.0);
    }
    for row in plane.chunks_exact_mut(width) {
        if right >= 0 {
            row.copy_within(..width - dx, dx);
            row[..dx].fill(0.0);
        } else {
            row.copy_within(dx.., 0);
            row[width - dx..].fill(0.0);
        }
    }
}

/// Sets a random rectangle to 0. Its area and sides are drawn until they fit; after some attempts it gives up, because
/// images that are much longer than wide may never fit.
fn erase(features: &mut [f32], [channels, height, width]: [usize; 3], rng: &mut SplitMix64) {
    for _ in 0..20 {
        let area = (0.02 + 0.38 * rng.unit()) * (height * width) as f64;
        // Uniform in the logarithm: high and wide are equally likely.
        let aspect = (0.3f64.ln() + (3.3f64.ln() - 0.3f64.ln()) * rng.unit()).exp();
        let h = (area * aspect).sqrt().round() as usize;
        let w = (area / aspect).sqrt().round() as usize;
        if (1..=height).contains(&h) && (1..=width).contains(&w) {
            let (y, x) = (rng.below(height - h + 1), rng.below(width - w + 1));
            clear(features, [channels, height, width], (y, y + h), (x, x + w));
            return;
        }
    }
}

/// Sets the half-open rectangle to 0 in every channel.
fn clear(features: &mut [f32], [channels, height, width]: [usize; 3], rows: (usize, usize), columns: (usize, usize)) {
    for channel in 0..channels {
        for row in rows.0..rows.1 {
            let start = (channel * height + row) * width;
            features[start + columns.0..start + columns.1].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests;
