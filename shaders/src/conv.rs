//! Convolutions and their derivatives as sums of products: patches of images are found as they are needed.

use meganeura_core::TensorType;
use meganeura_core::ops::{Call, Conv2dDims};

use super::body::{Body, Def, Id};
use super::emit::Emitter;
use super::kernel::{CompileCx, Compiled};
use super::place::{self, Base};
use super::tiled::{self, Products, Sizes};

/// Which of the three tensors `x * w -> y` is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Output,
    InputGrad,
    WeightGrad,
}

fn of(name: &str) -> Option<Of> {
    match name {
        "core.conv2d" => Some(Of::Output),
        "core.conv2d_input_grad" => Some(Of::InputGrad),
        "core.conv2d_weight_grad" => Some(Of::WeightGrad),
        _ => None,
    }
}

pub(super) fn compile(body: &Body, id: Id, cx: &CompileCx) -> Result<Compiled, String> {
    let Def::Call { op, attrs, inputs, .. } = &body.nodes[id].def else {
        return Err("there is no convolution".into());
    };
    let &[a, b] = &inputs[..] else {
        return Err("a convolution has two operands".into());
    };
    let inputs: Vec<TensorType> = inputs.iter().map(|&i| body.ty(i).clone()).collect();
    let call = Call {
        attrs,
        inputs: &inputs,
        outputs: std::slice::from_ref(body.ty(id)),
    };
    let of = of(op).ok_or("it is no convolution")?;
    // Each tap reads its element of the image.
    tiled::check_prologue(body, cx, a, None)?;
    let dims = match of {
        Of::Output => Conv2dDims::of_conv2d(&call)?,
        Of::InputGrad => Conv2dDims::of_input_grad(&call)?,
        Of::WeightGrad => Conv2dDims::of_weight_grad(&call)?,
    };
    tiled::compile(
        body,
        id,
        cx,
        &Convolution {
            of,
            dims,
            operands: [a, b],
        },
    )
}

struct Convolution {
    of: Of,
    dims: Conv2dDims,
    /// `x, w`, or `dy, w`, or `x, dy`.
    operands: [Id; 2],
}

/// Elements of a plane.
fn plane(size: [usize; 2]) -> usize {
    size[0] * size[1]
}

impl Convolution {
    /// Channels of a group on the input's and on the output's side.
    fn channels(&self) -> [usize; 2] {
        [self.dims.c / self.dims.groups, self.dims.o / self.dims.groups]
    }

    /// An element of an operand by its number.
    fn element(&self, e: &mut Emitter, operand: usize, number: &str) -> Result<String, String> {
        let id = self.operands[operand];
        let name = e.bind(number)?;
        let shape = &e.body.ty(id).shape;
        e.value(id, &place::split(&Base::new(&name, shape.numel()), 1, shape))
    }

    /// An element of a weight: channels within the group and number of the tap.
    fn weight(&self, e: &mut Emitter, operand: usize, o: &str, c: &str, tap: &str) -> Result<String, String> {
        let ([cg, og], taps) = (self.channels(), plane(self.dims.kernel));
        self.element(
            e,
            operand,
            &format!("((batch * {og}u + {o}) * {cg}u + {c}) * {taps}u + {tap}"),
        )
    }

    /// The element of the image that a tap meets at a place of the output, or 0 where that is padding.
    fn image(&self, e: &mut Emitter, c: &str, tap: &str, n: &str, at: &str) -> Result<String, String> {
        let d = &self.dims;
        let (kw, ow, [cg, _]) = (d.kernel[1], d.output[1], self.channels());
        let [ih, iw] = [0, 1].map(|axis| {
            let (tap, at) = match axis {
                0 => (format!("{tap} / {kw}u"), format!("{at} / {ow}u")),
                _ => (format!("{tap} % {kw}u"), format!("{at} % {ow}u")),
            };
            // Numbers before the first wrap to large ones.
            let (stride, dilation, padding) = (d.stride[axis], d.dilation[axis], d.padding[axis]);
            format!("{at} * {stride}u + {tap} * {dilation}u - {padding}u")
        });
        let (ih, iw) = (e.bind(&ih)?, e.bind(&iw)?);
        let [h, w] = d.input;
        let number = format!(
            "(({n} * {}u + batch * {cg}u + {c}) * {h}u + min({ih}, {}u)) * {w}u + min({iw}, {}u)",
            d.c,
            h.saturating_sub(1),
            w.saturating_sub(1)
        );
        let value = self.element(e, 0, &number)?;
        e.bind(&format!("select(0.0, {value}, {ih} < {h}u && {iw} < {w}u)"))
    }

