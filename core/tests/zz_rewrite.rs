use meganeura_core::backend::CostModel;
use meganeura_core::rewrite::*;
use meganeura_core::*;
use std::time::Duration;
#[test]
fn small() {
    registry::register_rule_set(RuleSet::new("algebra", 1, r#"
(rewrite (core.neg (core.neg x)) x :ruleset always :name "Neg+Neg→x")
(rewrite (core.relu (core.relu x)) (core.relu x) :ruleset always :name "Relu+Relu→Relu")
(rewrite (core.matmul ta false a (core.permute p b)) (core.matmul ta true a b) :when ((= p (swap-last (type b)))) :ruleset always :name "MatMul+Transpose→MatMulBT")
(rewrite (core.mul x (core.sigmoid x)) (core.silu x) :ruleset always :name "x*Sigmoid→Silu")
"#)).unwrap();
    let mut g = Graph::new();
    let x = g.input("x", &[4, 8]);
    let w = g.parameter("w", &[8, 8]);
    let n = g.neg(x);
    let n = g.neg(n);
    let wt = g.permute(w, &[1, 0]);
    let h = g.matmul(n, wt);
    let h = g.named(h, "proj");
    let s = g.sigmoid(h);
    let y = g.mul(h, s);
    let y = g.relu(y);
    let y = g.relu(y);
    g.set_outputs(vec![y]);
    let model = CostModel {
        launch: Duration::from_micros(5),
        bytes_per_second: 5e11,
        flops_per_second: 2e13,
        half_flops_per_second: 4e13,
        free_views: true,
    };
    let config = RewriteConfig::default();
    let r = Request {
        pass: Pass::Inference,
        target: &Modelled(model),
        config: &config,
        group_of: &|_| 0,
    };
    let (out, report) = rewrite(&g, &r).unwrap();
    println!(
        "{out}\n{report}\n{:#?} before {} after {}",
        report.fusions, report.cost_before_ps, report.cost_after_ps
    );
}
