//! Precision as a setting of builds.

use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Error, Graph, Mode, SessionConfig, build};

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 3]);
    let w = g.parameter("w", &[3, 2]);
    let y = g.matmul(x, w);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    g
}

fn config(mode: Mode, precision: Option<Precision>) -> SessionConfig {
    SessionConfig {
        device: Some("cpu".into()),
        config: Some(Config::default()),
        mode,
        precision,
        ..SessionConfig::default()
    }
}

#[test]
fn nothing_is_rounded_where_that_is_not_faster() {
    for mode in [Mode::Training, Mode::Inference] {
        let (session, _) = build(&graph(), config(mode, None)).expect("a session");
        assert_eq!(session.plan().precision, Precision::F32);
        assert!(session.plan().dispatches.iter().all(|d| !d.use_coop));
    }
}

#[test]
fn training_in_mixed_precision_is_refused() {
    let error = build(&graph(), config(Mode::Training, Some(Precision::Mixed))).err();
    let error = error.expect("an error");
    assert!(matches!(error, Error::Config { .. }), "{error}");
    assert!(error.to_string().contains("use f32"), "{error}");
}

#[test]
fn files_and_code_set_the_precision_and_code_wins() {
    let file: RewriteConfig = toml::from_str("precision = \"mixed\"").expect("a setting");
    assert_eq!(file.precision, Some(Precision::Mixed));
    assert!(toml::from_str::<RewriteConfig>("precision = \"f64\"").is_err());
    let from_file = |precision| SessionConfig {
        rewrite: Some(file.clone()),
        ..config(Mode::Inference, precision)
    };
    let at = |precision| {
        let (session, _) = build(&graph(), from_file(precision)).expect("a session");
        session.plan().precision
    };
    assert_eq!(at(None), Precision::Mixed);
    assert_eq!(at(Some(Precision::F32)), Precision::F32);
}

#[test]
fn a_plan_of_another_precision_is_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let cached = |precision| {
        let config = SessionConfig {
            cache: Some(folder.path().join("plan.ron")),
            ..config(Mode::Inference, Some(precision))
        };
        build(&graph(), config).expect("a session").1.from_cache
    };
    assert!(!cached(Precision::F32));
    assert!(cached(Precision::F32));
    assert!(!cached(Precision::Mixed));
    assert!(cached(Precision::Mixed));
}
