//! Check of the character classes in patterns of schemas.
//!
//! The compiler translates a pattern to the characters of a JSON text, in which control characters, `"` and `\` are escaped. For a class
//! with all control characters, it allows all short escapes, so `\"` and `\\` too, even if the class contains neither character.

use meganeura_core::{Error, Result};
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Flag, Flags, FlagsItemKind, GroupKind};
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Class, Hir, HirKind};

/// All control characters, as bits.
const ALL: u32 = u32::MAX;
/// The line break, as a bit. The compiler treats a class with all other control characters in the same way.
const LINE_BREAK: u32 = 1 << b'\n';

/// Checks that no class contains all control characters without containing `"` and `\`. Classes are added up, because the compiler
/// may combine them.
///
/// # Errors
/// [`Error::InvalidUse`] for such a pattern. Patterns with errors pass: the compiler reports them.
pub(super) fn check(pattern: &str) -> Result<()> {
    let Ok(mut syntax) = Parser::new().parse(pattern) else {
        return Ok(());
    };
    match_case(&mut syntax);
    let Ok(tree) = Translator::new().translate(pattern, &syntax) else {
        return Ok(());
    };
    let mut found = 0;
    add_controls(&tree, &mut found);
    if found | LINE_BREAK == ALL {
        let message = "a pattern with all control characters, but without '\"' or '\\', is not supported, because llguidance would \
                       allow these two as well";
        return Err(Error::misuse(
            message,
            r#"exclude the control characters: write [^"\x00-\x1f] instead of [^"]"#,
        ));
    }
    Ok(())
}

/// Removes the flag `i`. The other cases of a letter are neither control characters nor quotes, and adding them to a class takes time
/// for each of its characters. The recursion is safe because the parser limits the depth.
fn match_case(syntax: &mut Ast) {
    let remove = |flags: &mut Flags| {
        flags
            .items
            .retain(|item| item.kind != FlagsItemKind::Flag(Flag::CaseInsensitive));
    };
    match syntax {
        Ast::Flags(set) => remove(&mut set.flags),
        Ast::Group(group) => {
            if let GroupKind::NonCapturing(flags) = &mut group.kind {
                remove(flags);
            }
            match_case(&mut group.ast);
        }
        Ast::Repetition(repetition) => match_case(&mut repetition.ast),
        Ast::Alternation(all) => all.asts.iter_mut().for_each(match_case),
        Ast::Concat(all) => all.asts.iter_mut().for_each(match_case),
        _ => {}
    }
}

/// Adds the control characters of all literals, and of all classes that lack `"` or `\`. The recursion is safe because the parser
/// limits the depth.
fn add_controls(tree: &Hir, found: &mut u32) {
    match tree.kind() {
        HirKind::Class(class) => {
            let has = |c: char| match class {
                Class::Unicode(class) => class.ranges().iter().any(|r| (r.start()..=r.end()).contains(&c)),
                Class::Bytes(class) => class
                    .ranges()
                    .iter()
                    .any(|r| (r.start()..=r.end()).contains(&(c as u8))),
            };
            if !has('"') || !has('\\') {
                *found |= (0..32_u8)
                    .filter(|&c| has(char::from(c)))
                    .fold(0, |bits, c| bits | 1 << c);
            }
        }
        HirKind::Repetition(repetition) => add_controls(&repetition.sub, found),
        HirKind::Capture(capture) => add_controls(&capture.sub, found),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().for_each(|part| add_controls(part, found)),
        // The compiler merges alternatives of single characters with classes.
        HirKind::Literal(literal) => {
            let controls = literal.0.iter().filter(|&&byte| byte < 32);
            *found |= controls.fold(0, |bits, &byte| bits | 1 << byte);
        }
        HirKind::Empty | HirKind::Look(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folding the case of these classes would take minutes.
    #[test]
    fn large_classes_without_case_take_no_time() {
        let begun = std::time::Instant::now();
        for flag in ["(?i)", "(?i:", "(?si)", "(?-i)(?i)"] {
            let end = if flag.ends_with(':') { ")" } else { "" };
            let classes = r"[\u0100-\U0010ffff]".repeat(450);
            check(&format!("{flag}{classes}{end}")).expect("no control characters");
            check(&format!("{flag}a[^\"]{end}")).expect_err("all control characters");
        }
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }

    #[test]
    fn classes_with_all_control_characters_contain_both_quotes() {
        for pattern in [
            r#"^[^"]*$"#,
            r"[^\\]",
            r"^[\x00-\x1f]$",
            r"^[\x00-\x21]$",
            r"[^\x20-\x7e]",
            r#"a(b|[^"\n]+)"#,
            r"[\x00-\x0f]{2}[\x0b-\x1f]",
            r"^(\x00|([\x01-\x1f]))$",
            r#"^((\t)|[^"\t])*$"#,
            r"^(?:([^\\\x01])|(\x01))+$",
        ] {
            let error = check(pattern).expect_err(pattern).to_string();
            assert!(error.contains("control characters"), "{error}");
        }
        for pattern in [
            r#"^[^"\x00-\x1f]*$"#,
            ".*",
            "[^a]",
            r"[\s\S]+",
            r"\S+",
            r"\W",
            r"[^,]+",
            r"\n\t",
            r"[\x00-\x1e&&[^\n\r]]",
            "(",
        ] {
            assert!(check(pattern).is_ok(), "{pattern}");
        }
    }
}
