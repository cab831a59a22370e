//! Tests of the list of models on a machine, in temporary folders.

use std::fs;
use std::path::{Path, PathBuf};

use meganeura_llm::library::{LocalModel, ModelFolders, NameError, Origin, Support, find, list};
use meganeura_llm::{CacheType, WeightStorage};

use crate::gguf::files::{fixture, replaced, with_value};

fn fixtures(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("readable") {
        let (path, target) = {
            let entry = entry.expect("readable");
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, bytes).expect("written");
}

/// Returns a part of a model with this number of parts.
fn part(count: u16) -> Vec<u8> {
    const U16: u32 = 2;
    with_value(&fixture("llama_q8_0"), "split.count", U16, &count.to_le_bytes())
}

fn folders(folder: &Path) -> ModelFolders {
    ModelFolders::default().with([folder.to_owned()])
}

/// Returns the models of a folder.
fn models(folder: &Path) -> Vec<LocalModel> {
    list(&folders(folder))
}

fn of<'a>(models: &'a [LocalModel], name: &str) -> &'a LocalModel {
    let names = || models.iter().map(|model| &*model.name).collect::<Vec<_>>();
    models
        .iter()
        .find(|model| model.name == name)
        .unwrap_or_else(|| panic!("no {name} in {:?}", names()))
}

#[track_caller]
fn is_broken(model: &LocalModel, said: &str) {
    assert!(
        matches!(&model.support, Support::Broken(reason) if reason.contains(said)),
        "{model:?}"
    );
}

#[track_caller]
fn is_unsupported(model: &LocalModel, said: &str) {
    assert!(
        matches!(&model.support, Support::Unsupported(reason) if reason.contains(said)),
        "{model:?}"
    );
}

/// Creates the cache of the Hub with a repository in a snapshot, as its programs write it: with links on systems that have them.
fn repository(cache: &Path, name: &str, commit: &str, refs: &[&str], from: &Path) -> PathBuf {
    let folder = cache.join(format!("models--{}", name.replace('/', "--")));
    for name in refs {
        write(&folder.join("refs").join(name), format!("{commit}\n"));
    }
    let snapshot = folder.join("snapshots").join(commit);
    #[cfg(not(unix))]
    copy(from, &snapshot);
    #[cfg(unix)]
    {
        copy(from, &folder.join("blobs"));
        fs::create_dir_all(&snapshot).expect("a folder");
        for entry in fs::read_dir(folder.join("blobs")).expect("readable") {
            let own = entry.expect("readable").file_name();
            let target = Path::new("../../blobs").join(&own);
            std::os::unix::fs::symlink(target, snapshot.join(own)).expect("a link");
        }
    }
    snapshot
}

