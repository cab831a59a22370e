//! Compact serialization of a plan's lists: data that many entries share is written only with the first of them, and
//! later ones refer to it. As layers repeat, most of a plan is written only once, which makes reading several times
//! faster.

use std::collections::HashMap;
use std::hash::Hash;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{BufferRef, Dispatch, Operand};
use crate::shape::TensorType;

/// Maximum bytes of a kernel name that may be repeated, so that a small file cannot become a large
/// plan.
const MAX_NAME: usize = 255;

/// The first index at which a key occurs.
struct FirstIndices<K>(HashMap<K, u32>);

impl<K: Hash + Eq> FirstIndices<K> {
    /// Returns the index of an earlier occurrence of the key; records the index if there is none.
    fn before(&mut self, key: K, index: usize) -> Option<u32> {
        let first = *self.0.entry(key).or_insert(index as u32);
        (first as usize != index).then_some(first)
    }
}

/// A dispatch in a file; `D` and `L` are references when it is written.
#[derive(Serialize, Deserialize)]
enum Entry<D, L> {
    /// A dispatch with all its data.
    Call(D),
    /// A dispatch with the call, attributes and types of an earlier one, but with other buffers.
    Like {
        dispatch: u32,
        inputs: Vec<BufferRef>,
        outputs: Vec<BufferRef>,
        level: u32,
        label: L,
        source: Option<u32>,
        use_coop: bool,
        // Older files lack this field.
        #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
        variant: Option<L>,
    },
}

fn buffers(operands: &[Operand]) -> Vec<BufferRef> {
    operands.iter().map(|o| o.buffer).collect()
}

fn types(operands: &[Operand]) -> Vec<&TensorType> {
    operands.iter().map(|o| &o.ty).collect()
}

