//! Plans of the sessions of a generator, made once each.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_core::build::{Mode, build_cached, plan_for};
use meganeura_core::rewrite::RewriteConfig;
use meganeura_core::{ExecutionPlan, Result, Session};
use meganeura_nn::models::{LlamaConfig, LogitsOf};

/// What a session computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    /// Tokens of a step.
    pub(super) rows: usize,
    pub(super) logits: LogitsOf,
}

/// A device with plans for it.
pub(super) struct Plans {
    device: Arc<dyn Device>,
    pub(super) rewrite: RewriteConfig,
    folder: Option<PathBuf>,
    made: HashMap<Shape, ExecutionPlan>,
}

impl Plans {
    pub(super) fn new(device: Arc<dyn Device>, folder: Option<PathBuf>) -> Self {
        Plans {
            device,
            rewrite: RewriteConfig::default(),
            folder,
            made: HashMap::new(),
        }
    }

    /// A session with caches of so many rows.
    pub(super) fn session(&mut self, network: &LlamaConfig, shape: Shape, capacity: usize) -> Result<Session> {
        if let Some(plan) = self.made.get(&shape) {
            return Session::on(self.device.clone(), plan.clone());
        }
        let graph = network.decode_graph(&[], shape.rows, capacity, shape.logits);
        let session = match &self.folder {
            Some(folder) => {
                let path = folder.join(format!("decode-{}-of-{capacity}-{:?}.ron", shape.rows, shape.logits));
                let device = self.device.clone();
                build_cached(&graph, device, Mode::Inference, None, &self.rewrite, &path)?.0
            }
            None => {
                let (plan, _) = plan_for(&graph, &self.device, Mode::Inference, None, &self.rewrite)?;
                Session::on(self.device.clone(), plan)?
            }
        };
        self.made.insert(shape, session.plan().clone());
        Ok(session)
    }
}
