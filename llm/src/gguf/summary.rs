//! Properties of a model from its header, which also exist for unsupported models.

use std::collections::BTreeMap;

use super::Gguf;

/// Names of `general.file_type`, the storage of most weights, by the numbers of llama.cpp.
const FILE_TYPES: &[(u64, &str)] = &[
    (0, "f32"),
    (1, "f16"),
    (2, "q4_0"),
    (3, "q4_1"),
    (7, "q8_0"),
    (8, "q5_0"),
    (9, "q5_1"),
    (10, "q2_k"),
    (11, "q3_k_s"),
    (12, "q3_k_m"),
    (13, "q3_k_l"),
    (14, "q4_k_s"),
    (15, "q4_k_m"),
    (16, "q5_k_s"),
    (17, "q5_k_m"),
    (18, "q6_k"),
    (19, "iq2_xxs"),
    (20, "iq2_xs"),
    (21, "q2_k_s"),
    (22, "iq3_xs"),
    (23, "iq3_xxs"),
    (24, "iq1_s"),
    (25, "iq4_nl"),
    (26, "iq3_s"),
    (27, "iq3_m"),
    (28, "iq2_s"),
    (29, "iq2_m"),
    (30, "iq4_xs"),
    (31, "iq1_m"),
    (32, "bf16"),
    (36, "tq1_0"),
    (37, "tq2_0"),
    (38, "mxfp4"),
];

/// Names of tensor types, by the numbers of ggml.
const TENSOR_TYPES: &[(u32, &str)] = &[
    (0, "f32"),
    (1, "f16"),
    (2, "q4_0"),
    (3, "q4_1"),
    (6, "q5_0"),
    (7, "q5_1"),
    (8, "q8_0"),
    (10, "q2_k"),
    (11, "q3_k"),
    (12, "q4_k"),
    (13, "q5_k"),
    (14, "q6_k"),
    (16, "iq2_xxs"),
    (17, "iq2_xs"),
    (18, "iq3_xxs"),
    (19, "iq1_s"),
    (20, "iq4_nl"),
    (21, "iq3_s"),
    (22, "iq2_s"),
    (23, "iq4_xs"),
    (29, "iq1_m"),
    (30, "bf16"),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (39, "mxfp4"),
];

impl Gguf {
    /// Returns the number of elements of all tensors of the file.
    pub(crate) fn parameters(&self) -> u64 {
        let counts = self
            .tensors
            .values()
            .map(|info| info.shape.iter().product::<usize>() as u64);
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the maximum positions of the model, if the file contains them.
    pub(crate) fn context(&self) -> Option<usize> {
        let key = self.own("context_length").ok()?;
        usize::try_from(self.count(&key).ok()??).ok()
    }

    /// Returns the name of the storage type of most weights, from the file's metadata or else from its tensors.
    pub(crate) fn stored(&self) -> Option<String> {
        let said = self.count("general.file_type").ok().flatten();
        let named = FILE_TYPES.iter().find(|(number, _)| Some(*number) == said);
        if let Some((_, name)) = named {
            return Some((*name).to_owned());
        }
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for info in self.tensors.values().filter(|info| info.shape.len() > 1) {
            let count = counts.entry(info.stored).or_default();
            *count = count.saturating_add(info.shape.iter().product());
        }
        let (most, _) = counts.into_iter().max_by_key(|&(_, count)| count)?;
        let known = TENSOR_TYPES.iter().find(|(number, _)| *number == most);
        Some(known.map_or_else(|| format!("type {most}"), |(_, name)| (*name).to_owned()))
    }
}
