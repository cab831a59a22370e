//! Training or inference.

use serde::{Deserialize, Serialize};

/// Mode of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Forward, backward and parameter updates.
    #[default]
    Training,
    /// Forward only, in every operator's inference form.
    Inference,
}
