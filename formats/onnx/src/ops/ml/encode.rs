//! Encoders of categories.

use std::collections::HashMap;
use std::sync::Arc;

use meganeura_core::DType;
use meganeura_core::graph::Value;

use super::{Built, floats, ints, ml};
use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::ops::{OnnxOp, cast, limits};
use crate::proto::TensorProto;
use crate::read::{STRING, StringList, read_strings};
use crate::tensor::Tensor;

pub(in crate::ops) const OPS: &[OnnxOp] = &[
    ml("LabelEncoder", label_encoder)
        .taking_strings()
        .partly("strings as inputs of the model"),
    ml("OneHotEncoder", one_hot_encoder)
        .taking_strings()
        .partly("strings as inputs of the model"),
];

/// Returns one column for each category: 1 where the element of `X [...]` is the category, as `f32 [..., categories]`.
fn one_hot_encoder(call: &mut Call) -> Built {
    let (dims, element) = (call.dims(0)?, call.element(0)?);
    let numbers = ints(call, "cats_int64s")?;
    let texts = call.attributes().strings("cats_strings")?.unwrap_or_default();
    let is_strict = call.int("zeros", 1)? == 0;
    let categories: Vec<i64> = match (call.strings(0).cloned(), numbers, texts.as_slice()) {
        (None, [_, ..], []) => numbers.to_vec(),
        // Strings are indices of a list; -1 is no index.
        (Some(strings), [], [_, ..]) => {
            let places = places_of(&strings);
            let place = |text: &&str| places.get(*text).copied().unwrap_or(-1);
            texts.iter().map(place).collect()
        }
        (strings, ..) => {
            let (kind, name) = match strings {
                Some(_) => ("strings", "cats_strings"),
                None => ("numbers", "cats_int64s"),
            };
            return Err(format!(
                "expected categories for {kind} in {name} only, found {} in cats_int64s and {} in cats_strings",
                numbers.len(),
                texts.len()
            ));
        }
    };
    let count = limits::elements(&[categories.len()], "categories")?;
    // Of equal categories, ONNX Runtime uses the last one.
    let mut last = HashMap::new();
    for (i, category) in categories.iter().enumerate() {
        last.insert(*category, i);
    }
    let has_duplicates = last.len() < count;
    let is_used = |(i, category): (usize, &i64)| f32::from(u8::from(last.get(category) == Some(&i)));
    let used: Vec<f32> = categories.iter().enumerate().map(is_used).collect();
    let categories = Tensor::integers(ElementType::I64, &[count], categories).to_constant()?;
    let x = call.value(0)?;
    let x = cast::convert(call, x, element, ElementType::I32);
    let graph = call.graph();
    let x = graph.reshape(x, &[dims.as_slice(), &[1]].concat());
    let categories = graph.constant_data(categories, &[count]);
    let hit = graph.equal(x, categories);
    let mut y = graph.cast(hit, DType::F32);
    if has_duplicates {
        let used = graph.constant(used, &[count]);
        y = graph.mul(y, used);
    }
    if is_strict {
        let found = graph.max(hit, &[-1], false);
        let unknown = graph.logical_not(found);
        call.guard_category(unknown, y.into());
    }
    call.one(y, ElementType::F32)
}

fn places_of(strings: &[String]) -> HashMap<&str, i64> {
    let places = strings.iter().enumerate();
    places.map(|(i, text)| (text.as_str(), i as i64)).collect()
}

/// Keys or values of a map.
enum Entries {
    Numbers(Tensor),
    Texts(Vec<String>),
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Entries::Numbers(tensor) => tensor.len(),
            Entries::Texts(texts) => texts.len(),
        }
    }

    /// Reads the attributes `PREFIX_int64s`, `PREFIX_floats`, `PREFIX_strings` and `PREFIX_tensor`, of which exactly one must
    /// exist.
    fn read(call: &Call, prefix: &str) -> Result<Self, String> {
        let mut found = Vec::new();
        let numbers = ints(call, &format!("{prefix}_int64s"))?;
        if !numbers.is_empty() {
            found.push(Entries::Numbers(Tensor::i64(&[numbers.len()], numbers.to_vec())));
        }
        let numbers = floats(call, &format!("{prefix}_floats"))?;
        if !numbers.is_empty() {
            found.push(Entries::Numbers(Tensor::f32(&[numbers.len()], numbers.to_vec())));
        }
        let texts = call.attributes().strings(&format!("{prefix}_strings"))?;
        let texts = texts.unwrap_or_default();
        if !texts.is_empty() {
            found.push(Entries::Texts(texts.into_iter().map(str::to_owned).collect()));
        }
        if let Some(proto) = call.attributes().tensor(&format!("{prefix}_tensor"))? {
            found.push(Entries::of_tensor(call, proto)?);
        }
        let count = found.len();
        match found.pop() {
            Some(only) if count == 1 => Ok(only),
            _ => Err(format!(
                "expected one of {prefix}_int64s, {prefix}_floats, {prefix}_strings and {prefix}_tensor, found {count}"
            )),
        }
    }

    fn of_tensor(call: &Call, proto: &TensorProto) -> Result<Self, String> {
        if proto.data_type != STRING {
            let tensor = call.read(proto)?;
            let count = tensor.len();
            return Ok(Entries::Numbers(tensor.reshaped(&[count])));
        }
        let (places, strings) = read_strings(proto).map_err(|e| e.message().to_owned())?;
        let text = |place: i64| usize::try_from(place).ok().and_then(|i| strings.get(i)).cloned();
        Ok(Entries::Texts(places.to_i64().into_iter().filter_map(text).collect()))
    }
}

