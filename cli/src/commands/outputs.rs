//! Outputs that are inputs: a command would replace what it reads.

use std::ffi::OsStr;
use std::fs::{canonicalize, read_dir};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use meganeura::profiler::TRACE_VARIABLE;

/// The files that an option writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The file that it names.
    File,
    /// The folder that it names, as a whole.
    Folder,
    /// Files of a folder whose names begin so.
    Files(&'static [&'static str]),
}

/// The options of all commands that name what is written, by their ids.
const OUTPUTS: [(&str, Written); 10] = [
    ("log", Written::File),
    ("html", Written::File),
    ("output", Written::File),
    ("logits", Written::File),
    ("calibrate", Written::File),
    ("cache", Written::File),
    // A file or a folder.
    ("out", Written::Folder),
    ("checkpoint", Written::Files(&["checkpoint.json", "checkpoint."])),
    ("output_dir", Written::Files(&["output_"])),
    (
        "log_dir",
        Written::Files(&["metrics.", "statistics.csv", "events.out.tfevents"]),
    ),
];
/// Variables that name what every command reads.
const READ_VARIABLES: [&str; 3] = ["MEGANEURA_CONFIG", "MEGANEURA_PLUGINS", "MEGANEURA_CALIBRATION"];

/// Refuses, before any work, every output of a command line that is one of the files which the command reads, also by another
/// spelling or a link, or that another option writes as well. Files that cannot be written are refused, too.
///
/// # Errors
/// The option, and what it would replace, or why it cannot be written.
pub(crate) fn check_outputs(matches: &ArgMatches) -> Result<(), String> {
    let mut matches = matches;
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    let mut outputs: Vec<(String, PathBuf, Written)> = Vec::new();
    let mut inputs: Vec<PathBuf> = vec!["meganeura.toml".into()];
    for id in matches.ids() {
        // Groups of options have ids, too.
        let Ok(Some(raw)) = matches.try_get_raw(id.as_str()) else {
            continue;
        };
        let values: Vec<&Path> = raw.map(Path::new).collect();
        let output = OUTPUTS.iter().find(|(name, _)| id.as_str() == *name);
        match output {
            Some((name, written)) if matches.value_source(id.as_str()) == Some(ValueSource::CommandLine) => {
                let option = format!("--{}", name.replace('_', "-"));
                outputs.extend(values.iter().map(|path| (option.clone(), path.to_path_buf(), *written)));
            }
            Some(_) => {}
            // The settings of a model that is going to be replaced.
            None if id.as_str() == "config_file" && values.iter().all(|path| path.is_dir()) => {}
            None => inputs.extend(values.into_iter().flat_map(paths_of)),
        }
    }
    if let Some(path) = std::env::var_os(TRACE_VARIABLE).filter(|path| !path.is_empty()) {
        outputs.push((TRACE_VARIABLE.to_owned(), path.into(), Written::File));
    }
    for variable in READ_VARIABLES.iter().filter_map(std::env::var_os) {
        inputs.extend(std::env::split_paths(&variable));
    }
    for (option, path, written) in &outputs {
        let replaced = existing_files(path, *written);
        for file in &replaced {
            keep_inputs(&[(option, Some(file))], inputs.iter().map(PathBuf::as_path))?;
        }
        if *written == Written::Folder
            && let (true, Ok(folder)) = (path.is_dir(), canonicalize(path))
        {
            let is_in_it = |input: &&PathBuf| canonicalize(input).is_ok_and(|input| input.starts_with(&folder));
            if let Some(input) = inputs.iter().find(is_in_it) {
                return Err(refusal(option, path, input));
            }
        }
    }
    let files: Vec<_> = outputs
        .iter()
        .filter(|(_, _, written)| *written == Written::File)
        .collect();
    for (at, (option, path, _)) in files.iter().enumerate() {
        let same = |(_, other, _): &&&(String, PathBuf, Written)| {
            place_of(other).is_some_and(|place| place_of(path) == Some(place))
        };
        if let Some((other, ..)) = files[..at].iter().find(same) {
            let path = path.display();
            return Err(format!("{other} and {option} both write {path}; name another file"));
        }
        // What a cache cannot keep is computed again; logs and traces open their files first of all.
        let opened_early = ["--cache", "--log", TRACE_VARIABLE].contains(&option.as_str());
        if !opened_early {
            check_writable(option, path)?;
        }
    }
    for (option, path, _) in outputs.iter().filter(|(_, _, written)| *written == Written::Folder) {
        check_writable(option, path)?;
    }
    Ok(())
}

