//! Estimated cost of the lexer of a grammar, computed from the compiler's regular expressions.
//!
//! The lexer computes derivatives of regular expressions (Brzozowski, 1964). The derivative of `a?b?c?` has one alternative for each
//! optional part that may come first, and the compiler builds that of every end of the expression: time and memory grow with the
//! square of the number of parts, and with the number of different bytes. The compiler limits the first expressions, but not these.

use std::collections::{HashMap, HashSet};

use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::ExprSet;
use llguidance::earley::lexerspec::LexerSpec;

/// Maximum number of alternatives in all derivatives, summed over the classes of bytes. Each takes about 50 bytes.
const MAX_ALTERNATIVES: u64 = 4_000_000;

/// Checks the number of alternatives of the first derivatives of all expressions of a grammar.
///
/// # Errors
/// A message if they exceed the limit.
pub(super) fn check(spec: &LexerSpec) -> Result<(), String> {
    let count = alternatives(spec.regex_builder.exprset());
    if count > MAX_ALTERNATIVES {
        return Err(format!(
            "it is too large: expected at most {MAX_ALTERNATIVES} alternatives after the first character of its patterns, found \
             {count}; use fewer optional parts and classes in sequence"
        ));
    }
    Ok(())
}

/// Maximum memory of the states of a lexer for one request, in bytes.
const MAX_STATE_BYTES: usize = 50 << 20;
/// Memory of a state with few terminals, in bytes.
const STATE_BYTES: usize = 2048;
/// Memory for each terminal that a state may still match, in bytes.
const STATE_TERMINAL_BYTES: usize = 8;

/// Returns the maximum number of states of the lexer of a grammar. A large schema needs some thousands.
pub(super) fn max_states(spec: &LexerSpec) -> usize {
    MAX_STATE_BYTES / (STATE_BYTES + STATE_TERMINAL_BYTES * spec.lexemes.len())
}

/// A set of bytes: bit `b % 64` of word `b / 64`.
type Bytes = [u64; 4];

/// Set of first bytes of an expression's texts, and the number of alternatives of its derivatives, summed over the
/// classes of bytes.
#[derive(Clone, Copy, Default)]
struct First {
    bytes: Bytes,
    alternatives: u64,
}

/// Kinds of expressions, with the numbers of the compiler's private enum `ExprTag`.
mod kind {
    pub(super) const BYTE: u8 = 3;
    pub(super) const BYTE_SET: u8 = 4;
    pub(super) const BYTE_CONCAT: u8 = 5;
    pub(super) const REMAINDER_IS: u8 = 6;
    pub(super) const LOOKAHEAD: u8 = 7;
    pub(super) const NOT: u8 = 8;
    pub(super) const REPEAT: u8 = 9;
    pub(super) const CONCAT: u8 = 10;
    pub(super) const OR: u8 = 11;
    pub(super) const AND: u8 = 12;
}

const ALL_BYTES: Bytes = [u64::MAX; 4];

/// Returns an upper bound of the number of alternatives of the derivatives of all expressions.
fn alternatives(expressions: &ExprSet) -> u64 {
    let all = (0..expressions.len() as u32).map(ExprRef::new);
    let all: Vec<ExprRef> = all.filter(|&e| expressions.is_valid(e)).collect();
    let sets: HashSet<Bytes> = all.iter().filter_map(|&e| own_bytes(expressions, e)).collect();
    let representatives = representatives(&sets);
    let size = |bytes: &Bytes| -> u64 {
        let words = bytes.iter().zip(&representatives);
        words.map(|(a, b)| u64::from((a & b).count_ones())).sum()
    };
    // One alternative for each class of first bytes.
    let one = |first: First| First {
        alternatives: size(&first.bytes).min(first.alternatives),
        ..first
    };
    let mut firsts = vec![First::default(); expressions.len()];
    let mut sum = 0_u64;
    // Operands have smaller numbers than the expressions that contain them.
    for &expression in &all {
        let operands = expressions.get_args(expression);
        let mut operands = operands
            .iter()
            .map(|e| firsts.get(e.as_usize()).copied().unwrap_or_default());
        let found = match expressions.get_tag(expression) as u8 {
            kind::CONCAT => {
                let (a, b) = (operands.next().unwrap_or_default(), operands.next().unwrap_or_default());
                let is_optional = expressions
                    .get_args(expression)
                    .first()
                    .is_some_and(|&a| expressions.is_nullable(a));
                if is_optional { union(one(a), b) } else { one(a) }
            }
            kind::OR => operands.fold(First::default(), union),
            kind::AND => {
                let (count, bytes) = operands.fold((0, Bytes::default()), |(count, bytes), operand| {
                    (count + 1, either(bytes, operand.bytes))
                });
                let alternatives = size(&bytes).saturating_mul(count);
                First { bytes, alternatives }
            }
            kind::NOT => First {
                bytes: ALL_BYTES,
                alternatives: size(&ALL_BYTES),
            },
            kind::REPEAT | kind::LOOKAHEAD => one(operands.next().unwrap_or_default()),
            _ => {
                let bytes = own_bytes(expressions, expression).unwrap_or_default();
                let alternatives = size(&bytes);
                First { bytes, alternatives }
            }
        };
        sum = sum.saturating_add(found.alternatives);
        firsts[expression.as_usize()] = found;
    }
    sum
}

