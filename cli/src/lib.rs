//! Library of the command `meganeura`: the page of `meganeura explain --html`, for any graph.

pub mod report;
