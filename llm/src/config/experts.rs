//! Configuration of mixtures of experts.

use std::collections::BTreeSet;
use std::path::Path;

use meganeura_core::Result;
use meganeura_nn::models::{MoeConfig, Routing};

use super::layers::set;
use super::raw::Raw;
use super::{MAX_SIZE, unsupported};
use crate::files::damaged;

/// The defaults of a family for missing fields.
struct FamilyDefaults {
    experts: usize,
    experts_per_token: usize,
    hidden: usize,
}

impl FamilyDefaults {
    /// Returns the defaults of a family, or `None` for a family without experts; `intermediate` is the size of a dense
    /// feed-forward layer.
    fn of(family: &str, intermediate: usize) -> Option<Self> {
        let [experts, experts_per_token, hidden] = match family {
            "qwen3_moe" => [128, 8, 768],
            "qwen2_moe" => [60, 4, 1408],
            "olmoe" => [64, 8, intermediate],
            "mixtral" => [8, 2, intermediate],
            "glm4_moe" => [128, 8, 1408],
            "gpt_oss" => [128, 4, intermediate],
            _ => return None,
        };
        Some(FamilyDefaults {
            experts,
            experts_per_token,
            hidden,
        })
    }
}

impl Raw {
    /// Returns the experts of a model of these families; other families have none, whatever their
    /// files contain.
    pub(super) fn moe(&self, family: &str, path: &Path) -> Result<Option<MoeConfig>> {
        let Some(usual) = FamilyDefaults::of(family, self.intermediate_size) else {
            return Ok(None);
        };
        if self.clip_qkv.is_some() {
            let what = "queries, keys and values that are clipped (clip_qkv)";
            return Err(unsupported(path, what.into()));
        }
        const SHARED: usize = 5632;
        let is_qwen = matches!(family, "qwen2_moe" | "qwen3_moe");
        let is_glm = family == "glm4_moe";
        if is_glm && (self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1)) != (1, 1) {
            return Err(unsupported(path, "groups of experts (n_group)".into()));
        }
        let own = |size: Option<usize>| size.filter(|_| is_qwen || is_glm);
        let dense: BTreeSet<usize> = self.mlp_only_layers.iter().flatten().copied().collect();
        let step = own(self.decoder_sparse_step).unwrap_or(1);
        if step == 0 {
            return Err(damaged(path, "decoder_sparse_step is 0"));
        }
        let dense_layers = if is_glm {
            let first = self.first_k_dense_replace.unwrap_or(1);
            set(self.num_hidden_layers, "first_k_dense_replace", path, |layer| {
                layer < first
            })?
        } else if !is_qwen {
            Default::default()
        } else {
            set(
                self.num_hidden_layers,
                "mlp_only_layers, decoder_sparse_step",
                path,
                |layer| dense.contains(&layer) || !(layer + 1).is_multiple_of(step),
            )?
        };
        let hidden = own(self.moe_intermediate_size).unwrap_or(usual.hidden);
        let experts = self.num_experts.or(self.num_local_experts);
        let moe = MoeConfig {
            experts: experts
                .or(self.n_routed_experts.filter(|_| is_glm))
                .unwrap_or(usual.experts),
            experts_per_token: self.num_experts_per_tok.unwrap_or(usual.experts_per_token),
            hidden,
            normalize: match family {
                // The softmax of the chosen experts is the softmax of all, divided by the sum of the chosen ones.
                "mixtral" | "gpt_oss" => true,
                _ => self.norm_topk_prob.unwrap_or(is_glm),
            },
            routing: if is_glm { Routing::Sigmoid } else { Routing::Softmax },
            shared_hidden: match family {
                "qwen2_moe" => Some(self.shared_expert_intermediate_size.unwrap_or(SHARED)),
                "glm4_moe" => Some(hidden.saturating_mul(self.n_shared_experts.unwrap_or(1))),
                _ => None,
            },
            biases: family == "gpt_oss",
            dense_layers,
        };
        for (name, size) in [
            ("num_experts", moe.experts),
            ("num_experts_per_tok", moe.experts_per_token),
            ("moe_intermediate_size", moe.hidden),
            ("shared_expert_intermediate_size", moe.shared_hidden.unwrap_or(1)),
        ] {
            if !(1..=MAX_SIZE).contains(&size) {
                let message = format!("{name} is {size}, and has to be from 1 to {MAX_SIZE}");
                return Err(damaged(path, message));
            }
        }
        Ok(Some(moe))
    }
}
