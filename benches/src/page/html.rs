//! Parts that several HTML pages share, also pages of other crates.

/// Colours, fonts and tables, as CSS.
pub const STYLE: &str = include_str!("page.css");

/// Escapes text for use between tags.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
