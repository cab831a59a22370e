//! Conversion of WGSL names to C++ names.

use std::collections::HashSet;

/// Reserved words: words of C++ that WGSL does not (always) reserve, words of CUDA that kernels use, and types and
/// namespaces of the prelude. The functions of the prelude are in a separate namespace.
const RESERVED: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class compl \
    concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype default delete do double \
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept \
    not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof \
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union \
    unsigned using virtual void volatile wchar_t while xor xor_eq \
    threadIdx blockIdx blockDim gridDim warpSize linux unix NULL WGSL WGSL_UNROLL \
    wgsl kernel kernel_main u32 i32 f32 f16 u64 vec array padded matrix_a matrix_b matrix_c";

/// The C++ names that are used in a scope.
#[derive(Clone)]
pub(super) struct Names {
    taken: HashSet<String>,
}

impl Names {
    pub(super) fn new() -> Self {
        Names {
            taken: RESERVED.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// Returns a unique name: `wanted`, followed by a number if the name is already in use.
    pub(super) fn unique(&mut self, wanted: &str) -> String {
        let plain = plain(wanted);
        let numbered = |number: usize| match number {
            0 => plain.clone(),
            _ => format!("{plain}_{number}"),
        };
        let mut number = 0;
        while !self.taken.insert(numbered(number)) {
            number += 1;
        }
        numbered(number)
    }
}

/// Converts a name to one that begins with a letter and consists of letters, digits and single underscores. C++
/// reserves other names.
fn plain(wanted: &str) -> String {
    let mut name = String::new();
    for letter in wanted.chars() {
        let letter = if letter.is_ascii_alphanumeric() { letter } else { '_' };
        if letter != '_' || !name.ends_with('_') {
            name.push(letter);
        }
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        name.insert(0, 'v');
    }
    // Such names could be macros of the prelude, or names that the translation generates.
    if name.starts_with("WGSL_") {
        name.insert(0, 'v');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::Names;

    #[test]
    fn names_are_valid_and_different() {
        let mut names = Names::new();
        assert_eq!(names.unique("sum"), "sum");
        assert_eq!(names.unique("sum"), "sum_1");
        assert_eq!(names.unique("sum_1"), "sum_1_1");
        assert_eq!(names.unique("int"), "int_1");
        assert_eq!(names.unique("a__b"), "a_b");
        assert_eq!(names.unique("_x"), "v_x");
        assert_eq!(names.unique("größe"), "gr_e");
        assert_eq!(names.unique(""), "v");
        assert_eq!(names.unique("WGSL_make_A"), "vWGSL_make_A");
    }
}
