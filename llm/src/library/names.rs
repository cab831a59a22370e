//! Models by their names.

use std::fmt;
use std::path::PathBuf;

use meganeura_core::Error;
use meganeura_core::error::closest;

use super::describe::{LocalModel, Support};
use super::places::{ModelFolders, Place, all};
use crate::gguf::parts;

/// Why a name gives no model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameError {
    /// No model is called so.
    Unknown {
        /// The name.
        name: String,
        /// Names that may have been meant, as a list for a message; empty if none is like it.
        closest: String,
    },
    /// Several models are called so.
    Ambiguous {
        /// The name.
        name: String,
        /// The name and the path of each.
        candidates: Vec<(String, PathBuf)>,
    },
    /// The model is there, but something of it is missing or damaged.
    Broken {
        /// The name.
        name: String,
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameError::Unknown { name, closest } => {
                write!(f, "there is no model '{name}' on this machine")?;
                match closest.is_empty() {
                    true => Ok(()),
                    false => write!(f, "; the closest names are {closest}"),
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
            NameError::Broken { .. } => "`meganeura pull NAME` downloads what is missing of a model of the Hub",
        };
        Error::misuse(error.to_string(), remedy)
    }
}

/// Whether a text can be the name of a model, other than a path that begins with a slash, a dot or a tilde.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['.', '/', '\\', '~']) && !text.ends_with('/')
}

/// The path of a model by its name: that of the [list](super::list), the last part of it if only one model ends so
/// (`NAME` of `ORG/NAME`, the name of a GGUF file with or without its ending), `ORG/NAME` of a repository with one GGUF model,
/// or `NAME@COMMIT` with at least seven digits of the commit. Capital letters matter only where names differ by nothing else.
/// Of several models with equal names, one that can be used comes before others.
///
/// # Errors
/// [`NameError`]: no such model, several, or one that something is missing of. A model that is complete but not supported is
/// no error here: whoever opens it says why.
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

/// The places that a name may mean: those that it fits best.
fn candidates<'a>(name: &str, places: &'a [Place]) -> Vec<&'a Place> {
    let (stem, folded) = (parts::stem(name), name.to_lowercase());
    let fits: [&dyn Fn(&Place) -> bool; 7] = [
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
    let mut found = found.filter(|found: &Vec<&Place>| !found.is_empty());
    found.next().unwrap_or_default()
}

/// Whether a name is another one, or the last parts of it.
fn ends_with(whole: &str, name: &str) -> bool {
    whole
        .strip_suffix(name)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// Whether `NAME@COMMIT` is a place.
fn is_commit(place: &Place, name: &str) -> bool {
    const LEAST: usize = 7;
    let Some((name, commit)) = name.split_once('@').filter(|(_, commit)| commit.len() >= LEAST) else {
        return false;
    };
    let own = place.name.split('@').next().unwrap_or_default();
    ends_with(own, name) && place.revision.as_ref().is_some_and(|own| own.starts_with(commit))
}

/// Names that may have been meant, whole where their last parts are like it.
fn closest_names(name: &str, places: &[Place]) -> String {
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
