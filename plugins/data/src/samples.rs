//! Sample calls of a plugin's operator for tests: all combinations of its attributes, random sizes
//! and sizes at which conditions change, and some calls for which it has a kernel.

use meganeura_core::attrs::{Attr, Attrs};
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes as Dice};
use meganeura_core::reference::{Extent, extent};
use meganeura_core::{DType, TensorType};

use crate::definition::{Attribute, Element, Values};
use crate::operator::DataOp;
use crate::size::Sizes;

/// Minimum number of calls to find, in total and with a kernel.
const WANTED: usize = 8;
/// Maximum number of attribute combinations to test.
const MAX_COMBINATIONS: usize = 24;
/// Maximum number of attempts at random sizes for a call.
const TRIES: usize = 60;
/// Maximum size of a dimension. It exceeds what one workgroup, or one iteration of its loops, usually processes.
const MANY: usize = 6000;
/// Maximum magnitude of large test numbers. Their exponentials, and the squares of these, are usually finite in `f32`.
const LARGE: f64 = 80.0;
/// Maximum number of elements of an operand.
const MAX_OPERAND: usize = 1 << 16;
/// Maximum number of elements of an operand with distinct numbers: they are 0.01 apart, so more would exceed the range
/// of `f32` exponentials, and a softmax would make some equal.
const MAX_DISTINCT: usize = 6000;
/// Maximum size taken from conditions.
const MAX_HINT: i64 = 4096;
/// Maximum cost of evaluating a call's decomposition: all calls are evaluated whenever a device
/// tests the kernel.
const MAX_EXTENT: Extent = Extent {
    elements: 1 << 21,
    work: 1 << 24,
};

impl DataOp {
    /// Returns calls for tests: some small ones, and some with sizes of a tile and more.
    ///
    /// # Errors
    /// Reason why there are none.
    pub(crate) fn calls(&self, dice: &mut Dice) -> Result<Vec<Sample>, String> {
        let combinations = combinations(&self.definition.attributes, dice);
        let mut samples = Vec::new();
        let mut reason = String::new();
        for number in 0..combinations.len().max(WANTED) {
            let attrs = &combinations[number % combinations.len()];
            match self.call(dice, attrs, number, false) {
                Ok(sample) => samples.push(sample),
                Err(e) => reason = e,
            }
        }
        if samples.is_empty() {
            return Err(format!("no shapes were found that the operator accepts: {reason}"));
        }
        // The conditions of the kernel may hold only for few sizes.
        let with_kernel = samples.iter().filter(|s| self.has_kernel(s)).count();
        for number in with_kernel..WANTED {
            let attrs = &combinations[number % combinations.len()];
            if let Ok(sample) = self.call(dice, attrs, number, true) {
                samples.push(sample);
            }
        }
        Ok(samples)
    }

    /// Returns `true` if the kernel's own conditions hold for a call.
    fn has_kernel(&self, sample: &Sample) -> bool {
        let bound = sample
            .input_types()
            .and_then(|types| self.definition.bind(&sample.attrs, &types));
        bound.is_ok_and(|bound| bound.sizes.check(&self.definition.kernel_conditions).is_ok())
    }

    /// Returns a call with these attributes. If `for_kernel`, the kernel's conditions hold for it.
    fn call(&self, dice: &mut Dice, attrs: &Attrs, number: usize, for_kernel: bool) -> Result<Sample, String> {
        let mut reason = String::new();
        for attempt in 0..TRIES {
            let most = [3, 70, 12, MANY][(number + attempt) % 4];
            let reach = [2.0, LARGE][number / 2 % 2];
            match self.sample(dice, attrs, most, reach) {
                Ok(sample) if for_kernel && !self.has_kernel(&sample) => {}
                Ok(sample) => return Ok(sample),
                Err(e) => reason = e,
            }
        }
        Err(reason)
    }

    /// Returns a call with these attributes, random sizes up to `most`, and random numbers up to `reach`.
    ///
    /// # Errors
    /// Reason why the chosen sizes have no call.
    fn sample(&self, dice: &mut Dice, attrs: &Attrs, most: usize, reach: f64) -> Result<Sample, String> {
        let sizes = self.sizes(dice, attrs, most);
        let mut inputs = Vec::new();
        for (tensor, values) in self.definition.inputs.iter().zip(&self.definition.values) {
            let shape = tensor.shape.shape(&sizes)?;
            let dtype = match tensor.element {
                Element::Float => DType::F32,
                Element::Exactly(dtype) => dtype,
            };
            let fill = match values {
                Values::Any => Fill::Range(-reach, reach),
                Values::Positive => Fill::Range(0.1 * reach, reach),
                Values::Distinct => Fill::Distinct,
                Values::Below(bound) => {
                    let bound = u32::try_from(sizes.size(bound)?).map_err(|_| "a bound is too large")?;
                    Fill::Below(bound.max(1))
                }
            };
            inputs.push(SampleInput::filled(dtype, &shape, fill));
        }
        let mut sample = Sample::new("", inputs, attrs.clone());
        let types = sample.input_types()?;
        let most = |values: &Values| match values {
            Values::Distinct => MAX_DISTINCT,
            _ => MAX_OPERAND,
        };
        let mut operands = types.iter().zip(&self.definition.values);
        if operands.any(|(ty, values)| ty.numel() > most(values)) {
            return Err("its operands are too large to be tried".into());
        }
        self.definition.bind(attrs, &types)?;
        let list: Vec<String> = types.iter().map(ToString::to_string).collect();
        sample.label = if attrs.is_empty() {
            list.join(", ")
        } else {
            format!("{} {{{attrs}}}", list.join(", "))
        };
        self.limit_indices(&mut sample, &types)?;
        self.check_extent(attrs, &types)?;
        Ok(sample)
    }

