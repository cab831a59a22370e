//! Rules: parses and checks the text of a rule set.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use egglog::ast::{Action, Command, Expr, Fact, Parser, Rewrite, Rule as AstRule, RuleEvalMode, Span};

use super::define::{DEFINE, Definitions, Variant};
use super::elaborate::elaborate;
use super::pattern::Pattern;
use super::validate;
use meganeura_core::error::{Error, Result};
use meganeura_core::rule_set::RuleSet;

/// Pass that uses a rule. Inference has one pass, with the rules of both training passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before differentiation, on the forward graph, so that the result is differentiated (`:ruleset before_autodiff`).
    BeforeAutodiff,
    /// After differentiation, on the whole graph; the default for rules without a `:ruleset`.
    AfterAutodiff,
    /// In both passes (`:ruleset always`).
    Always,
}

/// A rule: if the facts hold, the actions are applied.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Namespace of its set.
    pub set: String,
    /// Name of the rule in the set; a suffix after `#` distinguishes variants of one rule.
    pub name: String,
    /// Pass that uses it.
    pub phase: Phase,
    /// Position in the text.
    pub span: Span,
    /// Facts. For a `rewrite`, the first fact binds [`ROOT`] to the left-hand side.
    pub body: Vec<Fact>,
    /// Actions: `let`, `union`, calls of operators.
    pub head: Vec<Action>,
    /// The rule with resolved names, for the matcher that works without egglog.
    pub(super) pattern: Arc<Pattern>,
}

/// Variable that a `rewrite` binds to the value that it rewrites.
pub const ROOT: &str = "root__";

/// Minimum number of facts for a different query: a rule with at least this number and one root is matched against the
/// whole e-graph in each round. Usually, egglog runs one query for each fact that could be new, each with a join order
/// that starts there. With many facts, these queries take longer than one query that also finds the old matches, which
/// have no effect. Rules with several roots are excluded, because they would join all pairs of calls in each round.
const MANY_FACTS: usize = 8;

impl Rule {
    /// Returns the name within all sets: `set/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.set, self.name)
    }

    /// Returns the name for reports, without the suffix of variants.
    pub fn title(&self) -> &str {
        self.name.split('#').next().unwrap_or_default()
    }

    /// Returns the position in the text for errors: file, line, column and the first words.
    pub fn place(&self) -> String {
        place(&self.span)
    }
}

/// Returns a position for errors: file, line, column and the first words there.
pub(super) fn place(span: &Span) -> String {
    match span {
        Span::Egglog(span) => {
            let (line, column) = span.file.get_location(span.i);
            let name = span.file.name.as_deref().unwrap_or("rules");
            let text = span.file.contents.get(span.i..span.j).unwrap_or_default();
            format!("{name}:{line}:{column}: {}", shortened(text))
        }
        Span::Rust(span) => format!("{}:{}:{}", span.file, span.line, span.column),
        Span::Panic => String::new(),
    }
}

/// Returns the beginning of a text as one line, for messages.
pub(super) fn shortened(text: &str) -> String {
    const SHOWN: usize = 100;
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    if line.chars().count() <= SHOWN {
        return line;
    }
    let start: String = line.chars().take(SHOWN).collect();
    format!("{start} ..")
}

/// Parses and checks the rules of a set. Operators are looked up among those of the set and the
/// registered ones.
///
/// # Errors
/// [`Error::RuleSet`] with rule and position: text that does not parse or exceeds the limits,
/// commands other than `define`, `rewrite`, `birewrite` and `rule`, rules without a name or with a name
/// taken, unknown operators and facts, wrong numbers and sorts of arguments, unbound variables,
/// disconnected patterns, actions other than `let`, `union` and calls of operators.
pub fn parse(set: &RuleSet) -> Result<Vec<Rule>> {
    let fail = |rule: Option<&str>, span: Option<String>, message: String| Error::RuleSet {
        set: set.namespace.to_string(),
        rule: rule.map(str::to_owned),
        span: span.filter(|s| !s.is_empty()),
        message,
    };
    validate::set(set).map_err(|message| fail(None, None, message))?;
    validate::text(&set.rules).map_err(|(at, message)| fail(None, Some(text_position(set, at)), message))?;
    let commands = commands(set).map_err(|(span, message)| fail(None, span, message))?;
    let mut rules: Vec<Rule> = Vec::new();
    let mut definitions = Definitions::default();
    for command in commands {
        let drafts = match command {
            Command::Action(Action::Expr(_, Expr::Call(span, name, arguments))) if name == DEFINE => {
                definitions.add(&span, &arguments).map(|()| Vec::new())
            }
            command => drafts(command).and_then(|drafts| expanded(drafts, &definitions)),
        };
        for draft in drafts.map_err(|(span, message)| fail(None, Some(span), message))? {
            let rule = draft.checked(set, &rules).map_err(|(span, message)| {
                let name = Some(draft.name.as_str()).filter(|n| !n.is_empty() && !n.chars().any(char::is_control));
                fail(name.map(shortened).as_deref(), Some(span), message)
            })?;
            rules.push(rule);
        }
        if rules.len() > validate::MAX_RULES {
            let message = format!("there are more than {} rules", validate::MAX_RULES);
            return Err(fail(None, None, message));
        }
    }
    Ok(rules)
}

fn file_name(set: &RuleSet) -> String {
    format!("{}.egg", set.namespace)
}

fn text_position(set: &RuleSet, at: usize) -> String {
    let before = set.rules.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{}:{line}:{column}", file_name(set))
}

