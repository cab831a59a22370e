//! Rules: from the text of a rule set to checked rules.

use egglog::ast::{Action, Command, Expr, Fact, Parser, Rule as AstRule, RuleEvalMode, Span};

use super::RuleSet;
use crate::error::{Error, Result};

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
    /// Actions: `let`, `union`.
    pub head: Vec<Action>,
}

/// Variable that a `rewrite` binds to the value that it rewrites.
pub const ROOT: &str = "root__";

impl Rule {
    /// Name within all sets: `set/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.set, self.name)
    }

    /// Name for reports: without the part that tells variants apart.
    pub fn title(&self) -> &str {
        self.name.split('#').next().unwrap_or_default()
    }
}

/// Parses the rules of a set.
///
/// # Errors
/// [`Error::RuleSet`] with the place in the text: what does not parse, commands other than `rewrite`,
/// `birewrite` and `rule`, rules without a name or with a name taken, actions other than `let` and `union`.
pub fn parse(set: &RuleSet) -> Result<Vec<Rule>> {
    let fail = |span: Option<&Span>, message: String| Error::RuleSet {
        set: set.namespace.to_string(),
        rule: None,
        span: span.map(ToString::to_string),
        message,
    };
    let file = format!("{}.egg", set.namespace);
    let commands = Parser::default()
        .get_program_from_string(Some(file), &set.rules)
        .map_err(|e| fail(None, e.to_string()))?;
    let mut rules: Vec<Rule> = Vec::new();
    for command in commands {
        let rule = match command {
            Command::Rewrite(ruleset, rewrite, _) => {
                let root = Expr::Var(rewrite.span.clone(), ROOT.into());
                let mut body = vec![Fact::Eq(rewrite.span.clone(), root.clone(), rewrite.lhs)];
                body.extend(rewrite.conditions);
                let union = Action::Union(rewrite.span.clone(), root, rewrite.rhs);
                (ruleset, rewrite.name, rewrite.span, body, vec![union])
            }
            Command::Rule { rule } => (rule.ruleset, rule.name, rule.span, rule.body, rule.head.0),
            other => return Err(fail(None, format!("the command is not allowed in a rule set: {other}"))),
        };
        let (ruleset, name, span, body, head) = rule;
        let phase = match ruleset.as_str() {
            "" => Phase::AfterAutodiff,
            "before_autodiff" => Phase::BeforeAutodiff,
            "always" => Phase::Always,
            other => {
                return Err(fail(
                    Some(&span),
                    format!("':ruleset {other}' is neither before_autodiff nor always"),
                ));
            }
        };
        if name.is_empty() {
            return Err(fail(Some(&span), "the rule has no :name".into()));
        }
        if rules.iter().any(|r| r.name == name) {
            return Err(fail(Some(&span), format!("a second rule is called '{name}'")));
        }
        rules.push(Rule {
            set: set.namespace.to_string(),
            name,
            phase,
            span,
            body,
            head,
        });
    }
    Ok(rules)
}

impl Rule {
    /// The rule as egglog runs it, in `ruleset`.
    pub(super) fn command(&self, ruleset: &str, head: Vec<Action>) -> Command {
        Command::Rule {
            rule: AstRule {
                span: self.span.clone(),
                head: egglog::ast::GenericActions(head),
                body: self.body.clone(),
                name: self.full_name(),
                ruleset: ruleset.to_owned(),
                eval_mode: RuleEvalMode::Seminaive,
                no_decomp: false,
                include_subsumed: false,
            },
        }
    }
}