    /// Returns random sizes for the names in shapes. Some of them are chosen because a condition changes there.
    fn sizes(&self, dice: &mut Dice, attrs: &Attrs, most: usize) -> Sizes {
        let mut sizes = Sizes::default();
        for (name, attr) in attrs.iter() {
            if let Attr::Int(v) = attr {
                sizes.by_name.insert(name.to_string(), *v);
            }
        }
        let is_large = most == MANY;
        let rest = dice.below(3).max(usize::from(is_large));
        sizes.rest = dice.shape(rest, most.min(5));
        if is_large && let Some(first) = sizes.rest.first_mut() {
            *first = MANY - dice.below(MANY / 4);
        }
        let around = |n: i64| [n.saturating_sub(1), n, n.saturating_add(1), n.saturating_mul(2)];
        let hints: Vec<i64> = self.definition.numbers().into_iter().flat_map(around).collect();
        let hints: Vec<i64> = hints.into_iter().filter(|n| (1..=MAX_HINT).contains(n)).collect();
        for name in self.definition.inputs.iter().flat_map(|i| i.shape.names()) {
            if !sizes.by_name.contains_key(name) {
                let size = match !hints.is_empty() && dice.below(2) == 0 {
                    true => hints[dice.below(hints.len())],
                    // Several large sizes would give too many elements, so choose a large one only
                    // sometimes.
                    false if is_large && dice.below(2) == 0 => (MANY - dice.below(MANY / 4)) as i64,
                    false if is_large => dice.dim(12) as i64,
                    false => dice.dim(most) as i64,
                };
                sizes.by_name.insert(name.to_owned(), size);
            }
        }
        sizes
    }

    /// Limits index operands to the indices that exist in the decomposition.
    ///
    /// # Errors
    /// The manifest declares another bound.
    fn limit_indices(&self, sample: &mut Sample, types: &[TensorType]) -> Result<(), String> {
        // An ill-typed call is reported elsewhere.
        let Ok(checked) = self.checked(&sample.attrs, types) else {
            return Ok(());
        };
        for (operand, bound) in checked.indices {
            let tensor = &self.definition.inputs[operand];
            let Fill::Below(given) = sample.inputs[operand].fill else {
                continue;
            };
            match given as usize > bound {
                true if self.definition.has_bound[operand] || bound == 0 => {
                    return Err(format!(
                        "'{}' is declared below {given}, but its decomposition uses it as an index below {bound}",
                        tensor.name
                    ));
                }
                true => sample.inputs[operand].fill = Fill::Below(bound as u32),
                false => {}
            }
        }
        Ok(())
    }

    /// Checks that evaluating a call costs no more than tests allow.
    fn check_extent(&self, attrs: &Attrs, types: &[TensorType]) -> Result<(), String> {
        // An ill-typed call is reported elsewhere.
        let Ok(graph) = self.decomposition(attrs, types) else {
            return Ok(());
        };
        let too_large = |e| format!("its decomposition is too large to be tried: {e}");
        extent(&graph, MAX_EXTENT)
            .map(|_| ())
            .map_err(|e| too_large(e.to_string()))
    }
}

/// Returns combinations of the attribute values in the manifest, beginning with all defaults. If there are too many,
/// returns some that together contain each value.
fn combinations(attributes: &[Attribute], dice: &mut Dice) -> Vec<Attrs> {
    let counts = attributes.iter().map(|a| a.samples.len());
    let all = counts.clone().fold(1, usize::saturating_mul);
    let longest = counts.max().unwrap_or(1);
    let number = all.min(MAX_COMBINATIONS);
    let choose = |number: usize, dice: &mut Dice| {
        let (mut rest, mut attrs) = (number, Attrs::new());
        for attribute in attributes {
            let count = attribute.samples.len();
            let at = match (all <= MAX_COMBINATIONS, number < longest) {
                (true, _) => rest % count,
                (_, true) => number % count,
                _ => dice.below(count),
            };
            rest /= count;
            attrs = attrs.with(attribute.name, attribute.samples[at].clone());
        }
        attrs
    };
    (0..number).map(|number| choose(number, dice)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use meganeura_core::attrs::AttrKind;

    use super::*;

    fn attributes(counts: &[i64]) -> Vec<Attribute> {
        let attribute = |(name, &count): (&'static str, &i64)| Attribute {
            name,
            kind: AttrKind::Int,
            samples: (0..count).map(Attr::Int).collect(),
        };
        ["a", "b", "c", "d"].into_iter().zip(counts).map(attribute).collect()
    }

    #[test]
    fn attributes_are_combined() {
        let all = combinations(&attributes(&[2, 3, 2]), &mut Dice::new(1));
        let different: HashSet<&Attrs> = all.iter().collect();
        assert_eq!((all.len(), different.len()), (12, 12));
        assert_eq!(combinations(&[], &mut Dice::new(1)).len(), 1);

        let many = attributes(&[17, 5, 4, 3]);
        let some = combinations(&many, &mut Dice::new(1));
        assert_eq!(some.len(), MAX_COMBINATIONS);
        for attribute in &many {
            for value in &attribute.samples {
                let has = |attrs: &Attrs| attrs.get(attribute.name) == Some(value);
                assert!(some.iter().any(has), "{} = {value}", attribute.name);
            }
        }
        let in_step = |attrs: &&Attrs| attrs.int("b") == attrs.int("c");
        assert!(some.iter().filter(in_step).count() < some.len() / 2);
    }
}
