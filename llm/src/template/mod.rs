//! Jinja templates from untrusted files, which run within limits.
//!
//! A template is a program: its instructions, its output, its source and the nesting of its expressions are bounded,
//! and it runs on a thread with a separate stack, because the parser recurses.

mod json;

use std::collections::HashSet;
use std::io::{self, Write};
use std::time::Duration;

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::large_stack::{self, RESERVE, STACK, StackError};
use crate::processor_time::{ThreadTime, TimeLimit};

/// Maximum bytes of the source; published models have at most some ten thousand.
const MAX_SOURCE: usize = 1 << 20;
/// Maximum blocks, expressions and comments of a source.
const MAX_TAGS: usize = 4096;
/// Maximum words and symbols of a block, expression or comment, which also limits the nesting of expressions.
const MAX_WORDS: usize = 2048;
/// Maximum instructions of a rendering. A message takes about a hundred.
const FUEL: u64 = 1_000_000;
/// Maximum bytes of the text.
const MAX_OUTPUT: usize = 64 << 20;
/// Maximum work of a filter: the product of the lengths of its texts and lists, and its numbers.
const MAX_PRODUCT: usize = 64 << 20;
/// Maximum work of all filters of a rendering.
const MAX_WORK: usize = 256 << 20;
/// Maximum processor time of a rendering. A usual conversation takes less than a hundredth of it. Joining a list to one
/// text, piece by piece, takes time that grows with the square of its length, and the engine counts a piece as one
/// instruction.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Factor for the work of `batch` and `slice`: bytes that each list of the result counts for.
const LIST: usize = 64;
/// Maximum columns of a number in a format such as `%20s`.
const MAX_COLUMNS: usize = 1000;

/// Name of the template within its environment.
const NAME: &str = "chat";

/// Filters whose work grows with the product of their arguments: the name, and the name of the original filter without
/// the check.
const CHECKED: [(&str, &str); 6] = [
    ("batch", "unchecked batch"),
    ("format", "unchecked format"),
    ("indent", "unchecked indent"),
    ("replace", "unchecked replace"),
    ("slice", "unchecked slice"),
    ("tojson", "unchecked tojson"),
];

/// Reason why a template cannot be compiled or rendered.
#[derive(Debug)]
pub(crate) enum TemplateError {
    /// The template's message, or the exceeded limit.
    Template(String),
    /// The system cannot start a thread with a large stack.
    NoThread,
}

impl TemplateError {
    /// Converts it to an error of the library; `of_template` converts errors that the template causes.
    pub(crate) fn convert(self, of_template: impl FnOnce(String) -> meganeura_core::Error) -> meganeura_core::Error {
        match self {
            TemplateError::Template(message) => of_template(message),
            TemplateError::NoThread => meganeura_core::Error::HostMemory {
                what: "a thread that runs the chat template".into(),
                bytes: STACK,
            },
        }
    }
}

/// A template with its functions and filters.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    /// Variables that the source reads before it sets them.
    undeclared: HashSet<String>,
    source: String,
}

