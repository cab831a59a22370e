//! Checks of the libraries that a plugin is linked with and that are in its folder, or at paths relative to it.
//!
//! An ELF shared object names its libraries, and may make the system search for them relative to
//! its own location, `$ORIGIN`. Such libraries run with the same rights as the plugin, so the same
//! rules apply to them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader};

use crate::file::{self, Identity, PluginFile, Refusal, refuse};
use crate::library::printable;

/// Maximum number of libraries of a plugin that are found relative to it.
const MAX_LIBRARIES: usize = 64;
const RELINK: &str = "link it with -Wl,-rpath,'$ORIGIN', or with full paths";

/// Libraries that a shared object needs, and the folders that it makes the system search.
#[derive(Debug, Default, PartialEq, Eq)]
struct LinkedLibraries {
    /// Names of the needed libraries.
    needed: Vec<String>,
    /// Folders to search, as written in the object.
    folders: Vec<String>,
    /// `true` if these folders are also searched for the libraries' own libraries. This is the case for `DT_RPATH`,
    /// which applies only without `DT_RUNPATH`.
    is_inherited: bool,
}

/// Checked libraries that the system finds relative to a plugin.
#[derive(Debug)]
pub(crate) struct NearbyLibraries {
    /// `true` if the system needs the plugin's path to find them.
    pub(crate) by_place: bool,
    /// The libraries that were checked.
    pub(crate) libraries: Vec<(PathBuf, Identity)>,
}

/// Finds and checks the libraries at paths relative to a plugin, and recursively their own libraries.
pub(crate) fn check(opened: &PluginFile, allow: Option<&[String]>) -> Result<NearbyLibraries, Refusal> {
    let mut found = NearbyLibraries {
        by_place: false,
        libraries: Vec::new(),
    };
    let mut seen = HashSet::from([opened.path.clone()]);
    let mut left = vec![(opened.path.clone(), linked(&opened.contents)?, Vec::new())];
    while let Some((path, linked, inherited)) = left.pop() {
        let place = path.parent().unwrap_or(Path::new("/"));
        let folders = folders(&linked, place, &inherited)?;
        let (candidates, names_place) = candidates(&linked.needed, &folders, place)?;
        found.by_place |= names_place || !folders.is_empty();
        for candidate in candidates {
            let library = open(&candidate, allow)?;
            if !seen.insert(library.path.clone()) {
                continue;
            }
            if seen.len() > MAX_LIBRARIES {
                return refuse(format!("more than {MAX_LIBRARIES} libraries are in its folder"), RELINK);
            }
            let inherited = if linked.is_inherited {
                folders.clone()
            } else {
                Vec::new()
            };
            left.push((candidate.clone(), self::linked(&library.contents)?, inherited));
            found.libraries.push((candidate, library.identity));
        }
    }
    Ok(found)
}

/// Opens a library with the rules for plugins.
fn open(path: &Path, allow: Option<&[String]>) -> Result<PluginFile, Refusal> {
    let name = path.display();
    let of = |refusal: Refusal| Refusal {
        message: format!("the library {name}, which it is linked with: {}", refusal.message),
        runs_on_fallback: true,
        ..refusal
    };
    let library = file::open(path, file::MAX_BYTES).map_err(of)?;
    crate::check_allowed(allow, &library.sha256).map_err(of)?;
    Ok(library)
}

/// Returns the folders relative to an object's location in which the system searches for its
/// libraries.
fn folders(linked: &LinkedLibraries, place: &Path, inherited: &[PathBuf]) -> Result<Vec<PathBuf>, Refusal> {
    let mut folders = Vec::new();
    for entry in &linked.folders {
        folders.extend(relative(entry, place)?);
    }
    if linked.is_inherited || linked.folders.is_empty() {
        folders.extend_from_slice(inherited);
    }
    Ok(folders)
}

/// Returns the libraries that the system would find at relative paths, and `true` if one of them is named by a path
/// relative to the object.
fn candidates(needed: &[String], folders: &[PathBuf], place: &Path) -> Result<(Vec<PathBuf>, bool), Refusal> {
    let mut found = Vec::new();
    let mut names_place = false;
    for name in needed {
        if name.contains('/') {
            let path = relative(name, place)?;
            names_place |= path.is_some();
            found.extend(path);
        } else {
            let mut paths = folders.iter().map(|folder| folder.join(name));
            found.extend(paths.find(|path| path.exists()));
        }
    }
    Ok((found, names_place))
}