/// Serialization of the list [`super::ExecutionPlan::dispatches`].
pub(super) mod dispatches {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(list: &[Dispatch], serializer: S) -> Result<S::Ok, S::Error> {
        let mut firsts = FirstIndices(HashMap::new());
        let entries = list.iter().enumerate().map(|(i, d)| {
            let call = (&d.kernel, &d.attrs, types(&d.inputs), types(&d.outputs));
            let long = d.kernel.name.len() > MAX_NAME;
            match firsts.before(call, i).filter(|_| !long) {
                None => Entry::Call(d),
                Some(dispatch) => Entry::Like {
                    dispatch,
                    inputs: buffers(&d.inputs),
                    outputs: buffers(&d.outputs),
                    level: d.level,
                    label: d.label.as_str(),
                    source: d.source,
                    use_coop: d.use_coop,
                    variant: d.variant.as_deref(),
                },
            }
        });
        serializer.collect_seq(entries)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Dispatch>, D::Error> {
        let entries = Vec::<Entry<Dispatch, String>>::deserialize(deserializer)?;
        let mut list: Vec<Dispatch> = Vec::with_capacity(entries.len());
        for entry in entries {
            let dispatch = match entry {
                Entry::Call(dispatch) => dispatch,
                Entry::Like {
                    dispatch,
                    inputs,
                    outputs,
                    level,
                    label,
                    source,
                    use_coop,
                    variant,
                } => {
                    let earlier = list.get(dispatch as usize);
                    let earlier = earlier.filter(|d| d.kernel.name.len() <= MAX_NAME);
                    let earlier = earlier.ok_or_else(|| {
                        D::Error::custom(format!(
                            "'{label}' refers to dispatch {dispatch}, which is not an earlier \
                            dispatch"
                        ))
                    })?;
                    let operands = |own: &[Operand], buffers: Vec<BufferRef>| -> Option<Vec<Operand>> {
                        let same = own.len() == buffers.len();
                        let pairs = own.iter().zip(buffers);
                        same.then(|| {
                            pairs
                                .map(|(o, buffer)| Operand {
                                    buffer,
                                    ty: o.ty.clone(),
                                })
                                .collect()
                        })
                    };
                    let both = operands(&earlier.inputs, inputs).zip(operands(&earlier.outputs, outputs));
                    let (inputs, outputs) = both.ok_or_else(|| {
                        D::Error::custom(format!("'{label}' has more or fewer operands than dispatch {dispatch}"))
                    })?;
                    Dispatch {
                        kernel: earlier.kernel.clone(),
                        attrs: earlier.attrs.clone(),
                        inputs,
                        outputs,
                        level,
                        label,
                        source,
                        use_coop,
                        variant,
                    }
                }
            };
            list.push(dispatch);
        }
        Ok(list)
    }
}

/// The type of a buffer in a file.
#[derive(Serialize, Deserialize)]
enum TypeEntry<T> {
    /// A type.
    Type(T),
    /// The same type as that of an earlier buffer, by its index.
    Like(u32),
}

/// Serialization of the list [`super::ExecutionPlan::buffer_types`].
pub(super) mod buffer_types {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(list: &[TensorType], serializer: S) -> Result<S::Ok, S::Error> {
        let mut firsts = FirstIndices(HashMap::new());
        let entries = list.iter().enumerate().map(|(i, ty)| match firsts.before(ty, i) {
            None => TypeEntry::Type(ty),
            Some(buffer) => TypeEntry::Like(buffer),
        });
        serializer.collect_seq(entries)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<TensorType>, D::Error> {
        let entries = Vec::<TypeEntry<TensorType>>::deserialize(deserializer)?;
        let mut list: Vec<TensorType> = Vec::with_capacity(entries.len());
        for entry in entries {
            let ty = match entry {
                TypeEntry::Type(ty) => ty,
                TypeEntry::Like(buffer) => {
                    let earlier = list.get(buffer as usize).cloned();
                    earlier.ok_or_else(|| {
                        D::Error::custom(format!("a type refers to b{buffer}, which is not an earlier buffer"))
                    })?
                }
            };
            list.push(ty);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use crate::Graph;
    use crate::plan::{ExecutionPlan, try_compile};

    /// Returns a plan with four equal calls and two different ones.
    fn plan() -> ExecutionPlan {
        let mut g = Graph::new();
        let mut x = g.input("x", &[2, 3]);
        for _ in 0..4 {
            x = g.softmax(x, 1);
        }
        let y = g.softmax(x, 0);
        let z = g.sum_all(y);
        g.set_outputs(vec![z]);
        try_compile(&g).expect("a plan")
    }

    #[test]
    fn calls_that_repeat_are_written_once_and_come_back() {
        let plan = plan();
        let text = ron::to_string(&plan).expect("text");
        let dispatches = &text[text.find("dispatches:").expect("a list")..];
        assert_eq!(dispatches.matches("Like(dispatch:0,").count(), 3, "{text}");
        assert_eq!(ron::from_str::<ExecutionPlan>(&text).expect("reads"), plan);
    }

    #[test]
    fn variants_come_back_and_are_not_shared_by_calls_that_repeat() {
        let mut plan = plan();
        let without = ron::to_string(&plan).expect("text");
        assert!(!without.contains("variant"), "{without}");
        plan.dispatches[0].variant = Some("tiles".into());
        plan.dispatches[2].variant = Some("rows".into());
        let text = ron::to_string(&plan).expect("text");
        let back: ExecutionPlan = ron::from_str(&text).expect("reads");
        assert_eq!(back, plan);
        let variants = back.dispatches[..4].iter().map(|d| d.variant.as_deref());
        assert_eq!(
            variants.collect::<Vec<_>>(),
            [Some("tiles"), None, Some("rows"), None],
            "{text}"
        );
        back.verify().expect("a plan that holds together");
    }

    #[test]
    fn nothing_is_like_what_does_not_come_before_it() {
        let text = ron::to_string(&plan()).expect("text");
        for (change, why) in [
            (
                text.replace("Like(dispatch:0,", "Like(dispatch:1000000,"),
                "which is not an earlier dispatch",
            ),
            (
                text.replacen("Like(dispatch:0,", "Like(dispatch:3,", 1),
                "which is not an earlier dispatch",
            ),
            (
                text.replacen("inputs:[1],", "inputs:[1,1],", 1),
                "more or fewer operands",
            ),
            (
                text.replacen("Like(0)", "Like(77)", 1),
                "which is not an earlier buffer",
            ),
        ] {
            assert_ne!(change, text, "{why}");
            let error = ron::from_str::<ExecutionPlan>(&change).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
