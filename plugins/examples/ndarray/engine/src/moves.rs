//! Kernels that move elements without changing them.

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, Slice, concatenate};

use crate::kernels::Cx;
use crate::tensor::{Data, Element, elements, view};

pub fn is_move(kernel: &str) -> bool {
    const MOVES: [&str; 8] = [
        "core.reshape",
        "core.stop_gradient",
        "core.assign",
        "core.permute",
        "core.expand",
        "core.slice",
        "core.pad",
        "core.concat",
    ];
    MOVES.contains(&kernel)
}

pub fn run(cx: &Cx) -> Result<Data, String> {
    // The value of a write is the other operand.
    let source = usize::from(cx.dispatch.kernel == "core.assign");
    let value = cx
        .dispatch
        .attribute("value")
        .and(cx.dispatch.float("value"))
        .unwrap_or(0.0);
    Ok(match cx.data(source) {
        Data::F32(v) => Data::F32(moved(cx, source, v, value as f32)?),
        Data::U32(v) => Data::U32(moved(cx, source, v, value as u32)?),
        Data::I32(v) => Data::I32(moved(cx, source, v, value as i32)?),
        Data::Half(v) => {
            let bits = match cx.dispatch.inputs[source].dtype {
                meganeura_plugin_abi::view::DType::BF16 => half::bf16::from_f64(value).to_bits(),
                _ => half::f16::from_f64(value).to_bits(),
            };
            Data::Half(moved(cx, source, v, bits)?)
        }
    })
}

fn moved<T: Element>(cx: &Cx, source: usize, values: &[T], fill: T) -> Result<Vec<T>, String> {
    let x = view(values, &cx.dispatch.inputs[source])?;
    Ok(match cx.dispatch.kernel.as_str() {
        "core.permute" => {
            let rank = x.ndim() as i64;
            let axes = cx
                .ints("axes")?
                .into_iter()
                .map(|a| if a < 0 { a + rank } else { a } as usize);
            elements(x.permuted_axes(axes.collect::<Vec<_>>()).to_owned())
        }
        "core.expand" => elements(x.broadcast(cx.dims()).ok_or("shapes that do not broadcast")?.to_owned()),
        "core.slice" => {
            let (starts, ends, steps) = (cx.ints("starts")?, cx.ints("ends")?, cx.ints("steps")?);
            let part = |axis: usize| Slice::new(starts[axis] as isize, Some(ends[axis] as isize), steps[axis] as isize);
            elements(x.slice_each_axis(|a| part(a.axis.index())).to_owned())
        }
        "core.pad" => pad(cx, &x, fill)?,
        "core.concat" => {
            let of =
                |i: usize| -> Result<ArrayViewD<'_, T>, String> { view(T::of(cx.data(i))?, &cx.dispatch.inputs[i]) };
            let views = (0..cx.dispatch.inputs.len()).map(of).collect::<Result<Vec<_>, _>>()?;
            elements(concatenate(Axis(cx.axis(x.ndim())?), &views).map_err(|e| e.to_string())?)
        }
        _ => x.iter().copied().collect(),
    })
}

fn pad<T: Copy>(cx: &Cx, x: &ArrayViewD<T>, fill: T) -> Result<Vec<T>, String> {
    let (low, interior) = (cx.ints("low")?, cx.ints("interior")?);
    let mut out = ArrayD::from_elem(IxDyn(&cx.dispatch.outputs[0].dims), fill);
    if x.is_empty() {
        return Ok(elements(out));
    }
    let shape = x.shape().to_vec();
    let mut place = out.slice_each_axis_mut(|a| {
        let axis = a.axis.index();
        let step = interior[axis] + 1;
        let end = low[axis] + (shape[axis] as i64 - 1) * step + 1;
        Slice::new(low[axis] as isize, Some(end as isize), step as isize)
    });
    place.assign(x);
    drop(place);
    Ok(elements(out))
}
