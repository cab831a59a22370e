//! Folders that are replaced whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::ModelError;

pub(super) const JSON: &str = "model.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
/// Age of a temporary folder from which on no program can be at work on it.
const STALE: Duration = Duration::from_secs(3600);
/// Times that another program may come in between.
const ATTEMPTS: usize = 100;

/// How a folder takes the place of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    /// In one step where the file system has one, or else as below.
    Exchange,
    /// By two renames, with the old folder under the name of [`old_of`] in between.
    Aside,
}

/// Puts a folder with the two files in place of the one there. Whoever looks, also after a kill at any moment, finds
/// the old folder or the new one, under its name or (only between two renames, without an exchange) that of [`old_of`].
pub(super) fn replace(folder: &Path, json: &[u8], weights: &[u8]) -> Result<(), ModelError> {
    let swap = match cfg!(target_os = "linux") {
        true => Swap::Exchange,
        false => Swap::Aside,
    };
    replace_by(folder, json, weights, swap)
}

fn replace_by(folder: &Path, json: &[u8], weights: &[u8], swap: Swap) -> Result<(), ModelError> {
    // Through a link, so that it is its target that is replaced.
    let folder = &fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let (Some(name), Some(old)) = (folder.file_name(), old_of(folder)) else {
        return Err(ModelError::NotReplaced {
            folder: folder.clone(),
            message: "it has no name".into(),
        });
    };
    let parent = meganeura_core::files::folder_of(folder);
    fs::create_dir_all(&parent).map_err(ModelError::io(&parent, "make"))?;
    if !folder.exists() && old.is_dir() {
        // A save was killed between its renames.
        match fs::rename(&old, folder) {
            Err(e) if !folder.exists() => return Err(ModelError::io(&old, "rename")(e)),
            _ => {}
        }
    }
    check_replaceable(folder)?;
    let prefix = format!(".{}.new-", name.to_string_lossy());
    clean(&parent, &prefix);
    if folder.exists() {
        remove(&old);
    }

    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = parent.join(format!("{prefix}{}-{count}", std::process::id()));
    let result = write(&temporary, json, weights, folder)
        .map_err(ModelError::io(&temporary, "write"))
        .and_then(|()| put(&temporary, folder, &old, swap).map_err(ModelError::io(folder, "replace")));
    // It has the old files now, or the new ones that are not wanted.
    remove(&temporary);
    // The renames are in the parent; where that cannot be synchronised, the file system does it in its time.
    sync_folder(&parent);
    result
}

/// The name that a folder has while another takes its place, where that takes two renames.
pub(super) fn old_of(folder: &Path) -> Option<PathBuf> {
    let name = folder.file_name()?.to_string_lossy();
    Some(folder.with_file_name(format!(".{name}.old")))
}

/// Checks that [`replace`] can write the folder: what is there may be replaced, and its parent takes files.
pub(super) fn prepare(folder: &Path) -> Result<(), ModelError> {
    let folder = &fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    check_replaceable(folder)?;
    let parent = meganeura_core::files::folder_of(folder);
    fs::create_dir_all(&parent).map_err(ModelError::io(&parent, "make"))?;
    let trial = parent.join(format!(".model-trial-{}", std::process::id()));
    fs::create_dir(&trial).map_err(ModelError::io(&trial, "make"))?;
    fs::remove_dir(&trial).map_err(ModelError::io(&trial, "remove"))
}

/// Refuses to replace what is not a model alone.
fn check_replaceable(folder: &Path) -> Result<(), ModelError> {
    let refuse = |message: String| {
        Err(ModelError::NotReplaced {
            folder: folder.to_owned(),
            message,
        })
    };
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return refuse("it is a file".into()),
        Err(e) => return Err(ModelError::io(folder, "read")(e)),
        Ok(entries) => entries,
    };
    let mut is_empty = true;
    for entry in entries {
        let entry = entry.map_err(ModelError::io(folder, "read"))?;
        let name = entry.file_name();
        is_empty = false;
        if name != JSON && name != WEIGHTS {
            return refuse(format!("it holds '{}'", name.to_string_lossy()));
        }
    }
    if is_empty {
        return Ok(());
    }
    // Another program's file may have the same name. A save may come in between, so a missing one is looked for twice.
    let path = folder.join(JSON);
    let text = fs::read(&path).or_else(|_| fs::read(&path));
    let fields = text.ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    match fields {
        Some(fields) if fields.get("format").is_some() && fields.get("architecture").is_some() => Ok(()),
        _ => refuse(format!("its {JSON} is not that of a model")),
    }
}