/// Resolves a path that begins with `$ORIGIN` (the folder of the object, `place`). Returns `None` for an absolute path.
fn relative(entry: &str, place: &Path) -> Result<Option<PathBuf>, Refusal> {
    let shown = printable(entry);
    let rest = ["$ORIGIN", "${ORIGIN}"]
        .iter()
        .find_map(|origin| entry.strip_prefix(origin));
    match rest {
        Some(rest) if rest.contains('$') || !(rest.is_empty() || rest.starts_with('/')) => refuse(
            format!("it searches for libraries in '{shown}', which cannot be checked"),
            RELINK,
        ),
        Some(rest) => Ok(Some(place.join(rest.trim_start_matches('/')))),
        None if entry.starts_with('/') => Ok(None),
        None => refuse(
            format!("it searches for libraries in '{shown}', relative to the folder that the program runs in"),
            RELINK,
        ),
    }
}

/// Parses the dynamic section of an object.
fn linked(contents: &[u8]) -> Result<LinkedLibraries, Refusal> {
    let found = match object::File::parse(contents) {
        Ok(object::File::Elf32(file)) => read(&file),
        Ok(object::File::Elf64(file)) => read(&file),
        // On systems with other formats, the loader gets the path.
        _ => Some(LinkedLibraries::default()),
    };
    match found {
        Some(linked) => Ok(linked),
        None => refuse(
            "its list of libraries cannot be read",
            "build it for this machine, as a shared object",
        ),
    }
}

fn read<Elf: FileHeader<Endian = Endianness>>(file: &ElfFile<Elf>) -> Option<LinkedLibraries> {
    let (endian, data) = (file.endian(), file.data());
    let segments = file.elf_program_headers();
    let mut linked = LinkedLibraries::default();
    let Some(entries) = segments.iter().find_map(|s| s.dynamic(endian, data).ok().flatten()) else {
        return Some(linked);
    };
    let mut entries: Vec<(u32, u64)> = entries
        .iter()
        .filter_map(|entry| Some((entry.tag32(endian)?, entry.d_val(endian).into())))
        .collect();
    entries.truncate(
        entries
            .iter()
            .position(|(tag, _)| *tag == elf::DT_NULL)
            .unwrap_or(entries.len()),
    );
    let value = |wanted: u32| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let (Some(start), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else {
        return Some(linked);
    };
    // Use the loaded segments, like the system, and not sections.
    let loaded = segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD);
    let strings = loaded
        .filter_map(|s| s.data_range(endian, data, start, size).ok().flatten())
        .next()?;
    let text = |at: u64| {
        let rest = strings.get(usize::try_from(at).ok()?..)?;
        let len = rest.iter().position(|&b| b == 0)?;
        Some(String::from_utf8_lossy(&rest[..len]).into_owned())
    };
    for (_, at) in entries.iter().filter(|(tag, _)| *tag == elf::DT_NEEDED) {
        linked.needed.push(text(*at)?);
    }
    // The older entry is ignored if there is the newer one. An empty entry counts as absent.
    let (newer, older) = (value(elf::DT_RUNPATH), value(elf::DT_RPATH));
    linked.is_inherited = newer.is_none();
    if let Some(at) = newer.or(older) {
        let list = text(at)?;
        linked.folders = list
            .split(':')
            .filter(|_| !list.is_empty())
            .map(str::to_owned)
            .collect();
    }
    Some(linked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_relative_to_the_object_or_not_at_all() {
        let place = Path::new("/opt/mine");
        for (entry, path) in [
            ("$ORIGIN", Some("/opt/mine")),
            ("${ORIGIN}", Some("/opt/mine")),
            ("$ORIGIN/../lib", Some("/opt/mine/../lib")),
            ("${ORIGIN}/x", Some("/opt/mine/x")),
            ("/usr/lib", None),
        ] {
            let found = relative(entry, place).expect(entry);
            assert_eq!(found.as_deref(), path.map(Path::new), "{entry}");
        }
        for (entry, words) in [
            ("", "relative to the folder that the program runs in"),
            ("lib", "'lib', relative to the folder"),
            ("./lib/libx.so", "relative to the folder"),
            ("$LIB", "relative to the folder"),
            ("$ORIGIN/$LIB", "cannot be checked"),
            ("$ORIGINAL", "cannot be checked"),
        ] {
            let refusal = relative(entry, place).expect_err(entry);
            assert!(refusal.message.contains(words), "{entry}: {}", refusal.message);
        }
    }

    #[test]
    fn what_is_no_elf_has_nothing_beside_it() {
        assert_eq!(
            linked(b"text").expect("it is not looked at"),
            LinkedLibraries::default()
        );
    }
}