/// Parses the text with egglog's parser.
fn commands(set: &RuleSet) -> Result<Vec<Command>, (Option<String>, String)> {
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        Parser::default().get_program_from_string(Some(file_name(set)), &set.rules)
    }));
    match parsed {
        Ok(Ok(commands)) => Ok(commands),
        Ok(Err(error)) => Err((Some(place(&error.0)), error.1)),
        Err(_) => Err((None, "the text does not parse".into())),
    }
}

/// A rule that has been parsed, but not checked.
struct UncheckedRule {
    name: String,
    ruleset: String,
    span: Span,
    body: Vec<Fact>,
    head: Vec<Action>,
}

impl UncheckedRule {
    fn of_rewrite(ruleset: String, rewrite: Rewrite) -> Self {
        let root = Expr::Var(rewrite.span.clone(), ROOT.into());
        let mut body = vec![Fact::Eq(rewrite.span.clone(), root.clone(), rewrite.lhs)];
        body.extend(rewrite.conditions);
        let union = Action::Union(rewrite.span.clone(), root, rewrite.rhs);
        UncheckedRule {
            name: rewrite.name,
            ruleset,
            span: rewrite.span,
            body,
            head: vec![union],
        }
    }

    fn checked(&self, set: &RuleSet, others: &[Rule]) -> Result<Rule, (String, String)> {
        let here = |message: String| (place(&self.span), message);
        let phase = match self.ruleset.as_str() {
            "" => Phase::AfterAutodiff,
            "before_autodiff" => Phase::BeforeAutodiff,
            "always" => Phase::Always,
            other => {
                let message = format!("':ruleset {}' is neither before_autodiff nor always", shortened(other));
                return Err(here(message));
            }
        };
        validate::rule_name(&self.name).map_err(here)?;
        if others.iter().any(|r| r.name == self.name) {
            return Err(here("a second rule has this name".into()));
        }
        validate::size(&self.body, &self.head).map_err(here)?;
        let pattern = elaborate(&set.ops, &self.body, &self.head, &self.span)
            .map_err(|fault| (place(&fault.span), fault.message))?;
        Ok(Rule {
            set: set.namespace.to_string(),
            name: self.name.clone(),
            phase,
            span: self.span.clone(),
            body: self.body.clone(),
            head: self.head.clone(),
            pattern: Arc::new(pattern),
        })
    }
}

/// Replaces definitions in rules. The labels of alternatives follow the name of the rule.
fn expanded(drafts: Vec<UncheckedRule>, definitions: &Definitions) -> Result<Vec<UncheckedRule>, (String, String)> {
    let mut all = Vec::new();
    for draft in drafts {
        let variant = Variant::new(Vec::new(), draft.body, draft.head);
        for variant in definitions.expand(&draft.span, variant)? {
            let mut name = draft.name.clone();
            for label in variant.labels {
                if !name.is_empty() {
                    name.push(if name.contains('#') { '-' } else { '#' });
                    name += &label;
                }
            }
            all.push(UncheckedRule {
                name,
                ruleset: draft.ruleset.clone(),
                span: draft.span.clone(),
                body: variant.body,
                head: variant.head,
            });
        }
    }
    Ok(all)
}

/// Returns the rules of a command.
fn drafts(command: Command) -> Result<Vec<UncheckedRule>, (String, String)> {
    match command {
        Command::Rewrite(_, rewrite, true) => Err((
            place(&rewrite.span),
            ":subsume is not allowed: it could hide the cheaper form".into(),
        )),
        Command::Rewrite(ruleset, rewrite, false) => Ok(vec![UncheckedRule::of_rewrite(ruleset, rewrite)]),
        Command::BiRewrite(ruleset, rewrite) => {
            let mut back = rewrite.clone();
            std::mem::swap(&mut back.lhs, &mut back.rhs);
            let mut drafts = vec![
                UncheckedRule::of_rewrite(ruleset.clone(), rewrite),
                UncheckedRule::of_rewrite(ruleset, back),
            ];
            for (draft, way) in drafts.iter_mut().zip(["forward", "backward"]) {
                if !draft.name.is_empty() {
                    draft.name += &format!("#{way}");
                }
            }
            Ok(drafts)
        }
        Command::Rule { rule } => {
            if rule.eval_mode != RuleEvalMode::Seminaive || rule.no_decomp || rule.include_subsumed {
                let message = "the only options of a rule are :ruleset and :name";
                return Err((place(&rule.span), message.into()));
            }
            Ok(vec![UncheckedRule {
                name: rule.name,
                ruleset: rule.ruleset,
                span: rule.span,
                body: rule.body,
                head: rule.head.0,
            }])
        }
        // The text has already been checked for other commands.
        _ => Err((
            String::new(),
            "a command is neither define, rewrite, birewrite nor rule".into(),
        )),
    }
}

impl Rule {
    /// Returns the rule as an egglog command, in `ruleset`.
    pub(super) fn command(&self, ruleset: &str, head: Vec<Action>) -> Command {
        let eval_mode = if self.body.len() >= MANY_FACTS && self.pattern.has_one_root() {
            RuleEvalMode::Naive
        } else {
            RuleEvalMode::Seminaive
        };
        Command::Rule {
            rule: AstRule {
                span: self.span.clone(),
                head: egglog::ast::GenericActions(head),
                body: self.body.clone(),
                name: self.full_name(),
                ruleset: ruleset.to_owned(),
                eval_mode,
                no_decomp: false,
                include_subsumed: false,
            },
        }
    }
}