/// Returns the values of a map with the default at the end.
fn values_and_default(call: &Call, values: Entries) -> Result<Entries, String> {
    let default = match call.attributes().tensor("default_tensor")? {
        Some(proto) => Some(Entries::of_tensor(call, proto)?),
        None => None,
    };
    if let Some(default) = &default
        && default.len() != 1
    {
        return Err(format!("default_tensor: expected 1 element, found {}", default.len()));
    }
    match (values, default) {
        (Entries::Texts(mut texts), None) => {
            texts.push(call.string("default_string", "_Unused")?.into_owned());
            Ok(Entries::Texts(texts))
        }
        (Entries::Texts(mut texts), Some(Entries::Texts(default))) => {
            texts.extend(default);
            Ok(Entries::Texts(texts))
        }
        (Entries::Numbers(values), default) => {
            let element = values.element();
            let default = match default {
                Some(Entries::Numbers(default)) if default.element() == element => default,
                Some(_) => return Err(format!("default_tensor: expected {element}, found another type")),
                None if element.is_float() => {
                    Tensor::floats(element, &[1], vec![call.float("default_float", -0.0)?.into()])
                }
                None => Tensor::integers(element, &[1], vec![call.int("default_int64", -1)?]),
            };
            let count = values.len() + 1;
            Ok(Entries::Numbers(if element.is_float() {
                Tensor::floats(element, &[count], [values.to_f64(), default.to_f64()].concat())
            } else {
                Tensor::integers(element, &[count], [values.to_i64(), default.to_i64()].concat())
            }))
        }
        (Entries::Texts(_), Some(_)) => Err("default_tensor: expected string, found numbers".into()),
    }
}

/// Maps each element of `X` to the value of its key, or to the default, in the shape of `X`. Of equal keys, the first one
/// counts.
fn label_encoder(call: &mut Call) -> Built {
    let (keys, values) = if call.opset < 2 {
        first_version(call)?
    } else {
        (Entries::read(call, "keys")?, Entries::read(call, "values")?)
    };
    if keys.len() != values.len() {
        let (expected, found) = (keys.len(), values.len());
        return Err(format!(
            "values: expected {expected} elements (the keys), found {found}"
        ));
    }
    let default = keys.len();
    limits::elements(&[default + 1], "keys")?;
    let values = values_and_default(call, values)?;
    let element = call.element(0)?;
    let at = match (call.strings(0).cloned(), keys) {
        (Some(strings), Entries::Texts(keys)) => place_of_strings(call, &strings, &keys)?,
        (None, Entries::Numbers(keys)) if keys.element().is_float() == element.is_float() => {
            search(call, &keys, element)?
        }
        (_, keys) => {
            let kind = match keys {
                Entries::Numbers(keys) => keys.element(),
                Entries::Texts(_) => ElementType::Text,
            };
            return Err(format!(
                "expected elements of the type of the keys ({kind}), found {element}"
            ));
        }
    };
    select(call, at, values)
}

/// Returns the keys and values of version 1, which maps strings to their indices, or indices to strings.
fn first_version(call: &Call) -> Result<(Entries, Entries), String> {
    let texts = call.attributes().strings("classes_strings")?.unwrap_or_default();
    if texts.is_empty() {
        return Err("classes_strings: expected at least one string, found none".into());
    }
    let places = Entries::Numbers(Tensor::i64(&[texts.len()], (0..texts.len() as i64).collect()));
    let texts = Entries::Texts(texts.into_iter().map(str::to_owned).collect());
    Ok(if call.strings(0).is_some() {
        (texts, places)
    } else {
        (places, texts)
    })
}

