//! Options of `meganeura train` from a TOML file, whose keys are the long names of the options.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use meganeura::error::closest;
use meganeura::files::{MAX_SETTINGS, read_text_limited};
use meganeura::nn::model::Model;
use toml::de::{DeTable, DeValue};

/// Key of the training settings in the metadata of a model's folder.
pub(super) const RECORDED: &str = "settings";
/// Options for results and repetitions, which a model's folder does not record.
const RESULTS: [&str; 11] = [
    "out",
    "seeds",
    "checkpoint",
    "every",
    "resume",
    "log",
    "log-dir",
    "json",
    "distributed",
    "time-limit",
    "zero1",
];
/// Options that are not allowed in a file.
const NOT_IN_FILES: [&str; 5] = ["config", "print-config", "help", "version", "verbose"];

/// Options that were read from a file.
#[derive(Debug)]
pub(crate) struct FromFile {
    path: PathBuf,
    /// Line of each option by its name.
    lines: BTreeMap<String, usize>,
}

impl FromFile {
    /// Returns notes with the file locations of the options that a command-line error names.
    pub(crate) fn notes(&self, error: &str) -> Vec<String> {
        let named = self
            .lines
            .iter()
            .filter(|(name, _)| error.contains(&format!("'--{name}")));
        named
            .map(|(name, line)| format!("note: --{name} is from {}, line {line}", self.path.display()))
            .collect()
    }
}

/// Adds the options of the file given by `train --config` to the arguments. Options of the command line have priority:
/// conflicting options of the file are removed.
pub(crate) fn with_file(
    command: &Command,
    mut args: Vec<OsString>,
) -> Result<(Vec<OsString>, Option<FromFile>), Box<dyn Error>> {
    // Required options may still be missing, because the file can contain them.
    let Ok(matches) = command.clone().ignore_errors(true).try_get_matches_from(&args) else {
        return Ok((args, None));
    };
    let Some((command, matches, name)) = training(command, &matches) else {
        return Ok((args, None));
    };
    let path = matches.try_get_one::<PathBuf>("config_file").ok().flatten();
    let (Some(path), Some(at)) = (path, args.iter().position(|arg| arg == name)) else {
        return Ok((args, None));
    };
    let text = read(path)?;
    let options = Options::of(command, matches);
    let (found, lines) = options.parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    args.splice(at + 1..=at, found.into_iter().map(OsString::from));
    let file = FromFile {
        path: path.clone(),
        lines,
    };
    Ok((args, Some(file)))
}

/// Returns the options of `train` or `train text` after all defaults, as the text of a file.
pub(crate) fn effective(command: &Command, matches: &ArgMatches) -> Option<String> {
    let (command, matches, _) = training(command, matches)?;
    Some(Options::of(command, matches).to_toml())
}

/// Returns the settings without destinations of results.
pub(super) fn without_results(settings: &str) -> String {
    let is_kept = |line: &&str| {
        let key = line.split(" =").next().unwrap_or_default();
        !line.starts_with('#') && !RESULTS.contains(&key)
    };
    settings
        .lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Returns the training command of a command line, its matches, and its name.
fn training<'a>(command: &'a Command, matches: &'a ArgMatches) -> Option<(&'a Command, &'a ArgMatches, &'a str)> {
    let below = |command: &'a Command, matches: &'a ArgMatches| {
        let (name, matches) = matches.subcommand()?;
        Some((command.find_subcommand(name)?, matches, name))
    };
    let found = below(command, matches).filter(|(_, _, name)| *name == "train")?;
    below(found.0, found.1).or(Some(found))
}

/// Reads a file, or the recorded settings of a model's folder.
fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    if path.is_dir() {
        let recorded = Model::load(path)?.training[RECORDED].as_str().map(str::to_owned);
        let missing = || {
            format!(
                "{}: the model folder contains no settings of `train`; it was saved by an earlier version or by \
                 another program",
                path.display()
            )
        };
        return Ok(recorded.ok_or_else(missing)?);
    }
    Ok(read_text_limited(path, MAX_SETTINGS)
        .map_err(|e| format!("{}: the settings cannot be read: {e}", path.display()))?)
}

