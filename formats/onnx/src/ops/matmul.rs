//! Matrix products.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::{OnnxOp, int8, limits, ms, op};
use crate::element::ElementType;
use crate::import::{Call, Operand};

type Built = Result<Vec<Operand>, String>;

/// Maximum number of products of two 8-bit numbers whose sum is exact in `f32`.
const MAX_EXACT_TERMS: usize = (1 << 24) / (255 * 255);

pub(super) const OPS: &[OnnxOp] = &[
    op("Det", 11, det).partly("matrices larger than 8 x 8"),
    op("Einsum", 12, einsum).partly("letters twice in the result"),
    op("Gemm", 1, gemm),
    op("MatMul", 1, matmul),
    op("MatMulInteger", 10, matmul_integer),
    ms("FusedMatMul", fused_matmul),
];

/// Returns `numpy.matmul` of two values: vectors are rows or columns, and leading axes broadcast.
pub(super) fn product(call: &mut Call, a: Value, b: Value) -> Result<Value, String> {
    let graph = call.graph();
    let (a_dims, b_dims) = (graph.shape(a).to_vec(), graph.shape(b).to_vec());
    if a_dims.is_empty() || b_dims.is_empty() {
        return Err("expected a matrix, found a scalar".into());
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
    // The graph has already reported operands that do not fit, and has no shape for them.
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

/// Returns an exact product of integers with magnitudes up to 255. It is computed in `f32`, in parts whose sums are
/// exact.
pub(super) fn integer_product(call: &mut Call, a: Value, b: Value) -> Result<Value, String> {
    let (a, b) = (call.as_f32(a), call.as_f32(b));
    let a_dims = call.graph().shape(a).to_vec();
    let b_dims = call.graph().shape(b).to_vec();
    let terms = a_dims.last().copied().unwrap_or(1);
    if terms <= MAX_EXACT_TERMS {
        let y = product(call, a, b)?;
        return Ok(call.graph().cast(y, DType::I32).into());
    }
    limits::parts(terms.div_ceil(MAX_EXACT_TERMS), "parts of a product of integers")?;
    let (a_axis, b_axis) = (a_dims.len() as i32 - 1, (b_dims.len() as i32 - 2).max(0));
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

/// Maximum number of terms of a product of bytes whose sum fits into `i32`.
const MAX_BYTE_TERMS: usize = i32::MAX as usize / (4 * 255 * 256);

/// Returns the bytes of operand `i`, or the operand if its magnitude fits into a byte.
fn bytes(call: &mut Call, i: usize, x: Value) -> Vec<Value> {
    let is_signed = call.element(i).is_ok_and(ElementType::is_signed);
    match call.range(i) {
        Some((low, high)) if low >= -255 && high <= 255 => vec![call.as_element(x, ElementType::I32)],
        _ => (0..4).map(|byte| call.byte(x, byte, is_signed)).collect(),
    }
}

/// Returns a product of integers with 32 or 64 bits: products of their bytes are exact in `f32`.
fn wide_product(call: &mut Call, a: Value, b: Value, element: ElementType) -> Result<Value, String> {
    let (left, right) = (bytes(call, 0, a), bytes(call, 1, b));
    let is_wide = element.bits() == 64;
    let terms = call.dims(0)?.last().copied().unwrap_or(1);
    if is_wide && terms > MAX_BYTE_TERMS {
        return Err(format!(
            "expected at most {MAX_BYTE_TERMS} terms of products of {element}, found {terms}: their sum may leave the 32 bits \
             of a graph"
        ));
    }
    // Part `s` has the weight 2^(8 s). For 32 bits, parts after the fourth have no effect.
    let places = if is_wide { 7 } else { 4 };
    let mut parts: Vec<Option<Value>> = vec![None; places];
    for (i, a) in left.iter().enumerate() {
        for (j, b) in right.iter().enumerate().take_while(|(j, _)| i + j < places) {
            let product = integer_product(call, *a, *b)?;
            parts[i + j] = Some(match parts[i + j] {
                None => product,
                Some(sum) => call.graph().add(sum, product).into(),
            });
        }
    }
    let parts: Vec<Value> = parts.into_iter().flatten().collect();
    let mut y: Option<Value> = None;
    for part in parts.iter().take(4).rev() {
        let graph = call.graph();
        y = Some(match y {
            None => *part,
            Some(y) => {
                let base = graph.scalar_of(DType::I32, 256.0);
                let y = graph.mul(y, base);
                graph.add(y, *part).into()
            }
        });
    }
    let y = y.ok_or("a product without parts")?;
    let result = call.as_element(y, element);
    if is_wide && parts.len() > 1 {
        let flag = exceeds_32_bits(call, parts, y, element)?;
        call.guard(flag, result, element);
    }
    Ok(result)
}

/// Returns a flag that is raised if `parts[0] + 2^8 parts[1] + ...` differs from `y`, its lower 32 bits.
fn exceeds_32_bits(call: &mut Call, mut parts: Vec<Value>, y: Value, element: ElementType) -> Result<Value, String> {
    let none = call.scalar(ElementType::I32, 0.0);
    let last = *parts.last().ok_or("a product without parts")?;
    let graph = call.graph();
    let nothing = graph.sub(last, last).into();
    parts.resize(8, nothing);
    let digits = call.carried(&parts);
    // The upper bytes of a negative number are 255, and its last digit is -1.
    let (byte, rest) = (
        call.scalar(ElementType::I32, 255.0),
        call.scalar(ElementType::I32, -1.0),
    );
    let graph = call.graph();
    let is_negative = graph.less_than(y, none);
    let (byte, rest): (Value, Value) = if element.is_signed() {
        (
            graph.select(is_negative, byte, none).into(),
            graph.select(is_negative, rest, none).into(),
        )
    } else {
        (none, none)
    };
    let mut flag = graph.not_equal(digits[7], rest);
    for digit in &digits[4..7] {
        let low = call.byte(*digit, 0, false);
        let graph = call.graph();
        let differs = graph.not_equal(low, byte);
        flag = graph.logical_or(flag, differs);
    }
    Ok(flag.into())
}

fn matmul(call: &mut Call) -> Built {
    let element = call.element(0)?;
    if let Some(y) = int8::matmul(call, false)? {
        return call.one(y, element);
    }
    let (a, b) = (call.value(0)?, call.value(1)?);
    let y = if element.is_float() {
        product(call, a, b)?
    } else {
        wide_product(call, a, b, element)?
    };
    call.one(y, element)
}

fn matmul_integer(call: &mut Call) -> Built {
    // Sums beyond 2^24 are rounded, which only a conversion to floats permits.
    let is_exact = call.dims(0)?.last().is_some_and(|&terms| terms <= MAX_EXACT_TERMS);
    if (is_exact || call.is_converted_to_floats())
        && let Some(y) = int8::integer_matmul(call, [0, 2], [1, 3], false)?
    {
        let y = call.graph().cast(y, DType::I32);
        return call.one(y, ElementType::I32);
    }
    let (a, b) = (call.value(0)?, call.value(1)?);
    let (a, b) = (
        call.as_element(a, ElementType::I32),
        call.as_element(b, ElementType::I32),
    );
    let a = match call.optional(2)? {
        None => a,
        Some(zero) => {
            // Zero points for rows become a column.
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

/// Builds `alpha op(A) op(B) + beta C`.
fn gemm(call: &mut Call) -> Built {
    let element = call.element(0)?;
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let (trans_a, trans_b) = (call.int("transA", 0)? != 0, call.int("transB", 0)? != 0);
    if !element.is_float() {
        return Err(format!("{element} is not supported"));
    }
    let of_bytes = if trans_a { None } else { int8::matmul(call, trans_b)? };
    let mut y = match of_bytes {
        Some(y) => y,
        None => float_gemm(call, [trans_a, trans_b])?,
    };
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

fn float_gemm(call: &mut Call, transposed: [bool; 2]) -> Result<Value, String> {
    let (a, b) = (call.value(0)?, call.value(1)?);
    let graph = call.graph();
    let y = match transposed {
        [false, false] => graph.matmul(a, b),
        [true, false] => graph.matmul_at(a, b),
        [false, true] => graph.matmul_bt(a, b),
        [true, true] => {
            let a = graph.transpose(a);
            graph.matmul_bt(a, b)
        }
    };
    Ok(y.into())
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

/// Swaps the last two axes.
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

/// Returns the letters of each operand and of the result of an Einsum equation; `...` is replaced by letters that the
/// equation cannot contain.
fn letters(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<u32>>, Vec<u32>), String> {
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), Some(right.to_owned())),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(format!(
            "the equation has {} operands, found {}",
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
                return Err(format!("`{c}` is not a letter of an equation"));
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
            // All letters that occur once, in alphabetical order, after the letters of the ellipsis.
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

/// An operand of Einsum with a letter for each axis.
struct LetteredValue {
    value: Value,
    letters: Vec<u32>,
}

/// Permutes the axes to this order; missing letters become axes of size 1.
fn arranged(call: &mut Call, x: &LetteredValue, order: &[u32]) -> Value {
    let graph = call.graph();
    let dims = graph.shape(x.value).to_vec();
    let kept: Vec<usize> = order
        .iter()
        .filter_map(|l| x.letters.iter().position(|o| o == l))
        .collect();
    let permuted: Value = if kept.iter().enumerate().all(|(i, &k)| i == k) {
        x.value
    } else {
        let axes: Vec<i32> = kept.iter().map(|&k| k as i32).collect();
        graph.permute(x.value, &axes).into()
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
    if graph.shape(permuted) == spread.as_slice() {
        permuted
    } else {
        graph.reshape(permuted, &spread).into()
    }
}

/// Sums over the letters that are not needed later.
fn summed(call: &mut Call, x: LetteredValue, needed: &[u32]) -> LetteredValue {
    let axes: Vec<i32> = (0..x.letters.len())
        .filter(|&i| !needed.contains(&x.letters[i]))
        .map(|i| i as i32)
        .collect();
    if axes.is_empty() {
        return x;
    }
    let value = call.graph().sum(x.value, &axes, false).into();
    let letters = x.letters.into_iter().filter(|l| needed.contains(l)).collect();
    LetteredValue { value, letters }
}

/// Contracts two operands: common letters that the result needs are batch axes, other common letters are summed over.
fn contract(call: &mut Call, a: LetteredValue, b: LetteredValue, needed: &[u32]) -> Result<LetteredValue, String> {
    let shared: Vec<u32> = a.letters.iter().copied().filter(|l| b.letters.contains(l)).collect();
    let (batch, inner): (Vec<u32>, Vec<u32>) = shared.iter().copied().partition(|l| needed.contains(l));
    let rows: Vec<u32> = a.letters.iter().copied().filter(|l| !shared.contains(l)).collect();
    let columns: Vec<u32> = b.letters.iter().copied().filter(|l| !shared.contains(l)).collect();
    let left = arranged(call, &a, &[batch.as_slice(), &rows, &inner].concat());
    let right = arranged(call, &b, &[batch.as_slice(), &inner, &columns].concat());
    let letters = [batch.as_slice(), &rows, &columns].concat();
    let (l, r) = (call.graph().shape(left).to_vec(), call.graph().shape(right).to_vec());
    // The graph has already reported operands that do not fit, and has no shape for them.
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
    Ok(LetteredValue { value, letters })
}

/// Returns the elements with equal indices along all axes of the same letter (a diagonal), so that each letter has only
/// one axis.
fn diagonal(call: &mut Call, mut x: LetteredValue) -> Result<LetteredValue, String> {
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
        operands.push(diagonal(call, LetteredValue { value, letters })?);
    }
    let mut operands = operands.into_iter();
    let mut result = operands.next().ok_or("it has no operands")?;
    let mut rest: Vec<LetteredValue> = operands.collect();
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

/// Builds the determinant of a small matrix, by Laplace expansion along the first row.
fn det(call: &mut Call) -> Built {
    let dims = call.dims(0)?;
    let element = call.element(0)?;
    let [.., rows, columns] = dims.as_slice() else {
        return Err(format!("expected a matrix, found {dims:?}"));
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
    // Minors of the last rows, indexed by the set of their columns.
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
