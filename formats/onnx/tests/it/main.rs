//! Integration tests of `meganeura-onnx`.

mod cases;
mod document;
mod export;
mod fixtures;
mod int8;
mod ml;
mod quantize;
mod shared;
mod tokio_server;
