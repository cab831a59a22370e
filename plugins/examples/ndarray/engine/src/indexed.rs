//! Kernels that read or write at indices, sort, or hash. The engine validates indices before it calls them.

use ndarray::{ArrayD, Axis, IxDyn};

use crate::kernels::Cx;
use crate::tensor::{Data, Element, elements};

pub fn is_indexed(kernel: &str) -> bool {
    const INDEXED: [&str; 8] = [
        "core.gather",
        "core.scatter_add",
        "core.scatter",
        "core.take_along_axis",
        "core.put_along_axis",
        "core.argmax",
        "core.top_k",
        "core.random_bits",
    ];
    INDEXED.contains(&kernel)
}

pub fn run(cx: &Cx) -> Result<Vec<Data>, String> {
    if cx.dispatch.kernel == "core.random_bits" {
        return random_bits(cx);
    }
    // The operand with the elements; the other one contains indices.
    let values = match cx.dispatch.kernel.as_str() {
        "core.gather" | "core.scatter_add" | "core.put_along_axis" => 1,
        _ => 0,
    };
    match cx.data(values) {
        Data::F32(_) => typed::<f32>(cx, Data::F32, |a, b| a + b, |a, b| a > b || (a.is_nan() && !b.is_nan())),
        Data::U32(_) => typed::<u32>(cx, Data::U32, u32::wrapping_add, |a, b| a > b),
        Data::I32(_) => typed::<i32>(cx, Data::I32, i32::wrapping_add, |a, b| a > b),
        Data::Half(_) => Err("ndarray computes in f32".into()),
    }
}

fn typed<T: Element>(
    cx: &Cx,
    data: fn(Vec<T>) -> Data,
    add: fn(T, T) -> T,
    before: fn(T, T) -> bool,
) -> Result<Vec<Data>, String> {
    let one = |values: Vec<T>| Ok(vec![data(values)]);
    match cx.dispatch.kernel.as_str() {
        "core.gather" => one(gather(cx)?),
        "core.scatter_add" => one(scatter_add(cx, add)?),
        "core.scatter" => one(scatter(cx)?),
        "core.take_along_axis" => one(take_along_axis(cx)?),
        "core.put_along_axis" => one(put_along_axis(cx, add)?),
        "core.argmax" => Ok(vec![Data::U32(argmax::<T>(cx, before)?)]),
        _ => {
            let (values, indices) = top_k::<T>(cx, before)?;
            Ok(vec![data(values), Data::U32(indices)])
        }
    }
}

fn places(indices: ndarray::ArrayViewD<u32>) -> Vec<usize> {
    indices.iter().map(|&i| i as usize).collect()
}

fn gather<T: Element>(cx: &Cx) -> Result<Vec<T>, String> {
    let (indices, table) = (cx.array::<u32>(0)?, cx.array::<T>(1)?);
    Ok(elements(table.select(Axis(cx.axis(table.ndim())?), &places(indices))))
}

fn scatter_add<T: Element>(cx: &Cx, add: fn(T, T) -> T) -> Result<Vec<T>, String> {
    let (indices, updates) = (places(cx.array::<u32>(0)?), cx.array::<T>(1)?);
    let mut out = ArrayD::from_elem(cx.dims(), T::default());
    let axis = cx.axis(out.ndim())?;
    // The axes of the indices are merged into one.
    let mut dims = out.shape().to_vec();
    dims[axis] = indices.len();
    let updates = updates.to_shape(IxDyn(&dims)).map_err(|e| e.to_string())?;
    for (i, &place) in indices.iter().enumerate() {
        let mut row = out.index_axis_mut(Axis(axis), place);
        row.zip_mut_with(&updates.index_axis(Axis(axis), i), |a, b| *a = add(*a, *b));
    }
    Ok(elements(out))
}

