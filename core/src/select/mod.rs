//! Device selection: grammar, precedence and listing.
//!
//! Precedence: API, environment (`MEGANEURA_DEVICE_ID`), configuration file, automatic. The library never
//! falls back to another device by itself.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use crate::backend::{Backend, Device, DeviceInfo, DeviceKind};
use crate::calibration;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fallback::WithFallback;
use crate::registry::{self, KNOWN_BACKENDS};

/// Environment variable that selects the device.
pub const DEVICE_VARIABLE: &str = "MEGANEURA_DEVICE_ID";

/// A parsed selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The best real GPU, else the CPU.
    Auto,
    /// A device on any backend by its numeric id, `9860` or `0x2684`.
    NumericId(u64),
    /// A device of one backend.
    Backend {
        /// Name of the backend.
        name: String,
        /// The device.
        device: DeviceSelector,
    },
}

/// The part of a selector after the backend's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// The best device.
    Best,
    /// The device with this index in the listing, `:0`.
    Index(usize),
    /// The device whose name contains this text, without regard to case, `:name=RTX`. Only one device may match.
    Name(String),
    /// The device with this numeric id, `:id=0x2684`.
    NumericId(u64),
}

impl Selector {
    /// Parses a selector: `auto`, `cpu`, `blade`, `blade:0`, `blade:name=RTX`, `blade:id=0x2684`, any
    /// backend's `name[:selector]`, or a bare decimal or `0x...` number (a device id).
    ///
    /// # Errors
    /// A description of the syntax error.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("the selector is empty".into());
        }
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Selector::Auto);
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return parse_number(text).map(Selector::NumericId);
        }
        let (name, device) = match text.split_once(':') {
            None => (text, DeviceSelector::Best),
            Some((name, device)) => (name, DeviceSelector::parse(device)?),
        };
        if name.is_empty() {
            return Err("there is no backend before the ':'".into());
        }
        Ok(Selector::Backend {
            name: name.to_ascii_lowercase(),
            device,
        })
    }
}

impl DeviceSelector {
    fn parse(text: &str) -> Result<Self, String> {
        if let Some(part) = text.strip_prefix("name=") {
            if part.is_empty() {
                return Err("there is nothing after 'name='".into());
            }
            return Ok(DeviceSelector::Name(part.to_owned()));
        }
        if let Some(number) = text.strip_prefix("id=") {
            return parse_number(number).map(DeviceSelector::NumericId);
        }
        text.parse()
            .map(DeviceSelector::Index)
            .map_err(|_| format!("'{text}' is not an index, 'name=PART' or 'id=NUMBER'"))
    }
}

fn parse_number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is not a number (decimal, or hexadecimal with 0x)"))
}

/// Origin of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectorSource {
    /// The program, through the API.
    Api,
    /// The environment variable [`DEVICE_VARIABLE`].
    Environment,
    /// A configuration file.
    File(String),
    /// No selector was given; the selection is automatic.
    Default,
}

/// Name that messages use for the origin of the program's selectors; see [`name_api_selectors`].
static API_NAME: OnceLock<&'static str> = OnceLock::new();

/// Sets the name that messages use for the origin of this program's selectors, for instance the option `--device` of a
/// command, instead of "the API". Only the first call has an effect.
pub fn name_api_selectors(name: &'static str) {
    let _ = API_NAME.set(name);
}

impl std::fmt::Display for SelectorSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SelectorSource::Api => f.write_str(API_NAME.get().copied().unwrap_or("the API")),
            SelectorSource::Environment => write!(f, "the environment variable {DEVICE_VARIABLE}"),
            SelectorSource::File(path) => write!(f, "the configuration file {path}"),
            SelectorSource::Default => f.write_str("the default"),
        }
    }
}

/// Returns the selector in effect and its origin. An empty environment variable counts as not set.
pub fn effective_selector(api: Option<&str>, config: &Config) -> (String, SelectorSource) {
    if let Some(selector) = api {
        return (selector.to_owned(), SelectorSource::Api);
    }
    if let Some(value) = std::env::var_os(DEVICE_VARIABLE).filter(|v| !v.is_empty()) {
        return (value.to_string_lossy().into_owned(), SelectorSource::Environment);
    }
    match &config.device {
        Some(selector) => (selector.clone(), SelectorSource::File(config.origin())),
        None => ("auto".to_owned(), SelectorSource::Default),
    }
}

/// A backend with its devices, or the reason why it has none.
pub struct BackendListing {
    /// The backend.
    pub backend: Arc<dyn Backend>,
    /// Name of the backend.
    pub name: String,
    /// Devices found, or the error of the search.
    pub devices: Result<Vec<DeviceInfo>>,
}

