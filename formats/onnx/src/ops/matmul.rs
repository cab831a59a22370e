//! Matrix products.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::{OnnxOp, limits, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Products of two 8-bit numbers whose sum `f32` holds exactly.
const MAX_EXACT_TERMS: usize = (1 << 24) / (255 * 255);

pub(super) const OPS: &[OnnxOp] = &[
    op("Det", 11, det).partly("matrices larger than 8 x 8"),
    op("Einsum", 12, einsum).partly("letters twice in the result"),
    op("Gemm", 1, gemm),
    op("MatMul", 1, matmul),
    op("MatMulInteger", 10, matmul_integer),
    ms("FusedMatMul", fused_matmul),
];

/// `numpy.matmul` of two values: vectors are rows or columns, and leading axes broadcast.
pub(super) fn product(call: &mut Call, a: Value, b: Value) -> Result<Value, String> {
    let graph = call.graph();
    let (a_dims, b_dims) = (graph.shape(a).to_vec(), graph.shape(b).to_vec());
    if a_dims.is_empty() || b_dims.is_empty() {
        return Err("a scalar is no matrix".into());
    }
    let a_row = a_dims.len() == 1;
    let b_column = b_dims.len() == 1;
    let a = if a_row {
        graph.reshape(a, &[1, a_dims[0]]).into()
    } else {
        a
    };
    let b = if b_column {
        graph.reshape(b, &[b_dims[0], 1]).into()
    } else {
        b
    };
    let y = graph.matmul(a, b);
    if !a_row && !b_column {
        return Ok(y.into());
    }
    let mut dims = graph.shape(y).to_vec();
    // Operands that do not fit have been reported, and give no shape.
    if dims.len() < 2 {
        return Ok(y.into());
    }
    if b_column {
        dims.pop();
    }
    if a_row {
        let at = dims.len() - if b_column { 1 } else { 2 };
        dims.remove(at);
    }
    Ok(graph.reshape(y, &dims).into())
}

/// A product of integers, exact: through `f32` in parts whose sums it holds.
pub(super) fn integer_product(call: &mut Call, a: Value, b: Value) -> Result<Value, String> {
    let (a, b) = (call.as_f32(a), call.as_f32(b));
    let a_dims = call.graph().shape(a).to_vec();
    let b_dims = call.graph().shape(b).to_vec();
    let terms = a_dims.last().copied().unwrap_or(1);
    if terms <= MAX_EXACT_TERMS || b_dims.len() < 2 {
        let y = product(call, a, b)?;
        return Ok(call.graph().cast(y, DType::I32).into());
    }
    limits::parts(terms.div_ceil(MAX_EXACT_TERMS), "parts of a product of integers")?;
    let (a_axis, b_axis) = (a_dims.len() as i32 - 1, b_dims.len() as i32 - 2);
    let mut sum: Option<Value> = None;
    for start in (0..terms).step_by(MAX_EXACT_TERMS) {
        let end = terms.min(start + MAX_EXACT_TERMS);
        let graph = call.graph();
        let left = graph.slice_axis(a, a_axis, start, end);
        let right = graph.slice_axis(b, b_axis, start, end);
        let part = product(call, left.into(), right.into())?;
        let graph = call.graph();
        let part = graph.cast(part, DType::I32);
        sum = Some(match sum {
            None => part.into(),
            Some(sum) => graph.add(sum, part).into(),
        });
    }
    sum.ok_or_else(|| "a product without terms".into())
}

fn matmul(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let (a, b) = (call.value(0)?, call.value(1)?);
    let y = match element.is_float() {
        true => product(call, a, b)?,
        false => {
            let y = integer_product(call, a, b)?;
            call.as_element(y, element)
        }
    };
    call.one(y, element)
}

fn matmul_integer(call: &mut Call) -> Built {
    let (a, b) = (call.value(0)?, call.value(1)?);
    let (a, b) = (
        call.as_element(a, ElementType::I32),
        call.as_element(b, ElementType::I32),
    );
    let a = match call.optional(2)? {
        None => a,
        Some(zero) => {
            // A zero point for each row stands in a column.
            let zero = call.as_element(zero, ElementType::I32);
            let graph = call.graph();
            let dims = graph.shape(zero).to_vec();
            let zero = match dims.as_slice() {
                [n] if *n > 1 => graph.reshape(zero, &[*n, 1]).into(),
                _ => zero,
            };
            graph.sub(a, zero).into()
        }
    };
    let b = match call.optional(3)? {
        None => b,
        Some(zero) => {
            let zero = call.as_element(zero, ElementType::I32);
            call.graph().sub(b, zero).into()
        }
    };
    let y = integer_product(call, a, b)?;
    call.one(y, ElementType::I32)
}

