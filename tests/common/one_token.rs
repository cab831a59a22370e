//! Loads a checkpoint and generates one token, for tests of damaged files.

use std::path::Path;
use std::sync::Arc;

use meganeura_core::Result;
use meganeura_cpu::CpuDevice;
use meganeura_llm::{Checkpoint, Generator, GeneratorOptions, ModelConfig, Request};

/// Loads the checkpoint of a folder or a GGUF file, and generates one token.
pub(crate) fn generate(path: &Path) -> Result<()> {
    let options = GeneratorOptions {
        capacity: Some(4),
        ..GeneratorOptions::default()
    };
    let config = ModelConfig::open(path)?;
    let device = Arc::new(CpuDevice::new(1));
    let mut generator = Generator::on(device, config, Checkpoint::open(path)?, &options)?;
    let request = Request {
        max_tokens: 1,
        ..Request::default()
    };
    generator.generate(&[1, 2], &request).map(|_| ())
}
