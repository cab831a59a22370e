//! Preprocessing of images: from a decoded file to the input of a model.
//!
//! The host decodes, resizes and crops. Bytes go to the device, four in a `u32`; the plan of the model converts, normalizes and
//! transposes them.

use std::path::Path;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::DynamicImage;
use meganeura_core::graph::Value;
use meganeura_core::{DType, Graph, NodeId};
use serde::{Deserialize, Serialize};

use super::{MAX_SIDE, decode, refuse};
use crate::data::error::DataError;

/// Grey value of the margins of [`ImageFit::Pad`], as detectors of the YOLO family expect it.
const MARGIN: u8 = 114;

/// A method to resize images to the height and width of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImageFit {
    /// Resizes the image to exactly this size. The ratio of height and width may change.
    #[default]
    Stretch,
    /// Resizes the image until its shorter side has this length, and cuts the middle out.
    Crop {
        /// Length of the shorter side, at least height and width of the model.
        shorter_side: usize,
    },
    /// Resizes the image until it fits, and fills two margins of equal width with grey (114).
    Pad,
}

/// Order of the channels of a colour image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelOrder {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red, as OpenCV orders them.
    Bgr,
}

/// Axes of a batch of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageLayout {
    /// `[batch, channels, height, width]`.
    #[default]
    ChannelsFirst,
    /// `[batch, height, width, channels]`.
    ChannelsLast,
}

/// Preprocessing of images. A byte `b` of a channel becomes `(b / 255 - mean) / std`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageTransform {
    /// Channels (1 for grey, 3 for colour), height and width.
    pub size: [usize; 3],
    /// Method to resize images.
    pub fit: ImageFit,
    /// Means that are subtracted, one for each channel in `order`, where values are from 0 to 1.
    pub mean: Vec<f32>,
    /// Standard deviations that are divided by, one for each channel in `order`.
    pub std: Vec<f32>,
    /// Order of the channels.
    pub order: ChannelOrder,
    /// Axes of the result.
    pub layout: ImageLayout,
}

impl ImageTransform {
    /// Creates a transform that resizes to `size` (channels, height, width), with values from 0 to 1 and channels first.
    pub fn new(size: [usize; 3]) -> Self {
        ImageTransform {
            size,
            fit: ImageFit::Stretch,
            mean: vec![0.0; size[0]],
            std: vec![1.0; size[0]],
            order: ChannelOrder::Rgb,
            layout: ImageLayout::ChannelsFirst,
        }
    }

    /// Creates the usual transform of classifiers that were trained on ImageNet: colour images, whose shorter side becomes 8/7 of
    /// the longer one of `[height, width]` before the middle is cut out (256 for 224), with the means and standard deviations
    /// of ImageNet.
    pub fn imagenet([height, width]: [usize; 2]) -> Self {
        let longest = height.max(width);
        ImageTransform {
            fit: ImageFit::Crop {
                shorter_side: (longest * 8).div_ceil(7),
            },
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            ..ImageTransform::new([3, height, width])
        }
    }

    /// Checks sizes and statistics.
    ///
    /// # Errors
    /// [`DataError::ImageTransform`].
    pub fn check(&self) -> Result<(), DataError> {
        let refuse = |message: String| Err(DataError::ImageTransform { message });
        let [channels, height, width] = self.size;
        let is_side = |n: usize| (1..=MAX_SIDE as usize).contains(&n);
        if !matches!(channels, 1 | 3) || !is_side(height) || !is_side(width) {
            return refuse(format!(
                "images cannot become {:?}: channels are 1 or 3, height and width from 1 to {MAX_SIDE}",
                self.size
            ));
        }
        if let ImageFit::Crop { shorter_side } = self.fit
            && (shorter_side < height.max(width) || !is_side(shorter_side))
        {
            return refuse(format!(
                "a shorter side of {shorter_side} is not between {} and {MAX_SIDE}: {height} x {width} pixels are cut out of it",
                height.max(width)
            ));
        }
        if self.mean.len() != channels || self.std.len() != channels {
            return refuse(format!(
                "{} means and {} standard deviations for {channels} channels; give one of each for a channel",
                self.mean.len(),
                self.std.len()
            ));
        }
        if self.mean.iter().chain(&self.std).any(|v| !v.is_finite()) || self.std.iter().any(|std| *std <= 0.0) {
            return refuse(format!(
                "means {:?} and standard deviations {:?} must be finite, and deviations above 0",
                self.mean, self.std
            ));
        }
        Ok(())
    }

    /// Returns the number of bytes of an image, `height * width * channels`.
    pub fn bytes(&self) -> usize {
        self.size.iter().product()
    }

    /// Returns the number of `u32` that hold the bytes of an image.
    pub fn words(&self) -> usize {
        self.bytes().div_ceil(4)
    }

    /// Returns the shape of an image in [`layout`](Self::layout).
    pub fn shape(&self) -> [usize; 3] {
        let [channels, height, width] = self.size;
        match self.layout {
            ImageLayout::ChannelsFirst => [channels, height, width],
            ImageLayout::ChannelsLast => [height, width, channels],
        }
    }

    /// Decodes a file, resizes and crops the image, and returns its bytes `[height, width, channels]`. The orientation in the
    /// camera's metadata is applied, transparency is ignored.
    ///
    /// # Errors
    /// [`DataError::ImageTransform`] for an invalid transform; [`DataError::Images`] for a file that is no image or damaged;
    /// [`DataError::Io`].
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, DataError> {
        self.check()?;
        self.read_with(path, 1)
    }

