//! Functions that generated code may call, written by hand.

use std::collections::HashSet;
use std::sync::OnceLock;

use super::template::{Item, KernelFile, names, parse};

/// How convolutions find elements: functions whose statements become part of others.
pub(super) const CONVOLUTION: KernelFile = KernelFile {
    name: "lib/convolution",
    text: include_str!("../lib/convolution.wgsl"),
};

/// Functions that kernels share.
const FILES: [&str; 2] = [include_str!("../lib/math.wgsl"), include_str!("../lib/fault.wgsl")];

/// The library's functions.
///
/// # Errors
/// A file of the library that cannot be read.
pub(super) fn items() -> Result<&'static [Item], String> {
    static LIBRARY: OnceLock<Result<Vec<Item>, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| parse(&FILES.concat()));
    library.as_deref().map_err(|what| format!("lib: {what}"))
}

/// Functions that code uses, and those that they use, without the comments before them.
///
/// # Errors
/// As [`items`].
pub(super) fn used_by(code: &str) -> Result<String, String> {
    let library = items()?;
    let mut used: HashSet<&str> = HashSet::new();
    let mut open = names(code);
    while let Some(name) = open.pop() {
        if let Some(item) = library.iter().find(|item| item.name == name)
            && used.insert(&item.name)
        {
            open.extend(item.needs().iter().map(String::as_str));
        }
    }
    let kept = library.iter().filter(|item| used.contains(&*item.name));
    Ok(kept.map(|item| format!("{}\n", item.code())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_what_is_used() {
        let text = used_by("let y = softplus_f32(x);").expect("functions");
        for name in ["softplus_f32", "max_f32", "log1p_f32", "log_core", "exp_core", "is_nan"] {
            assert!(text.contains(&format!("fn {name}(")), "{name} in\n{text}");
        }
        assert!(!text.contains("fn erf_f32("));
        assert_eq!(used_by("let y = x;"), Ok(String::new()));
    }
}
