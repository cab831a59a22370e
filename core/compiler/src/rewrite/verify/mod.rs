//! Verification of rules by testing them.
//!
//! For each rule, a search finds graphs on which its left-hand side matches. Both sides are built
//! and compared with the [oracle](meganeura_core::reference): every value that the rule equates,
//! and, for rules that take part before differentiation, also the gradients of a random weighted
//! sum of these values. A rule that passes is not proven; one that fails is reported with the case.

mod check;
mod leaf;
mod order;
mod pool;
mod search;

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use check::RuleSides;

use super::rule::{Phase, Rule, parse};
use check::{Finding, check};
use meganeura_core::error::Result;
use meganeura_core::rule_set::RuleSet;
use search::Search;

/// Options of the verification. The result depends only on these and the rule.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Number of different graphs to test for each rule.
    pub cases: usize,
    /// Maximum number of steps to search for graphs that a rule matches, for each rule. A step takes some microseconds.
    pub steps: u64,
    /// Seed of random numbers.
    pub seed: u64,
    /// Maximum accepted difference, relative to the largest element. Constants are 32-bit floats,
    /// so it should not be below 1e-6.
    pub tolerance: f64,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            cases: 6,
            steps: 300_000,
            seed: 1,
            tolerance: 2e-6,
        }
    }
}

/// Result of the verification of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Both sides agreed on all graphs.
    Sound {
        /// Number of these graphs.
        cases: usize,
        /// The first of these graphs.
        example: RuleSides,
    },
    /// The sides differ.
    Wrong {
        /// The failing case.
        case: RuleSides,
        /// The first element that differs, and the values of the leaves.
        difference: String,
    },
    /// The right-hand side is not a valid call, or has another type.
    IllTyped {
        /// The failing case.
        case: RuleSides,
        /// Description of the error.
        message: String,
    },
    /// No graph was found that the left-hand side matches.
    NoWitness,
    /// An operator failed or panicked.
    Failed {
        /// Message of the operator.
        message: String,
    },
}

/// A rule with the result of its verification.
#[derive(Clone, Debug)]
pub struct RuleVerdict {
    /// The rule.
    pub rule: Arc<Rule>,
    /// The result.
    pub outcome: Outcome,
}

impl Outcome {
    /// Returns the name of the result, one word for listings.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Sound { .. } => "sound",
            Outcome::Wrong { .. } => "wrong",
            Outcome::IllTyped { .. } => "ill-typed",
            Outcome::NoWitness => "untested",
            Outcome::Failed { .. } => "failed",
        }
    }
}

impl RuleVerdict {
    /// Returns `true` if the rule agreed on at least one graph and differed on none.
    pub fn is_sound(&self) -> bool {
        matches!(self.outcome, Outcome::Sound { .. })
    }
}

impl fmt::Display for RuleVerdict {
    /// Writes one line for a sound rule, and the whole case for any other.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.rule.full_name();
        if let Outcome::Sound { cases, .. } = &self.outcome {
            let plural = if *cases == 1 { "" } else { "s" };
            return write!(f, "{name}: sound on {cases} graph{plural}");
        }
        writeln!(f, "{name}: {}", self.outcome.name())?;
        writeln!(f, "  {}", self.rule.place())?;
        let (case, message) = match &self.outcome {
            Outcome::Wrong { case, difference } => (case, difference),
            Outcome::IllTyped { case, message } => (case, message),
            Outcome::Failed { message } => return write!(f, "  {message}"),
            Outcome::Sound { .. } | Outcome::NoWitness => {
                return write!(f, "  no matching graph found");
            }
        };
        for (title, text) in [("before", &case.before), ("after", &case.after)] {
            if !text.is_empty() {
                writeln!(f, "  {title}:")?;
                text.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
        }
        write!(f, "  {}", message.replace('\n', "\n  "))
    }
}

/// Verifies the rules of a set, which need not be registered.
///
/// # Errors
/// See [`parse`].
pub fn verify_rule_set(set: &RuleSet, options: &VerifyOptions) -> Result<Vec<RuleVerdict>> {
    let rules: Vec<Arc<Rule>> = parse(set)?.into_iter().map(Arc::new).collect();
    Ok(rules.iter().map(|rule| verify_rule(rule, options)).collect())
}

/// Verifies one rule. Takes bounded time and memory, and catches panics of operators.
pub fn verify_rule(rule: &Arc<Rule>, options: &VerifyOptions) -> RuleVerdict {
    let outcome = catch_unwind(AssertUnwindSafe(|| try_rule(rule, options)));
    let outcome = match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Failed {
            message: error.to_string(),
        },
        Err(panic) => Outcome::Failed {
            message: format!("an operator panicked: {}", panic_message(&*panic)),
        },
    };
    RuleVerdict {
        rule: rule.clone(),
        outcome,
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it did not say why")
}

fn try_rule(rule: &Rule, options: &VerifyOptions) -> Result<Outcome> {
    let Some(mut search) = Search::new(&rule.pattern, options.seed, options.steps) else {
        return Ok(Outcome::NoWitness);
    };
    let gradients = rule.phase != Phase::AfterAutodiff;
    let mut seen: HashSet<String> = HashSet::new();
    let mut example = None;
    let mut cases = 0;
    while cases < options.cases {
        let Some(witness) = search.next() else { break };
        if !seen.insert(witness.signature()) {
            continue;
        }
        // Evaluation is slower than searching.
        search.steps = search.steps.saturating_sub(options.steps / 200);
        match check(&rule.pattern, &search.order, &witness, gradients, options.tolerance)? {
            Finding::Nothing => {}
            Finding::Same(sides) => {
                cases += 1;
                example.get_or_insert(sides);
            }
            Finding::Wrong(case, difference) => return Ok(Outcome::Wrong { case, difference }),
            Finding::IllTyped(case, message) => return Ok(Outcome::IllTyped { case, message }),
        }
    }
    Ok(match example {
        Some(example) => Outcome::Sound { cases, example },
        None => Outcome::NoWitness,
    })
}
