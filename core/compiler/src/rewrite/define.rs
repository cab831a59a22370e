//! Definitions of a rule set: conditions with a name, which rules use like a fact.
//!
//! ```text
//! (define (scaled s z f) (= s (core.mul z c)) (= f (uniform c)))
//! (define (scaled s z f) :name "divided" (= s (core.div z c)) (= f (/ 1.0 (uniform c))))
//! (rule ((= p (core.softmax ax s)) (scaled s z f)) (...) :name "A→B")
//! ```
//!
//! Several definitions of one name, with different values of `:name`, are alternatives. The rule above is a short form of two
//! rules: `A→B` and `A→B#divided`. Variables that are no parameters belong to one use of the definition.

use std::collections::{BTreeMap, HashMap};

use egglog::ast::{Action, Expr, Fact, Literal, Span};

use super::facts::FACTS;
use super::rule::place;
use super::scalar::PRIMITIVES;
use super::validate;

/// Maximum number of rules into which one rule is expanded.
const MAX_ALTERNATIVES: usize = 64;

/// The command that adds a definition.
pub(super) const DEFINE: &str = "define";

/// An error in a text: its position and the message.
type Fault = (String, String);

/// One alternative of a definition.
#[derive(Clone)]
struct Alternative {
    /// Labels (values of `:name`) of the definitions that this alternative combines; empty if none has a label.
    labels: Vec<String>,
    parameters: Vec<String>,
    facts: Vec<Fact>,
}

/// The definitions of a rule set, by name.
#[derive(Default)]
pub(super) struct Definitions {
    by_name: BTreeMap<String, Vec<Alternative>>,
}

/// Conditions and actions of one variant of a rule.
#[derive(Clone)]
pub(super) struct Variant {
    /// Labels of the alternatives that it uses.
    pub(super) labels: Vec<String>,
    pub(super) body: Vec<Fact>,
    pub(super) head: Vec<Action>,
    /// Variables that are aliases, with the variables or literals that replace them.
    aliases: HashMap<String, Expr>,
}

fn fault<T>(span: &Span, message: impl Into<String>) -> Result<T, Fault> {
    Err((place(span), message.into()))
}

impl Definitions {
    /// Adds a definition: the arguments of the command `define`.
    ///
    /// # Errors
    /// A name or parameter that is invalid or taken, a second definition with the same label or other parameters, an argument
    /// that is no condition.
    pub(super) fn add(&mut self, span: &Span, arguments: &[Expr]) -> Result<(), Fault> {
        const USAGE: &str = "expected (define (NAME PARAMETER ...) [:name \"LABEL\"] CONDITION ...)";
        let Some((Expr::Call(at, name, parameters), mut rest)) = arguments.split_first() else {
            return fault(span, USAGE);
        };
        let is_taken = FACTS.iter().any(|fact| fact.0 == name)
            || PRIMITIVES.iter().any(|primitive| primitive.name == name)
            || ["=", "Get", DEFINE].contains(&name.as_str());
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if is_taken || !name.chars().all(is_valid) {
            let message =
                format!("'{name}' cannot be defined: names have lower-case letters, digits and '-', and are not taken");
            return fault(at, message);
        }
        let mut names = Vec::new();
        for parameter in parameters {
            match parameter {
                Expr::Var(_, parameter) if !names.contains(parameter) => names.push(parameter.clone()),
                _ => return fault(at, "expected different variables as parameters"),
            }
        }
        let mut label = None;
        if let [Expr::Var(_, option), Expr::Lit(_, Literal::String(text)), after @ ..] = rest
            && option == ":name"
        {
            label = Some(text.clone());
            rest = after;
        }
        if rest.is_empty() {
            return fault(span, USAGE);
        }
        let facts = rest.iter().map(as_fact).collect::<Result<Vec<Fact>, Fault>>()?;
        let of_name = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let is_second = |labels: &[String]| labels.first() == label.as_ref();
        if of_name.iter().any(|other| other.parameters != names) {
            return fault(at, format!("the alternatives of '{name}' have different parameters"));
        }
        if of_name.iter().any(|other| is_second(&other.labels)) {
            return fault(at, format!("a second definition of '{name}' needs a :name of its own"));
        }
        let variant = Variant::new(label.into_iter().collect(), facts, Vec::new());
        let variants = self.combine(span, variant, true)?;
        let alternatives = variants.into_iter().map(|variant| Alternative {
            labels: variant.labels,
            parameters: names.clone(),
            facts: variant.body,
        });
        let alternatives: Vec<Alternative> = alternatives.collect();
        self.by_name.entry(name.clone()).or_default().extend(alternatives);
        Ok(())
    }

    /// Replaces definitions by their conditions: one variant for each combination of alternatives.
    ///
    /// # Errors
    /// A wrong number of arguments; too many variants.
    pub(super) fn expand(&self, span: &Span, rule: Variant) -> Result<Vec<Variant>, Fault> {
        self.combine(span, rule, false)
    }

