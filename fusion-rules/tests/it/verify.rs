//! Tests that every built-in rule holds on generated graphs, and that its result for the first graph equals the recorded one.

use std::fmt::Write as _;
use std::path::PathBuf;

use meganeura_compiler::rewrite::RuleSet;
use meganeura_compiler::rewrite::verify::{Outcome, RuleVerdict, VerifyOptions, verify_rule_set};

/// Environment variable that makes the test rewrite the golden files.
const WRITE: &str = "MEGANEURA_WRITE_GOLDEN";

fn golden_file(set: &RuleSet) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    folder.join(format!("{}.txt", set.namespace))
}

/// Returns the first graph of every rule before and after.
fn golden_text(set: &RuleSet, verdicts: &[RuleVerdict]) -> String {
    let mut text = format!(
        "Rules of '{}' on the first graph that is found for each. Written by `{WRITE}=1 cargo test -p meganeura-rules \
         --test it verify::`.\n",
        set.namespace
    );
    for verdict in verdicts {
        if let Outcome::Sound { example, .. } = &verdict.outcome {
            let _ = write!(
                text,
                "\n== {}\n-- before\n{}-- after\n{}",
                verdict.rule.name, example.before, example.after
            );
        }
    }
    text
}

fn verify(namespace: &str) {
    let set = meganeura_rules::rule_sets()
        .into_iter()
        .find(|s| s.namespace == namespace)
        .expect("the set exists");
    let start = std::time::Instant::now();
    let verdicts = verify_rule_set(&set, &VerifyOptions::default()).expect("the set parses");
    let failures: Vec<String> = verdicts
        .iter()
        .filter(|v| !v.is_sound())
        .map(ToString::to_string)
        .collect();
    println!("{namespace}: {} rules in {:?}", verdicts.len(), start.elapsed());
    for verdict in &verdicts {
        println!("{verdict}");
    }
    assert!(
        failures.is_empty(),
        "{} of {} rules failed:\n{}",
        failures.len(),
        verdicts.len(),
        failures.join("\n")
    );
    let (file, text) = (golden_file(&set), golden_text(&set, &verdicts));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &text).expect("the golden file can be written");
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = recorded.lines().zip(text.lines()).position(|(a, b)| a != b);
    let differs = differs.unwrap_or_else(|| recorded.lines().count().min(text.lines().count()));
    assert!(
        recorded == text,
        "{} line {} is '{}' but '{}' is made now; if that is intended, run\n  {WRITE}=1 cargo test -p meganeura-rules \
         --test it verify::",
        file.display(),
        differs + 1,
        recorded.lines().nth(differs).unwrap_or_default(),
        text.lines().nth(differs).unwrap_or_default(),
    );
}

macro_rules! sets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            verify(stringify!($name));
        })*

        #[test]
        fn no_set_is_left_out() {
            let sets: Vec<String> = meganeura_rules::rule_sets().iter().map(|s| s.namespace.to_string()).collect();
            assert_eq!(sets, [$(stringify!($name)),*]);
        }
    };
}

sets! { algebra attention convolution matmul norm packing parts pooling swiglu }