/// Checks that a file can be made in the folder of an output. Folders above a new one need not exist.
fn check_writable(option: &str, path: &Path) -> Result<(), String> {
    if path.exists() && !path.is_file() && !path.is_dir() {
        // A device or a pipe.
        return Ok(());
    }
    let Some(folder) = place_of(path).and_then(|place| place.parent().map(Path::to_owned)) else {
        // Some options make folders; the others report which one is missing.
        return Ok(());
    };
    match trial_in(&folder) {
        // Commands name a folder that is missing, or is none, in their own words.
        _ if !folder.is_dir() => Ok(()),
        None => Ok(()),
        Some(error) => Err(format!(
            "{option} {}: the folder cannot be written: {error}\n  help: name a file in a folder that you may write",
            path.display()
        )),
    }
}

/// Why no file can be made in a folder. The file that is tried has no name, so nothing is left behind.
#[cfg(target_os = "linux")]
fn trial_in(folder: &Path) -> Option<std::io::Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = std::fs::File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(folder);
    // Some file systems have no files without names.
    let is_unknown =
        |e: &std::io::Error| matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL));
    opened.err().filter(|error| !is_unknown(error))
}

#[cfg(not(target_os = "linux"))]
fn trial_in(_: &Path) -> Option<std::io::Error> {
    None
}

/// The path, and the one after `NAME=`.
fn paths_of(value: &Path) -> Vec<PathBuf> {
    let mut paths = vec![value.to_owned()];
    if let Some((_, path)) = value.to_str().and_then(|text| text.split_once('=')) {
        paths.push(path.into());
    }
    // An ONNX file may have its weights in files next to it, whose names begin with its own.
    let name = value
        .file_name()
        .filter(|_| value.extension() == Some(OsStr::new("onnx")));
    let folder = value.parent().map(|folder| {
        if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        }
    });
    if let (Some(name), Some(Ok(entries))) = (name.and_then(OsStr::to_str), folder.map(read_dir)) {
        let others = entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(name));
        paths.extend(others.map(|entry| entry.path()));
    }
    paths
}

/// The files that are there and would be replaced.
fn existing_files(path: &Path, written: Written) -> Vec<PathBuf> {
    let Written::Files(prefixes) = written else {
        return vec![path.to_owned()];
    };
    let is_written = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let entries = read_dir(path).into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_written(&entry.file_name().to_string_lossy()));
    named.map(|entry| entry.path()).collect()
}

/// The place of a file that need not exist yet.
fn place_of(path: &Path) -> Option<PathBuf> {
    canonicalize(path).ok().or_else(|| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some(
            canonicalize(folder.unwrap_or(Path::new(".")))
                .ok()?
                .join(path.file_name()?),
        )
    })
}

fn refusal(option: &str, output: &Path, input: &Path) -> String {
    let (output, input) = (output.display(), input.display());
    format!("{option} {output} would replace what the command reads ({input}); name another file")
}

/// Refuses, before any work, an output that is one of the files which the command reads, or a file in a folder that it
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
        let Ok(read) = canonicalize(input) else {
            continue;
        };
        for (option, output) in &given {
            // A new file replaces nothing.
            let Ok(place) = canonicalize(output) else {
                continue;
            };
            let is_read = is_same(&place, &read) || read.is_dir() && place.starts_with(&read);
            if is_read && place.is_file() {
                return Err(refusal(option, output, input));
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
