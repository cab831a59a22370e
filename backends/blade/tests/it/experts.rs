//! Tests of expert matmuls on GPUs. Every storage format, with few and with many rows, agrees with the definition.

use crate::common;
use meganeura_compiler::builder::Builder;
use meganeura_conformance::{Options, Section, run};
use meganeura_core::{DType, Graph};

#[test]
fn products_agree_with_their_definition() {
    let Some(device) = common::device() else { return };
    let options = Options {
        filter: Some("expert_matmul".into()),
        sections: vec![Section::Operators],
        seeds: 0..1,
        ..Options::default()
    };
    let report = run(device, &options);
    assert!(report.is_ok() && report.cases.len() > 60, "{report}");
}

/// The kernel of the matmul dequantizes the matrices itself. It does not read the matrices of experts without rows.
#[test]
fn matrices_are_expanded_by_the_kernel() {
    let Some(device) = common::device() else { return };
    for rows in [2, 100] {
        let mut g = Graph::new();
        let x = g.input("x", &[rows, 64]);
        let experts = g.input_u32("experts", &[rows]);
        let words = g.parameter_typed("words", &[3, 8, 8], DType::U32);
        let scales = g.parameter_typed("scales", &[3, 8, 2], DType::F16);
        let y = g.quantized_expert_matmul(x, experts, words, Some(scales.into()));
        g.set_outputs(vec![y]);
        let (session, _) = Builder::on(device.clone()).inference().build(&g).expect("a session");
        let kernels: Vec<&str> = session.plan().dispatches.iter().map(|d| &*d.kernel.name).collect();
        assert_eq!(kernels, ["core.quantized_expert_matmul"], "{rows} rows");
    }
}
