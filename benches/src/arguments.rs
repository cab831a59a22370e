//! Arguments of criterion benchmarks.

/// Returns true if the command line of this benchmark selects a case with this name: by parts of names, or all cases if there
/// are none.
pub fn is_selected(name: &str) -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    selects(&filters(&arguments), name)
}

pub(crate) fn selects(filters: &[String], name: &str) -> bool {
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
}

/// Options of criterion without a value.
const FLAGS: [&str; 12] = [
    "--bench",
    "--discard-baseline",
    "--exact",
    "--help",
    "--ignored",
    "--list",
    "--nocapture",
    "--noplot",
    "--quick",
    "--quiet",
    "--test",
    "--verbose",
];

/// Returns the arguments that are neither options nor their values.
pub(crate) fn filters(arguments: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_value = false;
    for argument in arguments {
        if argument.starts_with('-') {
            let is_flag = FLAGS.contains(&argument.as_str());
            is_value = argument.starts_with("--") && !argument.contains('=') && !is_flag;
        } else if !std::mem::take(&mut is_value) {
            found.push(argument.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_select_workloads() {
        let filters = |line: &str| -> Vec<String> {
            let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            filters(&arguments)
        };
        let two = filters("matmul attention --bench");
        assert!(selects(&two, "matmul/matmul 64x64x64") && !selects(&two, "norm/softmax 64"));
        assert!(selects(&filters("--bench"), "norm/softmax 64"));
        assert_eq!(
            filters("--sample-size 20 --noplot matmul --color=never --bench"),
            ["matmul"]
        );
    }
}
