//! Tests of rejected rule sets and of the error messages.

use super::rule::{Phase, parse};
use meganeura_core::rule_set::RuleSet;

/// Returns the message for rules that must be rejected.
fn rejection(text: &str) -> String {
    let mut set = RuleSet::new("mine", 1, "");
    set.rules = text.to_owned().into();
    match parse(&set) {
        Ok(rules) => panic!("accepted {} rules: {text}", rules.len()),
        Err(error) => error.to_string(),
    }
}

fn accepted(text: &str) -> Vec<super::rule::Rule> {
    let mut set = RuleSet::new("mine", 1, "");
    set.rules = text.to_owned().into();
    parse(&set).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn rejected(text: &str, expected: &[&str]) {
    let message = rejection(text);
    assert!(message.starts_with("rule set 'mine'"), "{message}");
    for part in expected {
        assert!(message.contains(part), "'{part}' is not in: {message}");
    }
}

#[test]
fn good_rules_have_names_phases_and_variants() {
    let rules = accepted(
        r#"
; A comment with (parentheses and "quotes
(rewrite (core.neg (core.neg x)) x :ruleset always :name "Neg(Neg x)→x")
(rewrite (core.relu (core.relu x)) (core.relu x) :ruleset before_autodiff :name "relu#left")
(birewrite (core.neg (core.abs x)) (core.neg (core.abs (core.neg x))) :name "both")
(rule ((= s (core.add a _)) (= n (core.layer_norm eps s w b)) (= t (type s)) (> (rank t) 1))
      ((let m (core.layer_norm eps s w b)) (union (Get 0 n) (Get 0 m)) (core.neg s))
      :name "several")
"#,
    );
    let names: Vec<&str> = rules.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        ["Neg(Neg x)→x", "relu#left", "both#forward", "both#backward", "several"]
    );
    assert_eq!(rules[1].title(), "relu");
    let phases: Vec<Phase> = rules.iter().map(|r| r.phase).collect();
    assert_eq!(
        phases[..3],
        [Phase::Always, Phase::BeforeAutodiff, Phase::AfterAutodiff]
    );
    assert!(accepted("; nothing\n").is_empty());
}

#[test]
fn texts_that_do_not_parse() {
    rejected("(rewrite (core.neg x", &["mine.egg:1:21", "not closed"]);
    rejected(
        "(rewrite (core.neg x) x :name \"a\"))",
        &["mine.egg:1:35", "not opened"],
    );
    rejected("\n  (rewrite \"abc", &["mine.egg:2:12", "string does not end"]);
    rejected("(rewrite (core.neg x))", &["mine.egg:1:1", "usage"]);
    rejected("(rewrite (core.neg x) x :nam \"a\")", &["options"]);
    rejected("(rewrite (core.neg \"\\q\") x :name \"a\")", &["escape"]);
    rejected("(rewrite (core.neg @x) x :name \"a\")", &["reserved"]);
    rejected("(rewrite (core.neg root__) root__ :name \"a\")", &["reserved"]);
    rejected("()", &["expected command"]);
    rejected("\"text\"", &["expected"]);
}

#[test]
fn commands_other_than_rules() {
    for command in [
        "(include \"/etc/passwd\")",
        "(input f \"/etc/passwd\")",
        "(output \"/tmp/x\" (core.neg x))",
        "(run 1000000)",
        "(function f (i64) T :no-merge)",
        "(constructor core.mine (T) T)",
        "(sort T)",
        "(datatype T (A))",
        "(relation r (T))",
        "(ruleset r)",
        "(union a b)",
        "(let x (core.neg y))",
        "(set (f 1) 2)",
        "(core.neg x)",
        "(push)",
        "(print-function f 10)",
        "(fail (include \"x\"))",
        "word",
        "((rewrite a b))",
    ] {
        rejected(command, &["mine.egg:1:"]);
    }
    rejected(
        "(include \"/etc/passwd\")",
        &["only define, rewrite, birewrite, rule are allowed", "'include'"],
    );
}

#[test]
fn limits_of_the_text() {
    let deep = "(".repeat(100_000);
    rejected(&deep, &["nested deeper"]);
    let nested = format!("(rewrite {}x{} x :name \"a\")", "(core.neg ".repeat(70), ")".repeat(70));
    rejected(&nested, &["nested deeper"]);
    let row = "(core.neg x) ".repeat(300);
    rejected(
        &format!("(rule ({row}) ((core.neg x)) :name \"a\")"),
        &["200 are allowed", "rule 'a'"],
    );
    rejected(
        &format!("(rewrite (core.neg x) x :name \"{}\")", "a".repeat(2000)),
        &["longer than"],
    );
    rejected(&" ".repeat(2 << 20), &["the text is longer"]);
    let many: String = (0..10_050)
        .map(|i| format!("(rewrite (core.neg (core.neg x)) x :name \"{i}\")"))
        .collect();
    rejected(&many, &["more than 10000 rules"]);
    for number in ["99999999999999999999", "-9223372036854775809"] {
        rejected(
            &format!("(rule ((= x (core.matmul false true a b)) (< 1 {number})) ((core.neg x)) :name \"a\")"),
            &["does not fit"],
        );
    }
    for number in ["inf", "-inf", "NaN", "1e999", "nan", "infinity"] {
        rejected(
            &format!("(rewrite (core.neg {number}) x :name \"a\")"),
            &["not a finite number"],
        );
    }
}

#[test]
fn names_of_rules() {
    rejected("(rewrite (core.neg (core.neg x)) x)", &["no :name"]);
    rejected("(rewrite (core.neg (core.neg x)) x :name \"#left\")", &["no :name"]);
    rejected("(rewrite (core.neg (core.neg x)) x :name \"a\nb\")", &["control"]);
    rejected(
        "(rewrite (core.neg (core.neg x)) x :name \"a\")(rewrite (core.abs (core.abs x)) (core.abs x) :name \"a\")",
        &["rule 'a'", "a second rule", "mine.egg:1:46"],
    );
    rejected(
        "(rewrite (core.neg (core.neg x)) x :ruleset other :name \"a\")",
        &["before_autodiff"],
    );
    rejected(
        "(rewrite (core.neg (core.neg x)) x :subsume :name \"a\")",
        &[":subsume"],
    );
    for option in [
        ":naive",
        ":unsafe-seminaive",
        ":no-decomp",
        ":internal-include-subsumed",
    ] {
        rejected(
            &format!("(rule ((= x (core.neg y))) ((core.neg x)) {option} :name \"a\")"),
            &["only options"],
        );
    }
}

#[test]
fn operators_and_their_arguments() {
    rejected(
        "(rewrite (core.negg x) x :name \"a\")",
        &[
            "rule 'a'",
            "mine.egg:1:10: (core.negg x)",
            "no operator 'core.negg'",
            "core.neg",
        ],
    );
    rejected(
        "(rewrite (core.matmul false a b) a :name \"a\")",
        &["'core.matmul' takes 4 arguments", "transpose_a, transpose_b", "got 3"],
    );
    rejected(
        "(rewrite (core.matmul 0 true a b) a :name \"a\")",
        &["i64", "bool is needed"],
    );
    rejected(
        "(rewrite (core.permute \"[1,0]\" a) a :name \"a\")",
        &["'axes'", "[1, 0]"],
    );
    rejected(
        "(rewrite (core.cast \"f99\" a) a :name \"a\")",
        &["name of an element type"],
    );
    rejected("(rewrite (core.layer_norm 1 a b c) x :name \"a\")", &["f64 is needed"]);
    rejected(
        "(rewrite (core.concat 0 a b) a :name \"a\")",
        &["add the number to the name", "core.concat/2"],
    );
    rejected("(rewrite (core.concat/2 0 a) a :name \"a\")", &["takes 3 arguments"]);
    rejected(
        "(rewrite (core.concat/99999999 0 a) a :name \"a\")",
        &["expected a number of operands"],
    );
    rejected(
        "(rewrite (core.neg 1.5) x :name \"a\")",
        &["f64", "a value (T) is needed"],
    );
    rejected("(rewrite (core.neg ()) x :name \"a\")", &["is not a value"]);
    rejected(
        "(rewrite (core.neg (core.layer_norm e x w b)) x :name \"a\")",
        &["Tup", "Get"],
    );
    rejected("(rewrite (Get 0 (core.neg x)) x :name \"a\")", &["Tup"]);
    rejected(
        "(rewrite (Get 9 (core.layer_norm e x w b)) x :name \"a\")",
        &["has the 3 results"],
    );
    rejected(
        "(rewrite (Get -1 (core.layer_norm e x w b)) x :name \"a\")",
        &["counted from 0"],
    );
    rejected("(rewrite (core.neg x) (core.layer_norm e x x x) :name \"a\")", &["Tup"]);
}

#[test]
fn facts_and_variables() {
    let with = |fact: &str| format!("(rewrite (core.neg (core.neg x)) x :when ({fact}) :name \"a\")");
    rejected(&with("(shape x)"), &["no fact or function 'shape'"]);
    rejected(&with("(rank x)"), &["i64"]);
    rejected(&with("(= 2 (rank (type x) 1))"), &["'rank' takes 1 arguments"]);
    rejected(&with("(< x 1)"), &["'<' is not defined for (T, i64)"]);
    rejected(&with("(< n 1)"), &["'n' is not bound"]);
    rejected(&with("(= n (+ m 1))"), &["is not bound"]);
    rejected(&with("(= n m)"), &["the sort of"]);
    rejected(&with("(= 2 (rank t))"), &["'t' is not bound"]);
    rejected(&with("(= 2 (rank (type y)))"), &["'y' occurs only in facts"]);
    rejected(&with("(= (cap \"x\") (cap \"y\"))"), &["condition"]);
    rejected(&with("(+ 1 2)"), &["expected a condition, found a value"]);
    rejected(&with("(= x 1)"), &["i64"]);
    rejected(&with("(!= x)"), &["compares two"]);
    rejected("(rewrite (core.neg (core.neg x)) y :name \"a\")", &["'y' is not bound"]);
    rejected(
        "(rewrite (core.neg (core.neg :x)) y :name \"a\")",
        &["not a valid variable name"],
    );
    accepted(&with(
        "(= 2.5 (uniform x)) (= d (dtype (type x))) (!= d \"f32\") (< (+ 1 (ord x)) 9)",
    ));
}

#[test]
fn patterns_that_match_everything_or_pairs() {
    rejected("(rewrite x (core.neg x) :name \"a\")", &["matches every value"]);
    rejected(
        "(rewrite (Parameter i) (Parameter i) :name \"a\")",
        &["matches every value"],
    );
    rejected("(rewrite (Get i t) (Get i t) :name \"a\")", &["matches every value"]);
    rejected(
        "(rule ((= x (core.neg a)) (= y (core.neg b))) ((union x y)) :name \"a\")",
        &["disconnected", "mine.egg:1:32"],
    );
    // Equal types do not connect a pattern: almost all values of a model have one of few types.
    rejected(
        "(rule ((= x (core.neg a)) (= y (core.neg b)) (= (type a) (type b))) ((union x y)) :name \"a\")",
        &["disconnected"],
    );
    rejected("(rule () ((core.neg x)) :name \"a\")", &["matches every value"]);
    // A leaf is the same value wherever it is named.
    accepted(
        "(rule ((= x (core.neg (Parameter i))) (= w (Parameter i)) (= y (core.abs w))) ((union x x)) :name \"a\")",
    );
}

#[test]
fn actions() {
    let with = |actions: &str| format!("(rule ((= x (core.neg a)) (= n (rank (type a)))) ({actions}) :name \"a\")");
    rejected(&with("(set (f 1) 2)"), &["not allowed"]);
    rejected(&with("(delete (core.neg a))"), &["not allowed"]);
    rejected(&with("(subsume (core.neg a))"), &["not allowed"]);
    rejected(&with("(panic \"x\")"), &["not allowed"]);
    rejected(&with("(union n n)"), &["only values can be united"]);
    rejected(&with("(let x (core.neg a))"), &["bound already"]);
    rejected(&with("(let y (core.neg a)) (let y (core.neg a))"), &["bound already"]);
    rejected(&with("(let y (core.neg y))"), &["is not bound"]);
    rejected(&with("(union x z) (let z (core.neg a))"), &["is not bound"]);
    rejected(&with("(union x (Parameter n))"), &["cannot make leaves"]);
    rejected(
        &with("(union x (core.permute (swap-last (type a)) a))"),
        &["actions cannot use facts"],
    );
    rejected(&with("(let y 1.5) (union x (core.sum \"[0]\" y a))"), &["f64"]);
    accepted(&with(
        "(let m (+ n 1)) (let y (core.cumsum m false false a)) (union x y)",
    ));
}

#[test]
fn sets() {
    for namespace in ["", "Mine", "a b", "a/b", "a.b", "ä"] {
        let set = RuleSet::new(Box::leak(namespace.to_owned().into_boxed_str()), 1, "");
        let message = parse(&set).unwrap_err().to_string();
        assert!(message.contains("namespace"), "{message}");
    }
}

/// Random edits of a valid text give an error or rules, but never a panic.
#[test]
fn damaged_texts_do_not_panic() {
    let good = r#"(rule ((= s (core.add a b)) (= n (core.layer_norm 1e-5 s w c)) (= 2 (rank (type s))))
      ((let t (core.permute "[1, 0]" s)) (union t (core.permute "[1, 0]" s))) :name "several")"#;
    accepted(good);
    let pieces = [
        "(", ")", "\"", ";", "\\", " ", "1", "-", "é", "\n", ":name", "(= x y)", "core.", "Get", "_",
    ];
    let mut rng = meganeura_core::random::SplitMix64::new(5);
    for _ in 0..3000 {
        let mut chars: Vec<char> = good.chars().collect();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(chars.len());
            match rng.below(3) {
                0 => {
                    chars.remove(at);
                }
                1 => {
                    let end = (at + rng.below(20)).min(chars.len());
                    chars.drain(at..end);
                }
                _ => {
                    let piece = pieces[rng.below(pieces.len())];
                    chars.splice(at..at, piece.chars());
                }
            }
        }
        let mut set = RuleSet::new("mine", 1, "");
        set.rules = chars.into_iter().collect::<String>().into();
        if let Err(error) = parse(&set) {
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn definitions_stand_for_their_conditions() {
    let rules = accepted(
        r#"
(define (scaled s z f) (= s (core.mul z c)) (= f (uniform c)) (> f 0.0))
(define (scaled s z f) :name "divided" (= s (core.div z c)) (= f (/ 1.0 (uniform c))))
(define (scaled s z f) :name "unscaled" (= s z) (= f 1.0))
(define (activated y x) (= y (core.relu x)) (scaled x z f) (< f 2.0))
(rule ((= p (core.exp s)) (scaled s z f)) ((union p (core.leaky_relu f z))) :name "a")
(rule ((activated p x)) ((union p (core.abs x))) :ruleset always :name "b#c")
"#,
    );
    let names: Vec<&str> = rules.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(
        names,
        ["a", "a#divided", "a#unscaled", "b#c", "b#c-divided", "b#c-unscaled"]
    );
    assert!(rules[3..].iter().all(|rule| rule.phase == Phase::Always));
    let text = |rule: &super::rule::Rule| {
        let facts: Vec<String> = rule.body.iter().map(ToString::to_string).collect();
        let actions: Vec<String> = rule.head.iter().map(ToString::to_string).collect();
        format!("{} => {}", facts.join(" "), actions.join(" "))
    };
    assert_eq!(
        text(&rules[1]),
        "(= p (core.exp s)) (= s (core.div z @scaled-1-c)) (= f (/ 1.0 (uniform @scaled-1-c))) => \
         (union p (core.leaky_relu f z))"
    );
    // Another name for a variable or a number disappears.
    assert_eq!(
        text(&rules[2]),
        "(= p (core.exp z)) => (union p (core.leaky_relu 1.0 z))"
    );
}

#[test]
fn definitions_that_are_wrong() {
    let rule = r#"(rule ((= y (core.neg x)) (positive x)) ((union y x)) :name "a")"#;
    for (text, expected) in [
        ("(define)", "expected (define (NAME"),
        ("(define (positive x))", "expected (define (NAME"),
        ("(define positive (= x x))", "expected (define (NAME"),
        ("(define (type x) (= x x))", "'type' cannot be defined"),
        ("(define (core.neg x) (= x x))", "'core.neg' cannot be defined"),
        ("(define (positive x x) (= x x))", "different variables"),
        ("(define (positive 1) (= x x))", "different variables"),
        ("(define (positive x) y)", "expected a condition"),
        ("(define (positive x) (= x))", "expected (= A B)"),
        (
            "(define (positive x) (> x 0.0)) (define (positive x) (> x 1.0))",
            "second definition of 'positive'",
        ),
        (
            "(define (positive x) (> x 0.0)) (define (positive x y) :name \"two\" (> x y))",
            "different parameters",
        ),
        (
            "(define (positive x y) (> x y))",
            "'positive' takes 2 arguments, found 1",
        ),
        // Unknown names are errors, as without definitions; so is a definition that follows its use.
        ("", "positive"),
        ("(define (positive x) (positive x))", "positive"),
    ] {
        rejected(&format!("{text}\n{rule}"), &[expected]);
    }
    let alternatives: String = (0..9)
        .map(|i| format!("(define (any x) :name \"{i}\" (= t (type x)) (> (rank t) {i}))\n"))
        .collect();
    rejected(
        &format!("{alternatives}(rule ((= y (core.add x z)) (any x) (any z)) ((union y x)) :name \"a\")"),
        &["more than 64 rules", "mine.egg:10:1"],
    );
}

/// Each definition uses the one before twice.
#[test]
fn definitions_do_not_grow_without_bound() {
    let mut text = "(define (a0 x) (> (uniform x) 0.0))\n".to_owned();
    for i in 1..60 {
        text += &format!("(define (a{i} x) (a{0} x) (a{0} (core.add x x)))\n", i - 1);
    }
    rejected(&text, &["200 are allowed", "mine.egg:"]);
}
