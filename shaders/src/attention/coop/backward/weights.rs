//! What lies between the products of a step and its sums: weights, made by single threads of four columns at a time.

use std::fmt::Write as _;

use super::super::super::{scale, seen};
use super::Tiling;

impl Tiling {
    /// Code that reads a thread's vectors of both products: `s` and `t`, those of the columns from `vector` on.
    fn read_products(&self, code: &mut String) {
        let stride = self.product() / self.rows();
        for j in 0..self.each() {
            let _ = write!(
                code,
                "let vector_{j} = {}u + part;\nlet s{j} = sums[own_row * {stride}u + vector_{j}];\n\
                 let t{j} = sums[{}u + own_row * {stride}u + vector_{j}];\n",
                j * self.across(),
                self.product()
            );
        }
    }

    /// Code that hides what is not seen: `columns` are the names of the columns' numbers, before their place in the
    /// thread, `weights` those of what is hidden, and `seen` is the condition for a name.
    fn hide(&self, code: &mut String, columns: &str, weights: &[&str], seen: impl Fn(&str) -> String) {
        let _ = writeln!(
            code,
            "if (column < all_from || column + {}u > all_to) {{",
            self.columns()
        );
        for j in 0..self.each() {
            let _ = write!(
                code,
                "let {columns}_{j} = vec4<u32>(column + vector_{j} * 4u) + vec4<u32>(0u, 1u, 2u, 3u);\n\
                 let seen_{j} = {};\n",
                seen(&format!("{columns}_{j}"))
            );
            for weight in weights {
                let _ = writeln!(code, "{weight}{j} = select(vec4<f32>(), {weight}{j}, seen_{j});");
            }
        }
        code.push_str("}\n");
    }

    /// Code that makes weights of products where rows are queries.
    pub(super) fn weights_of_queries(&self, code: &mut String) {
        let scale = scale(&self.dims);
        self.read_products(code);
        for j in 0..self.each() {
            let _ = writeln!(
                code,
                "var d{j} = numerators(s{j} * {scale} - vec4<f32>(lse)) * (t{j} - vec4<f32>(delta)) * {scale};"
            );
        }
        self.hide(code, "key", &["d"], |key| {
            format!("({key} >= vec4<u32>(seen_from)) & ({key} < vec4<u32>(seen_to))")
        });
        self.store_weights(code, &["d"]);
    }

    /// The same where they are keys.
    pub(super) fn weights_of_keys(&self, code: &mut String) {
        let (scale, columns) = (scale(&self.dims), self.columns());
        self.read_products(code);
        for j in 0..self.each() {
            let _ = write!(
                code,
                "var p{j} = numerators(s{j} * {scale} - marks[vector_{j}]);\n\
                 var d{j} = p{j} * (t{j} - marks[{}u + vector_{j}]) * {scale};\n",
                columns / 4
            );
        }
        code.push_str("let key = first + own_row;\n");
        self.hide(code, "query", &["p", "d"], |query| {
            seen(&self.dims, "vec4<u32>(key)", query)
        });
        self.store_weights(code, &["d", "p"]);
    }

    /// Code that rounds weights and puts them into shared memory.
    fn store_weights(&self, code: &mut String, names: &[&str]) {
        let (stride, element) = (self.units.stride(self.columns()), self.units.element());
        for (i, name) in names.iter().enumerate() {
            for j in 0..self.each() {
                let _ = writeln!(
                    code,
                    "pool[{}u + own_row * {stride}u + vector_{j}] = vec4<{element}>({name}{j});",
                    self.first_weight() + i * self.weights()
                );
            }
        }
        code.push_str("workgroupBarrier();\n");
    }
}