impl Template {
    /// Compiles a source; the error is its message or the exceeded limit.
    pub(crate) fn new(source: String) -> Result<Self, TemplateError> {
        check_source(&source).map_err(TemplateError::Template)?;
        let source = without_generation_tags(source);
        let own = source.clone();
        on_a_stack(move || {
            let mut environment = Environment::new();
            // The settings that templates are written for.
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
            environment.set_syntax(syntax.map_err(|e| e.to_string())?);
            environment.set_fuel(Some(FUEL));
            environment.set_formatter(|output, state, value| {
                work_of(state)?;
                minijinja::escape_formatter(output, state, value)
            });
            environment.set_unknown_method_callback(|state, value, method, args| {
                if matches!(method, "replace" | "format") {
                    check_product(state, method, std::iter::once(value).chain(args))?;
                }
                minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
            });
            environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
                Err(Error::new(ErrorKind::InvalidOperation, message))
            });
            set_date(&mut environment, None);
            add_checked(&mut environment);
            environment
                .add_template_owned(NAME, source)
                .map_err(|e| e.to_string())?;
            let template = environment.get_template(NAME).map_err(|e| e.to_string())?;
            let undeclared = template.undeclared_variables(false);
            Ok(Template {
                environment,
                undeclared,
                source: own,
            })
        })
    }

    /// Sets the date that `strftime_now` returns.
    pub(crate) fn set_date(&mut self, date: Zoned) {
        set_date(&mut self.environment, Some(date));
    }

    /// Returns true if the template reads a value of this name.
    pub(crate) fn uses(&self, name: &str) -> bool {
        // A variable that the template sets from its own value counts as declared.
        self.undeclared.contains(name) || sets_from_itself(&self.source, name)
    }

    /// Renders the text for some values; the error is the template's message, or the exceeded
    /// limit.
    pub(crate) fn render(&self, values: Value) -> Result<String, TemplateError> {
        on_a_stack(move || {
            let template = self.environment.get_template(NAME).map_err(|e| e.to_string())?;
            let mut output = Output(Vec::new());
            let rendered = template.render_captured_to(values, &mut output).map(drop);
            rendered.map_err(|e| match e.kind() {
                ErrorKind::OutOfFuel => format!("it takes more than {FUEL} instructions"),
                _ if output.0.len() >= MAX_OUTPUT => format!("its text has more than {} MiB", MAX_OUTPUT >> 20),
                _ => e.to_string(),
            })?;
            String::from_utf8(output.0).map_err(|e| e.to_string())
        })
    }
}