/// `alpha op(A) op(B) + beta C`.
fn gemm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let (a, b) = (call.value(0)?, call.value(1)?);
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let (trans_a, trans_b) = (call.int("transA", 0)? != 0, call.int("transB", 0)? != 0);
    if !element.is_float() {
        return Err(format!("{element} is not supported"));
    }
    let graph = call.graph();
    let mut y: Value = match (trans_a, trans_b) {
        (false, false) => graph.matmul(a, b),
        (true, false) => graph.matmul_at(a, b),
        (false, true) => graph.matmul_bt(a, b),
        (true, true) => {
            let a = graph.transpose(a);
            graph.matmul_bt(a, b)
        }
    }
    .into();
    if alpha != 1.0 {
        let alpha = call.scalar(element, alpha.into());
        y = call.graph().mul(y, alpha).into();
    }
    if let Some(mut c) = call.optional(2)? {
        if beta != 1.0 {
            let beta = call.scalar(element, beta.into());
            c = call.graph().mul(c, beta).into();
        }
        y = call.graph().add(y, c).into();
    }
    call.one(y, element)
}

fn fused_matmul(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let (mut a, mut b) = (call.value(0)?, call.value(1)?);
    if call.int("transBatchA", 0)? != 0 || call.int("transBatchB", 0)? != 0 {
        return Err("transposed batches are not supported".into());
    }
    if call.int("transA", 0)? != 0 {
        a = swap_last(call, a);
    }
    if call.int("transB", 0)? != 0 {
        b = swap_last(call, b);
    }
    let mut y = product(call, a, b)?;
    let alpha = call.float("alpha", 1.0)?;
    if alpha != 1.0 {
        let alpha = call.scalar(element, alpha.into());
        y = call.graph().mul(y, alpha).into();
    }
    call.one(y, element)
}

/// The last two axes swapped.
pub(super) fn swap_last(call: &mut Call, x: Value) -> Value {
    let graph = call.graph();
    let rank = graph.shape(x).len();
    if rank < 2 {
        return x;
    }
    let mut axes: Vec<i32> = (0..rank as i32).collect();
    axes.swap(rank - 1, rank - 2);
    graph.permute(x, &axes).into()
}

/// Letters of the operands and of the result; `...` becomes letters that no equation has.
fn letters(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<u32>>, Vec<u32>), String> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), Some(right.to_owned())),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(format!(
            "the equation has {} operands, and {} are given",
            terms.len(),
            ranks.len()
        ));
    }
    let named = |term: &str| term.replace("...", "").chars().count();
    let dots = terms
        .iter()
        .zip(ranks)
        .filter(|(t, _)| t.contains("..."))
        .map(|(t, &r)| r.checked_sub(named(t)));
    let dots: Option<Vec<usize>> = dots.collect();
    let most = dots
        .ok_or("an operand has fewer dimensions than the equation names")?
        .into_iter()
        .max()
        .unwrap_or(0);
    let open = |count: usize| ((most - count) as u32..most as u32).map(|i| 0x11_0000 + i);
    let parse = |term: &str, rank: Option<usize>| -> Result<Vec<u32>, String> {
        let count = rank.map_or(most, |r| r.saturating_sub(named(term)));
        let mut result = Vec::new();
        let mut rest = term;
        while let Some(c) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("...") {
                result.extend(open(count));
                rest = after;
            } else if c.is_ascii_alphabetic() {
                result.push(c as u32);
                rest = &rest[1..];
            } else {
                return Err(format!("`{c}` is no letter of an equation"));
            }
        }
        match rank {
            Some(rank) if rank != result.len() => Err(format!("`{term}` does not name {rank} dimensions")),
            _ => Ok(result),
        }
    };
    let inputs: Vec<Vec<u32>> = terms
        .iter()
        .zip(ranks)
        .map(|(t, &r)| parse(t, Some(r)))
        .collect::<Result<_, _>>()?;
    let output = match right {
        Some(right) => parse(&right, None)?,
        None => {
            // All letters that occur once, in alphabetical order, behind those of the dots.
            let all: Vec<u32> = inputs.iter().flatten().copied().collect();
            let mut once: Vec<u32> = all
                .iter()
                .copied()
                .filter(|l| *l < 0x11_0000 && all.iter().filter(|o| *o == l).count() == 1)
                .collect();
            once.sort_unstable();
            open(most).chain(once).collect()
        }
    };
    Ok((inputs, output))
}

