//! Rules: from the text of a rule set to checked rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use egglog::ast::{Action, Command, Expr, Fact, Parser, Rewrite, Rule as AstRule, RuleEvalMode, Span};

use super::elaborate::elaborate;
use super::pattern::Pattern;
use super::{RuleSet, validate};
use meganeura_core::error::{Error, Result};

/// In which pass a rule takes part. A graph for inference has one pass, with the rules of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// On the forward graph, so that what it makes is differentiated (`:ruleset before_autodiff`).
    BeforeAutodiff,
    /// On the whole graph; what a rule says without a `:ruleset`.
    AfterAutodiff,
    /// On both (`:ruleset always`).
    Always,
}

/// A rule: where the facts hold, the actions are taken.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Namespace of its set.
    pub set: String,
    /// Its own name; what follows a `#` tells variants of one rule apart.
    pub name: String,
    /// Pass.
    pub phase: Phase,
    /// Place in the text.
    pub span: Span,
    /// Facts. Those of a `rewrite` start with the one that binds [`ROOT`] to the left-hand side.
    pub body: Vec<Fact>,
    /// Actions: `let`, `union`, calls of operators.
    pub head: Vec<Action>,
    /// The same with names resolved, for matching without egglog.
    pub(super) pattern: Arc<Pattern>,
}

/// Variable that a `rewrite` binds to the value that it rewrites.
pub const ROOT: &str = "root__";

/// Facts from which on a rule with one root is matched against the whole e-graph in each round. Otherwise it is asked once
/// for every fact that could be new, each time in an order of joins that starts there: with so many facts that takes longer than
/// finding the few matches of all together again, which change nothing. Rules with several roots would join all pairs of
/// calls again and again.
const MANY_FACTS: usize = 8;

impl Rule {
    /// Name within all sets: `set/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.set, self.name)
    }

    /// Name for reports: without the part that tells variants apart.
    pub fn title(&self) -> &str {
        self.name.split('#').next().unwrap_or_default()
    }

    /// Place in the text as errors show it: file, line, column and the first words.
    pub fn place(&self) -> String {
        place(&self.span)
    }
}

/// A place as errors show it: file, line, column and the first words there.
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

/// The beginning of a text on one line, for messages.
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

/// Parses and checks the rules of a set. Operators are looked up among those that the set brings and the
/// registered ones.
///
/// # Errors
/// [`Error::RuleSet`] with rule and place: text that does not parse or exceeds the limits, commands other than
/// `rewrite`, `birewrite` and `rule`, rules without a name or with a name taken, unknown operators and facts,
/// wrong numbers and sorts of arguments, unbound variables, disconnected patterns, actions other than `let`,
/// `union` and calls of operators.
pub fn parse(set: &RuleSet) -> Result<Vec<Rule>> {
    let fail = |rule: Option<&str>, span: Option<String>, message: String| Error::RuleSet {
        set: set.namespace.to_string(),
        rule: rule.map(str::to_owned),
        span: span.filter(|s| !s.is_empty()),
        message,
    };
    validate::set(set).map_err(|message| fail(None, None, message))?;
    validate::text(&set.rules).map_err(|(at, message)| fail(None, Some(text_place(set, at)), message))?;
    let commands = commands(set).map_err(|(span, message)| fail(None, span, message))?;
    let mut rules: Vec<Rule> = Vec::new();
    for command in commands {
        for draft in drafts(command).map_err(|(span, message)| fail(None, Some(span), message))? {
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

fn text_place(set: &RuleSet, at: usize) -> String {
    let before = set.rules.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{}:{line}:{column}", file_name(set))
}

/// Egglog's parser on the text.
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

/// A rule before it is checked.
struct Draft {
    name: String,
    ruleset: String,
    span: Span,
    body: Vec<Fact>,
    head: Vec<Action>,
}

impl Draft {
    fn of_rewrite(ruleset: String, rewrite: Rewrite) -> Self {
        let root = Expr::Var(rewrite.span.clone(), ROOT.into());
        let mut body = vec![Fact::Eq(rewrite.span.clone(), root.clone(), rewrite.lhs)];
        body.extend(rewrite.conditions);
        let union = Action::Union(rewrite.span.clone(), root, rewrite.rhs);
        Draft {
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

/// The rules of a command.
fn drafts(command: Command) -> Result<Vec<Draft>, (String, String)> {
    match command {
        Command::Rewrite(_, rewrite, true) => Err((
            place(&rewrite.span),
            ":subsume is not allowed: what it hides could be the cheaper form".into(),
        )),
        Command::Rewrite(ruleset, rewrite, false) => Ok(vec![Draft::of_rewrite(ruleset, rewrite)]),
        Command::BiRewrite(ruleset, rewrite) => {
            let mut back = rewrite.clone();
            std::mem::swap(&mut back.lhs, &mut back.rhs);
            let mut drafts = vec![
                Draft::of_rewrite(ruleset.clone(), rewrite),
                Draft::of_rewrite(ruleset, back),
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
            Ok(vec![Draft {
                name: rule.name,
                ruleset: rule.ruleset,
                span: rule.span,
                body: rule.body,
                head: rule.head.0,
            }])
        }
        // The text has been checked for other commands.
        _ => Err((String::new(), "a command is neither rewrite, birewrite nor rule".into())),
    }
}

impl Rule {
    /// The rule as egglog runs it, in `ruleset`.
    pub(super) fn command(&self, ruleset: &str, head: Vec<Action>) -> Command {
        let eval_mode = match self.body.len() >= MANY_FACTS && self.pattern.has_one_root() {
            true => RuleEvalMode::Naive,
            false => RuleEvalMode::Seminaive,
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
