//! Attention by single threads: rows are queries, columns are keys.

use std::fmt::Write as _;

use meganeura_core::ops::AttentionDims;

use super::super::kernel::{CompileCx, Compiled, Launch};
use super::super::module::Module;
use super::tiles::{ACROSS, COLUMNS, EACH, Scores, Sums, Tiling};
use super::{Side, Target, declare_fetch, key_range, positions, row_bounds, scale, store};

const SCORES: &[Scores] = &[Scores {
    name: "s",
    rows: "q",
    columns: "k",
}];
const SUMS: &[Sums] = &[Sums {
    name: "out",
    weights: "s",
    columns: "v",
}];

/// Launches for a call, by tiles of so many queries.
pub(super) fn compile(cx: &CompileCx, dims: AttentionDims, rows: usize) -> Result<Compiled, String> {
    Ok(Compiled {
        launches: vec![launch(cx, &Tiling::new(dims, Side::Queries, rows, SCORES, SUMS))?],
        ..Compiled::default()
    })
}

fn launch(cx: &CompileCx, tiling: &Tiling) -> Result<Launch, String> {
    let dims = &tiling.dims;
    let mut module = Module::new(cx);
    declare_fetch(&mut module, dims, 0, Side::Queries, "q");
    declare_fetch(&mut module, dims, 1, Side::Keys, "k");
    declare_fetch(&mut module, dims, 2, Side::Keys, "v");
    let mut code = tiling.begin(&mut module);
    let _ = write!(
        code,
        "{}{}let hidden = vec4<f32>(from_bits(0xff800000u));\n\
         var greatest = vec4<f32>(-3.4028234e38);\nvar sums = vec4<f32>();\n",
        key_range(&mut module, dims),
        row_bounds(dims),
    );
    tiling.go(&mut code, "", &softmax(tiling));
    module
        .items
        .push_str("fn sum_of(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {\nreturn a + b;\n}\n");
    tiling.reduce(&mut code, "sums", "sum_of");
    // Scores that are all minus infinity have no numerators.
    code.push_str(
        "let total = select(reduced, vec4<f32>(from_bits(0x7fc00000u)), reduced == vec4<f32>());\n\
         workgroupBarrier();\n",
    );
    tiling.finish(&mut code, |_, i, vector, value| {
        let value = format!("({value} / total[{i}])");
        store(&mut module, dims, Target::Output(0), [&tiling.start(i), vector, &value])
    });
    if positions(cx).is_some() {
        return module.finish(&code, tiling.threads(), tiling.groups());
    }
    let lse = format!("(batch * {}u + head) * {}u + row + i", dims.heads, dims.rows_q);
    let store = module.store(1, &lse, "greatest[i] + log_f32(total[i])");
    let _ = write!(
        code,
        "if (across == 0u) {{\nfor (var i = 0u; i < {EACH}u && row + i < {}u; i += 1u) {{\n{store}}}\n}}\n",
        dims.rows_q
    );
    module.finish(&code, tiling.threads(), tiling.groups())
}

/// Code that makes scores numerators, relative to the greatest score so far, and brings what there is up to date.
fn softmax(tiling: &Tiling) -> String {
    let (mut code, scale) = (String::new(), scale(&tiling.dims));
    for j in 0..EACH {
        let _ = writeln!(code, "s{j} *= {scale};");
    }
    let _ = writeln!(code, "if (column < all_from || column + {COLUMNS}u > all_to) {{");
    for j in 0..EACH {
        let _ = writeln!(
            code,
            "let key_{j} = vec4<u32>(column + across + {}u);\n\
             s{j} = select(hidden, s{j}, (key_{j} >= seen_from) & (key_{j} < seen_to));",
            j * ACROSS
        );
    }
    code.push_str("}\n");
    tiling.reduce(&mut code, "max(max(s0, s1), max(s2, s3))", "max");
    code.push_str("let most = max(greatest, reduced);\nlet change = numerators(greatest - most);\ngreatest = most;\n");
    for j in 0..EACH {
        let _ = writeln!(code, "s{j} = numerators(s{j} - most);");
    }
    code.push_str("sums = sums * change + ((s0 + s1) + (s2 + s3));\n");
    tiling.each_result(|out, slab, i| _ = writeln!(code, "{}_{slab}_{i} *= change[{i}];", out.name));
    code
}
