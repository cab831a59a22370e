//! Language models: checkpoints, tokenizers, generation.
//!
//! | Module | Contents |
//! |---|---|
//! | [`config`] | `config.json` of a checkpoint in Hugging Face's layout, or the metadata of a GGUF file, as a model of `meganeura-nn` |
//! | [`checkpoint`] | safetensors in one file or several, or a GGUF file, mapped into memory and streamed into a session |
//! | [`adapters`] | low-rank adapters in PEFT's layout, merged into weights as these are read |
//! | [`saving`] | models and adapters that were trained, in the same layouts |
//! | [`tokenizer`] | `tokenizer.json`, text piece by piece |
//! | [`chat`] | the template that makes a conversation one text |
//! | [`hub`] | checkpoints by their names on the Hugging Face Hub, with the feature `hub` |
//! | [`library`] | the models on this machine: their list, and the search by name |
//! | [`sampling`] | how a token is chosen from logits |
//! | [`generator`] | prompts in, tokens out, with a key-value cache |
//! | [`embedder`] | embeddings of texts by encoders of the BERT family |
//! | [`examples`] | training examples, from JSON objects with conversations, completions or documents |
//! | [`engine`] | many sequences at the same time, with a paged key-value cache |
//!
//! ```no_run
//! use meganeura_llm::{Generator, GeneratorOptions, Request, Tokenizer};
//!
//! # fn main() -> meganeura_core::Result<()> {
//! let folder = std::path::Path::new("SmolLM2-135M");
//! let tokenizer = Tokenizer::open(folder)?;
//! let mut generator = Generator::open(folder, GeneratorOptions::default())?;
//! let prompt = tokenizer.encode("Gravity is")?;
//! for token in generator.generate(&prompt, &Request::default())? {
//!     println!("{}", tokenizer.decode(&[token?])?);
//! }
//! # Ok(())
//! # }
//! ```

pub mod adapters;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod embedder;
pub mod engine;
pub mod examples;
mod files;
pub mod generator;
mod gguf;
pub mod hub;
pub mod large_stack;
pub mod library;
mod plans;
mod pooling;
pub mod processor_time;
pub mod sampling;
pub mod saving;
mod softmax;
mod special;
mod template;
mod tensors;
pub mod tokenizer;

pub use adapters::Adapters;
pub use chat::{ChatInput, ChatTemplate, Message, RenderedChat};
pub use checkpoint::{Checkpoint, LoadObserver, LoadedBytes};
pub use config::{ModelConfig, Projections, SamplingDefaults};
pub use embedder::{Embedder, EmbedderOptions, EncoderConfig, Pooling, TextEncoder, check_vectors};
pub use engine::{Engine, EngineOptions};
pub use generator::{Generation, Generator, GeneratorOptions, Request, Speed};
pub use meganeura_nn::layers::WeightStorage;
pub use meganeura_nn::models::CacheType;
pub use sampling::{Sampler, Sampling};
pub use special::SpecialTokens;
pub use tokenizer::{TextStream, Tokenizer};
