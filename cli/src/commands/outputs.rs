//! Protection of inputs: a command must not replace files that it reads.

use std::ffi::OsStr;
use std::fs::{canonicalize, read_dir};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use meganeura::profiler::TRACE_VARIABLE;

/// Files that an option writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputFiles {
    /// The named file.
    File,
    /// The whole named folder.
    Folder,
    /// Files of the folder whose names have these prefixes.
    Files(&'static [&'static str]),
}

/// Output options of all commands, by their ids.
const OUTPUTS: [(&str, OutputFiles); 10] = [
    ("log", OutputFiles::File),
    ("html", OutputFiles::File),
    ("output", OutputFiles::File),
    ("logits", OutputFiles::File),
    ("calibrate", OutputFiles::File),
    ("cache", OutputFiles::File),
    // A file or a folder.
    ("out", OutputFiles::Folder),
    ("checkpoint", OutputFiles::Files(&["checkpoint.json", "checkpoint."])),
    ("output_dir", OutputFiles::Files(&["output_"])),
    (
        "log_dir",
        OutputFiles::Files(&["metrics.", "statistics.csv", "events.out.tfevents"]),
    ),
];
/// Environment variables with files that every command reads.
const READ_VARIABLES: [&str; 3] = ["MEGANEURA_CONFIG", "MEGANEURA_PLUGINS", "MEGANEURA_CALIBRATION"];

/// Checks every output of a command line before any work. An output must not be a file that the command reads, even by another
/// spelling or a link, nor the output of another option, and it must be writable.
///
/// # Errors
/// An output would replace a file or cannot be written; the message names the option and the reason.
pub(crate) fn check_outputs(matches: &ArgMatches) -> Result<(), String> {
    let mut matches = matches;
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    let mut outputs: Vec<(String, PathBuf, OutputFiles)> = Vec::new();
    let mut inputs: Vec<PathBuf> = vec!["meganeura.toml".into()];
    for id in matches.ids() {
        // Groups of options also have ids.
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
            // The settings are read from the folder of a model that will be replaced.
            None if id.as_str() == "config_file" && values.iter().all(|path| path.is_dir()) => {}
            None => inputs.extend(values.into_iter().flat_map(paths_of)),
        }
    }
    if let Some(path) = std::env::var_os(TRACE_VARIABLE).filter(|path| !path.is_empty()) {
        outputs.push((TRACE_VARIABLE.to_owned(), path.into(), OutputFiles::File));
    }
    for variable in READ_VARIABLES.iter().filter_map(std::env::var_os) {
        inputs.extend(std::env::split_paths(&variable));
    }
    for (option, path, written) in &outputs {
        let replaced = existing_files(path, *written);
        for file in &replaced {
            keep_inputs(&[(option, Some(file))], inputs.iter().map(PathBuf::as_path))?;
        }
        if *written == OutputFiles::Folder
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
        .filter(|(_, _, written)| *written == OutputFiles::File)
        .collect();
    for (at, (option, path, _)) in files.iter().enumerate() {
        let same = |(_, other, _): &&&(String, PathBuf, OutputFiles)| {
            place_of(other).is_some_and(|place| place_of(path) == Some(place))
        };
        if let Some((other, ..)) = files[..at].iter().find(same) {
            let path = path.display();
            return Err(format!("{other} and {option} both write {path}; name another file"));
        }
        // A cache that cannot be written is only recomputed later; logs and traces open their files at the start.
        let opened_early = ["--cache", "--log", TRACE_VARIABLE].contains(&option.as_str());
        if !opened_early {
            check_writable(option, path)?;
        }
    }
    for (option, path, _) in outputs.iter().filter(|(_, _, written)| *written == OutputFiles::Folder) {
        check_writable(option, path)?;
    }
    Ok(())
}

/// Checks that a file can be created in the folder of an output. Parent folders of a new folder need not exist.
fn check_writable(option: &str, path: &Path) -> Result<(), String> {
    if path.exists() && !path.is_file() && !path.is_dir() {
        // A device or a pipe.
        return Ok(());
    }
    let Some(folder) = place_of(path).and_then(|place| place.parent().map(Path::to_owned)) else {
        // Some options create folders; others report the missing folder.
        return Ok(());
    };
    match trial_in(&folder) {
        // Commands have their own messages for a missing folder.
        _ if !folder.is_dir() => Ok(()),
        None => Ok(()),
        Some(error) => Err(format!(
            "{option} {}: the folder is not writable: {error}\n  help: name a file in a writable folder",
            path.display()
        )),
    }
}

/// Returns the error of creating a file in a folder. The trial file has no name, so it disappears when it is closed.
#[cfg(target_os = "linux")]
fn trial_in(folder: &Path) -> Option<std::io::Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = std::fs::File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(folder);
    // Some file systems do not support unnamed files.
    let is_unknown =
        |e: &std::io::Error| matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL));
    opened.err().filter(|error| !is_unknown(error))
}

#[cfg(not(target_os = "linux"))]
fn trial_in(_: &Path) -> Option<std::io::Error> {
    None
}

/// Returns the path, and the path after `NAME=`.
fn paths_of(value: &Path) -> Vec<PathBuf> {
    let mut paths = vec![value.to_owned()];
    if let Some((_, path)) = value.to_str().and_then(|text| text.split_once('=')) {
        paths.push(path.into());
    }
    // An ONNX file may have its weights in adjacent files whose names begin with its name.
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

/// Returns the existing files that would be replaced.
fn existing_files(path: &Path, written: OutputFiles) -> Vec<PathBuf> {
    let OutputFiles::Files(prefixes) = written else {
        return vec![path.to_owned()];
    };
    let is_written = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let entries = read_dir(path).into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_written(&entry.file_name().to_string_lossy()));
    named.map(|entry| entry.path()).collect()
}

/// Returns the absolute path of a file that need not exist yet.
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
    format!("{option} {output} would overwrite an input of the command ({input}); name another file")
}

/// Checks before any work that no output is a file that the command reads, or a file in a folder that it reads. `outputs` are
/// options with their paths; devices and pipes are allowed.
///
/// # Errors
/// An option would replace a file that is read.
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

/// Returns true if two resolved paths refer to the same file, which may have several names.
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
