//! Tests of this crate that can share a process, so that only one binary is linked. Other test files state why they are separate.

mod adapted;
mod bad_input;
mod chat;
mod chat_templates;
mod device_sampling;
mod embeddings;
mod engine;
mod examples;
mod experts;
mod fairness;
mod families;
mod finetuning;
mod gguf;
mod half_files;
mod library;
#[path = "../../../tests/common/one_token.rs"]
mod one_token;
mod quantized_cache;
mod requests;
mod text_stream;
mod tokenizer;
mod transformers;