#[test]
fn headers_say_what_models_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    copy(&fixtures("transformers/llama"), &root.join("org/small"));
    copy(&fixtures("transformers/llama_sharded"), &root.join("sharded"));
    fs::copy(
        fixtures("transformers/llama/tokenizer.json"),
        root.join("sharded/tokenizer.json"),
    )
    .expect("copied");
    copy(&fixtures("embeddings/bert"), &root.join("bert"));
    write(&root.join("encoder.gguf"), fixture("bert_f32"));
    write(&root.join("q8.gguf"), fixture("llama_q8_0"));
    write(&root.join(".hidden/config.json"), "{}");
    write(&root.join("a/b/c/deep.gguf"), fixture("llama_q8_0"));
    let models = models(root);
    let names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
    assert_eq!(names, ["bert", "encoder", "org/small", "q8", "sharded"]);

    let small = of(&models, "org/small");
    assert_eq!((&small.support, small.origin), (&Support::Text, Origin::Folder));
    assert_eq!(
        (small.architecture.as_deref(), small.stored.as_deref()),
        (Some("llama"), Some("f32"))
    );
    assert_eq!(small.context, Some(128));
    let weights = fs::metadata(root.join("org/small/model.safetensors"))
        .expect("a file")
        .len();
    let parameters = small.parameters.expect("a number");
    // All but the header.
    assert!(
        parameters * 4 < weights && parameters * 4 > weights - 8192,
        "{parameters} in {weights} bytes"
    );
    assert!(small.disk_bytes > weights);
    let memory = small.memory(None, None, CacheType::F32).expect("an estimate");
    // Two layers of 16 features of keys and of values.
    assert_eq!((memory.weights, memory.cache), (parameters * 4, 2 * 2 * 16 * 128 * 4));
    let packed = small
        .memory(Some(WeightStorage::Q8), Some(16), CacheType::F32)
        .expect("an estimate");
    assert!(
        packed.weights < memory.weights / 3 && packed.cache == memory.cache / 8,
        "{packed:?}"
    );

    let sharded = of(&models, "sharded");
    assert_eq!(sharded.support, Support::Text);
    let bert = of(&models, "bert");
    assert_eq!((&bert.support, bert.context), (&Support::Encoder, Some(60)));
    assert_eq!(
        bert.memory(Some(WeightStorage::Q4), Some(7), CacheType::F32)
            .map(|memory| memory.cache),
        Some(0)
    );
    let encoder = of(&models, "encoder");
    assert_eq!((&encoder.support, encoder.context), (&Support::Encoder, Some(64)));
    let gguf = of(&models, "q8");
    assert_eq!((&gguf.support, gguf.stored.as_deref()), (&Support::Text, Some("q8_0")));
    // In one of the two, the matrix of logits is the embedding table.
    assert!(gguf.parameters.is_some_and(|count| count > parameters / 2), "{gguf:?}");
    // Quantized weights stay so.
    let usual = gguf.memory(None, None, CacheType::F32).expect("an estimate");
    assert_eq!(Some(usual), gguf.memory(Some(WeightStorage::Q8), None, CacheType::F32));
}

#[test]
fn broken_entries_are_listed_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let small = fixtures("transformers/llama");
    let whole = |name: &str| {
        copy(&small, &root.join(name));
        root.join(name)
    };
    let path = whole("short").join("model.safetensors");
    let bytes = fs::read(&path).expect("readable");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    let weightless = whole("weightless");
    for name in ["model.safetensors", "expected.safetensors"] {
        fs::remove_file(weightless.join(name)).expect("removed");
    }
    fs::remove_file(whole("mute").join("tokenizer.json")).expect("removed");
    fs::remove_file(whole("bare").join("config.json")).expect("removed");
    fs::write(whole("words").join("config.json"), "{\u{1b}").expect("written");
    fs::write(whole("list").join("config.json"), "[]").expect("written");
    let config = fs::read_to_string(small.join("config.json")).expect("readable");
    let other = config.replace("\"llama\"", "\"whisper\"");
    assert_ne!(other, config);
    fs::write(whole("whisper").join("config.json"), other).expect("written");
    let larger = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000");
    assert_ne!(larger, config);
    fs::write(whole("deeper").join("config.json"), larger).expect("written");
    let pickled = whole("pickled");
    fs::remove_file(pickled.join("expected.safetensors")).expect("removed");
    fs::rename(pickled.join("model.safetensors"), pickled.join("pytorch_model.bin")).expect("renamed");
    copy(&fixtures("transformers/llama_sharded"), &root.join("sharded"));
    fs::remove_file(root.join("sharded/model-00002-of-00003.safetensors")).expect("removed");
    let q8 = fixture("llama_q8_0");
    write(&root.join("cut.gguf"), &q8[..q8.len() / 2]);
    write(&root.join("empty.gguf"), "");
    write(&root.join("bloom.gguf"), replaced(&q8, "llama", "bloom"));
    write(&root.join("cuts.gguf"), replaced(&q8, "gpt-2", "gpt-9"));
    for (name, number) in [("whole", 1), ("whole", 2), ("rest", 2)] {
        write(&root.join(format!("{name}-0000{number}-of-00002.gguf")), part(2));
    }
    let models = models(root);
    assert_eq!(models.len(), 16, "{models:?}");
    for (name, said) in [
        ("short", "'model.safetensors' is damaged or of another format"),
        ("weightless", "has no safetensors files"),
        ("mute", "has no tokenizer.json"),
        ("bare", "has no config.json"),
        ("words", "'config.json' is damaged or of another format"),
        ("sharded", "'model-00002-of-00003.safetensors' cannot be read"),
        ("cut", "extends beyond the end of the file"),
        ("empty", "within the 4 bytes"),
        ("rest", "part 1 of 2 is missing"),
        ("whole", "its part number or its number of parts differs"),
    ] {
        is_broken(of(&models, name), said);
    }
    for (name, said) in [
        ("list", "a model of type ''"),
        ("whisper", "a model of type 'whisper'"),
        ("deeper", "too few for the 1000000 layers"),
        ("pickled", "has its weights in 'pytorch_model.bin'"),
        ("bloom", "architecture 'bloom'"),
        ("cuts", "the pre-tokenizer 'gpt-9'"),
    ] {
        is_unsupported(of(&models, name), said);
    }
    assert!(
        models
            .iter()
            .all(|model| model.memory(None, None, CacheType::F32).is_none())
    );
    // The sizes in the headers match the files.
    let whole = of(&models, "whole");
    assert_eq!(whole.disk_bytes, 2 * part(2).len() as u64);
    let one = list(&folders(&fixtures("gguf")));
    let one = of(&one, "llama_q8_0").parameters.expect("a number");
    assert_eq!(whole.parameters, Some(2 * one));
    let whisper = of(&models, "whisper");
    assert_eq!(
        (whisper.architecture.as_deref(), whisper.context),
        (Some("whisper"), Some(128))
    );
    assert!(whisper.parameters.is_some());

    let absent = list(&folders(&root.join("absent")));
    is_broken(of(&absent, "absent"), "cannot be read");
    let caches = ModelFolders {
        hub: Some(root.join("absent")),
        own: Some(root.join("absent, too")),
        folders: Vec::new(),
    };
    assert_eq!(list(&caches), []);
}

