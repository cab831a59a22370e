use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, SystemTime};

use super::*;

const JSON: &str = "model.json";
const WEIGHTS: &str = "model.safetensors";
const KIND: FolderKind = FolderKind {
    names: &[JSON, WEIGHTS],
    marker: JSON,
    is_own: |text| text.starts_with(b"{\"format\": 1, \"architecture\":"),
};

/// Environment variable with the folder that a child process saves.
const FOLDER: &str = "FOLDER_OF_THE_KILLED_TEST";
const BY_RENAMES: &str = "SAVE_BY_RENAMES_IN_THE_TEST";
/// Environment variable with the first number that a child process saves.
const FIRST: &str = "TEST_SAVE_FIRST";

fn replace_by(folder: &Path, json: &[u8], weights: &[u8], swap: Swap) -> Result<()> {
    let new = NewFolder::begin(folder, KIND)?;
    write(new.path(), json, weights);
    new.put_by(swap)
}

fn replace(folder: &Path, json: &[u8], weights: &[u8]) -> Result<()> {
    replace_by(folder, json, weights, Swap::Exchange)
}

fn write(folder: &Path, json: &[u8], weights: &[u8]) {
    fs::write(folder.join(WEIGHTS), weights).expect("written");
    fs::write(folder.join(JSON), json).expect("written");
}

/// Returns files that belong together: both have the same number.
fn files(number: u64) -> (Vec<u8>, Vec<u8>) {
    let json = format!("{{\"format\": 1, \"architecture\": {{}}, \"number\": {number}}}");
    (json.into_bytes(), number.to_le_bytes().repeat(5000))
}

/// Returns the number of a saved folder. Its files must be complete and from the same save.
fn number_of(folder: &Path) -> Option<u64> {
    let place = place_of(folder);
    if !place.is_dir() {
        return None;
    }
    let json = fs::read_to_string(place.join(JSON)).expect("it is there");
    let number = json
        .strip_suffix('}')
        .and_then(|json| json.rsplit_once(' '))
        .expect("whole")
        .1;
    let number = number.parse().expect("a number");
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
        // An empty folder may be replaced.
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
    // A folder with another file is refused even if it contains a model.
    let model = home.path().join("model");
    replace(&model, &json, &weights).expect("saves");
    fs::write(model.join("notes.md"), "mine").expect("writes");
    refused(&model, "'notes.md'");
    for foreign in ["{\"format\": 1}", "[]", "", "{"] {
        let folder = home.path().join("foreign");
        fs::create_dir_all(&folder).expect("makes");
        fs::write(folder.join(JSON), foreign).expect("writes");
        refused(&folder, "does not belong to a model");
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
    // The state after a kill between the renames.
    let old = old_of(&folder).expect("it has a name");
    fs::rename(&folder, &old).expect("renames");
    assert_eq!(number_of(&folder), Some(1));
    replace(&folder, &files(2).0, &files(2).1).expect("saves");
    assert_eq!(
        (number_of(&folder), names(home.path())),
        (Some(2), vec!["model".to_owned()])
    );
    // The state after a kill before the last removal.
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
fn what_killed_programs_left_is_removed_and_what_living_ones_write_is_not() {
    let home = tempfile::tempdir().expect("a folder");
    for name in [".model.new-1-0", ".other.new-1-0"] {
        let left = home.path().join(name);
        fs::create_dir(&left).expect("makes");
        write(&left, &files(1).0, &files(1).1);
        fs::write(left.join(".model.safetensors.partialAb12Cd"), "half").expect("written");
    }
    let living = NewFolder::begin(&home.path().join("model"), KIND).expect("begins");
    write(living.path(), &files(3).0, &files(3).1);
    replace(&home.path().join("model"), &files(2).0, &files(2).1).expect("saves");
    let own = living
        .path()
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    assert_eq!(names(home.path()), [own.as_str(), ".other.new-1-0", "model"]);
    living.put().expect("it is there still");
    assert_eq!(number_of(&home.path().join("model")), Some(3));
    assert_eq!(names(home.path()), [".other.new-1-0", "model"]);
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

/// A new folder survives other processes that clean up, although they can see it before it is locked.
#[test]
fn a_folder_that_was_just_made_is_not_cleaned_away() {
    const ROUNDS: u64 = 1000;
    let home = tempfile::tempdir().expect("a folder");
    let prefix = ".model.new-";
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    clean(home.path(), prefix, &KIND);
                }
            });
        }
        let lost = (0..ROUNDS).find(|&round| {
            let (folder, _held) = make(home.path(), prefix).expect("a folder of its own");
            let is_written = fs::write(folder.join(WEIGHTS), files(round).1).is_ok();
            let is_there = folder.join(WEIGHTS).exists();
            remove(&folder, &KIND);
            !is_written || !is_there
        });
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(lost, None);
    });
}

/// Saves in a loop until the test below, which starts it as a child process, kills it.
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

/// Kills 200 processes while they save, half of them without atomic exchange: each leaves a complete folder.
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
        child.args(["--exact", "--ignored", "files::folder::tests::child_that_saves"]);
        child.env(FIRST, (1 + 1_000_000 * round).to_string());
        child.env(FOLDER, &folder).stdout(Stdio::null()).stderr(Stdio::null());
        if round % 2 == 1 {
            child.env(BY_RENAMES, "1");
        }
        let before = fs::read(folder.join(JSON)).ok();
        let mut child = child.spawn().expect("starts");
        // Wait until the child saves, so that the kill interrupts a save and not the start.
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