    /// The element of the output's gradient whose tap meets a place of the image, or 0 where there is none.
    fn output(&self, e: &mut Emitter, o: &str, tap: &str, n: &str, at: &str) -> Result<String, String> {
        let d = &self.dims;
        let (kw, w, [_, og]) = (d.kernel[1], d.input[1], self.channels());
        let mut conditions = Vec::new();
        let mut found = Vec::new();
        for axis in 0..2 {
            let (tap, at) = match axis {
                0 => (format!("{tap} / {kw}u"), format!("{at} / {w}u")),
                _ => (format!("{tap} % {kw}u"), format!("{at} % {w}u")),
            };
            let (stride, dilation, padding) = (d.stride[axis], d.dilation[axis], d.padding[axis]);
            let distance = e.bind(&format!("{at} + {padding}u - {tap} * {dilation}u"))?;
            let window = e.bind(&format!("{distance} / {stride}u"))?;
            conditions.push(format!(
                "{window} * {stride}u == {distance} && {window} < {}u",
                d.output[axis]
            ));
            found.push(e.bind(&format!("min({window}, {}u)", d.output[axis].saturating_sub(1)))?);
        }
        let [oh, ow] = d.output;
        let number = format!(
            "(({n} * {}u + batch * {og}u + {o}) * {oh}u + {}) * {ow}u + {}",
            d.o, found[0], found[1]
        );
        let value = self.element(e, 0, &number)?;
        e.bind(&format!("select(0.0, {value}, {})", conditions.join(" && ")))
    }

    /// Quotient and remainder of a number in variables.
    fn split(&self, e: &mut Emitter, number: &str, by: usize) -> Result<[String; 2], String> {
        Ok([
            e.bind(&format!("{number} / {by}u"))?,
            e.bind(&format!("{number} % {by}u"))?,
        ])
    }
}

impl Products for Convolution {
    fn sizes(&self) -> Sizes {
        let (d, [cg, og]) = (&self.dims, self.channels());
        let (input, output, taps) = (plane(d.input), plane(d.output), plane(d.kernel));
        let (m, n, k) = match self.of {
            Of::Output => (og, d.n * output, cg * taps),
            Of::InputGrad => (cg, d.n * input, og * taps),
            Of::WeightGrad => (og, cg * taps, d.n * output),
        };
        Sizes {
            batch: d.groups,
            m,
            n,
            k,
        }
    }

    fn kind(&self) -> String {
        let of = match self.of {
            Of::Output => "convolution",
            Of::InputGrad => "convolution's input gradient",
            Of::WeightGrad => "convolution's weight gradient",
        };
        let ([kh, kw], [sh, sw]) = (self.dims.kernel, self.dims.stride);
        format!("{of} {kh}x{kw}/{sh}x{sw}")
    }

    fn is_along_k(&self, operand: usize) -> bool {
        match self.of {
            Of::Output => operand == 0,
            Of::InputGrad => false,
            Of::WeightGrad => true,
        }
    }

    fn load(&self, e: &mut Emitter, operand: usize, line: &str, k: &str) -> Result<String, String> {
        let (input, output, taps) = (plane(self.dims.input), plane(self.dims.output), plane(self.dims.kernel));
        match (self.of, operand) {
            (Of::Output, 0) => {
                let [c, tap] = self.split(e, k, taps)?;
                self.weight(e, 1, line, &c, &tap)
            }
            (Of::Output, _) => {
                let ([c, tap], [n, at]) = (self.split(e, k, taps)?, self.split(e, line, output)?);
                self.image(e, &c, &tap, &n, &at)
            }
            (Of::InputGrad, 0) => {
                let [o, tap] = self.split(e, k, taps)?;
                self.weight(e, 1, &o, line, &tap)
            }
            (Of::InputGrad, _) => {
                let ([o, tap], [n, at]) = (self.split(e, k, taps)?, self.split(e, line, input)?);
                self.output(e, &o, &tap, &n, &at)
            }
            (Of::WeightGrad, 0) => {
                let ([n, at], [_, og]) = (self.split(e, k, output)?, self.channels());
                let channels = self.dims.o;
                self.element(
                    e,
                    1,
                    &format!("({n} * {channels}u + batch * {og}u + {line}) * {output}u + {at}"),
                )
            }
            (Of::WeightGrad, _) => {
                let ([c, tap], [n, at]) = (self.split(e, line, taps)?, self.split(e, k, output)?);
                self.image(e, &c, &tap, &n, &at)
            }
        }
    }

    fn number(&self, row: &str, column: &str) -> String {
        let (d, [cg, og]) = (&self.dims, self.channels());
        let image = |channels: usize, group: usize, size: usize| {
            format!("({column} / {size}u * {channels}u + batch * {group}u + {row}) * {size}u + {column} % {size}u")
        };
        match self.of {
            Of::Output => image(d.o, og, plane(d.output)),
            Of::InputGrad => image(d.c, cg, plane(d.input)),
            Of::WeightGrad => format!("(batch * {og}u + {row}) * {}u + {column}", cg * plane(d.kernel)),
        }
    }
}