#[test]
fn snapshots_of_the_hub_are_models() {
    let cache = tempfile::tempdir().expect("a folder");
    let (root, small) = (cache.path(), fixtures("transformers/llama"));
    let [first, second, third] = ["1", "2", "3"].map(|digit| digit.repeat(40));
    let main = repository(root, "org/small", &first, &["main"], &small);
    repository(root, "org/small", &second, &["v1"], &small);
    let nameless = repository(root, "org/small", &third, &[], &small);
    repository(root, "gpt2", &first, &["main"], &small);
    let files = tempfile::tempdir().expect("a folder");
    write(&files.path().join("tiny-q8.gguf"), fixture("llama_q8_0"));
    write(&files.path().join("tiny-q4.gguf"), fixture("llama_q4_0"));
    write(&files.path().join("config.json"), "{}");
    let quantized = repository(root, "org/tiny-gguf", &first, &["main"], files.path());
    // Incomplete downloads: without a snapshot, and with a part of one.
    let begun = root.join("models--org--begun");
    write(&begun.join("refs/main"), &first);
    write(&begun.join("blobs/abc.incomplete"), "some");
    let config = fs::read(small.join("config.json")).expect("readable");
    write(
        &root
            .join("models--org--partly/snapshots")
            .join(&first)
            .join("config.json"),
        config,
    );
    write(&root.join("datasets--org--data/refs/main"), &first);
    write(&root.join("version.txt"), "1");
    let folders = ModelFolders {
        hub: Some(root.to_owned()),
        ..ModelFolders::default()
    };
    let models = list(&folders);
    let names: Vec<&str> = models.iter().map(|model| &*model.name).collect();
    let others = format!("org/small@{}", &third[..12]);
    assert_eq!(
        names,
        [
            "gpt2",
            "org/begun",
            "org/partly",
            "org/small",
            &*others,
            "org/small@v1",
            "org/tiny-gguf/tiny-q4",
            "org/tiny-gguf/tiny-q8"
        ]
    );
    let model = of(&models, "org/small");
    assert_eq!((&model.path, model.origin), (&main, Origin::Hub));
    assert_eq!(
        (&model.support, model.revision.as_ref()),
        (&Support::Text, Some(&first))
    );
    is_broken(of(&models, "org/begun"), "its download is incomplete");
    is_broken(of(&models, "org/partly"), "no safetensors files");

    let found = |name: &str| find(name, &folders);
    for name in ["org/small", "small", "ORG/Small", "org/small@1111111"] {
        assert_eq!(found(name), Ok(main.clone()), "{name}");
    }
    assert_eq!(found("org/small@3333333"), Ok(nameless));
    for name in ["tiny-q8", "tiny-q8.gguf", "org/tiny-gguf/tiny-q8", "tiny-gguf/tiny-q8"] {
        assert_eq!(found(name), Ok(quantized.join("tiny-q8.gguf")), "{name}");
    }
    for name in ["org/tiny-gguf", "tiny-gguf"] {
        let Err(NameError::Ambiguous { candidates, .. }) = found(name) else {
            panic!("{name}: {:?}", found(name));
        };
        let names: Vec<&str> = candidates.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["org/tiny-gguf/tiny-q4", "org/tiny-gguf/tiny-q8"]);
    }
    assert!(matches!(found("org/begun"), Err(NameError::Broken { reason, .. }) if reason.contains("incomplete")));
    for (name, wanted) in [
        ("smal", "org/small"),
        ("tiny-q9", "org/tiny-gguf/tiny-q"),
        ("wholly-other", ""),
    ] {
        let Err(NameError::Unknown { closest, .. }) = found(name) else {
            panic!("{name}: {:?}", found(name));
        };
        assert!(
            closest.contains(wanted) && closest.is_empty() == wanted.is_empty(),
            "{name}: {closest}"
        );
    }
    // Too few digits, and digits of another commit.
    for name in ["org/small@111", "org/small@4444444", ""] {
        assert!(matches!(found(name), Err(NameError::Unknown { .. })), "{name}");
    }
}