/// Returns every registered backend with its devices, after loading the backends that the
/// configuration names.
pub fn list(config: &Config) -> Vec<BackendListing> {
    let mut all = list_matching(config, |_| true);
    note_same_hardware(&mut all);
    all
}

/// Returns the registered backends whose names match, with their devices; other backends are not
/// searched for devices.
fn list_matching(config: &Config, wanted: impl Fn(&str) -> bool) -> Vec<BackendListing> {
    registry::load_backends(config);
    let backends = registry::backends().into_iter().map(|b| (b.info().name, b));
    backends
        .filter(|(name, _)| wanted(name))
        .map(|(name, backend)| BackendListing {
            name,
            devices: backend.devices(config),
            backend,
        })
        .collect()
}

/// Adds a note to each device whose hardware another backend lists, too.
fn note_same_hardware(listing: &mut [BackendListing]) {
    let known: Vec<(String, String)> = listing
        .iter()
        .flat_map(|entry| {
            let devices = entry.devices.as_deref().unwrap_or_default().iter();
            devices.filter_map(|d| Some((selector_of(&entry.name, d), d.hardware.clone()?)))
        })
        .collect();
    for entry in listing {
        for device in entry.devices.as_deref_mut().unwrap_or_default() {
            let own = selector_of(&entry.name, device);
            let Some(hardware) = &device.hardware else { continue };
            let same = known.iter().filter(|(other, id)| *other != own && id == hardware);
            let same: Vec<&str> = same.map(|(other, _)| other.as_str()).collect();
            if !same.is_empty() {
                let text = format!("the same hardware as {}", same.join(" and "));
                device.note = Some(match device.note.take() {
                    Some(note) => format!("{note}; {text}"),
                    None => text,
                });
            }
        }
    }
}

/// Returns the exact selector of a device.
pub fn selector_of(backend: &str, device: &DeviceInfo) -> String {
    if backend == "cpu" && device.index == 0 {
        backend.to_owned()
    } else {
        format!("{backend}:{}", device.index)
    }
}

/// Formats the listing: one device per line, with the selector to copy.
pub fn format_listing(listing: &[BackendListing]) -> String {
    let mut text = String::from("devices:\n");
    for entry in listing {
        match &entry.devices {
            Err(e) => {
                let _ = writeln!(text, "  {:<12} failed: {e}", entry.name);
            }
            Ok(devices) if devices.is_empty() => {
                let why = entry
                    .backend
                    .unavailable_reason()
                    .map_or_else(String::new, |why| format!(": {why}"));
                let _ = writeln!(text, "  {:<12} no devices found{why}", entry.name);
            }
            Ok(devices) => {
                for d in devices {
                    let _ = writeln!(text, "  {}", format_device(&entry.name, d));
                }
            }
        }
    }
    for known in KNOWN_BACKENDS {
        if !listing.iter().any(|e| e.name == known.name) {
            let _ = writeln!(text, "  {:<12} not linked: {}", known.name, known.how);
        }
    }
    for (name, why) in refused_plugins() {
        let _ = writeln!(text, "  {name:<12} not loaded: {why}");
    }
    text.push_str("  auto         the best real GPU, else cpu");
    text
}

/// Returns the plugins that were rejected, with the reasons.
fn refused_plugins() -> Vec<(String, String)> {
    let refused = registry::problems().into_iter().filter_map(|problem| match problem {
        Error::Plugin { plugin, message, .. } => Some((plugin, message)),
        _ => None,
    });
    refused.collect()
}

/// Formats a device as a line of the listing.
pub fn format_device(backend: &str, d: &DeviceInfo) -> String {
    let mut line = format!("{:<12} {} ({})", selector_of(backend, d), d.name, d.kind.name());
    if let Some(id) = d.numeric_id {
        let _ = write!(line, ", id=0x{id:x}");
    }
    if let Some(bytes) = d.memory_bytes {
        let _ = write!(line, ", {:.1} GB", bytes as f64 / 1e9);
    }
    if let Some(driver) = &d.driver {
        let _ = write!(line, ", {driver}");
    }
    if let Some(note) = &d.note {
        let _ = write!(line, "; {note}");
    }
    if let Some(reason) = &d.rejected {
        let _ = write!(line, "; rejected: {reason}");
    }
    line
}

/// A selected device.
pub struct SelectedDevice {
    /// Backend of the device.
    pub backend: Arc<dyn Backend>,
    /// The device.
    pub info: DeviceInfo,
    /// Selector of the device.
    pub selector: String,
    /// Origin of the selector.
    pub source: SelectorSource,
}

