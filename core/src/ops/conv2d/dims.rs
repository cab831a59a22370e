//! Sizes of convolutions, and windows along an axis.

use crate::attrs::Attrs;
use crate::ops::Call;
use crate::shape::Shape;

/// Geometry of a convolution; heights come before widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// Distance between windows.
    pub stride: [u32; 2],
    /// Number of rows and columns of zeros added on each side.
    pub padding: [u32; 2],
    /// Distance between the taps of the kernel.
    pub dilation: [u32; 2],
    /// Number of groups into which both channel axes are divided.
    pub groups: u32,
}

impl Default for Conv2dOptions {
    fn default() -> Self {
        Conv2dOptions {
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
        }
    }
}

impl Conv2dOptions {
    pub(in crate::ops) fn attrs(self) -> Attrs {
        Attrs::new()
            .with("stride", self.stride)
            .with("padding", self.padding)
            .with("dilation", self.dilation)
            .with("groups", self.groups)
    }

    pub(in crate::ops) fn of(attrs: &Attrs) -> Result<Self, String> {
        let pair = |name| -> Result<[u32; 2], String> {
            let v: [usize; 2] = attrs.sizes(name)?;
            let narrow = |v: usize| u32::try_from(v).map_err(|_| format!("{name} {v} is too large"));
            Ok([narrow(v[0])?, narrow(v[1])?])
        };
        let options = Conv2dOptions {
            stride: pair("stride")?,
            padding: pair("padding")?,
            dilation: pair("dilation")?,
            groups: u32::try_from(attrs.int("groups")?).map_err(|_| "groups must not be negative")?,
        };
        if options.stride.contains(&0) || options.dilation.contains(&0) || options.groups == 0 {
            return Err("stride, dilation and groups must be at least 1".into());
        }
        Ok(options)
    }
}

/// Layout of images and of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageLayout {
    /// Images `[batch, channels, height, width]` and weights `[out channels, channels / groups, kernel height, kernel
    /// width]`: the order of builder methods.
    Nchw,
    /// Channels last: images `[batch, height, width, channels]` and weights `[kernel height, kernel width, channels /
    /// groups, out channels]` (HWIO).
    Nhwc,
}

impl ImageLayout {
    /// Permutes sizes of an image from this layout to `[batch, channels, height, width]`.
    pub(in crate::ops) fn to_nchw(self, [a, b, c, d]: [usize; 4]) -> [usize; 4] {
        match self {
            ImageLayout::Nchw => [a, b, c, d],
            ImageLayout::Nhwc => [a, d, b, c],
        }
    }

    /// Permutes sizes of an image from `[batch, channels, height, width]` to this layout.
    pub(in crate::ops) fn of_nchw(self, [n, c, h, w]: [usize; 4]) -> [usize; 4] {
        match self {
            ImageLayout::Nchw => [n, c, h, w],
            ImageLayout::Nhwc => [n, h, w, c],
        }
    }

    /// Permutes sizes of weights from this layout to
    /// `[out channels, channels / groups, kernel height, kernel width]`.
    fn to_oihw(self, [a, b, c, d]: [usize; 4]) -> [usize; 4] {
        match self {
            ImageLayout::Nchw => [a, b, c, d],
            ImageLayout::Nhwc => [d, c, a, b],
        }
    }

    /// Permutes sizes of weights from `[out channels, channels / groups, kernel height, kernel width]` to this layout.
    pub(in crate::ops) fn of_oihw(self, [o, i, h, w]: [usize; 4]) -> [usize; 4] {
        match self {
            ImageLayout::Nchw => [o, i, h, w],
            ImageLayout::Nhwc => [h, w, i, o],
        }
    }

    /// Returns the flat offset of a weight; `sizes` and `at` are `[out channels, channels / groups, kernel height,
    /// kernel width]`.
    fn weight_offset(self, sizes: [usize; 4], at: [usize; 4]) -> usize {
        let sizes = self.of_oihw(sizes);
        self.of_oihw(at)
            .into_iter()
            .zip(sizes)
            .fold(0, |offset, (index, size)| offset * size + index)
    }

    /// Returns the flat offset of an element of an image with `c` channels, height `h` and width `w`.
    fn offset(self, [c, h, w]: [usize; 3], [n, channel, row, column]: [usize; 4]) -> usize {
        match self {
            ImageLayout::Nchw => ((n * c + channel) * h + row) * w + column,
            ImageLayout::Nhwc => ((n * h + row) * w + column) * c + channel,
        }
    }

    /// Returns the sizes of a call of `core.conv2d` or, channels last, `core.conv2d_nhwc`.
    ///
    /// # Errors
    /// Operands that do not match; the same holds for the two methods below.
    pub fn conv2d(self, call: &Call) -> Result<Conv2dDims, String> {
        let options = Conv2dOptions::of(call.attrs)?;
        Conv2dDims::forward(self, &call.inputs[0].shape, &call.inputs[1].shape, options)
    }

