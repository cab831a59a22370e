//! The models on this machine: what there is, what it takes, and how it is found by a name.
//!
//! [`list`] looks into the cache of the Hugging Face Hub, the models' folder of this library and folders of the user's
//! ([`ModelFolders`]). It reads `config.json`, the headers of safetensors files and the metadata of GGUF files, never the
//! weights. An entry that is damaged or not complete is part of the list and says so ([`Support`]). [`find`] gives the path
//! of a model by its name in the list.
//!
//! ```no_run
//! use meganeura_llm::library::{self, ModelFolders};
//!
//! for model in library::list(&ModelFolders::from_environment()) {
//!     println!("{}: {:?} parameters, {:?}", model.name, model.parameters, model.support);
//! }
//! ```

mod describe;
mod memory;
mod names;
mod places;
mod snapshots;

pub use describe::{LocalModel, Support};
pub use memory::{MemoryEstimate, USUAL_CONTEXT};
pub use names::{NameError, find, is_name};
pub use places::{FOLDERS_VARIABLE, ModelFolders, Origin};

/// All models of some folders, by their names. Folders that cannot be read are entries with [`Support::Broken`]; only the
/// caches need not exist.
pub fn list(folders: &ModelFolders) -> Vec<LocalModel> {
    let mut models: Vec<LocalModel> = places::all(folders).iter().map(LocalModel::describe).collect();
    models.sort_by(|a, b| (a.name.to_lowercase(), &a.path).cmp(&(b.name.to_lowercase(), &b.path)));
    models
}