impl SelectedDevice {
    /// Opens the device, combined with the [`fallback`](crate::fallback) device that the
    /// configuration names, unless both are the same.
    ///
    /// # Errors
    /// The backend cannot open the device, its [`calibration`] cannot be read, or the fallback
    /// cannot be selected.
    pub fn open(&self, config: &Config) -> Result<Arc<dyn Device>> {
        let device = self.open_device(config)?;
        let Some(fallback) = &config.fallback else {
            return Ok(device);
        };
        let source = SelectorSource::File(format!("{}, fallback", config.origin()));
        let other = choose(fallback, source, config)?;
        if other.selector == self.selector {
            return Ok(device);
        }
        log::info!(
            "operators without a kernel on {} run on {}",
            self.selector,
            other.selector
        );
        Ok(Arc::new(WithFallback::new(device, other.open_device(config)?)))
    }

    fn open_device(&self, config: &Config) -> Result<Arc<dyn Device>> {
        let device = self.backend.open(self.info.index, config)?;
        calibration::apply(device, &self.backend.info().name, &self.info, config)
    }
}

/// Chooses the device for a selector from the API, the environment, the configuration, or automatically,
/// and logs the choice.
///
/// # Errors
/// [`Error::DeviceSelection`] with the listing, when the selector is malformed, matches nothing or several.
pub fn select(api: Option<&str>, config: &Config) -> Result<SelectedDevice> {
    let (text, source) = effective_selector(api, config);
    choose(&text, source, config)
}

fn choose(text: &str, source: SelectorSource, config: &Config) -> Result<SelectedDevice> {
    let selector = Selector::parse(text);
    // If a backend is named, do not load the drivers of other backends: that takes time, and they
    // may be broken.
    let of_one = match &selector {
        Ok(selector @ Selector::Backend { name, .. }) => {
            let listing = list_matching(config, |other| other == name);
            resolve(selector, &listing, config).ok().map(owned)
        }
        _ => None,
    };
    let (backend, info) = match of_one {
        Some(found) => found,
        None => {
            let listing = list(config);
            let chosen = selector.and_then(|s| resolve(&s, &listing, config).map(owned));
            chosen.map_err(|reason| Error::DeviceSelection {
                selector: text.to_owned(),
                source_name: source.to_string(),
                reason,
                listing: format_listing(&listing),
            })?
        }
    };
    let selected = SelectedDevice {
        selector: selector_of(&backend.info().name, &info),
        backend,
        info,
        source,
    };
    log::info!(
        "device {} ({}), chosen by {} ('{text}')",
        selected.selector,
        selected.info.name,
        selected.source
    );
    Ok(selected)
}

type Candidate<'a> = (&'a BackendListing, &'a DeviceInfo);

fn owned((entry, device): Candidate) -> (Arc<dyn Backend>, DeviceInfo) {
    (entry.backend.clone(), device.clone())
}

/// Warns of backends that failed; automatic selection skips them.
fn warn_of_failures(listing: &[BackendListing]) -> &[BackendListing] {
    for entry in listing {
        if let Err(e) = &entry.devices {
            log::warn!("the backend '{}' is skipped: {e}", entry.name);
        }
    }
    listing
}

fn usable(listing: &[BackendListing]) -> impl Iterator<Item = Candidate<'_>> {
    listing.iter().flat_map(|entry| {
        let devices = entry.devices.as_deref().unwrap_or_default();
        devices.iter().filter(|d| d.rejected.is_none()).map(move |d| (entry, d))
    })
}

/// Returns the rank in automatic selection, higher is better; 0 is never selected.
fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::DiscreteGpu => 4,
        DeviceKind::Accelerator => 3,
        DeviceKind::IntegratedGpu => 2,
        DeviceKind::Cpu => 1,
        DeviceKind::Software => 0,
    }
}

/// Returns the candidate with the highest rank, then the one with the most memory; of equal ones, the first in the
/// list. Among CPUs, the backend `cpu` comes first.
fn best<'a>(candidates: impl Iterator<Item = Candidate<'a>>, allow_software: bool) -> Option<Candidate<'a>> {
    let mut best: Option<(Candidate<'a>, (u32, bool, u64))> = None;
    for candidate in candidates {
        let (entry, d) = candidate;
        if !allow_software && rank(d.kind) == 0 {
            continue;
        }
        let is_cpu = d.kind == DeviceKind::Cpu;
        let memory = if is_cpu { 0 } else { d.memory_bytes.unwrap_or(0) };
        let key = (rank(d.kind), is_cpu && entry.name == "cpu", memory);
        if best.as_ref().is_none_or(|(_, k)| key > *k) {
            best = Some((candidate, key));
        }
    }
    best.map(|(candidate, _)| candidate)
}

