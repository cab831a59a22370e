//! Libraries that lie beside a plugin.
//!
//! A shared object of ELF names what it is linked with, and may have the system look for it relative to its own place,
//! `$ORIGIN`. Such libraries run with the same rights as the plugin, so they are held to the same rules.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader};

use crate::file::{self, Identity, Opened, Refusal, refuse};
use crate::library::printable;

/// More libraries than this lie beside no plugin.
const MAX_LIBRARIES: usize = 64;
const RELINK: &str = "link it with -Wl,-rpath,'$ORIGIN', or with full paths";

/// What an object has the system look for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Linked {
    /// Names of libraries.
    needed: Vec<String>,
    /// Folders to look in, as they are written.
    folders: Vec<String>,
    /// Whether these folders count for what the libraries need, too: those of the older entry do, where there is no newer.
    is_inherited: bool,
}

/// What was found beside a plugin.
#[derive(Debug)]
pub(crate) struct Beside {
    /// Whether the system has to know where the plugin lies.
    pub(crate) by_place: bool,
    /// The libraries that were checked.
    pub(crate) libraries: Vec<(PathBuf, Identity)>,
}

/// Finds and checks the libraries that a plugin has beside it, and those beside them.
pub(crate) fn check(opened: &Opened, allow: Option<&[String]>) -> Result<Beside, Refusal> {
    let mut found = Beside {
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
                return refuse(format!("more than {MAX_LIBRARIES} libraries lie beside it"), RELINK);
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

/// Opens a library by the rules for plugins.
fn open(path: &Path, allow: Option<&[String]>) -> Result<Opened, Refusal> {
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

/// Folders relative to the place of an object in which the system looks for what it needs.
fn folders(linked: &Linked, place: &Path, inherited: &[PathBuf]) -> Result<Vec<PathBuf>, Refusal> {
    let mut folders = Vec::new();
    for entry in &linked.folders {
        folders.extend(relative(entry, place)?);
    }
    if linked.is_inherited || linked.folders.is_empty() {
        folders.extend_from_slice(inherited);
    }
    Ok(folders)
}

/// The libraries that the system would find there, and whether it is asked for one by the place of the object itself.
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

/// What a path means that may begin with the place of the object. `None`, if it does not.
fn relative(entry: &str, place: &Path) -> Result<Option<PathBuf>, Refusal> {
    let shown = printable(entry);
    let rest = ["$ORIGIN", "${ORIGIN}"]
        .iter()
        .find_map(|origin| entry.strip_prefix(origin));
    match rest {
        Some(rest) if rest.contains('$') || !(rest.is_empty() || rest.starts_with('/')) => refuse(
            format!("it looks for libraries in '{shown}', which cannot be checked"),
            RELINK,
        ),
        Some(rest) => Ok(Some(place.join(rest.trim_start_matches('/')))),
        None if entry.starts_with('/') => Ok(None),
        None => refuse(
            format!("it looks for libraries in '{shown}', relative to the folder that the program runs in"),
            RELINK,
        ),
    }
}

/// What the dynamic section of an object says.
fn linked(contents: &[u8]) -> Result<Linked, Refusal> {
    let found = match object::File::parse(contents) {
        Ok(object::File::Elf32(file)) => read(&file),
        Ok(object::File::Elf64(file)) => read(&file),
        // Where there are other formats, the system is given the path.
        _ => Some(Linked::default()),
    };
    match found {
        Some(linked) => Ok(linked),
        None => refuse(
            "its list of libraries cannot be read",
            "build it for this machine, as a shared object",
        ),
    }
}

fn read<Elf: FileHeader<Endian = Endianness>>(file: &ElfFile<Elf>) -> Option<Linked> {
    let (endian, data) = (file.endian(), file.data());
    let segments = file.elf_program_headers();
    let mut linked = Linked::default();
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
    // By what is loaded, as the system reads it, not by sections.
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
    // The older entry does not count where there is the newer one. An empty one is none.
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
        assert_eq!(linked(b"text").expect("it is not looked at"), Linked::default());
    }
}