/// A value whose axes have letters.
struct Lettered {
    value: Value,
    letters: Vec<u32>,
}

/// The axes in this order; letters that the value has not become axes of size 1.
fn arranged(call: &mut Call, x: &Lettered, order: &[u32]) -> Value {
    let graph = call.graph();
    let dims = graph.shape(x.value).to_vec();
    let kept: Vec<usize> = order
        .iter()
        .filter_map(|l| x.letters.iter().position(|o| o == l))
        .collect();
    let permuted: Value = match kept.iter().enumerate().all(|(i, &k)| i == k) {
        true => x.value,
        false => {
            let axes: Vec<i32> = kept.iter().map(|&k| k as i32).collect();
            graph.permute(x.value, &axes).into()
        }
    };
    let spread: Vec<usize> = order
        .iter()
        .map(|l| {
            x.letters
                .iter()
                .position(|o| o == l)
                .map_or(1, |i| dims.get(i).copied().unwrap_or(1))
        })
        .collect();
    match graph.shape(permuted) == spread.as_slice() {
        true => permuted,
        false => graph.reshape(permuted, &spread).into(),
    }
}

/// Sums over the letters that nothing else needs.
fn summed(call: &mut Call, x: Lettered, needed: &[u32]) -> Lettered {
    let axes: Vec<i32> = (0..x.letters.len())
        .filter(|&i| !needed.contains(&x.letters[i]))
        .map(|i| i as i32)
        .collect();
    if axes.is_empty() {
        return x;
    }
    let value = call.graph().sum(x.value, &axes, false).into();
    let letters = x.letters.into_iter().filter(|l| needed.contains(l)).collect();
    Lettered { value, letters }
}

/// Contracts two operands: letters of both that the result needs are batches, those that it does not are summed over.
fn contract(call: &mut Call, a: Lettered, b: Lettered, needed: &[u32]) -> Result<Lettered, String> {
    let shared: Vec<u32> = a.letters.iter().copied().filter(|l| b.letters.contains(l)).collect();
    let (batch, inner): (Vec<u32>, Vec<u32>) = shared.iter().copied().partition(|l| needed.contains(l));
    let rows: Vec<u32> = a.letters.iter().copied().filter(|l| !shared.contains(l)).collect();
    let columns: Vec<u32> = b.letters.iter().copied().filter(|l| !shared.contains(l)).collect();
    let left = arranged(call, &a, &[batch.as_slice(), &rows, &inner].concat());
    let right = arranged(call, &b, &[batch.as_slice(), &inner, &columns].concat());
    let letters = [batch.as_slice(), &rows, &columns].concat();
    let (l, r) = (call.graph().shape(left).to_vec(), call.graph().shape(right).to_vec());
    // What does not fit has been reported, and gives no shape.
    if l.len() != batch.len() + rows.len() + inner.len() || r.len() != batch.len() + inner.len() + columns.len() {
        return Err(format!("operands {} do not fit the equation", call.types()));
    }
    let (nb, nr, ni) = (batch.len(), rows.len(), inner.len());
    let product_of = |dims: &[usize]| dims.iter().product::<usize>();
    let (m, k) = (product_of(&l[nb..nb + nr]), product_of(&l[nb + nr..]));
    let n = product_of(&r[nb + ni..]);
    if product_of(&r[nb..nb + ni]) != k {
        return Err(format!("operands {} do not fit the equation", call.types()));
    }
    let graph = call.graph();
    let left = graph.reshape(left, &[&l[..nb], &[m, k]].concat());
    let right = graph.reshape(right, &[&r[..nb], &[k, n]].concat());
    let y = graph.matmul(left, right);
    let head = graph.shape(y).get(..nb).unwrap_or(&[]).to_vec();
    let dims = [head.as_slice(), &l[nb..nb + nr], &r[nb + ni..]].concat();
    let value = graph.reshape(y, &dims).into();
    Ok(Lettered { value, letters })
}