/// Returns the index of the key (`u32`) for each string, or the number of keys.
fn place_of_strings(call: &mut Call, strings: &[String], keys: &[String]) -> Result<Value, String> {
    let mut places = HashMap::new();
    for (i, key) in keys.iter().enumerate() {
        places.entry(key.as_str()).or_insert(i);
    }
    let of_string = |text: &String| places.get(text.as_str()).copied().unwrap_or(keys.len()) as u32;
    let table: Vec<u32> = strings.iter().map(of_string).collect();
    let x = call.value(0)?;
    let graph = call.graph();
    let at = graph.cast(x, DType::U32);
    let table = graph.constant_u32(table, &[strings.len()]);
    Ok(graph.gather(table, at).into())
}

/// Returns the index of the key (`u32`) for each number of operand 0, or the number of keys. The sorted keys are searched
/// by bisection, with one step for each bit of their number.
fn search(call: &mut Call, keys: &Tensor, element: ElementType) -> Result<Value, String> {
    let default = keys.len() as u32;
    let dims = call.dims(0)?;
    let is_float = element.is_float();
    let nan_place = keys.to_f64().iter().position(|key| key.is_nan());
    // Graphs compare numbers of 32 bits: an integer beyond them equals no element.
    let range = element.graph_range();
    let mut sorted: Vec<(f64, u32)> = Vec::with_capacity(keys.len());
    for (i, key) in keys.to_f64().into_iter().enumerate() {
        let fits = range.is_none_or(|(low, high)| key >= low as f64 && key <= high as f64);
        if !key.is_nan() && fits {
            let key = if is_float { f64::from(key as f32) } else { key };
            sorted.push((key, i as u32));
        }
    }
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.dedup_by(|later, first| later.0 == first.0);
    let x = call.value(0)?;
    let x = if is_float { call.as_f32(x) } else { x };
    let graph = call.graph();
    let default_value = graph.scalar_of(DType::U32, default.into());
    let mut at: Value = graph.expand(default_value, &dims).into();
    if let Some(&last) = sorted.last() {
        let count = sorted.len().next_power_of_two();
        // Copies of the last key make the number a power of two. They have its index, so any of them may be found.
        sorted.resize(count, last);
        let numbers: Vec<f64> = sorted.iter().map(|&(key, _)| key).collect();
        let numbers = if is_float {
            Tensor::floats(ElementType::F32, &[count], numbers)
        } else {
            Tensor::integers(element, &[count], numbers.into_iter().map(|v| v as i64).collect())
        };
        let numbers = numbers.to_constant()?;
        let numbers = graph.constant_data(numbers, &[count]);
        let indices = graph.constant_u32(sorted.iter().map(|&(_, i)| i).collect(), &[count]);
        let zero = graph.scalar_of(DType::U32, 0.0);
        let mut place: Value = graph.expand(zero, &dims).into();
        let mut step = count / 2;
        while step > 0 {
            let distance = graph.scalar_of(DType::U32, step as f64);
            let next = graph.add(place, distance);
            let key = graph.gather(numbers, next);
            let is_reached = graph.less_equal(key, x);
            place = graph.select(is_reached, next, place).into();
            step /= 2;
        }
        let key = graph.gather(numbers, place);
        let index = graph.gather(indices, place);
        let is_found = graph.equal(key, x);
        at = graph.select(is_found, index, at).into();
    }
    if let Some(place) = nan_place.filter(|_| is_float) {
        let is_nan = graph.not_equal(x, x);
        let place = graph.scalar_of(DType::U32, place as f64);
        at = graph.select(is_nan, place, at).into();
    }
    Ok(at)
}

/// Returns the values at indices `at` (`u32`).
fn select(call: &mut Call, at: Value, values: Entries) -> Built {
    match values {
        Entries::Numbers(values) => {
            let (element, count) = (values.element(), values.len());
            let table = values.to_constant()?;
            let graph = call.graph();
            let table = graph.constant_data(table, &[count]);
            let y = graph.gather(table, at);
            call.one(y, element)
        }
        Entries::Texts(texts) => {
            let mut list = StringList::default();
            let places: Vec<i64> = texts.iter().map(|text| list.index(text)).collect();
            let table = Tensor::integers(ElementType::Text, &[texts.len()], places).to_constant()?;
            let graph = call.graph();
            let table = graph.constant_data(table, &[texts.len()]);
            let y = graph.gather(table, at);
            let result: Operand = call.result(y, ElementType::Text);
            Ok(vec![result.with_strings(Arc::new(list.strings))])
        }
    }
}
