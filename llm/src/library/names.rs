//! Search of models by their names.

use std::fmt;
use std::path::PathBuf;

use meganeura_core::Error;
use meganeura_core::error::closest;

use super::describe::{LocalModel, Support};
use super::places::{Candidate, ModelFolders, all};
use crate::gguf::parts;

/// The reason why a name selects no model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// No model has this name.
    Unknown {
        /// The name.
        name: String,
        /// Similar names, as a list for a message; empty if there are none.
        closest: String,
    },
    /// Several models have this name.
    Ambiguous {
        /// The name.
        name: String,
        /// The name and the path of each.
        candidates: Vec<(String, PathBuf)>,
    },
    /// The model exists, but is incomplete or damaged.
    Broken {
        /// The name.
        name: String,
        /// Path of the model.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Unknown { name, closest } => {
                write!(f, "there is no model '{name}' on this machine")?;
                if closest.is_empty() {
                    Ok(())
                } else {
                    write!(f, "; the closest names are {closest}")
                }
            }
            NameError::Ambiguous { name, candidates } => {
                write!(f, "'{name}' may be any of {} models:", candidates.len())?;
                candidates
                    .iter()
                    .try_for_each(|(name, path)| write!(f, "\n  {name}  ({})", path.display()))
            }
            NameError::Broken { name, path, reason } => {
                write!(f, "the model '{name}' in '{}' cannot be used: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for NameError {}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        let remedy = match &error {
            NameError::Unknown { .. } => {
                "`meganeura models` lists the models on this machine, `meganeura pull NAME` downloads one"
            }
            NameError::Ambiguous { .. } => "give the whole name or the path of one",
            NameError::Broken { .. } => "`meganeura pull NAME` downloads the missing files of a model on the Hub",
        };
        Error::misuse(error.to_string(), remedy)
    }
}

/// Returns true if a text can be the name of a model, which excludes paths that begin with a slash,
/// a dot or a tilde.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['.', '/', '\\', '~']) && !text.ends_with('/')
}

/// Returns the path of a model by its name: the name in the [list](super::list), the last part of this name if it is
/// unique (`NAME` of `ORG/NAME`, the name of a GGUF file with or without its extension), `ORG/NAME` of a repository
/// with one GGUF model, or `NAME@COMMIT` with at least seven digits of the commit. Upper and lower case only matter for
/// names that are otherwise equal. Of several models with equal names, a usable one is preferred.
///
/// # Errors
/// [`NameError`]: no such model, several, or an incomplete one. A complete but unsupported model is
/// no error here; opening it reports the reason.
pub fn find(name: &str, folders: &ModelFolders) -> Result<PathBuf, NameError> {
    let places = all(folders);
    let named = candidates(name, &places);
    let mut models: Vec<LocalModel> = named.into_iter().map(LocalModel::describe).collect();
    if models.len() > 1 && models.iter().any(|model| model.support.is_usable()) {
        models.retain(|model| model.support.is_usable());
    }
    match models.as_slice() {
        [] => Err(NameError::Unknown {
            name: name.to_owned(),
            closest: closest_names(name, &places),
        }),
        [model] => match &model.support {
            Support::Broken(reason) => Err(NameError::Broken {
                name: model.name.clone(),
                path: model.path.clone(),
                reason: reason.clone(),
            }),
            _ => Ok(model.path.clone()),
        },
        several => Err(NameError::Ambiguous {
            name: name.to_owned(),
            candidates: several.iter().map(|m| (m.name.clone(), m.path.clone())).collect(),
        }),
    }
}

/// Returns the candidates for a name: the best matches.
fn candidates<'a>(name: &str, places: &'a [Candidate]) -> Vec<&'a Candidate> {
    let (stem, folded) = (parts::stem(name), name.to_lowercase());
    let fits: [&dyn Fn(&Candidate) -> bool; 7] = [
        &|place| place.name == name,
        &|place| place.name.to_lowercase() == folded,
        &|place| ends_with(&place.name, name),
        &|place| !place.parts.is_empty() && stem.is_some_and(|stem| ends_with(&place.name, stem)),
        &|place| ends_with(&place.name.to_lowercase(), &folded),
        &|place| is_commit(place, name),
        // A repository of GGUF files, whole name or last part.
        &|place| {
            let folder = place.name.rsplit_once('/').map(|(folder, _)| folder);
            !place.parts.is_empty() && folder.is_some_and(|folder| ends_with(folder, name))
        },
    ];
    let found = fits
        .into_iter()
        .map(|fits| places.iter().filter(|place| fits(place)).collect());
    let mut found = found.filter(|found: &Vec<&Candidate>| !found.is_empty());
    found.next().unwrap_or_default()
}

/// Returns true if a name equals another one, or its last parts.
fn ends_with(whole: &str, name: &str) -> bool {
    whole
        .strip_suffix(name)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Returns true if `NAME@COMMIT` matches a candidate.
fn is_commit(place: &Candidate, name: &str) -> bool {
    const LEAST: usize = 7;
    let Some((name, commit)) = name.split_once('@').filter(|(_, commit)| commit.len() >= LEAST) else {
        return false;
    };
    let own = place.name.split('@').next().unwrap_or_default();
    ends_with(own, name) && place.revision.as_ref().is_some_and(|own| own.starts_with(commit))
}

/// Returns similar names, in full if their last parts are similar.
fn closest_names(name: &str, places: &[Candidate]) -> String {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_lowercase();
    let (own, whole) = (
        last(name),
        closest(name, places.iter().map(|place| place.name.as_str())),
    );
    if !whole.is_empty() {
        return whole;
    }
    let lasts: Vec<String> = places.iter().map(|place| last(&place.name)).collect();
    let close = closest(&own, lasts.iter().map(String::as_str));
    let names = close.split(", ").filter_map(|close| {
        let at = lasts.iter().position(|last| last == close)?;
        Some(places[at].name.as_str())
    });
    names.collect::<Vec<_>>().join(", ")
}
