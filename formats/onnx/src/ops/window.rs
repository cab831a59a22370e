//! Sliding windows over an image: sizes and padding of convolutions and pooling.

use crate::import::Call;

/// Windows along the axes after batch and channels.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) kernel: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    /// Padding before each axis.
    pub(super) low: Vec<usize>,
    /// Padding after each axis; if sizes are rounded up, it may exceed the padding in the file.
    pub(super) high: Vec<usize>,
    /// Padding after each axis, as specified in the file.
    pub(super) declared_high: Vec<usize>,
    /// Number of windows along each axis.
    pub(super) out: Vec<usize>,
}

fn positive(list: Option<Vec<i64>>, count: usize, what: &str) -> Result<Vec<usize>, String> {
    let list = list.unwrap_or_else(|| vec![1; count]);
    let sizes: Option<Vec<usize>> = list
        .iter()
        .map(|&v| usize::try_from(v).ok().filter(|&v| v > 0 && v < 1 << 31))
        .collect();
    match sizes {
        Some(sizes) if sizes.len() == count => Ok(sizes),
        _ => Err(format!("{what} = {list:?} are not {count} positive sizes")),
    }
}

/// Returns the widths of `pads`: first all widths before, then all widths after the axes.
pub(super) fn declared_pads(call: &Call, count: usize) -> Result<(Vec<usize>, Vec<usize>), String> {
    let Some(pads) = call.ints("pads")? else {
        return Ok((vec![0; count], vec![0; count]));
    };
    let sizes: Option<Vec<usize>> = pads
        .iter()
        .map(|&v| usize::try_from(v).ok().filter(|&v| v < 1 << 31))
        .collect();
    match sizes {
        Some(sizes) if sizes.len() == 2 * count => Ok((sizes[..count].to_vec(), sizes[count..].to_vec())),
        _ => Err(format!("pads = {pads:?} are not {} widths", 2 * count)),
    }
}

impl Windows {
    /// Returns the windows of a node over axes of these sizes.
    pub(super) fn of(call: &Call, sizes: &[usize], kernel: &[usize], round_up: bool) -> Result<Self, String> {
        let count = sizes.len();
        let strides = positive(call.ints("strides")?, count, "strides")?;
        let dilations = positive(call.ints("dilations")?, count, "dilations")?;
        if kernel.len() != count || kernel.contains(&0) {
            return Err(format!("kernels of {kernel:?} do not fit {count} axes"));
        }
        let reach = |i: usize| (kernel[i] - 1).saturating_mul(dilations[i]).saturating_add(1);
        let mode = call.string("auto_pad", "NOTSET")?.into_owned();
        let (low, declared) = match mode.as_str() {
            "NOTSET" | "" => declared_pads(call, count)?,
            "VALID" => (vec![0; count], vec![0; count]),
            "SAME_UPPER" | "SAME_LOWER" => {
                let (mut low, mut high) = (vec![0; count], vec![0; count]);
                for i in 0..count {
                    let out = sizes[i].div_ceil(strides[i]);
                    let total = (out
                        .saturating_sub(1)
                        .saturating_mul(strides[i])
                        .saturating_add(reach(i)))
                    .saturating_sub(sizes[i]);
                    low[i] = if mode == "SAME_UPPER" {
                        total / 2
                    } else {
                        total.div_ceil(2)
                    };
                    high[i] = total - low[i];
                }
                (low, high)
            }
            other => return Err(format!("auto_pad = `{other}` is not known")),
        };
        let mut high = declared.clone();
        let mut out = Vec::new();
        for i in 0..count {
            let padded = sizes[i] + low[i] + declared[i];
            let free = padded.checked_sub(reach(i)).ok_or_else(|| {
                format!(
                    "a window of {} does not fit into axis {i} of {padded} with padding",
                    reach(i)
                )
            })?;
            let mut windows = free / strides[i] + 1;
            if round_up && !free.is_multiple_of(strides[i]) && windows * strides[i] < sizes[i] + low[i] {
                windows += 1;
            }
            high[i] = ((windows - 1) * strides[i] + reach(i))
                .saturating_sub(sizes[i] + low[i])
                .max(if round_up { 0 } else { declared[i] });
            out.push(windows);
        }
        Ok(Windows {
            kernel: kernel.to_vec(),
            strides,
            dilations,
            low,
            high,
            declared_high: declared,
            out,
        })
    }

    /// Returns true if both sides of each axis have the same padding.
    pub(super) fn is_symmetric(&self) -> bool {
        self.low == self.high
    }

    /// Returns the widths for all axes of a tensor, batch and channels first.
    pub(super) fn pad_widths(&self) -> (Vec<usize>, Vec<usize>) {
        (
            [&[0, 0], self.low.as_slice()].concat(),
            [&[0, 0], self.high.as_slice()].concat(),
        )
    }
}
