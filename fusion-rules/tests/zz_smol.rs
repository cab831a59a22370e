use meganeura_core::build::prepare;
use meganeura_core::rewrite::*;
use meganeura_core::*;
use meganeura_nn::models::*;
#[test]
fn smol() {
    if registry::rule_sets().is_empty() {
        for set in meganeura_rules::rule_sets() {
            registry::register_rule_set(set).unwrap();
        }
    }
    let target = Modelled::discrete_gpu();
    let only: Vec<usize> = vec![4, 30, 30, 60];
    for layers in only {
        let mut config = LlamaConfig::smollm2_135m();
        config.layers = layers;
        let graph = language_model(1, 128, |g, tokens| config.build(g, "").forward(g, tokens));
        let t = std::time::Instant::now();
        let (_, report) = prepare(
            &graph,
            Mode::Training,
            &target,
            &RewriteConfig {
                baseline: std::env::var("BASE").is_ok(),
                ..RewriteConfig::default()
            },
            None,
        )
        .unwrap();
        println!("{layers} layers: {:?}\n{report}", t.elapsed());
        let mut by: std::collections::BTreeMap<&str, (usize, i64)> = Default::default();
        for f in &report.fusions {
            let e = by.entry(&f.rule).or_default();
            e.0 += 1;
            e.1 += f.saving_ps;
        }
        for (k, v) in by {
            println!("   {k}: {} {:.1}us", v.0, v.1 as f64 * 1e-6);
        }
    }
}