    /// Expands a rule, or the conditions of a definition. In a definition, aliases of variables are kept, because they
    /// may be parameters.
    fn combine(&self, span: &Span, mut rule: Variant, in_definition: bool) -> Result<Vec<Variant>, Fault> {
        let check =
            |variant: &Variant| validate::size(&variant.body, &variant.head).or_else(|message| fault(span, message));
        let is_use =
            |fact: &Fact| matches!(fact, Fact::Fact(Expr::Call(_, name, _)) if self.by_name.contains_key(name));
        if in_definition || rule.body.iter().any(is_use) {
            check(&rule)?;
        }
        let body = std::mem::take(&mut rule.body);
        let mut variants = vec![rule];
        for (number, fact) in body.into_iter().enumerate() {
            let used = match &fact {
                Fact::Fact(Expr::Call(at, name, arguments)) => self
                    .by_name
                    .get_key_value(name)
                    .map(|(name, alternatives)| (at, name, alternatives, arguments)),
                Fact::Eq(..) | Fact::Fact(_) => None,
            };
            let Some((at, name, alternatives, arguments)) = used else {
                variants.iter_mut().for_each(|variant| variant.body.push(fact.clone()));
                continue;
            };
            if variants.len() * alternatives.len() > MAX_ALTERNATIVES {
                return fault(span, format!("the rule stands for more than {MAX_ALTERNATIVES} rules"));
            }
            let mut next = Vec::with_capacity(variants.len() * alternatives.len());
            for variant in &variants {
                for alternative in alternatives {
                    let (wanted, found) = (alternative.parameters.len(), arguments.len());
                    if wanted != found {
                        return fault(at, format!("'{name}' takes {wanted} arguments, found {found}"));
                    }
                    let mut variant = variant.clone();
                    variant.use_alternative(alternative, arguments, &format!("{name}-{number}"), in_definition);
                    // Definitions that use each other twice would grow exponentially.
                    check(&variant)?;
                    next.push(variant);
                }
            }
            variants = next;
        }
        variants.iter_mut().for_each(Variant::resolve);
        Ok(variants)
    }
}

impl Variant {
    pub(super) fn new(labels: Vec<String>, body: Vec<Fact>, head: Vec<Action>) -> Self {
        Variant {
            labels,
            body,
            head,
            aliases: HashMap::new(),
        }
    }

    /// Adds the conditions of an alternative. `prefix` makes the names of its own variables unique.
    fn use_alternative(&mut self, alternative: &Alternative, arguments: &[Expr], prefix: &str, in_definition: bool) {
        let by: HashMap<&str, &Expr> = alternative
            .parameters
            .iter()
            .map(String::as_str)
            .zip(arguments)
            .collect();
        let value = |variable: &str, at: &Span| match by.get(variable) {
            Some(&argument) => argument.clone(),
            // The parser reserves names that begin with `@`.
            None => Expr::Var(at.clone(), format!("@{prefix}-{}", variable.trim_start_matches('@'))),
        };
        self.labels.extend(alternative.labels.iter().cloned());
        for fact in &alternative.facts {
            let fact = substituted(fact, &value);
            match alias(&fact) {
                Some((variable, value)) if !in_definition => _ = self.aliases.insert(variable, value),
                _ => self.body.push(fact),
            }
        }
    }

    /// Replaces aliases by their variables or literals.
    fn resolve(&mut self) {
        let aliases = std::mem::take(&mut self.aliases);
        if aliases.is_empty() {
            return;
        }
        let value = |variable: &str, at: &Span| {
            let mut value = Expr::Var(at.clone(), variable.to_owned());
            // Aliases may refer to each other. The loop is bounded, because they may form a cycle.
            for _ in 0..aliases.len() {
                match &value {
                    Expr::Var(_, name) if aliases.contains_key(name) => value = aliases[name].clone(),
                    _ => break,
                }
            }
            value
        };
        self.body = self.body.iter().map(|fact| substituted(fact, &value)).collect();
        let expr = |expr: &Expr| substituted_expr(expr, &value);
        for action in &mut self.head {
            match action {
                Action::Let(_, _, a) | Action::Expr(_, a) => *a = expr(a),
                Action::Union(_, a, b) => (*a, *b) = (expr(a), expr(b)),
                // Such actions are refused.
                Action::Set(..) | Action::Change(..) | Action::Panic(..) => {}
            }
        }
    }
}

/// Converts a condition of a definition from the expression that the parser returns for it.
fn as_fact(expr: &Expr) -> Result<Fact, Fault> {
    match expr {
        Expr::Call(span, name, arguments) if name == "=" => match &arguments[..] {
            [a, b] => Ok(Fact::Eq(span.clone(), a.clone(), b.clone())),
            _ => fault(span, "expected (= A B)"),
        },
        Expr::Call(..) => Ok(Fact::Fact(expr.clone())),
        Expr::Var(span, _) | Expr::Lit(span, _) => fault(span, "expected a condition"),
    }
}

/// Returns an alias and the variable or literal that replaces it, if the condition only defines an alias.
fn alias(fact: &Fact) -> Option<(String, Expr)> {
    match fact {
        Fact::Eq(_, Expr::Var(_, variable), value @ (Expr::Var(..) | Expr::Lit(..))) => {
            Some((variable.clone(), value.clone()))
        }
        _ => None,
    }
}

fn substituted(fact: &Fact, value: &dyn Fn(&str, &Span) -> Expr) -> Fact {
    match fact {
        Fact::Eq(span, a, b) => Fact::Eq(span.clone(), substituted_expr(a, value), substituted_expr(b, value)),
        Fact::Fact(a) => Fact::Fact(substituted_expr(a, value)),
    }
}

fn substituted_expr(expr: &Expr, value: &dyn Fn(&str, &Span) -> Expr) -> Expr {
    match expr {
        Expr::Var(span, variable) => value(variable, span),
        Expr::Lit(..) => expr.clone(),
        Expr::Call(span, name, arguments) => {
            let arguments = arguments.iter().map(|argument| substituted_expr(argument, value));
            Expr::Call(span.clone(), name.clone(), arguments.collect())
        }
    }
}
