//! Outputs that are inputs: a command would replace what it reads.

use std::path::Path;

/// Refuses, before any work, an output that is one of the files which the command reads, or a file in a folder of a model that it
/// reads. `outputs` are options with their paths; a device or a pipe may be both.
///
/// # Errors
/// The option, and what it would replace.
pub(crate) fn keep_inputs<'a>(
    outputs: &[(&str, Option<&Path>)],
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), String> {
    let given: Vec<(&str, &Path)> = outputs
        .iter()
        .filter_map(|(option, path)| Some((*option, (*path)?)))
        .collect();
    for input in inputs {
        let Ok(read) = std::fs::canonicalize(input) else {
            continue;
        };
        for (option, output) in &given {
            // A new file replaces nothing.
            let Ok(place) = std::fs::canonicalize(output) else {
                continue;
            };
            let is_read = is_same(&place, &read) || read.is_dir() && place.parent() == Some(&read);
            if is_read && place.is_file() {
                let (output, input) = (output.display(), input.display());
                return Err(format!(
                    "{option} {output} would replace what the command reads ({input}); name another file"
                ));
            }
        }
    }
    Ok(())
}

/// Whether two paths without links are of one file, which may have several names.
fn is_same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
            return (a.dev(), a.ino()) == (b.dev(), b.ino());
        }
    }
    a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_not_replaced() {
        let home = tempfile::tempdir().expect("a folder");
        let at = |name: &str| home.path().join(name);
        std::fs::write(at("data.csv"), "1").expect("written");
        std::fs::hard_link(at("data.csv"), at("same.csv")).expect("linked");
        std::fs::create_dir_all(at("model/inner")).expect("made");
        std::fs::write(at("model/model.json"), "{}").expect("written");
        let refused = |output: &str, input: &str| {
            let output = at(output);
            let input = at(input);
            keep_inputs(&[("--output", Some(&output)), ("--html", None)], [input.as_path()]).err()
        };
        for (output, input) in [
            ("data.csv", "data.csv"),
            ("model/../data.csv", "data.csv"),
            ("same.csv", "data.csv"),
            ("model/model.json", "model"),
            ("model/model.json", "model/model.json"),
        ] {
            let error = refused(output, input).expect(output);
            assert!(error.starts_with("--output "), "{error}");
        }
        for (output, input) in [
            ("new.csv", "data.csv"),
            ("model.html", "model"),
            ("model/new.html", "model"),
            ("model", "model"),
            ("missing/new.csv", "missing.csv"),
            ("data.csv", "model"),
        ] {
            assert_eq!(refused(output, input), None, "{output} {input}");
        }
    }
}