fn scatter<T: Element>(cx: &Cx) -> Result<Vec<T>, String> {
    let (mut out, indices, updates) = (
        cx.array::<T>(0)?.to_owned(),
        places(cx.array::<u32>(1)?),
        cx.array::<T>(2)?,
    );
    let axis = Axis(cx.axis(out.ndim())?);
    for (i, &place) in indices.iter().enumerate() {
        out.index_axis_mut(axis, place).assign(&updates.index_axis(axis, i));
    }
    Ok(elements(out))
}

fn take_along_axis<T: Element>(cx: &Cx) -> Result<Vec<T>, String> {
    let (x, indices) = (cx.array::<T>(0)?, cx.array::<u32>(1)?);
    let axis = cx.axis(x.ndim())?;
    let taken = indices.indexed_iter().map(|(at, &index)| {
        let mut at = at.clone();
        at[axis] = index as usize;
        x[at]
    });
    Ok(taken.collect())
}

fn put_along_axis<T: Element>(cx: &Cx, add: fn(T, T) -> T) -> Result<Vec<T>, String> {
    let (indices, updates) = (cx.array::<u32>(0)?, cx.array::<T>(1)?);
    let mut out = ArrayD::from_elem(cx.dims(), T::default());
    let axis = cx.axis(out.ndim())?;
    for ((at, &index), &update) in indices.indexed_iter().zip(updates.iter()) {
        let mut at = at.clone();
        at[axis] = index as usize;
        let place = &mut out[at];
        *place = add(*place, update);
    }
    Ok(elements(out))
}

fn argmax<T: Element>(cx: &Cx, before: fn(T, T) -> bool) -> Result<Vec<u32>, String> {
    let x = cx.array::<T>(0)?;
    let axis = Axis(cx.axis(x.ndim())?);
    let best = x.map_axis(axis, |lane| {
        let mut best = 0;
        for (i, &v) in lane.iter().enumerate() {
            if before(v, lane[best]) {
                best = i;
            }
        }
        best as u32
    });
    Ok(elements(best))
}

fn top_k<T: Element>(cx: &Cx, before: fn(T, T) -> bool) -> Result<(Vec<T>, Vec<u32>), String> {
    use std::cmp::Ordering;
    let x = cx.array::<T>(0)?;
    let axis = Axis(cx.axis(x.ndim())?);
    let mut values = ArrayD::from_elem(cx.dims(), T::default());
    let mut indices = ArrayD::from_elem(cx.dims(), 0u32);
    let lanes = x
        .lanes(axis)
        .into_iter()
        .zip(values.lanes_mut(axis))
        .zip(indices.lanes_mut(axis));
    for ((lane, mut values), mut indices) in lanes {
        let mut order: Vec<usize> = (0..lane.len()).collect();
        // A stable sort: equal elements keep their order.
        order.sort_by(|&a, &b| match (before(lane[a], lane[b]), before(lane[b], lane[a])) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => Ordering::Equal,
        });
        for (i, &place) in order.iter().take(values.len()).enumerate() {
            values[i] = lane[place];
            indices[i] = place as u32;
        }
    }
    Ok((elements(values), elements(indices)))
}

/// Computes random bits with the hash that `docs/operators.md` specifies, from seed, call, step and element.
fn random_bits(cx: &Cx) -> Result<Vec<Data>, String> {
    fn mix(mut x: u32) -> u32 {
        x ^= x >> 16;
        x = x.wrapping_mul(0x7feb_352d);
        x ^= x >> 15;
        x = x.wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }
    let first = |i: usize| -> Result<u32, String> { cx.array::<u32>(i)?.first().copied().ok_or("no number".into()) };
    let (seed, step, uid) = (first(0)?, first(1)?, cx.int("uid")? as u32);
    let mut h = mix(seed ^ 0x9e37_79b9);
    h = mix(h ^ uid.wrapping_mul(0x85eb_ca6b));
    h = mix(h ^ step);
    let count = cx.dispatch.outputs[0].elements() as u32;
    Ok(vec![Data::U32((0..count).map(|i| mix(h ^ i)).collect())])
}