/// What an operand has where all axes of a letter have the same index.
fn diagonal(call: &mut Call, mut x: Lettered) -> Result<Lettered, String> {
    let pair = |letters: &[u32]| {
        let second = (0..letters.len()).find(|&i| letters[..i].contains(&letters[i]))?;
        let first = letters.iter().position(|l| *l == letters[second])?;
        Some((first, second))
    };
    while let Some((first, second)) = pair(&x.letters) {
        let graph = call.graph();
        let dims = graph.shape(x.value).to_vec();
        let size = dims.get(first).copied().unwrap_or(0);
        if dims.get(second) != Some(&size) || size == 0 || size >= 1 << 16 {
            return Err(format!("an operand of {dims:?} has no diagonal"));
        }
        let rest: Vec<usize> = (0..dims.len()).filter(|&i| i != first && i != second).collect();
        let order: Vec<i32> = [first, second].iter().chain(&rest).map(|&i| i as i32).collect();
        let moved = graph.permute(x.value, &order);
        let others: Vec<usize> = rest.iter().map(|&i| dims[i]).collect();
        let flat = graph.reshape(moved, &[&[size * size], others.as_slice()].concat());
        let at = (0..size).map(|i| (i * (size + 1)) as u32).collect();
        let at = graph.constant_u32(at, &[size]);
        x.value = graph.gather_axis(flat, at, 0).into();
        let letters = rest.iter().map(|&i| x.letters[i]);
        x.letters = std::iter::once(x.letters[first]).chain(letters).collect();
    }
    Ok(x)
}

fn einsum(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let ranks: Vec<usize> = (0..call.arity())
        .map(|i| call.dims(i).map(|d| d.len()))
        .collect::<Result<_, _>>()?;
    let (inputs, output) = letters(&call.string("equation", "")?, &ranks)?;
    let repeated = |list: &[u32]| list.iter().enumerate().any(|(i, l)| list[..i].contains(l));
    if repeated(&output) {
        return Err("the result names a letter twice".into());
    }
    let mut operands = Vec::new();
    for (i, letters) in inputs.iter().enumerate() {
        let value = call.value(i)?;
        let letters = letters.clone();
        operands.push(diagonal(call, Lettered { value, letters })?);
    }
    let mut operands = operands.into_iter();
    let mut result = operands.next().ok_or("it has no operands")?;
    let mut rest: Vec<Lettered> = operands.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let later = |own: &[u32]| -> Vec<u32> {
            let all = rest.iter().flat_map(|r| &r.letters).chain(&output).chain(own);
            all.copied().collect()
        };
        let result_needs = later(&next.letters);
        let next_needs = later(&result.letters);
        let needed = later(&[]);
        result = summed(call, result, &result_needs);
        let next = summed(call, next, &next_needs);
        result = contract(call, result, next, &needed)?;
    }
    let result = summed(call, result, &output);
    if output.iter().any(|l| !result.letters.contains(l)) {
        return Err("the result names a letter that no operand has".into());
    }
    let y = arranged(call, &result, &output);
    call.one(y, element)
}

/// Determinant of a small matrix, by Laplace's expansion along the first row.
fn det(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let [.., rows, columns] = dims.as_slice() else {
        return Err(format!("{dims:?} is no matrix"));
    };
    if rows != columns || *rows == 0 || *rows > 8 {
        return Err(format!("a matrix of {rows} x {columns} is not supported"));
    }
    let n = *rows;
    let x = call.value(0)?;
    let graph = call.graph();
    let rank = dims.len() as i32;
    let mut entries = vec![vec![x; n]; n];
    for (i, row) in entries.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            let line = graph.slice_axis(x, rank - 2, i, i + 1);
            let one = graph.slice_axis(line, rank - 1, j, j + 1);
            *entry = graph.reshape(one, &dims[..dims.len() - 2]).into();
        }
    }
    // Minors of the last rows by the set of their columns.
    let mut minors = vec![None; 1 << n];
    for set in 1usize..1 << n {
        let row = n - set.count_ones() as usize;
        let mut sum: Option<Value> = None;
        for (order, j) in (0..n).filter(|j| set & 1 << j != 0).enumerate() {
            let term: Value = match minors[set & !(1 << j)] {
                None => entries[row][j],
                Some(minor) => graph.mul(entries[row][j], minor).into(),
            };
            sum = Some(match (sum, order % 2) {
                (None, _) => term,
                (Some(sum), 0) => graph.add(sum, term).into(),
                (Some(sum), _) => graph.sub(sum, term).into(),
            });
        }
        minors[set] = sum;
    }
    let y = minors[(1 << n) - 1].ok_or("a matrix without rows")?;
    call.one(y, element)
}