/// A new folder with both files, on the disk. What `old` has already keeps its permissions.
fn write(folder: &Path, json: &[u8], weights: &[u8], old: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    // Before there is anything in it to read.
    if let Ok(found) = fs::metadata(old) {
        fs::set_permissions(folder, found.permissions())?;
    }
    for (name, bytes) in [(WEIGHTS, weights), (JSON, json)] {
        let mut file = File::create_new(folder.join(name))?;
        if let Ok(found) = fs::metadata(old.join(name)) {
            file.set_permissions(found.permissions())?;
        }
        file.write_all(bytes)?;
        // Without this, a crash of the machine could leave the new names with no contents.
        file.sync_all()?;
    }
    sync_folder(folder);
    Ok(())
}

fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// Gives the folder `new` the name of `place`. What was there has the name of `new` then, or is gone.
fn put(new: &Path, place: &Path, old: &Path, swap: Swap) -> io::Result<()> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        if !place.exists() {
            match fs::rename(new, place) {
                Ok(()) => return Ok(()),
                // Another program was faster.
                Err(_) if place.exists() => {}
                Err(e) => return Err(e),
            }
        }
        if swap == Swap::Exchange {
            match exchange(new, place) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    last = Some(e);
                    continue;
                }
                // A system or file system that has no exchange.
                Err(_) => {}
            }
        }
        match fs::rename(place, old) {
            Ok(()) => {}
            Err(e) => {
                // Where the folder is there, the old one is not needed. Where it is not, another program is at the same.
                if e.kind() != io::ErrorKind::NotFound {
                    remove(old);
                }
                last = Some(e);
                continue;
            }
        }
        match fs::rename(new, place) {
            Ok(()) => {
                remove(old);
                return Ok(());
            }
            Err(e) => {
                let _ = fs::rename(old, place);
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::ResourceBusy.into()))
}

/// Exchanges the names of two folders in one step.
#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let [a, b] = [a, b].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (a, b) = (a?, b?);
    // SAFETY: both paths end with a zero byte and live until the call returns, which keeps nothing of them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Removes a folder of a model, and nothing that is not of one. What cannot be removed is only in the way.
