//! The models on this machine: their list, their memory, and the search by name.
//!
//! [`list`] searches the cache of the Hugging Face Hub, the models' folder of this library and
//! folders of the user ([`ModelFolders`]). It reads `config.json`, the headers of safetensors files
//! and the metadata of GGUF files, never the weights. A damaged or incomplete model is part of the
//! list, with the reason ([`Support`]). [`find`] returns the path of a model by its name in the
//! list.
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

/// Lists all models of some folders, by their names. Folders that cannot be read are entries with
/// [`Support::Broken`]; only the caches need not exist.
pub fn list(folders: &ModelFolders) -> Vec<LocalModel> {
    let mut models: Vec<LocalModel> = places::all(folders).iter().map(LocalModel::describe).collect();
    models.sort_by(|a, b| (a.name.to_lowercase(), &a.path).cmp(&(b.name.to_lowercase(), &b.path)));
    models
}