/// Adds the function `strftime_now(format)`, which returns the local date and time, or the given one.
fn set_date(environment: &mut Environment<'static>, date: Option<Zoned>) {
    environment.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
        let now = date.clone().unwrap_or_else(Zoned::now);
        let wrong = |e: &dyn std::fmt::Display| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now cannot use this format: {e}"),
            )
        };
        if has_wide_columns(format) {
            return Err(wrong(&"its columns are too wide"));
        }
        jiff::fmt::strtime::format(format, &now).map_err(|e| wrong(&e))
    });
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}`, which only mark the answers of a model for training, by
/// conditions that are always true: white space around them is removed as the template asks.
fn without_generation_tags(source: String) -> String {
    if !source.contains("generation") {
        return source;
    }
    let mut result = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end) else {
            break;
        };
        let inner = &rest[at + 2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        result += &rest[..at + 2];
        match replacement {
            Some(replacement) => result += &inner.replacen(word, replacement, 1),
            None => result += inner,
        }
        result += "%}";
        rest = &rest[end + 2..];
    }
    result + rest
}

/// Returns true if a source contains a tag such as `{% set name = name or other %}`.
fn sets_from_itself(source: &str, name: &str) -> bool {
    source.split("{%").skip(1).any(|tag| {
        let tag = tag.split("%}").next().unwrap_or_default();
        let mut words = tag
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty());
        words.next() == Some("set") && words.next() == Some(name) && words.any(|word| word == name)
    })
}

/// A text of limited length.
struct Output(Vec<u8>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_OUTPUT - self.0.len();
        self.0.extend(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            Err(io::Error::other("the text is too long"))
        } else {
            Ok(bytes.len())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a function on a stack that is large enough for everything that the limits allow.
fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, TemplateError> {
    let limit = TimeLimit::current();
    let work = || match limit {
        Some(limit) => limit.run(work),
        None => work(),
    };
    match large_stack::run("template", RESERVE, work) {
        Ok(result) => result.map_err(TemplateError::Template),
        Err(StackError::NoThread) => Err(TemplateError::NoThread),
        Err(StackError::Panicked) => Err(TemplateError::Template("the template engine failed on it".into())),
    }
}

fn add_checked(environment: &mut Environment<'static>) {
    environment.add_filter("unchecked batch", minijinja::filters::batch);
    environment.add_filter("unchecked format", minijinja::filters::format);
    environment.add_filter("unchecked indent", minijinja::filters::indent);
    environment.add_filter("unchecked replace", minijinja::filters::replace);
    environment.add_filter("unchecked slice", minijinja::filters::slice);
    environment.add_filter("unchecked tojson", json::filter);
    for (name, unchecked) in CHECKED {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            check_product(state, name, args.iter())?;
            state.apply_filter(unchecked, &args)
        });
    }
}

/// Work of all filters of a rendering so far, and its begin. The engine's fuel counts each filter call as little, however
/// much work it does.
struct Work {
    product: usize,
    begin: ThreadTime,
}

/// Returns the work of a rendering. Filters, methods and outputs call it: a loop without any of them does nothing.
///
/// # Errors
/// The rendering has taken too long, or reached the [`TimeLimit`] of its caller.
fn work_of<'a>(state: &'a mut State) -> Result<&'a mut Work, Error> {
    let work = state.get_or_insert_extension_with(|| Work {
        product: 0,
        begin: ThreadTime::now(),
    });
    let elapsed = work.begin.elapsed();
    if TimeLimit::current().is_some_and(|limit| limit.ends(elapsed)) {
        let message = "its time is over, or its caller has left";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    if elapsed > MAX_TIME {
        let message = format!("it takes more than {} s of processor time", MAX_TIME.as_secs());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(work)
}

/// Checks the work of a call of a filter or method: the product of the sizes of its subject and its arguments. Returns
/// an error if a limit is exceeded.
fn check_product<'v>(state: &mut State, name: &str, mut values: impl Iterator<Item = &'v Value>) -> Result<(), Error> {
    let Some(subject) = values.next() else { return Ok(()) };
    let format = subject.as_str().filter(|_| name == "format");
    let mut product = subject.len().unwrap_or(1).max(1);
    let mut is_too_much = format.is_some_and(has_wide_columns);
    let mut count = |value: &Value| match value.kind() {
        // The width of an argument, if the format takes it from a number.
        ValueKind::Number if name == "format" => {
            let asks = format.is_some_and(|format| format.contains('*'));
            is_too_much |= asks && number(value) > MAX_COLUMNS;
        }
        ValueKind::Number if name == "tojson" => is_too_much |= number(value) > MAX_COLUMNS,
        ValueKind::Number => product = product.saturating_mul(number(value).max(1)),
        ValueKind::String if name != "format" => {
            product = product.saturating_mul(value.len().unwrap_or(1).max(1));
        }
        _ => {}
    };
    for value in values {
        match value.kind() {
            // Keyword arguments.
            ValueKind::Map => {
                for key in value.try_iter()? {
                    count(&value.get_item(&key)?);
                }
            }
            _ => count(value),
        }
    }
    if matches!(name, "batch" | "slice") {
        product = product.saturating_mul(LIST);
    }
    let work = work_of(state)?;
    work.product = work.product.saturating_add(product);
    if is_too_much || product > MAX_PRODUCT || work.product > MAX_WORK {
        Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("'{name}' of these sizes is more work than a template may ask for"),
        ))
    } else {
        Ok(())
    }
}

fn number(value: &Value) -> usize {
    value
        .as_i64()
        .and_then(|n| usize::try_from(n.unsigned_abs()).ok())
        .unwrap_or(usize::MAX)
}

/// Returns true if a format such as `%20s` or `{:20}` has more columns than allowed.
fn has_wide_columns(format: &str) -> bool {
    let percent = format.split('%').skip(1).map(|part| {
        let part = part
            .split_once(')')
            .filter(|_| part.starts_with('('))
            .map_or(part, |(_, rest)| rest);
        part.split(char::is_alphabetic).next().unwrap_or_default()
    });
    let braces = format
        .split('{')
        .skip(1)
        .map(|part| part.split('}').next().unwrap_or_default());
    let braces = braces.filter_map(|part| part.split_once(':').map(|(_, spec)| spec));
    let numbers = |spec: &str| -> bool {
        let numbers = spec.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        numbers
            .map(|n| n.parse().unwrap_or(usize::MAX))
            .any(|n| n > MAX_COLUMNS)
    };
    percent.chain(braces).any(numbers)
}

/// Checks that a source does not exceed the limits of the parser.
fn check_source(source: &str) -> Result<(), String> {
    if source.len() > MAX_SOURCE {
        return Err(format!(
            "the template has {} bytes, expected at most {MAX_SOURCE}",
            source.len()
        ));
    }
    let (mut rest, mut tags) = (source, 0);
    while let Some(at) = rest.find('{') {
        rest = &rest[at + 1..];
        let Some(kind @ ('{' | '%' | '#')) = rest.chars().next() else {
            continue;
        };
        tags += 1;
        if tags > MAX_TAGS {
            return Err(format!("the template has more than {MAX_TAGS} blocks and expressions"));
        }
        rest = &rest[1..];
        if kind == '#' {
            rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
            continue;
        }
        let (words, after) = words_of(rest, if kind == '{' { "}}" } else { "%}" });
        if words > MAX_WORDS {
            return Err(format!(
                "an expression of the template has more than {MAX_WORDS} words and signs"
            ));
        }
        rest = after;
    }
    Ok(())
}

/// Returns the number of words and symbols before the tag's `end`, and the source after `end`. A quoted string counts as one.
fn words_of<'s>(source: &'s str, end: &str) -> (usize, &'s str) {
    let bytes = source.as_bytes();
    let is_word = |at: usize| {
        bytes
            .get(at)
            .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80)
    };
    let (mut words, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        if bytes[at..].starts_with(end.as_bytes()) {
            return (words, &source[at + end.len()..]);
        }
        words += usize::from(!byte.is_ascii_whitespace());
        at += 1;
        match byte {
            b'"' | b'\'' => {
                while bytes.get(at).is_some_and(|&b| b != byte) {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
            }
            _ if is_word(at - 1) => {
                while is_word(at) {
                    at += 1;
                }
            }
            _ => {}
        }
    }
    (words, "")
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn rendered(source: &str) -> Result<String, String> {
        let values = context! { messages => [context! { content => "x\n".repeat(100) }] };
        let rendered = Template::new(source.to_owned()).and_then(|template| template.render(values));
        rendered.map_err(|e| match e {
            TemplateError::Template(message) => message,
            TemplateError::NoThread => panic!("no thread"),
        })
    }

    #[test]
    fn what_templates_do_is_done() {
        for (source, expected) in [
            ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
            ("{{ 'a\nb'|indent(width=2) }}", "a\n  b"),
            (
                "{{ [1, 2, 3]|batch(2)|list|length }}{{ [1, 2, 3]|slice(2)|list|length }}",
                "22",
            ),
            ("{{ '%5s|'|format('x') }}{{ '{}-{}'.format(1, 2) }}", "    x|1-2"),
            (
                "{{ '%.2f in 2024, %s'|format(0.5, 1700000000) }}",
                "0.50 in 2024, 1700000000",
            ),
            ("{{ 'aXb'|replace('X', '--') }}{{ 'aXb'.replace('X', '') }}", "a--bab"),
            ("{{ {'a': 1000000000000}|tojson }}", "{\"a\": 1000000000000}"),
            (
                r#"{{ {'b': "it's <a> & \\u003c", 'a': 'é'}|tojson(ensure_ascii=false) }}"#,
                r#"{"b": "it's <a> & \\u003c", "a": "é"}"#,
            ),
            ("{{ 'a}}b' }}{# }} #}{% if 1 %}{%- endif %}", "a}}b"),
            ("a {%- generation -%} b {%- endgeneration %} c", "ab c"),
            ("{% generation %}a{% endgeneration %}", "a"),
            (
                "{{ {'b': [1, 2.0], 'a': none}|tojson(separators=(',', ':'), sort_keys=true) }}",
                r#"{"a":null,"b":[1,2.0]}"#,
            ),
            ("{{ [1, {}]|tojson(indent=2) }}", "[\n  1,\n  {}\n]"),
            (
                "{{ 'é\u{1f600}'|tojson(ensure_ascii=true) }}",
                r#""\u00e9\ud83d\ude00""#,
            ),
            ("{{ strftime_now('%Y')|length }}", "4"),
        ] {
            assert_eq!(rendered(source).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn templates_end_within_their_limits() {
        let chain = format!("{{{{ 1{} }}}}", "+1".repeat(26_000));
        let nested = "{% if 1 %}".repeat(10_000);
        let elif = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(5000));
        let long = " ".repeat(MAX_SOURCE + 1);
        let cases: [(&str, &str); 21] = [
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
                "instructions",
            ),
            ("{% for a in range(9999) %}{{ 'x' * 100000 }}{% endfor %}", "MiB"),
            ("{{ 'a\nb'|indent(10000000000) }}", "more work"),
            ("{{ 'a\nb'|indent(width=10000000000) }}", "more work"),
            ("{{ messages[0].content|indent(1000000) }}", "more work"),
            ("{{ [1]|batch(10000000000, 0)|list }}", "more work"),
            ("{{ [1]|slice(10000000000)|list }}", "more work"),
            ("{{ 'abc'|slice(4194304)|list }}", "more work"),
            (
                "{% for a in range(90000) %}{% set x = 'a\nb'|indent(10000000) %}{% endfor %}",
                "more work",
            ),
            ("{{ '%10000000000d'|format(1) }}", "more work"),
            ("{{ '%.4000000000f'|format(1) }}", "more work"),
            ("{{ '%*d'|format(4000000000, 1) }}", "more work"),
            ("{{ '{:4000000000}'.format(1) }}", "more work"),
            ("{{ [1]|tojson(indent=4000000000) }}", "more work"),
            (
                "{% set n = namespace(x=[]) %}{% for a in range(300) %}{% set n.x = [n.x] %}{% endfor %}{{ (([n.x] * 100)|tojson(indent=900)) }}",
                "4 MiB",
            ),
            ("{{ ('a' * 100000)|replace('a', 'b' * 100000) }}", "more work"),
            ("{{ ('a' * 100000).replace('a', 'b' * 100000) }}", "more work"),
            (&chain, "words and signs"),
            (&nested, "blocks and expressions"),
            (&elif, "blocks and expressions"),
            (&long, "bytes"),
        ];
        for (source, said) in cases {
            let error = rendered(source).expect_err(said);
            assert!(error.contains(said), "{error} of {}", &source[..source.len().min(80)]);
        }
    }

    #[test]
    fn texts_that_are_joined_piece_by_piece_end_in_time() {
        for piece in ["('a' * 50)|tojson", "'a' * 50"] {
            let source = format!(
                "{{% set n = namespace(x='') %}}{{% for a in range(60000) %}}{{% set n.x = n.x ~ {piece} %}}{{{{ '' }}}}{{% endfor %}}"
            );
            let error = rendered(&source).expect_err("too much work");
            assert!(error.contains("processor time"), "{error}");
        }
        let source = "{% for a in range(99999) %}{{ 'a' * 10 }}{% endfor %}";
        let short = std::sync::Arc::new(TimeLimit::new(std::time::Duration::ZERO));
        let error = short.run(|| rendered(source)).expect_err("no time");
        assert!(error.contains("its time is over") && short.is_exceeded(), "{error}");
        let left = std::sync::Arc::new(TimeLimit::new(std::time::Duration::MAX));
        left.cancel();
        assert!(left.run(|| rendered(source)).is_err() && !left.is_exceeded());
        // A conversation of usual length.
        let source = "{% set n = namespace(x='') %}{% for a in range(2000) %}{% set n.x = n.x ~ ('a' * 50)|tojson %}{% endfor %}{{ n.x }}";
        assert_eq!(rendered(source).expect("within").len(), 2000 * 52);
    }

    #[test]
    fn names_that_a_template_reads_are_found() {
        let source = "{% set tools = tools or other %}{%- set own = 1 -%}{{ name }}{% set x = own %}";
        let template = Template::new(source.into()).expect("a template");
        for (name, is_used) in [
            ("tools", true),
            ("other", true),
            ("name", true),
            ("own", false),
            ("x", false),
        ] {
            assert_eq!(template.uses(name), is_used, "{name}");
        }
    }

    #[test]
    fn what_the_limits_let_through_has_stack_enough() {
        let chain = format!("{{{{ 1{} }}}}", "+1".repeat(1000));
        assert_eq!(rendered(&chain).expect("within"), "1001");
        let nested = format!("{}{}", "{% if 1 %}".repeat(2000), "{% endif %}".repeat(2000));
        let _ = rendered(&nested);
        let elif = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(4000));
        let _ = rendered(&elif);
        for minus in ["not ", "-", "("] {
            let _ = rendered(&format!("{{{{ {}1 }}}}", minus.repeat(2000)));
        }
        // Nested lists, limited by the number of instructions, are rendered and dropped.
        let lists = "{% set n = namespace(x=[]) %}{% for a in range(99999) %}{% set n.x = [n.x] %}{% endfor %}";
        let _ = rendered(lists);
        let _ = rendered(&format!("{lists}{{{{ n.x }}}}"));
    }
}
