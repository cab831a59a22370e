//! The `meganeura` command.
fn main() {}
