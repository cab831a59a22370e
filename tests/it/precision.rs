//! Tests of precision as a setting of builds.

use meganeura::config::Config;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Graph, LossScaling, Mode, SessionConfig, Sgd, build};

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
fn training_in_mixed_precision_scales_its_loss() {
    let plan = |mode, precision| {
        let (session, _) = build(&graph(), config(mode, precision)).expect("a session");
        session.plan().clone()
    };
    let mixed = plan(Mode::Training, Some(Precision::Mixed));
    assert_eq!(mixed.loss_scaling, Some(LossScaling::default()));
    assert_eq!(mixed.precision, Precision::Mixed);
    for other in [
        plan(Mode::Training, None),
        plan(Mode::Training, Some(Precision::F32)),
        plan(Mode::Inference, Some(Precision::Mixed)),
    ] {
        assert_eq!(other.loss_scaling, None);
        assert!(other.state_buffers.is_empty());
    }
}

#[test]
fn files_and_code_set_the_precision_and_code_wins() {
    let file: RewriteConfig = toml::from_str("precision = \"mixed\"").expect("a setting");
    assert_eq!(file.precision, Some(Precision::Mixed));
    assert!(toml::from_str::<RewriteConfig>("precision = \"f64\"").is_err());
    let file_of_scale: RewriteConfig = toml::from_str("loss_scale = \"1024\"").expect("a setting");
    assert_eq!(file_of_scale.loss_scale, Some(LossScaling::Fixed(1024.0)));
    assert!(toml::from_str::<RewriteConfig>("loss_scale = \"1000\"").is_err());
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

#[test]
fn a_plan_of_another_loss_scale_is_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let cached = |scale: Option<&str>| {
        let config = SessionConfig {
            cache: Some(folder.path().join("plan.ron")),
            loss_scale: scale.map(|s| s.parse().expect("a scale")),
            optimizer: Some(Sgd::new(0.1).into()),
            ..config(Mode::Training, Some(Precision::Mixed))
        };
        let (mut session, report) = build(&graph(), config).expect("a session");
        assert_eq!(session.loss_scale(), scale.map_or(Some(65_536.0), |s| s.parse().ok()));
        assert_eq!(session.plan().segments.last().map(|s| s.skip_if.is_some()), Some(true));
        report.from_cache
    };
    assert!(!cached(None));
    assert!(cached(None));
    assert!(!cached(Some("1024")));
    assert!(cached(Some("1024")));
}