fn either(a: Bytes, b: Bytes) -> Bytes {
    std::array::from_fn(|i| a[i] | b[i])
}

fn union(a: First, b: First) -> First {
    First {
        bytes: either(a.bytes, b.bytes),
        alternatives: a.alternatives.saturating_add(b.alternatives),
    }
}

/// Returns the first bytes of an expression that is a single byte or byte set, or begins with one.
fn own_bytes(expressions: &ExprSet, expression: ExprRef) -> Option<Bytes> {
    match expressions.get_tag(expression) as u8 {
        kind::BYTE | kind::BYTE_SET | kind::BYTE_CONCAT => {
            let value = expressions.get(expression);
            let mut bytes = Bytes::default();
            for b in (0..=u8::MAX).filter(|&b| value.matches_byte(b)) {
                bytes[usize::from(b / 64)] |= 1 << (b % 64);
            }
            Some(bytes)
        }
        // A multiple of a number: digits and a point.
        kind::REMAINDER_IS => Some([0x03ff_4000_0000_0000, 0, 0, 0]),
        _ => None,
    }
}

/// Returns one byte of each class of bytes. A class contains the bytes that no set distinguishes, which the lexer
/// treats alike.
fn representatives(sets: &HashSet<Bytes>) -> Bytes {
    /// Maximum number of sets for which classes are computed. With more sets, finding the classes takes longer than it
    /// saves.
    const MAX_SETS: usize = 20_000;
    if sets.len() > MAX_SETS {
        return ALL_BYTES;
    }
    let mut classes = [0_usize; 256];
    for set in sets {
        // Splits each class into the bytes in the set and the remaining bytes.
        let mut split = HashMap::new();
        for (b, class) in classes.iter_mut().enumerate() {
            let is_in = set[b / 64] >> (b % 64) & 1 == 1;
            let next = split.len();
            *class = *split.entry((*class, is_in)).or_insert(next);
        }
    }
    let mut seen = [false; 256];
    let mut representatives = Bytes::default();
    for (b, &class) in classes.iter().enumerate() {
        if !std::mem::replace(&mut seen[class], true) {
            representatives[b / 64] |= 1 << (b % 64);
        }
    }
    representatives
}

#[cfg(test)]
mod tests {
    use llguidance::derivre::RegexBuilder;

    use super::*;

    fn of(pattern: &str) -> u64 {
        let mut builder = RegexBuilder::new();
        builder.mk_regex(pattern).expect("a valid pattern");
        let empty = alternatives(RegexBuilder::new().exprset());
        alternatives(builder.exprset()) - empty
    }

    #[test]
    fn optional_parts_in_sequence_cost_the_square_of_their_number() {
        // Few alternatives: each part follows the one before it.
        for pattern in [
            "abc",
            "(abc|abd|xyz)*",
            "[a-z]{1,1000}",
            "a{0,1000}b",
            r"(\w+\s)*",
            "(?i)select",
        ] {
            assert!(of(pattern) < 30_000, "{pattern}: {}", of(pattern));
        }
        let optional = |count: usize| of(&"a?b?".repeat(count));
        // `n` parts have `1 + 2 + ... + n` alternatives.
        for count in [10, 100, 400] {
            let exact = (2 * count * (2 * count + 1) / 2) as u64;
            assert!(
                (exact..2 * exact + 100).contains(&optional(count)),
                "{count}: {}",
                optional(count)
            );
        }
        assert!(optional(4_990) > MAX_ALTERNATIVES);
        for pattern in [r"[^a]?\W?", r"\w?\d?"] {
            assert!(of(&pattern.repeat(40)) < MAX_ALTERNATIVES, "{pattern}");
            assert!(of(&pattern.repeat(1_000)) > MAX_ALTERNATIVES, "{pattern}");
        }
    }

    #[test]
    fn kinds_are_those_of_the_compiler() {
        let mut builder = RegexBuilder::new();
        let mut tag = |pattern: &str| {
            let e = builder.mk_regex(pattern).expect("a valid pattern");
            format!("{:?}", builder.exprset().get_tag(e)) + &(builder.exprset().get_tag(e) as u8).to_string()
        };
        assert_eq!(tag("a"), format!("Byte{}", kind::BYTE));
        assert_eq!(tag("[ab]"), format!("ByteSet{}", kind::BYTE_SET));
        assert_eq!(tag("abc"), format!("ByteConcat{}", kind::BYTE_CONCAT));
        assert_eq!(tag("[ab]c"), format!("Concat{}", kind::CONCAT));
        assert_eq!(tag("[ab]*"), format!("Repeat{}", kind::REPEAT));
        assert_eq!(tag("ab|cd"), format!("Or{}", kind::OR));
    }
}
