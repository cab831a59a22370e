use super::*;

struct Fake(&'static str, Vec<DeviceInfo>);

impl Backend for Fake {
    fn info(&self) -> crate::backend::BackendInfo {
        crate::backend::BackendInfo {
            name: self.0.into(),
            version: "1".into(),
            origin: "test".into(),
        }
    }
    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        Ok(self.1.clone())
    }
    fn open(&self, _: usize, _: &Config) -> Result<Arc<dyn Device>> {
        Err(Error::backend(self.0, "a fake"))
    }
    fn unavailable_reason(&self) -> Option<String> {
        self.1.is_empty().then(|| "its driver is missing".into())
    }
}

fn listing() -> Vec<BackendListing> {
    let gpu = |i, name: &str, kind, id| DeviceInfo {
        numeric_id: Some(id),
        ..DeviceInfo::new(i, name, kind)
    };
    let rejected = DeviceInfo {
        rejected: Some("no compute queue".into()),
        ..gpu(3, "Broken GPU", DeviceKind::DiscreteGpu, 9)
    };
    let fakes = [
        Fake("cpu", vec![DeviceInfo::new(0, "Processor", DeviceKind::Cpu)]),
        Fake(
            "vk",
            vec![
                gpu(0, "Soft Pipe", DeviceKind::Software, 1),
                gpu(1, "Little RTX 10", DeviceKind::IntegratedGpu, 0x20),
                gpu(2, "Big RTX 90", DeviceKind::DiscreteGpu, 0x2684),
                rejected,
            ],
        ),
    ];
    fakes
        .into_iter()
        .map(|f| BackendListing {
            name: f.0.into(),
            devices: f.devices(&Config::default()),
            backend: Arc::new(f),
        })
        .collect()
}

fn chosen(text: &str) -> Result<String, String> {
    let listing = listing();
    let (entry, d) = resolve(&Selector::parse(text)?, &listing, &Config::default())?;
    Ok(selector_of(&entry.name, d))
}

