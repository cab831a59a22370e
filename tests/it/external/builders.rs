//! Calls of builder methods from the cases of a fixture.

use meganeura::ops::{Conv2dOptions, Pool2dOptions};
use meganeura::{Graph, NodeId};
use serde_json::Value as Json;

use super::fixtures::{dtype, numbers, text};

/// Calls the listed builder method with this name, if there is one, with the arguments in parentheses.
macro_rules! dispatch {
    ($graph:ident, $name:ident, $args:tt, [$($method:ident)*]) => {
        match $name {
            $(stringify!($method) => return Some(dispatch!(@call $graph, $method, $args)),)*
            _ => {}
        }
    };
    (@call $graph:ident, $method:ident, ($($arg:expr),*)) => { $graph.$method($($arg),*) };
}

/// Calls an operator that takes only operands.
fn plain(g: &mut Graph, op: &str, x: &[NodeId]) -> Option<NodeId> {
    match *x {
        [a] => dispatch!(g, op, (a), [
            log2 exp2 sin reciprocal sqrt neg abs exp log rsqrt square tanh sigmoid relu softplus silu erf gelu_tanh
            gelu_erf sum_all mean_all flatten transpose
        ]),
        [a, b] => dispatch!(g, op, (a, b), [
            add sub mul div modulo pow less_than less_equal greater_than greater_equal equal not_equal embedding
            matmul matmul_at matmul_bt bias_add cross_entropy_loss mse_loss
        ]),
        [a, b, c] => dispatch!(g, op, (a, b, c), [select]),
        _ => {}
    }
    None
}

/// Calls the builder method with this name.
pub(crate) fn call(g: &mut Graph, op: &str, x: &[NodeId], attrs: &Json) -> NodeId {
    plain(g, op, x).unwrap_or_else(|| with_attrs(g, op, x, &Attrs(attrs)))
}

fn with_attrs(g: &mut Graph, op: &str, x: &[NodeId], attrs: &Attrs) -> NodeId {
    let shape = || attrs.ints::<usize>("shape");
    let reduced = || (attrs.ints::<i32>("axes"), attrs.0["keep_dims"] == true);
    let limits = || (attrs.ints::<usize>("starts"), attrs.ints::<usize>("ends"));
    // Cases have the names and operands of operators, builder methods the names and arguments of NumPy.
    match op {
        "max" => g.maximum(x[0], x[1]),
        "min" => g.minimum(x[0], x[1]),
        "gather" => g.gather(x[1], x[0]),
        "leaky_relu" => g.leaky_relu(x[0], attrs.float("negative_slope")),
        "clamp" => g.clamp(x[0], attrs.float("low"), attrs.float("high")),
        "cast" => g.cast(x[0], dtype(&text(&attrs.0["to"]))),
        "stop_gradient" => {
            let fixed = g.stop_gradient(x[0]);
            g.mul(x[0], fixed)
        }
        "sum" => g.sum(x[0], &reduced().0, reduced().1),
        "mean" => g.mean(x[0], &reduced().0, reduced().1),
        "max_reduce" => g.max(x[0], &reduced().0, reduced().1),
        "argmax" => g.argmax(x[0], attrs.axis()),
        "softmax" => g.softmax(x[0], attrs.axis()),
        "log_softmax" => g.log_softmax(x[0], attrs.axis()),
        "reshape" => g.reshape(x[0], &shape()),
        "expand" => g.expand(x[0], &shape()),
        "permute" => g.permute(x[0], &attrs.ints::<i32>("axes")),
        "slice" => g.slice(x[0], &limits().0, &limits().1),
        "slice_strided" => g.slice_strided(x[0], &limits().0, &limits().1, &attrs.ints::<usize>("steps")),
        "concat" => g.concat(x, attrs.axis()),
        "pad" => {
            let widths = |name| attrs.ints::<usize>(name);
            g.pad(x[0], &widths("low"), &widths("high"), attrs.float("value"))
        }
        "scatter_add" => g.scatter_add(x[1], x[0], attrs.float("rows") as usize),
        "conv2d" => g.conv2d(x[0], x[1], attrs.conv()),
        "conv2d_input_grad" => g.conv2d_input_grad(x[0], x[1], attrs.pair("input_size"), attrs.conv()),
        "conv2d_weight_grad" => g.conv2d_weight_grad(x[0], x[1], attrs.pair("kernel_size"), attrs.conv()),
        "max_pool2d" => g.max_pool2d(x[0], attrs.pool()),
        "avg_pool2d" => g.avg_pool2d(x[0], attrs.pool()),
        "layer_norm" => g.layer_norm(x[0], x[1], x[2], attrs.float("eps")),
        "batch_norm" => {
            let (momentum, eps) = (attrs.float("momentum"), attrs.float("eps"));
            g.batch_norm(x[0], x[1], x[2], x[3], x[4], momentum, eps)
        }
        "batch_norm_inference" => g.batch_norm_inference(x[0], x[1], x[2], x[3], x[4], attrs.float("eps")),
        _ => panic!("the test does not know the operator {op}"),
    }
}

/// Attributes of a case in the form of method arguments.
struct Attrs<'a>(&'a Json);

impl Attrs<'_> {
    fn float(&self, name: &str) -> f32 {
        let value = self.0[name].as_f64();
        value.unwrap_or_else(|| panic!("no number {name} in {}", self.0)) as f32
    }

    fn ints<T: TryFrom<i64>>(&self, name: &str) -> Vec<T> {
        let narrow = |v: f64| T::try_from(v as i64).ok().expect("a small integer");
        numbers(&self.0[name]).into_iter().map(narrow).collect()
    }

    fn pair<T: TryFrom<i64>>(&self, name: &str) -> [T; 2] {
        self.ints(name).try_into().ok().expect("two numbers")
    }

    fn axis(&self) -> i32 {
        self.float("axis") as i32
    }

    fn conv(&self) -> Conv2dOptions {
        Conv2dOptions {
            stride: self.pair("stride"),
            padding: self.pair("padding"),
            dilation: self.pair("dilation"),
            groups: self.float("groups") as u32,
        }
    }

    fn pool(&self) -> Pool2dOptions {
        Pool2dOptions {
            kernel: self.pair("kernel"),
            stride: self.pair("stride"),
            padding: self.pair("padding"),
        }
    }
}