fn remove(folder: &Path) {
    for name in [JSON, WEIGHTS] {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_dir(folder);
}

/// Removes what killed programs left.
fn clean(parent: &Path, prefix: &str) {
    let is_stale = |entry: &fs::DirEntry| {
        let written = entry.metadata().and_then(|m| m.modified());
        let age = written.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        age.is_some_and(|age| age > STALE)
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) && is_stale(&entry) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    /// Tells a child process where to save, and how.
    const FOLDER: &str = "MEGANEURA_TEST_SAVE_FOLDER";
    const BY_RENAMES: &str = "MEGANEURA_TEST_SAVE_BY_RENAMES";
    /// The first number that a child saves.
    const FIRST: &str = "MEGANEURA_TEST_SAVE_FIRST";

    /// Files that belong together: both have the same number.
    fn files(number: u64) -> (Vec<u8>, Vec<u8>) {
        let json = format!("{{\"format\": 1, \"architecture\": {{}}, \"number\": {number}}}");
        (json.into_bytes(), number.to_le_bytes().repeat(5000))
    }

    /// The number of a folder, whose files must be whole and of one save.
    fn number_of(folder: &Path) -> Option<u64> {
        let place = [Some(folder.to_owned()), old_of(folder)].into_iter().flatten();
        let place = place.into_iter().find(|place| place.is_dir())?;
        let json: Value = serde_json::from_slice(&fs::read(place.join(JSON)).expect("it is there")).expect("whole");
        let number = json["number"].as_u64().expect("a number");
        assert_eq!(fs::read(place.join(WEIGHTS)).expect("it is there"), files(number).1);
        Some(number)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn folders_are_made_and_replaced_and_leave_nothing_behind() {
        for swap in [Swap::Exchange, Swap::Aside] {
            let home = tempfile::tempdir().expect("a folder");
            let folder = home.path().join("deep/er/model");
            for number in 0..3 {
                let (json, weights) = files(number);
                replace_by(&folder, &json, &weights, swap).expect("saves");
                assert_eq!(number_of(&folder), Some(number));
                assert_eq!(names(folder.parent().expect("it has one")), ["model"]);
            }
            // An empty folder is nobody's.
            let empty = home.path().join("empty");
            fs::create_dir(&empty).expect("makes");
            replace_by(&empty, &files(9).0, &files(9).1, swap).expect("saves");
            assert_eq!(number_of(&empty), Some(9));
        }
    }

    #[test]
    fn what_is_no_model_is_not_replaced() {
        let home = tempfile::tempdir().expect("a folder");
        let (json, weights) = files(1);
        let refused = |path: &Path, part: &str| {
            let error = replace(path, &json, &weights).expect_err("refused").to_string();
            assert!(error.contains("not replaced") && error.contains(part), "{error}");
        };
        let file = home.path().join("file");
        fs::write(&file, "text").expect("writes");
        refused(&file, "it is a file");
        let other = home.path().join("other");
        fs::create_dir(&other).expect("makes");
        fs::write(other.join("thesis.txt"), "years of work").expect("writes");
        refused(&other, "'thesis.txt'");
        // Beside a model, too.
        let model = home.path().join("model");
        replace(&model, &json, &weights).expect("saves");
        fs::write(model.join("notes.md"), "mine").expect("writes");
        refused(&model, "'notes.md'");
        for foreign in ["{\"format\": 1}", "[]", "", "{"] {
            let folder = home.path().join("foreign");
            fs::create_dir_all(&folder).expect("makes");
            fs::write(folder.join(JSON), foreign).expect("writes");
            refused(&folder, "not that of a model");
            assert_eq!(fs::read_to_string(folder.join(JSON)).expect("as it was"), foreign);
        }
        assert_eq!(names(home.path()), ["file", "foreign", "model", "other"]);
        assert!(replace(Path::new("/"), &json, &weights).is_err());
    }

    #[test]
    fn an_old_folder_aside_is_put_back_before_a_save() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("model");
        replace(&folder, &files(1).0, &files(1).1).expect("saves");
        // As a kill between the renames leaves it.
        let old = old_of(&folder).expect("it has a name");
        fs::rename(&folder, &old).expect("renames");
        assert_eq!(number_of(&folder), Some(1));
        replace(&folder, &files(2).0, &files(2).1).expect("saves");
        assert_eq!(
            (number_of(&folder), names(home.path())),
            (Some(2), vec!["model".to_owned()])
        );
        // As a kill before the last removal leaves it.
        fs::create_dir(&old).expect("makes");
        fs::write(old.join(JSON), files(1).0).expect("writes");
        replace(&folder, &files(3).0, &files(3).1).expect("saves");
        assert_eq!(
            (number_of(&folder), names(home.path())),
            (Some(3), vec!["model".to_owned()])
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_killed_programs_left_is_removed_after_an_hour() {
        let home = tempfile::tempdir().expect("a folder");
        for (name, age) in [
            (".model.new-1-0", 2 * STALE),
            (".model.new-2-0", STALE / 2),
            (".other.new-1-0", 2 * STALE),
        ] {
            let left = home.path().join(name);
            write(&left, &files(1).0, &files(1).1, &left).expect("writes");
            let folder = File::open(&left).expect("opens");
            folder.set_modified(SystemTime::now() - age).expect("its own folder");
        }
        replace(&home.path().join("model"), &files(2).0, &files(2).1).expect("saves");
        assert_eq!(names(home.path()), [".model.new-2-0", ".other.new-1-0", "model"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links() {
        let home = tempfile::tempdir().expect("a folder");
        let (folder, link) = (home.path().join("model"), home.path().join("link"));
        replace(&folder, &files(1).0, &files(1).1).expect("saves");
        std::os::unix::fs::symlink(&folder, &link).expect("links");
        replace(&link, &files(2).0, &files(2).1).expect("saves");
        assert_eq!(number_of(&folder), Some(2));
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    }

    #[cfg(unix)]
    #[test]
    fn permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("model");
        replace(&folder, &files(1).0, &files(1).1).expect("saves");
        let paths = [(folder.clone(), 0o700), (folder.join(WEIGHTS), 0o600)];
        for (path, mode) in &paths {
            fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("its own");
        }
        replace(&folder, &files(2).0, &files(2).1).expect("saves");
        for (path, mode) in &paths {
            let found = fs::metadata(path).expect("it is there").permissions().mode();
            assert_eq!(found & 0o777, *mode, "{}", path.display());
        }
    }

    #[test]
    fn saves_at_the_same_time_leave_one_of_them() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("model");
        replace(&folder, &files(0).0, &files(0).1).expect("saves");
        thread::scope(|scope| {
            for thread in 1..4 {
                let folder = &folder;
                scope.spawn(move || {
                    for round in 0..10 {
                        let (json, weights) = files(thread * 100 + round);
                        replace(folder, &json, &weights).expect("saves");
                    }
                });
            }
        });
        assert!(number_of(&folder).is_some_and(|n| n % 100 == 9));
        assert_eq!(names(home.path()), ["model"]);
    }

    /// The child of the test below: saves until it is killed.
    #[test]
    #[ignore = "started by another test"]
    fn child_that_saves() {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        let swap = match std::env::var_os(BY_RENAMES) {
            Some(_) => Swap::Aside,
            None => Swap::Exchange,
        };
        // Numbers that no child before it saved.
        let first = std::env::var(FIRST).ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        for number in first.. {
            let (json, weights) = files(number);
            replace_by(Path::new(&folder), &json, &weights, swap).expect("saves");
        }
    }

    /// Kills 200 processes while they save, half of them where there is no exchange.
    #[test]
    fn killed_saves_leave_a_whole_folder() {
        let home = tempfile::tempdir().expect("a folder");
        let program = std::env::current_exe().expect("this program");
        let mut changed = 0;
        for round in 0..200_u64 {
            let folder = home.path().join(format!("model-{}", round % 2));
            if round < 2 {
                replace(&folder, &files(0).0, &files(0).1).expect("saves");
            }
            let mut child = Command::new(&program);
            child.args(["--exact", "--ignored", "model::folder::tests::child_that_saves"]);
            child.env(FIRST, (1 + 1_000_000 * round).to_string());
            child.env(FOLDER, &folder).stdout(Stdio::null()).stderr(Stdio::null());
            if round % 2 == 1 {
                child.env(BY_RENAMES, "1");
            }
            let before = fs::read(folder.join(JSON)).ok();
            let mut child = child.spawn().expect("starts");
            // Until it is at work, so that the kill comes into a save and not into the start.
            let start = SystemTime::now();
            while fs::read(folder.join(JSON)).ok() == before && start.elapsed().is_ok_and(|e| e.as_secs() < 5) {
                assert!(child.try_wait().expect("a child").is_none(), "a save failed");
                thread::sleep(Duration::from_micros(200));
            }
            thread::sleep(Duration::from_micros(round * 7919 % 3000));
            child.kill().expect("it runs until it is killed");
            child.wait().expect("it ends");
            number_of(&folder).expect("a folder is there");
            changed += u32::from(fs::read(folder.join(JSON)).ok() != before);
        }
        assert!(changed > 150, "only {changed} had saved anything");
    }
}
