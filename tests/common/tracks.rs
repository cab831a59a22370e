//! Decoder of a trace, which returns its tracks as Perfetto would show them.

#![allow(dead_code, reason = "not every test asks for all of a slice")]

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<Annotation>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(uint64, optional, tag = "3")]
    unsigned: Option<u64>,
    #[prost(string, optional, tag = "6")]
    text: Option<String>,
    #[prost(string, tag = "10")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
struct EventName {
    #[prost(uint64, tag = "1")]
    iid: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "4")]
    thread: Option<Thread>,
}

#[derive(Clone, PartialEq, Message)]
struct Thread {
    #[prost(string, tag = "5")]
    name: String,
}

/// Slice (a span of time) with its nested slices.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    annotations: Vec<Annotation>,
    pub(crate) within: Vec<Slice>,
}

impl Slice {
    pub(crate) fn submission(&self) -> Option<u64> {
        self.annotations.iter().find(|a| a.name == "submission")?.unsigned
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        let found = self.annotations.iter().find(|a| a.name == name);
        found.and_then(|a| a.text.as_deref()).unwrap_or_default()
    }

    pub(crate) fn covers(&self, other: &Slice) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the slice and all slices in it.
    pub(crate) fn all(&self) -> Vec<&Slice> {
        let inner = self.within.iter().flat_map(Slice::all);
        std::iter::once(self).chain(inner).collect()
    }

    pub(crate) fn find(&self, name: &str) -> &Slice {
        let found = self.within.iter().find(|s| s.name == name);
        found.unwrap_or_else(|| panic!("{name} in {self:?}"))
    }
}

/// Returns the slices of each track, by its name. Checks that every slice ends, that slices are nested and times increase.
pub(crate) fn tracks(file: &Path) -> BTreeMap<String, Vec<Slice>> {
    let bytes = std::fs::read(file).expect("a file");
    let trace = Trace::decode(&bytes[..]).expect("a trace");
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut events: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, (u64, Vec<Slice>)> = BTreeMap::new();
    let mut tracks: BTreeMap<String, Vec<Slice>> = BTreeMap::new();
    for packet in trace.packet {
        if let Some(track) = packet.track_descriptor {
            let name = track.name.or(track.thread.map(|t| t.name)).unwrap_or_default();
            assert!(!tracks.contains_key(&name), "{name} is there twice");
            tracks.insert(name.clone(), Vec::new());
            assert!(names.insert(track.uuid, name).is_none(), "one descriptor a track");
        }
        for name in packet.interned_data.map(|d| d.event_names).unwrap_or_default() {
            assert!(events.insert(name.iid, name.name).is_none(), "a name has one number");
        }
        let Some(event) = packet.track_event else { continue };
        let now = packet.timestamp.expect("an event has a time");
        let track = &names[&event.track_uuid];
        let (last, stack) = open.entry(event.track_uuid).or_default();
        assert!(*last <= now, "time goes on: {last} then {now} on {track}");
        *last = now;
        match event.kind {
            1 => stack.push(Slice {
                name: events[&event.name_iid.expect("a name")].clone(),
                start: now,
                end: now,
                annotations: event.debug_annotations,
                within: Vec::new(),
            }),
            2 => {
                let mut slice = stack.pop().expect("what ends has begun");
                slice.end = now;
                let list = stack.last_mut().map(|s| &mut s.within);
                list.unwrap_or_else(|| tracks.get_mut(track).expect("a track"))
                    .push(slice);
            }
            kind => panic!("no event of kind {kind} is expected"),
        }
    }
    assert!(open.values().all(|(_, stack)| stack.is_empty()), "all that began ended");
    tracks
}
