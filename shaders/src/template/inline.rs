//! Functions of a file whose statements can be inlined into other functions.

use super::items::{self, Item, Kind, code_find};

/// Functions and constants of a file.
pub(crate) struct Functions {
    file: &'static str,
    items: Vec<Item>,
    declarations: String,
}

/// The inlined statements of a function, for certain arguments.
pub(crate) struct InlinedCall {
    pub(crate) statements: String,
    /// The returned expression.
    pub(crate) value: String,
    /// Names of the variables in the function, and their names in the statements.
    variables: Vec<(String, String)>,
}

impl InlinedCall {
    /// Returns the name in the statements of a variable of the function. Returns `None` if the function does not have
    /// this variable.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let known = self.variables.iter().find(|(own, _)| own == name);
        known.map(|(_, renamed)| &**renamed)
    }
}

impl Functions {
    pub(super) fn new(file: &'static str, items: Vec<Item>) -> Self {
        let constants = items.iter().filter(|item| item.kind == Kind::Constant);
        let declarations = constants.flat_map(|item| [item.code(), "\n"]).collect();
        Functions {
            file,
            items,
            declarations,
        }
    }

    /// Returns the declarations of the constants that the statements use.
    pub(crate) fn declarations(&self) -> &str {
        &self.declarations
    }

    /// Inlines a function that ends with `return`. The arguments are names. The suffix is added to the names of the
    /// function's variables.
    ///
    /// # Errors
    /// The function does not exist, has another number of parameters, or does not end with `return`.
    pub(crate) fn inline(&self, function: &str, arguments: &[&str], suffix: &str) -> Result<InlinedCall, String> {
        let item = self
            .items
            .iter()
            .find(|i| i.kind == Kind::Function && i.name == function);
        let item = item.ok_or_else(|| self.error(function, "there is no such function"))?;
        let (code, parameters) = (item.code(), item.parameters());
        if parameters.len() != arguments.len() {
            return Err(self.error(function, "the number of arguments is another one"));
        }
        let begin = code_find(code, '{').map_or(code.len(), |at| at + 1);
        let ends = || self.error(function, "it does not end with 'return'");
        let (statements, value) = code[begin..].rsplit_once("return ").ok_or_else(ends)?;
        let value = value.rsplit_once(';').ok_or_else(ends)?.0;
        let words = items::words(statements);
        let variables: Vec<(String, String)> = words
            .windows(3)
            .filter(|three| matches!(three[0], "let" | "var"))
            .map(|three| (three[2].to_owned(), [three[2], "_", suffix].concat()))
            .collect();
        let renamed = |text: &str| -> String {
            let of = |word| {
                let parameter = parameters.iter().position(|own| *own == word);
                let variable = variables.iter().find(|(own, _)| own == word);
                match (parameter, variable) {
                    (Some(at), _) => arguments[at],
                    (None, Some((_, new))) => &**new,
                    (None, None) => word,
                }
            };
            items::words(text).into_iter().map(of).collect()
        };
        let lines = statements.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        Ok(InlinedCall {
            statements: lines.flat_map(|line| [renamed(line), "\n".to_owned()]).collect(),
            value: renamed(value),
            variables,
        })
    }

    fn error(&self, function: &str, what: &str) -> String {
        format!("{}.wgsl: {function}: {what}", self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KernelFile, Template};
    use super::Functions;

    fn functions() -> Functions {
        let text = "const W: u32 = 4u;\n\n// A pixel.\nfn pixel(n: u32, at: u32) -> u32 {\n    // Rows wrap.\n    \
                    let row = at / W;\n    let inside = row < n;\n    return row * W + at % W;\n}\nfn none(x: u32) {}\n";
        let template = Template::new(KernelFile { name: "lib/f", text });
        template.size("W", 7).functions().expect("functions")
    }

    #[test]
    fn statements_have_arguments_and_new_names() {
        let functions = functions();
        assert_eq!(functions.declarations(), "const W: u32 = 7u;\n");
        let pixel = functions
            .inline("pixel", &["batch", "column"], "v3")
            .expect("statements");
        assert_eq!(
            pixel.statements,
            "let row_v3 = column / W;\nlet inside_v3 = row_v3 < batch;\n"
        );
        assert_eq!(pixel.value, "row_v3 * W + column % W");
        assert_eq!(pixel.variable("inside"), Some("inside_v3"));
        assert_eq!(pixel.variable("outside"), None);
    }

    #[test]
    fn what_cannot_be_inlined_is_named() {
        let functions = functions();
        let why = |name: &str, arguments: &[&str]| functions.inline(name, arguments, "").err().expect("an error");
        assert_eq!(why("line", &[]), "lib/f.wgsl: line: there is no such function");
        assert_eq!(
            why("pixel", &["a"]),
            "lib/f.wgsl: pixel: the number of arguments is another one"
        );
        assert_eq!(why("none", &["a"]), "lib/f.wgsl: none: it does not end with 'return'");
    }
}
