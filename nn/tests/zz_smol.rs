use meganeura_core::build::prepare;
use meganeura_core::rewrite::*;
use meganeura_core::*;
use meganeura_nn::models::*;
#[test]
fn smol() {
    if registry::rule_sets().is_empty() {
    registry::register_rule_set(RuleSet::new("t", 1, r#"
(rewrite (core.matmul_add ta tb a b d) (core.add (core.matmul ta tb a b) d) :ruleset before_autodiff :name "x")
(rule ((= e (core.add m d)) (= m (core.matmul ta tb a b)) (= (type e) (type m))) ((union e (core.matmul_add ta tb a b d))) :name "MatMul+Add→FusedMatMulAdd#l")
(rule ((= e (core.add d m)) (= m (core.matmul ta tb a b)) (= (type e) (type m))) ((union e (core.matmul_add ta tb a b d))) :name "MatMul+Add→FusedMatMulAdd#r")
(rule ((= s (core.swiglu g u)) (= g (core.matmul ta false h wg)) (= u (core.matmul ta false h wu)) (= (type g) (type u)) (= (pack-group wg) (pack-group wu)) (= n (cols (type wg))) (= r (rank (type g))))
  ((let p (core.matmul ta false h (core.concat/2 1 wg wu))) (union s (core.swiglu_concat p))) :ruleset before_autodiff :name "SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)")
(rule ((= a (core.matmul ta false x u)) (= b (core.matmul ta false x v)) (= (pack-group u) (pack-group v)) (= i (ord u)) (= j (ord v)) (< i j) (= n (cols (type u))) (= k (cols (type v))) (= r (rank (type a))) (= 2 (rank (type u))) (= 2 (rank (type v))))
  ((let p (core.matmul ta false x (core.concat/2 1 u v))) (union a (core.narrow (- r 1) 0 n p)) (union b (core.narrow (- r 1) n k p))) :name "shared-2")
(rule ((= s (core.add a b)) (= (type a) (type b)) (= t (core.rms_norm e s w)))
  ((let f (core.add_rms_norm e a b w)) (union s (Get 0 f)) (union (Get 0 t) (Get 1 f)) (union (Get 1 t) (Get 2 f))) :ruleset always :name "Add+RmsNorm")
"#)).unwrap(); }
    let target = Modelled::discrete_gpu();
    for layers in [4, 30, 30, 60] {
        let mut config = LlamaConfig::smollm2_135m();
        config.layers = layers;
        let graph = language_model(1, 128, |g, tokens| config.build(g, "").forward(g, tokens));
        let t = std::time::Instant::now();
        let (_, report) = prepare(&graph, Mode::Training, &target, &RewriteConfig::default(), None).unwrap();
        println!("{layers} layers: {:?}\n{report}", t.elapsed());
    }
}
