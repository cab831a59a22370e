//! What the command `meganeura` offers as a library: the page of `meganeura explain --html`, for graphs of your own.

pub mod report;