    /// Returns the sizes of a call of the gradient by the input (`dy`, `w`).
    ///
    /// # Errors
    /// See [`ImageLayout::conv2d`].
    pub fn conv2d_input_grad(self, call: &Call) -> Result<Conv2dDims, String> {
        let (dy, w) = (&call.inputs[0].shape, &call.inputs[1].shape);
        let [h, width] = call.attrs.sizes("input_size")?;
        let options = Conv2dOptions::of(call.attrs)?;
        let (Some(&n), Ok(w_sizes)) = (dy.first(), <[usize; 4]>::try_from(&w[..])) else {
            return Err(format!("the operands are {dy} and {w}; it takes four axes each"));
        };
        let [_, cg, _, _] = self.to_oihw(w_sizes);
        let c = cg.checked_mul(options.groups as usize).ok_or_else(|| {
            format!(
                "{} groups of the kernel {w} have more channels than can be counted",
                options.groups
            )
        })?;
        let dims = Conv2dDims::forward(self, &self.of_nchw([n, c, h, width]), w, options)?;
        dims.check_output(dy)
    }

    /// Returns the sizes of a call of the gradient by the weights (`x`, `dy`).
    ///
    /// # Errors
    /// See [`ImageLayout::conv2d`].
    pub fn conv2d_weight_grad(self, call: &Call) -> Result<Conv2dDims, String> {
        let (x, dy) = (&call.inputs[0].shape, &call.inputs[1].shape);
        let [kh, kw] = call.attrs.sizes("kernel_size")?;
        let options = Conv2dOptions::of(call.attrs)?;
        let (Ok(x_sizes), Ok(dy_sizes)) = (<[usize; 4]>::try_from(&x[..]), <[usize; 4]>::try_from(&dy[..])) else {
            return Err(format!("the operands are {x} and {dy}; it takes four axes each"));
        };
        let ([_, c, _, _], [_, o, _, _]) = (self.to_nchw(x_sizes), self.to_nchw(dy_sizes));
        let w = self.of_oihw([o, c / (options.groups as usize), kh, kw]);
        let dims = Conv2dDims::forward(self, x, &w, options)?;
        dims.check_output(dy)
    }
}

/// All sizes of a convolution `x [n, c, h, w] * w [o, c / groups, kh, kw] -> y [n, o, oh, ow]`, in
/// any layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dDims {
    /// The order of the axes in memory.
    pub layout: ImageLayout,
    /// Number of images in the batch.
    pub n: usize,
    /// Number of input channels.
    pub c: usize,
    /// Number of output channels.
    pub o: usize,
    /// Number of groups into which both channel axes are divided.
    pub groups: usize,
    /// Input height and width.
    pub input: [usize; 2],
    /// Kernel height and width.
    pub kernel: [usize; 2],
    /// Output height and width.
    pub output: [usize; 2],
    /// Stride.
    pub stride: [usize; 2],
    /// Padding.
    pub padding: [usize; 2],
    /// Dilation.
    pub dilation: [usize; 2],
}

impl Conv2dDims {
    /// Computes all sizes from the shapes of `x` and `w`, and checks them.
    pub(in crate::ops) fn forward(
        layout: ImageLayout,
        x: &[usize],
        w: &[usize],
        options: Conv2dOptions,
    ) -> Result<Self, String> {
        let (Ok(x_sizes), Ok(w_sizes)) = (<[usize; 4]>::try_from(x), <[usize; 4]>::try_from(w)) else {
            let (images, weights) = match layout {
                ImageLayout::Nchw => (
                    "[batch, channels, height, width]",
                    "[out channels, channels / groups, kernel height, kernel width]",
                ),
                ImageLayout::Nhwc => (
                    "[batch, height, width, channels]",
                    "[kernel height, kernel width, channels / groups, out channels]",
                ),
            };
            return Err(format!(
                "the operands are {x:?} and {w:?}; it takes {images} and {weights}"
            ));
        };
        let ([n, c, h, width], [o, cg, kh, kw]) = (layout.to_nchw(x_sizes), layout.to_oihw(w_sizes));
        let groups = options.groups as usize;
        if c % groups != 0 || o % groups != 0 {
            return Err(format!(
                "{groups} groups do not divide {c} input and {o} output channels"
            ));
        }
        if cg != c / groups {
            return Err(format!(
                "the kernel {w:?} has {cg} input channels; {c} channels in {groups} groups need {}",
                c / groups
            ));
        }
        let wide = |v: [u32; 2]| v.map(|v| v as usize);
        let mut dims = Conv2dDims {
            layout,
            n,
            c,
            o,
            groups,
            input: [h, width],
            kernel: [kh, kw],
            output: [0, 0],
            stride: wide(options.stride),
            padding: wide(options.padding),
            dilation: wide(options.dilation),
        };
        for axis in 0..2 {
            dims.output[axis] = window_count(
                dims.input[axis],
                dims.kernel[axis],
                dims.stride[axis],
                dims.padding[axis],
                dims.dilation[axis],
            )?;
            dims.stride[axis] = used_stride(dims.stride[axis], dims.output[axis]);
        }
        Ok(dims)
    }