#[test]
fn equal_names_are_ambiguous_unless_one_cannot_be_used() {
    let both = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    for folder in &both {
        copy(&fixtures("transformers/llama"), &folder.path().join("org/small"));
    }
    let folders = ModelFolders::default().with(both.iter().map(|folder| folder.path().to_owned()));
    let error = find("small", &folders).expect_err("two");
    let text = error.to_string();
    for folder in &both {
        assert!(text.contains(&*folder.path().to_string_lossy()), "{text}");
    }
    assert!(text.contains("any of 2 models"), "{text}");
    fs::remove_file(both[0].path().join("org/small/config.json")).expect("removed");
    assert_eq!(find("small", &folders), Ok(both[1].path().join("org/small")));
    // One folder that is given twice lists its models once.
    let twice = ModelFolders::default().with([both[1].path().to_owned(), both[1].path().join("org/..")]);
    assert_eq!(list(&twice).len(), 1);
    // A folder that is a model itself.
    let itself = both[1].path().join("org/small");
    let models = models(&itself);
    assert_eq!((models.len(), &*models[0].name, &models[0].path), (1, "small", &itself));
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_broken_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    std::os::unix::fs::symlink("gone", root.join("lost.gguf")).expect("a link");
    copy(&fixtures("transformers/llama"), &root.join("lost"));
    fs::remove_file(root.join("lost/model.safetensors")).expect("removed");
    std::os::unix::fs::symlink("gone", root.join("lost/model.safetensors")).expect("a link");
    // A circular link.
    std::os::unix::fs::symlink(root, root.join("round")).expect("a link");
    let models = models(root);
    let lost: Vec<&LocalModel> = models.iter().filter(|model| model.name.ends_with("lost")).collect();
    assert_eq!(lost.len(), 2, "{models:?}");
    for model in lost {
        is_broken(model, "cannot be read");
    }
}
