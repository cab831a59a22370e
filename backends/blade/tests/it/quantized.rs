//! Tests of quantized weights on GPUs. The kernel of the matmul dequantizes them, for any number of rows.

use crate::common;
use crate::packed::PackedProduct;
use meganeura_compiler::builder::Builder;
use meganeura_core::quantization::{BLOCK, BlockFormat};

#[test]
fn products_expand_weights_themselves() {
    let Some(device) = common::device() else { return };
    for format in [None].into_iter().chain(BlockFormat::ALL.map(Some)) {
        for rows in [1, 3, 40] {
            let product = PackedProduct::new(format, [rows, 300, 19 * BLOCK]);
            let built = Builder::on(device.clone()).inference().build(&product.graph);
            let (mut session, _) = built.expect("a session");
            let kernels: Vec<&str> = session.plan().dispatches.iter().map(|d| &*d.kernel.name).collect();
            assert_eq!(kernels, ["core.quantized_matmul"], "{}", product.label);
            // Devices with cooperative matrices round both operands to f16.
            let is_rounded = session.plan().dispatches[0].use_coop;
            product.check(&mut session, if is_rounded { 4e-3 } else { 1e-5 });
        }
    }
}

/// The matmul of the gradient reads the weight without a transposition. The rows of the weight are then blocks along
/// the other dimension.
#[test]
fn gradients_expand_weights_themselves() {
    let Some(device) = common::device() else { return };
    for format in BlockFormat::ALL {
        for rows in [1, 40, 200] {
            let product = PackedProduct::gradient(format, [rows, 90, 3 * BLOCK]);
            let built = Builder::on(device.clone()).inference().build(&product.graph);
            let (mut session, _) = built.expect("a session");
            let dispatches = &session.plan().dispatches;
            assert_eq!(dispatches.len(), 1, "{}: {dispatches:?}", product.label);
            let is_rounded = dispatches[0].use_coop;
            product.check(&mut session, if is_rounded { 4e-3 } else { 1e-5 });
        }
    }
}
