//! Data sets of `meganeura train`, by name.

use std::ffi::OsStr;
use std::path::Path;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DataSet {
    /// 1,797 handwritten digits of 8x8 pixels; a fixed fifth is held out.
    Digits,
    /// 70,000 handwritten digits of 28x28 pixels, read from a folder.
    Mnist,
}

/// Parser of the name of a data set. The error for a path names the option for this kind of file.
#[derive(Clone, Debug)]
pub(super) struct DataSetParser;

impl TypedValueParser for DataSetParser {
    type Value = DataSet;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<DataSet, clap::Error> {
        let file = Path::new(value);
        let extension = file.extension().map(|extension| extension.to_ascii_lowercase());
        let option = match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("csv" | "tsv" | "txt" | "jsonl" | "ndjson") => Some("--csv"),
            Some("npz") => Some("--npz"),
            Some("onnx") => Some("--onnx"),
            _ if file.is_dir() => Some("--images"),
            _ => None,
        };
        if let Some(option) = option {
            let message = format!(
                "expected digits or mnist, found a path; give it as {option} {}\n",
                file.display()
            );
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message).with_cmd(command));
        }
        EnumValueParser::<DataSet>::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(
            DataSet::value_variants()
                .iter()
                .filter_map(ValueEnum::to_possible_value),
        ))
    }
}
