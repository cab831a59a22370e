//! Selection of a model's files in a repository.

use std::path::{Component, Path};

use super::{PullError, PullRequest};
use crate::gguf::parts;

/// Returns the files for a request, and true if they are a GGUF model; then its first file comes first.
pub(super) fn wanted(request: &PullRequest, files: &[String]) -> Result<(Vec<String>, bool), PullError> {
    let name = || request.name.clone();
    let all: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|file| is_inside(file))
        .collect();
    let has = |wanted: &str| all.contains(&wanted);
    let is_checkpoint = all.iter().any(|file| file.ends_with(".safetensors") && is_wanted(file));
    // The first file of each GGUF model.
    let models: Vec<&str> = all.iter().copied().filter(|file| is_first(file)).collect();
    let owned = |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect();
    let chosen = match (&request.file, models.as_slice()) {
        (Some(file), _) if has(file) && parts::stem(file).is_some() => file.as_str(),
        (Some(file), models) => {
            return Err(PullError::NoFile {
                name: name(),
                file: file.clone(),
                files: owned(models),
            });
        }
        (None, _) if is_checkpoint => {
            let is_model = |file: &&&str| file.starts_with("model") && file.ends_with(".safetensors");
            let has_models = all.iter().any(|file| is_model(&file));
            // Some repositories contain the weights a second time, in other files.
            let is_other = |file: &&str| has_models && file.ends_with(".safetensors") && !is_model(&file);
            let files = all.iter().filter(|file| is_wanted(file) && !is_other(file));
            return Ok((files.map(|file| (*file).to_owned()).collect(), false));
        }
        (None, []) => return Err(PullError::NoWeights { name: name() }),
        (None, [one]) => one,
        (None, several) => {
            return Err(PullError::SeveralFiles {
                name: name(),
                files: owned(several),
            });
        }
    };
    let whole = |file: &str| Some(parts::part_of(parts::stem(file)?)?.0.to_owned());
    let mut files: Vec<String> = match whole(chosen) {
        None => vec![chosen.to_owned()],
        model => all
            .iter()
            .filter(|file| whole(file) == model)
            .map(|file| (*file).to_owned())
            .collect(),
    };
    files.sort();
    Ok((files, true))
}

/// Returns true if a file is a GGUF model, or the first part of one.
fn is_first(file: &str) -> bool {
    parts::stem(file).is_some_and(|stem| parts::part_of(stem).is_none_or(|(_, [part, _])| part == 1))
}

/// Returns true if the name of a file is a path inside of the repository's folder.
fn is_inside(file: &str) -> bool {
    !file.contains('\\')
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Returns true if a file belongs to a checkpoint that this crate reads.
fn is_wanted(file: &str) -> bool {
    let is_kind = |end: &str| file.ends_with(end);
    // Pooling settings of sentence-transformers for the rows of an encoder.
    let is_pooling = file
        .strip_suffix("_Pooling/config.json")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()));
    is_pooling || !file.contains('/') && [".json", ".safetensors", ".jinja"].into_iter().any(is_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: Option<&str>, files: &[&str]) -> Result<(Vec<String>, bool), PullError> {
        let request = PullRequest {
            file: file.map(str::to_owned),
            ..PullRequest::parse("org/model").expect("a request")
        };
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        wanted(&request, &files)
    }

    #[test]
    fn what_belongs_to_a_checkpoint() {
        let files = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "chat_template.jinja",
            "1_Pooling/config.json",
        ];
        let others = [
            "onnx/model.onnx",
            "pytorch_model.bin",
            "runs/config.json",
            "README.md",
            "x/1_Pooling/config.json",
            "consolidated.safetensors",
            "model.gguf",
            "../config.json",
        ];
        let (found, is_gguf) = of(None, &[&files[..], &others].concat()).expect("a checkpoint");
        assert_eq!((found, is_gguf), (files.map(str::to_owned).to_vec(), false));
        let (found, _) = of(None, &["config.json", "weights.safetensors"]).expect("a checkpoint");
        assert_eq!(found, ["config.json", "weights.safetensors"]);
    }

    #[test]
    fn one_gguf_model_is_chosen() {
        let parts = ["b/m-00002-of-00002.gguf", "b/m-00001-of-00002.gguf"];
        let (found, is_gguf) = of(None, &[&parts[..], &["config.json"]].concat()).expect("a model");
        assert_eq!(
            (found.as_slice(), is_gguf),
            (&[parts[1].to_owned(), parts[0].to_owned()][..], true)
        );
        let all = [&parts[..], &["a.gguf", "model.safetensors"]].concat();
        assert_eq!(of(Some("a.gguf"), &all).expect("a model").0, ["a.gguf"]);
        assert_eq!(of(Some(parts[1]), &all).expect("a model").0.len(), 2);
        let several = PullError::SeveralFiles {
            name: "org/model".into(),
            files: vec![parts[1].into(), "a.gguf".into()],
        };
        assert_eq!(of(None, &all[..3]), Err(several));
        for wrong in ["c.gguf", "model.safetensors", "../a.gguf"] {
            let error = of(Some(wrong), &[&all[..], &["../a.gguf"]].concat()).expect_err(wrong);
            assert!(matches!(error, PullError::NoFile { files, .. } if files == [parts[1], "a.gguf"]));
        }
        assert!(matches!(
            of(None, &["config.json", "x.bin"]),
            Err(PullError::NoWeights { .. })
        ));
    }
}
