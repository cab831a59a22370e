//! The tests of this crate that may share a process: one binary is linked once. Others say why they are not here.

mod bad_input;
mod chat;
mod chat_templates;
mod embeddings;
mod engine;
mod experts;
mod families;
mod finetuning;
mod gguf;
mod library;
#[path = "../../../tests/common/one_token.rs"]
mod one_token;
mod requests;
mod text_stream;
mod tokenizer;
mod transformers;