/// Options of a command, and their given values.
struct Options<'a> {
    command: &'a Command,
    matches: &'a ArgMatches,
    given: BTreeSet<Id>,
}

impl<'a> Options<'a> {
    fn of(command: &'a Command, matches: &'a ArgMatches) -> Self {
        let is_given = |id: &&Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Options {
            command,
            matches,
            given: matches.ids().filter(is_given).cloned().collect(),
        }
    }

    /// Returns the options with their keys in a file.
    fn keys(&self) -> impl Iterator<Item = (String, &'a Arg)> {
        let all = self.command.get_arguments().map(|arg| (key_of(arg), arg));
        all.filter(|(key, _)| !NOT_IN_FILES.contains(&key.as_str()))
    }

    fn find(&self, key: &str) -> Option<&'a Arg> {
        let is_named = |arg: &Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            key_of(arg) == key || aliases.contains(&key)
        };
        self.keys().map(|(_, arg)| arg).find(|arg| is_named(arg))
    }

    /// Returns true if the options conflict.
    fn conflict(&self, a: &Arg, b: &Arg) -> bool {
        let names = |a: &Arg, b: &Arg| {
            let others = self.command.get_arg_conflicts_with(a);
            others.iter().any(|other| other.get_id() == b.get_id())
        };
        let is_one_of = |arg: &Arg, ids: &[&Id]| ids.contains(&arg.get_id());
        let mut groups = self
            .command
            .get_groups()
            .filter(|group| !(*group).clone().is_multiple());
        a.get_id() != b.get_id()
            && (names(a, b)
                || names(b, a)
                || groups.any(|group| {
                    let ids: Vec<&Id> = group.get_args().collect();
                    is_one_of(a, &ids) && is_one_of(b, &ids)
                }))
    }

    /// Returns true if the command line has this option, or one that conflicts with it.
    fn is_overridden(&self, arg: &Arg) -> bool {
        let given = self.command.get_arguments().filter(|a| self.given.contains(a.get_id()));
        self.given.contains(arg.get_id()) || given.into_iter().any(|other| self.conflict(arg, other))
    }

    /// Returns the arguments for the options of a file, and the lines of these options.
    fn parse(&self, text: &str) -> Result<(Vec<String>, BTreeMap<String, usize>), String> {
        let table = DeTable::parse(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        let (mut args, mut lines) = (Vec::new(), BTreeMap::new());
        // In the order of the file, so that the first error is reported.
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let line = 1 + text[..key.span().start].matches('\n').count();
            let key = key.get_ref().as_ref();
            let refuse = |what: String| format!("line {line}: {what}");
            let Some(arg) = self.find(key) else {
                let names: Vec<String> = self.keys().map(|(key, _)| key).collect();
                let nearest = closest(key, names.iter().map(String::as_str));
                let nearest = nearest.split(',').next().unwrap_or_default();
                return Err(refuse(format!(
                    "there is no setting '{key}'; the closest is '{nearest}'\n  help: keys are the long option names \
                     of `meganeura {}`, which --help lists",
                    if self.command.get_name() == "text" {
                        "train text"
                    } else {
                        "train"
                    }
                )));
            };
            let values = values_of(arg, value.get_ref()).map_err(|what| refuse(format!("'{key}' {what}")))?;
            if self.is_overridden(arg) || is_default(arg, &values) {
                continue;
            }
            lines.insert(key_of(arg), line);
            match (arg.get_long(), values) {
                (Some(long), None) => args.push(format!("--{long}")),
                (Some(long), Some(values)) => args.extend(values.iter().map(|value| format!("--{long}={value}"))),
                (None, values) => args.extend(values.into_iter().flatten()),
            }
        }
        Ok((args, lines))
    }

    /// Returns the text of a file with these options.
    fn to_toml(&self) -> String {
        let given = || self.command.get_arguments().filter(|a| self.given.contains(a.get_id()));
        let mut text = String::new();
        for (key, arg) in self.keys() {
            let id = arg.get_id().as_str();
            // Defaults of options that conflict with the given ones would be misleading.
            let Some(source) = self.matches.value_source(id) else {
                if given().any(|other| self.conflict(arg, other)) {
                    continue;
                }
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let default = help
                    .rsplit_once("[default: ")
                    .and_then(|(_, text)| text.split_once(']'));
                let default = default.map_or(String::new(), |(text, _)| format!("; default: {text}"));
                text += &format!("# {key} is not set{default}\n");
                continue;
            };
            if source == ValueSource::DefaultValue && given().any(|other| self.conflict(arg, other)) {
                continue;
            }
            if matches!(arg.get_action(), ArgAction::SetTrue) {
                text += &format!("{key} = {}\n", self.matches.get_flag(id));
                continue;
            }
            let raw = self.matches.get_raw(id).into_iter().flatten();
            let values: Vec<String> = raw.map(|value| literal(&value.to_string_lossy())).collect();
            text += &if is_list(arg) {
                format!("{key} = [{}]\n", values.join(", "))
            } else {
                format!("{key} = {}\n", values.concat())
            };
        }
        text
    }
}