#[test]
fn every_form_of_the_grammar_selects() {
    for (text, expected) in [
        ("auto", "vk:2"),
        ("AUTO", "vk:2"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("vk", "vk:2"),
        ("VK:1", "vk:1"),
        ("vk:name=big rtx", "vk:2"),
        ("vk:id=0x20", "vk:1"),
        ("vk:id=32", "vk:1"),
        ("0x2684", "vk:2"),
        ("9860", "vk:2"),
        ("vk:0", "vk:0"),
    ] {
        assert_eq!(chosen(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn wrong_selectors_say_what_is_wrong() {
    for (text, expected) in [
        ("", "empty"),
        ("nonsense", "there is no backend 'nonsense'"),
        ("blade", "'blade' is not linked"),
        ("vk:7", "'vk' has no index 7; available: vk:0, vk:1, vk:2, vk:3"),
        ("cpu:1", "'cpu' has no index 1; available: cpu"),
        ("vk:-1", "is not an index"),
        ("vk:name=RTX", "matches several devices: vk:1, vk:2"),
        ("vk:name=AMD", "matches no device"),
        ("vk:name=", "nothing after"),
        ("vk:x", "is not an index"),
        ("vk:3", "rejected: no compute queue"),
        ("0xzz", "is not a number"),
        ("77", "matches no device"),
        (":0", "no backend before"),
        ("vk:id=", "is not a number"),
    ] {
        let error = chosen(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn automatic_choice_never_takes_a_software_device() {
    let mut listing = listing();
    listing.retain(|e| e.name == "vk");
    if let Ok(devices) = &mut listing[0].devices {
        devices.truncate(1);
    }
    assert!(resolve(&Selector::Auto, &listing, &Config::default()).is_err());
    let bare = Selector::parse("vk").expect("valid");
    assert!(
        resolve(&bare, &listing, &Config::default()).is_ok(),
        "a bare backend accepts it"
    );
}

#[test]
fn many_devices_are_not_all_listed() {
    let device = |i| DeviceInfo::new(i, "x", DeviceKind::Accelerator);
    let text = no_index(20, "farm", &(0..20).map(device).collect::<Vec<_>>());
    assert!(
        text.contains("farm:0, farm:1") && text.ends_with("farm:7 and 12 more"),
        "{text}"
    );
    assert!(no_index(0, "farm", &[]).contains("no devices"));
}

#[test]
fn a_backend_without_devices_says_why() {
    let fake = Fake("vk", Vec::new());
    let listing = vec![BackendListing {
        name: "vk".into(),
        devices: fake.devices(&Config::default()),
        backend: Arc::new(fake),
    }];
    assert!(format_listing(&listing).contains("no devices found: its driver is missing"));
    let error = resolve(&Selector::parse("vk").expect("valid"), &listing, &Config::default()).map(|_| ());
    assert!(error.is_err_and(|e| e.contains("no usable device: its driver is missing")));
}

#[test]
fn the_listing_has_the_strings_to_paste() {
    let text = format_listing(&listing());
    for part in [
        "cpu ",
        "vk:2 ",
        "id=0x2684",
        "rejected: no compute queue",
        "blade        not linked",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

/// A backend that is preferred to another one for the same card; `true` if its self-test passes.
struct PreferredBackend(Vec<DeviceInfo>, bool);

impl Backend for PreferredBackend {
    fn info(&self) -> crate::backend::BackendInfo {
        Fake("own", Vec::new()).info()
    }
    fn devices(&self, _: &Config) -> Result<Vec<DeviceInfo>> {
        Ok(self.0.clone())
    }
    fn open(&self, _: usize, _: &Config) -> Result<Arc<dyn Device>> {
        Err(Error::backend("own", "a fake"))
    }
    fn preference(&self) -> u32 {
        1
    }
    fn self_test(&self, _: usize, _: &Config) -> Result<()> {
        if self.1 {
            Ok(())
        } else {
            Err(Error::backend("own", "wrong sums"))
        }
    }
}

#[test]
fn of_two_backends_for_one_card_the_preferred_one_is_chosen_if_it_passes_its_test() {
    let card = |name: &str, hardware: &str, memory: u64| DeviceInfo {
        hardware: Some(hardware.into()),
        memory_bytes: Some(memory),
        ..DeviceInfo::new(0, name, DeviceKind::DiscreteGpu)
    };
    let choose = |passes: bool, same: bool| {
        let mut other = listing();
        if let Ok(devices) = &mut other[1].devices {
            devices[2].hardware = Some("ab".into());
            devices[2].memory_bytes = Some(100);
        }
        let own = PreferredBackend(vec![card("Big", if same { "ab" } else { "cd" }, 90)], passes);
        other.push(BackendListing {
            name: "own".into(),
            devices: own.devices(&Config::default()),
            backend: Arc::new(own),
        });
        note_same_hardware(&mut other);
        let (entry, d) = resolve(&Selector::Auto, &other, &Config::default()).expect("a device");
        (selector_of(&entry.name, d), d.note.clone())
    };
    assert_eq!(
        choose(true, true),
        ("own:0".into(), Some("the same hardware as vk:2".into()))
    );
    assert_eq!(
        choose(false, true),
        ("vk:2".into(), Some("the same hardware as own:0".into()))
    );
    assert_eq!(
        choose(true, false),
        ("vk:2".into(), None),
        "another card, with less memory"
    );
}

/// A selector with a backend's name does not query other backends, because their drivers may be broken.
#[test]
fn others_than_the_named_backend_are_not_asked_for_devices() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct CountingBackend(Fake, AtomicUsize);
    impl Backend for CountingBackend {
        fn info(&self) -> crate::backend::BackendInfo {
            self.0.info()
        }
        fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.devices(config)
        }
        fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>> {
            self.0.open(index, config)
        }
    }
    let registered = |name| {
        let devices = vec![DeviceInfo::new(0, "Processor", DeviceKind::Software)];
        let backend = Arc::new(CountingBackend(Fake(name, devices), AtomicUsize::new(0)));
        registry::register_backend(backend.clone()).expect("a new name");
        backend
    };
    let (named, other) = (registered("named-for-test"), registered("other-for-test"));
    let config = Config::default();
    let before = other.1.load(Ordering::Relaxed);
    let selected = select(Some("named-for-test:0"), &config).expect("it is there");
    assert_eq!(selected.selector, "named-for-test:0");
    assert_eq!(named.1.load(Ordering::Relaxed), 1);
    assert_eq!(other.1.load(Ordering::Relaxed), before);
    // If no device is selected, all backends are listed.
    let error = select(Some("named-for-test:1"), &config).err().expect("there is one");
    assert!(error.to_string().contains("other-for-test:0"), "{error}");
    assert_eq!(other.1.load(Ordering::Relaxed), before + 1);
}