    /// Reads a file by a checked transform while `threads` do the same, which share the free memory.
    pub(super) fn read_with(&self, path: &Path, threads: usize) -> Result<Vec<u8>, DataError> {
        self.fitted(decode(path, threads)?)
            .map_err(|message| refuse(path, message))
    }

    /// Resizes and crops an image, and returns its bytes `[height, width, channels]`.
    fn fitted(&self, image: DynamicImage) -> Result<Vec<u8>, String> {
        let [channels, height, width] = self.size;
        let size = [image.width() as usize, image.height() as usize];
        let (mut bytes, kind) = match channels {
            1 => (image.into_luma8().into_raw(), PixelType::U8),
            _ => (image.into_rgb8().into_raw(), PixelType::U8x3),
        };
        let (to, margin) = match self.fit {
            ImageFit::Stretch => ([width, height], [0, 0]),
            ImageFit::Crop { shorter_side } => {
                // The longer side is rounded down, like torchvision's Resize.
                let shorter = size[0].min(size[1]);
                let scaled = |length: usize| (length * shorter_side / shorter).min(MAX_SIDE as usize);
                (size.map(scaled), [0, 0])
            }
            ImageFit::Pad => {
                let factor = (width as f64 / size[0] as f64).min(height as f64 / size[1] as f64);
                let scaled = |length: usize, limit: usize| ((length as f64 * factor).round() as usize).clamp(1, limit);
                let to = [scaled(size[0], width), scaled(size[1], height)];
                (to, [(width - to[0]) / 2, (height - to[1]) / 2])
            }
        };
        if to != size {
            let [from, result] = [size, to].map(|size| size.map(|length| length as u32));
            let source = ImageRef::new(from[0], from[1], &bytes, kind).map_err(|e| e.to_string())?;
            let mut resized = Image::new(result[0], result[1], kind);
            // The same as Pillow's bilinear filter, which covers all pixels of a smaller image.
            let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
            Resizer::new()
                .resize(&source, &mut resized, &options)
                .map_err(|e| e.to_string())?;
            bytes = resized.into_vec();
        }
        if to != [width, height] {
            bytes = moved(&bytes, to, [width, height], margin, channels);
        }
        if self.order == ChannelOrder::Bgr && channels == 3 {
            bytes.chunks_exact_mut(3).for_each(|pixel| pixel.swap(0, 2));
        }
        Ok(bytes)
    }

    /// Converts `u32 [batch, words]`, the bytes of [`ImageTransform::read`] with the first one in the lowest bits, to the input of a
    /// model, `f32 [batch, shape...]`.
    #[track_caller]
    pub fn apply(&self, g: &mut Graph, words: impl Into<Value>) -> NodeId {
        let words = words.into();
        let [channels, height, width] = self.size;
        let batch = g.shape(words).first().copied().unwrap_or(1);
        let words = g.reshape(words, &[batch, self.words(), 1]);
        let shifts = g.constant_u32(vec![0, 8, 16, 24], &[4]);
        let shifted = g.shift_right(words, shifts);
        let mask = g.scalar_of(DType::U32, 255.0);
        let bytes = g.bit_and(shifted, mask);
        let bytes = g.reshape(bytes, &[batch, 4 * self.words()]);
        let bytes = g.slice_axis(bytes, 1, 0, self.bytes());
        let bytes = g.reshape(bytes, &[batch, height, width, channels]);
        let values = g.cast(bytes, DType::F32);
        let values = match self.layout {
            ImageLayout::ChannelsFirst => g.permute(values, &[0, 3, 1, 2]),
            ImageLayout::ChannelsLast => values,
        };
        let of_channels: &[usize] = match self.layout {
            ImageLayout::ChannelsFirst => &[channels, 1, 1],
            ImageLayout::ChannelsLast => &[channels],
        };
        let pairs = || self.mean.iter().zip(&self.std);
        // (b / 255 - mean) / std, in one multiplication and one addition.
        let factor = g.constant(self.std.iter().map(|std| 1.0 / (255.0 * std)).collect(), of_channels);
        let offset = g.constant(pairs().map(|(mean, std)| -mean / std).collect(), of_channels);
        let scaled = g.mul(values, factor);
        if self.mean.iter().all(|mean| *mean == 0.0) {
            scaled
        } else {
            g.add(scaled, offset)
        }
    }
}

/// Moves an image of the size `from` (width, height) to the middle of another one, which may be smaller: `margin` is the number
/// of columns on the left and of rows above it.
fn moved(bytes: &[u8], from: [usize; 2], to: [usize; 2], margin: [usize; 2], channels: usize) -> Vec<u8> {
    let mut result = vec![MARGIN; to[0] * to[1] * channels];
    // Rounded half to even, like torchvision's CenterCrop.
    let cut = |side: usize| {
        let free = from[side].saturating_sub(to[side]);
        match free % 4 {
            3 => free / 2 + 1,
            _ => free / 2,
        }
    };
    let [left, top] = [cut(0), cut(1)];
    let copied = from[0].min(to[0]) * channels;
    for row in 0..from[1].min(to[1]) {
        let source = ((row + top) * from[0] + left) * channels;
        let target = ((row + margin[1]) * to[0] + margin[0]) * channels;
        result[target..target + copied].copy_from_slice(&bytes[source..source + copied]);
    }
    result
}
