//! What HTML pages have in common, those of other crates included.

/// Colours, fonts and tables, as CSS.
pub const STYLE: &str = include_str!("page.css");

/// Text as it may stand between tags.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