/// Returns the key of an option in a file.
fn key_of(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => long.to_owned(),
        None => arg.get_id().as_str().replace('_', "-"),
    }
}

fn is_list(arg: &Arg) -> bool {
    arg.get_value_delimiter().is_some() || matches!(arg.get_action(), ArgAction::Append)
}

/// Returns true if the values are the default. Such options are omitted, so that they cause no conflicts.
fn is_default(arg: &Arg, values: &Option<Vec<String>>) -> bool {
    let Some(values) = values else { return false };
    let defaults = arg.get_default_values();
    let same = |value: &String, default: &clap::builder::OsStr| {
        let default = default.to_string_lossy();
        *value == default
            || matches!((value.parse::<f64>(), default.parse::<f64>()), (Ok(a), Ok(b)) if a.to_bits() == b.to_bits())
    };
    values.len() == defaults.len() && values.iter().zip(defaults).all(|(value, default)| same(value, default))
}

/// Returns the values of an option; none for a flag that is set.
fn values_of(arg: &Arg, value: &DeValue) -> Result<Option<Vec<String>>, String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return match value {
            DeValue::Boolean(true) => Ok(None),
            DeValue::Boolean(false) => Ok(Some(Vec::new())),
            _ => Err("expects true or false".into()),
        };
    }
    let text = |value: &DeValue| match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        _ if is_list(arg) => Err("expects a number, a text in quotes, or a list of these".to_owned()),
        _ => Err("expects a number or a text in quotes".to_owned()),
    };
    match value {
        DeValue::Array(values) if is_list(arg) => {
            let values: Result<Vec<String>, String> = values.iter().map(|value| text(value.get_ref())).collect();
            values.map(Some)
        }
        value => text(value).map(|value| Some(vec![value])),
    }
}

/// Returns a value in file syntax: numbers unchanged, others in quotes.
fn literal(text: &str) -> String {
    let is_number = DeValue::parse(text).is_ok_and(|value| match value.get_ref() {
        DeValue::Integer(number) => number.radix() == 10 && number.as_str() == text,
        DeValue::Float(number) => number.as_str() == text,
        _ => false,
    });
    if is_number {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        for (text, expected) in [
            ("32", "32"),
            ("-1", "-1"),
            ("0.5", "0.5"),
            ("1e-3", "1e-3"),
            ("007", "\"007\""),
            ("0x10", "\"0x10\""),
            ("true", "\"true\""),
            ("a b", "\"a b\""),
            ("C:\\x \"y\"\n", "\"C:\\\\x \\\"y\\\"\\u000A\""),
        ] {
            assert_eq!(literal(text), expected);
            let value = DeValue::parse(expected).expect("valid");
            assert_eq!(
                values_of(&Arg::new("a").long("a"), value.get_ref()),
                Ok(Some(vec![text.to_owned()]))
            );
        }
    }

    #[test]
    fn results_are_not_recorded() {
        let settings = "csv = \"a\"\nout = \"m\"\nlog-dir = \"l\"\nlr = 0.1\n";
        assert_eq!(without_results(settings), "csv = \"a\"\nlr = 0.1\n");
    }
}