    /// Returns the sizes of a `core.conv2d` call.
    ///
    /// # Errors
    /// Operands that do not match; the same holds for the two methods below.
    pub fn of_conv2d(call: &Call) -> Result<Self, String> {
        ImageLayout::Nchw.conv2d(call)
    }

    /// Returns the sizes of a `core.conv2d_input_grad` call (`dy`, `w`).
    ///
    /// # Errors
    /// See [`Conv2dDims::of_conv2d`].
    pub fn of_input_grad(call: &Call) -> Result<Self, String> {
        ImageLayout::Nchw.conv2d_input_grad(call)
    }

    /// Returns the sizes of a `core.conv2d_weight_grad` call (`x`, `dy`).
    ///
    /// # Errors
    /// See [`Conv2dDims::of_conv2d`].
    pub fn of_weight_grad(call: &Call) -> Result<Self, String> {
        ImageLayout::Nchw.conv2d_weight_grad(call)
    }

    pub(super) fn check_output(self, dy: &Shape) -> Result<Self, String> {
        let expected = self.y_shape();
        if dy[..] != expected {
            return Err(format!("the gradient is {dy}, but the convolution yields {expected:?}"));
        }
        Ok(self)
    }

    /// Returns the shape of `x`.
    pub fn x_shape(&self) -> [usize; 4] {
        self.layout.of_nchw([self.n, self.c, self.input[0], self.input[1]])
    }

    /// Returns the shape of `w`.
    pub fn w_shape(&self) -> [usize; 4] {
        let [kh, kw] = self.kernel;
        self.layout.of_oihw([self.o, self.c / self.groups, kh, kw])
    }

    /// Returns the shape of `y`.
    pub fn y_shape(&self) -> [usize; 4] {
        self.layout.of_nchw([self.n, self.o, self.output[0], self.output[1]])
    }

    /// Returns the number of multiplications and additions.
    pub fn flops(&self) -> u64 {
        let taps = self.c / self.groups * self.kernel[0] * self.kernel[1];
        2 * self.y_shape().iter().product::<usize>() as u64 * taps as u64
    }

    /// Calls `visit(x, w, y)` with the flat offsets of every product of the convolution.
    pub(super) fn for_each_product(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let (cg, og) = (self.c / self.groups, self.o / self.groups);
        let [ih, iw] = self.input;
        let [kh, kw] = self.kernel;
        let [oh, ow] = self.output;
        for n in 0..self.n {
            for o in 0..self.o {
                for oy in 0..oh {
                    for ox in 0..ow {
                        let y = self.layout.offset([self.o, oh, ow], [n, o, oy, ox]);
                        for c in 0..cg {
                            for ky in 0..kh {
                                for kx in 0..kw {
                                    let iy = oy * self.stride[0] + ky * self.dilation[0];
                                    let ix = ox * self.stride[1] + kx * self.dilation[1];
                                    let (Some(iy), Some(ix)) =
                                        (iy.checked_sub(self.padding[0]), ix.checked_sub(self.padding[1]))
                                    else {
                                        continue;
                                    };
                                    if iy < ih && ix < iw {
                                        let channel = o / og * cg + c;
                                        let x = self.layout.offset([self.c, ih, iw], [n, channel, iy, ix]);
                                        let w = self.layout.weight_offset([self.o, cg, kh, kw], [o, c, ky, kx]);
                                        visit(x, w, y);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the number of windows along one axis.
pub(in crate::ops) fn window_count(
    input: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> Result<usize, String> {
    if kernel == 0 {
        return Err("the kernel has no elements".into());
    }
    let reach = (kernel - 1).checked_mul(dilation).and_then(|r| r.checked_add(1));
    let padded = padding.checked_mul(2).and_then(|p| p.checked_add(input));
    match (padded, reach) {
        (Some(padded), Some(reach)) if reach <= padded => Ok((padded - reach) / stride + 1),
        (Some(padded), Some(reach)) => Err(format!(
            "the kernel reaches over {reach} elements (size {kernel}, dilation {dilation}), but the padded input has {padded}"
        )),
        _ => Err("the window sizes overflow".into()),
    }
}

/// Returns the stride for this number of windows: 1 for a single window, because its stride is irrelevant, but a large
/// one would make kernels reserve memory.
pub(in crate::ops) fn used_stride(stride: usize, windows: usize) -> usize {
    if windows > 1 { stride } else { 1 }
}
