//! Tests of rewriting a whole language model: its training graph is rewritten completely, within the budgets.

use meganeura_compiler::builder::prepare;
use meganeura_compiler::link_plugins;
use meganeura_compiler::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura_core::Mode;
use meganeura_nn::models::preset;

#[test]
fn the_training_graph_of_smollm2_is_extracted_exactly() {
    link_plugins!(meganeura_rules).expect("the sets that ship are registered");
    let model = preset("smollm2-135m").expect("a preset");
    let config = RewriteConfig {
        baseline: true,
        // The test must not fail on slow machines.
        time_ms: 60_000,
        ..RewriteConfig::default()
    };
    let target = SimulatedDevice::discrete_gpu();
    let (graph, report) = prepare(&model.graph(128), Mode::Training, &target, &config, None).expect("rewrites");
    graph.verify().expect("valid");
    assert!(report.extraction_exact, "{report}");
    assert_eq!(report.budget_hit, None);
    let greedy = report.greedy_cost_ps.expect("asked for");
    assert!(report.cost_after_ps <= greedy, "{report}");
    assert!(report.cost_after_ps < report.cost_before_ps, "{report}");
    for rule in [
        "SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)",
        "MatMul+Add→FusedMatMulAdd",
    ] {
        assert!(report.fusions.iter().any(|f| f.rule == rule), "{rule}: {report}");
    }
    println!("{report}");
}
