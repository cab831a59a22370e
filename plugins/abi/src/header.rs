//! Generator of `meganeura_plugin.h`.

use std::fmt::Write as _;

use crate::describe::{FunctionInfo, StructDescription};
use crate::types::{ENTRY_SYMBOL, MANIFEST_LIMIT, MANIFEST_SYMBOL, NUMBERS, STRUCTS};

const OPENING: &str = "\
/* The C interface between Meganeura and backends in shared objects.
 *
 * Written from the crate meganeura-plugin-abi by `cargo run -p meganeura-plugin-abi --example header`; do not edit.
 * docs/plugin-abi.md explains what is allowed when. The functions at the end read plans.
 */
#ifndef MEGANEURA_PLUGIN_H
#define MEGANEURA_PLUGIN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern \"C\" {
#define MGN_STATIC_ASSERT(condition) static_assert(condition, #condition)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define MGN_STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#else
#define MGN_STATIC_ASSERT(condition) extern char mgn_static_assert[(condition) ? 1 : -1]
#endif

#if defined(_WIN32)
#define MGN_EXPORT __declspec(dllexport)
#else
#define MGN_EXPORT __attribute__((visibility(\"default\")))
#endif
";

/// Functions for reading plans, which do not follow from the types.
const READING: &str = include_str!("reading.h");

/// Returns the text of `meganeura_plugin.h`.
pub fn header() -> String {
    let mut text = OPENING.to_owned();
    text.push('\n');
    for (name, value, doc) in NUMBERS {
        comment(&mut text, "", doc);
        let _ = writeln!(text, "#define MGN_{name} {value}u");
    }
    text.push_str("\ntypedef struct MgnDevice MgnDevice;\ntypedef struct MgnExecutable MgnExecutable;\n");
    for described in STRUCTS {
        let _ = writeln!(text, "typedef struct Mgn{0} Mgn{0};", described.name);
    }
    STRUCTS.iter().for_each(|described| structure(&mut text, described));
    let _ = write!(
        text,
        "
/* What a plugin exports: a manifest in TOML, of less than {MANIFEST_LIMIT} bytes, and the function. */
extern MGN_EXPORT const char {MANIFEST_SYMBOL}[];
MGN_EXPORT const MgnPlugin *{ENTRY_SYMBOL}(const MgnHost *host);

"
    );
    text.push_str(READING);
    text.push_str("\n#ifdef __cplusplus\n}\n#endif\n#endif\n");
    text
}

fn comment(text: &mut String, indent: &str, doc: &[&str]) {
    for (i, line) in doc.iter().enumerate() {
        let (open, close) = (
            if i == 0 { "/*" } else { " *" },
            if i + 1 == doc.len() { " */" } else { "" },
        );
        let _ = writeln!(text, "{indent}{open}{line}{close}");
    }
}

fn structure(text: &mut String, described: &StructDescription) {
    let name = described.name;
    text.push('\n');
    comment(text, "", described.doc);
    let _ = writeln!(text, "struct Mgn{name} {{");
    for field in described.fields {
        comment(text, "    ", field.doc);
        let _ = writeln!(text, "    {};", declaration(field.ty, field.name));
    }
    for f in described.functions {
        comment(text, "    ", f.doc);
        let _ = writeln!(text, "    {};", function(f));
    }
    text.push_str("};\n");
    let _ = writeln!(text, "MGN_STATIC_ASSERT(sizeof(Mgn{name}) == {});", described.size);
    let fields = described.fields.iter().map(|f| (f.name, f.offset));
    for (field, offset) in fields.chain(described.functions.iter().map(|f| (f.name, f.offset))) {
        let _ = writeln!(text, "MGN_STATIC_ASSERT(offsetof(Mgn{name}, {field}) == {offset});");
    }
}

fn function(f: &FunctionInfo) -> String {
    let parameters: Vec<String> = f.parameters.iter().map(|(name, ty)| declaration(ty, name)).collect();
    let parameters = if parameters.is_empty() {
        "void".to_owned()
    } else {
        parameters.join(", ")
    };
    let result = declaration(if f.result.is_empty() { "c_void" } else { f.result }, "");
    let space = if result.ends_with('*') { "" } else { " " };
    format!("{}{space}(*{})({parameters})", result.trim_end(), f.name)
}

/// Returns the C declaration of a variable of a Rust type.
fn declaration(ty: &str, name: &str) -> String {
    if let Some(array) = ty.strip_prefix('[').and_then(|t| t.strip_suffix(']'))
        && let Some((element, len)) = array.split_once("; ")
    {
        return declaration(element, &format!("{name}[{len}]"));
    }
    for (pointer, qualifier) in [("*const ", "const "), ("*mut ", "")] {
        if let Some(target) = ty.strip_prefix(pointer) {
            // `const` belongs to the target of the pointer, which may be a pointer itself.
            return if target.starts_with('*') {
                declaration(target, &format!("*{qualifier}{name}"))
            } else {
                format!("{qualifier}{}", declaration(target, &format!("*{name}")))
            };
        }
    }
    let c = match ty {
        "u8" => "uint8_t".to_owned(),
        "u16" => "uint16_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "f32" => "float".to_owned(),
        "f64" => "double".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" => "void".to_owned(),
        structure => format!("Mgn{structure}"),
    };
    format!("{c} {name}")
}
