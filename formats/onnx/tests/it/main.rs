//! Integration tests of `meganeura-onnx`.

mod cases;
mod document;
mod export;
mod fixtures;
mod ml;
mod shared;
mod tokio_server;