/// Chooses among all backends that reach the hardware of a candidate: the most preferred one that
/// passes its self-test.
fn preferred<'a>(candidate: Candidate<'a>, listing: &'a [BackendListing], config: &Config) -> Candidate<'a> {
    let Some(hardware) = &candidate.1.hardware else {
        return candidate;
    };
    let mut same: Vec<Candidate> = usable(listing)
        .filter(|(_, d)| d.hardware.as_ref() == Some(hardware))
        .collect();
    same.sort_by_key(|(entry, _)| std::cmp::Reverse(entry.backend.preference()));
    let least = same.iter().map(|(entry, _)| entry.backend.preference()).min();
    for (entry, device) in same {
        if Some(entry.backend.preference()) == least {
            break;
        }
        match entry.backend.self_test(device.index, config) {
            Ok(()) => return (entry, device),
            Err(error) => log::warn!(
                "{} is not selected for {}, because its test fails: {error}",
                selector_of(&entry.name, device),
                device.name
            ),
        }
    }
    // The least preferred backend is used without a test.
    let own = usable(listing)
        .find(|(entry, d)| Some(entry.backend.preference()) == least && d.hardware.as_ref() == Some(hardware));
    own.unwrap_or(candidate)
}

fn resolve<'a>(selector: &Selector, listing: &'a [BackendListing], config: &Config) -> Result<Candidate<'a>, String> {
    match selector {
        Selector::Auto => {
            let best = best(usable(warn_of_failures(listing)), false);
            let best = best.ok_or_else(|| "there is no usable device".to_owned())?;
            Ok(preferred(best, listing, config))
        }
        Selector::NumericId(id) => {
            let all = listing
                .iter()
                .flat_map(|e| e.devices.as_deref().unwrap_or_default().iter().map(move |d| (e, d)));
            let matching = all.filter(|(_, d)| d.numeric_id == Some(*id)).collect();
            not_rejected(unique(matching, &format!("the id 0x{id:x}"))?)
        }
        Selector::Backend { name, device } => {
            let entry = find_backend(name, listing)?;
            let devices = match &entry.devices {
                Ok(devices) => devices,
                Err(e) => return Err(format!("the backend '{name}' failed: {e}")),
            };
            let all = || devices.iter().map(|d| (entry, d));
            let chosen = match device {
                DeviceSelector::Best => best(all().filter(|(_, d)| d.rejected.is_none()), true).ok_or_else(|| {
                    let why = entry
                        .backend
                        .unavailable_reason()
                        .map_or_else(String::new, |why| format!(": {why}"));
                    format!("the backend '{name}' has no usable device{why}")
                })?,
                DeviceSelector::Index(i) => {
                    let found = all().find(|(_, d)| d.index == *i);
                    found.ok_or_else(|| no_index(*i, name, devices))?
                }
                DeviceSelector::Name(part) => {
                    let part_lower = part.to_lowercase();
                    let matching = all().filter(|(_, d)| d.name.to_lowercase().contains(&part_lower));
                    unique(matching.collect(), &format!("the name '{part}'"))?
                }
                DeviceSelector::NumericId(id) => unique(
                    all().filter(|(_, d)| d.numeric_id == Some(*id)).collect(),
                    &format!("the id 0x{id:x}"),
                )?,
            };
            not_rejected(chosen)
        }
    }
}

/// Returns the error message for an index that no device has, with valid selectors.
fn no_index(index: usize, backend: &str, devices: &[DeviceInfo]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = devices.iter().take(SHOWN).map(|d| selector_of(backend, d)).collect();
    let rest = match devices.len() - shown.len() {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    if shown.is_empty() {
        return format!("'{backend}' has no devices, so there is no index {index}");
    }
    format!(
        "'{backend}' has no index {index}; available: {}{rest}",
        shown.join(", ")
    )
}

fn not_rejected(chosen: Candidate) -> Result<Candidate, String> {
    match &chosen.1.rejected {
        Some(reason) => Err(format!("the device was rejected: {reason}")),
        None => Ok(chosen),
    }
}

fn find_backend<'a>(name: &str, listing: &'a [BackendListing]) -> Result<&'a BackendListing, String> {
    if let Some(entry) = listing.iter().find(|e| e.name == name) {
        return Ok(entry);
    }
    if let Some((_, why)) = refused_plugins().into_iter().find(|(plugin, _)| plugin == name) {
        return Err(format!("the backend '{name}' was not loaded: {why}"));
    }
    match KNOWN_BACKENDS.iter().find(|k| k.name == name) {
        Some(known) => Err(format!("the backend '{name}' is not linked: {}", known.how)),
        None => Err(format!("there is no backend '{name}'")),
    }
}

fn unique<'a>(matching: Vec<Candidate<'a>>, what: &str) -> Result<Candidate<'a>, String> {
    match matching[..] {
        [one] => Ok(one),
        [] => Err(format!("{what} matches no device")),
        _ => {
            let names: Vec<String> = matching.iter().map(|(e, d)| selector_of(&e.name, d)).collect();
            Err(format!("{what} matches several devices: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
