//! Perfetto's trace format: a stream of protocol buffers (`protos/perfetto/trace/trace_packet.proto` and
//! `track_event/track_event.proto` there). Only the message fields that are used here are declared.

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;

use super::recorder::{Log, PassRecord, SpanRecord, Value};

/// Ids of tracks: the process, the first device, the first thread.
const PROCESS_TRACK: u64 = 1;
const FIRST_DEVICE_TRACK: u64 = 1 << 20;
const FIRST_THREAD_TRACK: u64 = 1 << 32;
/// Id of the packet sequence; a file has one sequence, because it has one writer.
const SEQUENCE: u32 = 1;
/// Flags of packets: the table of names is reset; names of earlier packets are used.
const NAMES_BEGIN: u32 = 1;
const NAMES_NEEDED: u32 = 2;
/// Kinds of events.
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    /// Time in nanoseconds.
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    sequence_flags: u32,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(oneof = "AnnotationValue", tags = "2, 3, 4, 5, 6")]
    value: Option<AnnotationValue>,
    #[prost(string, tag = "10")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnnotationValue {
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    #[prost(int64, tag = "4")]
    Signed(i64),
    #[prost(double, tag = "5")]
    Number(f64),
    #[prost(string, tag = "6")]
    Text(String),
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
    #[prost(message, optional, tag = "3")]
    process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct ProcessDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(string, tag = "6")]
    process_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ThreadDescriptor {
    #[prost(int32, tag = "1")]
    pid: i32,
    #[prost(int64, tag = "2")]
    tid: i64,
    #[prost(string, tag = "5")]
    thread_name: String,
}

fn annotation(name: &str, value: AnnotationValue) -> DebugAnnotation {
    DebugAnnotation {
        name: name.to_owned(),
        value: Some(value),
    }
}

fn annotation_of((name, value): &(&'static str, Value)) -> DebugAnnotation {
    let value = match value {
        Value::Unsigned(v) => AnnotationValue::Unsigned(*v),
        Value::Signed(v) => AnnotationValue::Signed(*v),
        Value::Flag(v) => AnnotationValue::Flag(*v),
        Value::Number(v) => AnnotationValue::Number(*v),
        Value::Text(v) => AnnotationValue::Text(v.clone()),
    };
    annotation(name, value)
}

/// Writer of packets, with the ids of the names that it has written.
struct Packets<'a> {
    writer: &'a mut dyn Write,
    names: HashMap<String, u64>,
    first: bool,
}

impl Packets<'_> {
    fn packet(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = SEQUENCE;
        packet.sequence_flags = NAMES_NEEDED;
        if std::mem::take(&mut self.first) {
            packet.sequence_flags |= NAMES_BEGIN;
        }
        // The encoding of a trace is the concatenation of its packets, each encoded as an element of the only field.
        let one = Trace { packet: vec![packet] };
        self.writer.write_all(&one.encode_to_vec())
    }

    fn track(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(TracePacket {
            track_descriptor: Some(track),
            ..TracePacket::default()
        })
    }

    fn event(&mut self, time: u64, track: u64, kind: i32, what: Option<&Slice>) -> io::Result<()> {
        let mut interned = None;
        let name_iid = what.map(|slice| {
            let next = self.names.len() as u64 + 1;
            *self.names.entry(slice.name.clone()).or_insert_with(|| {
                interned = Some(InternedData {
                    event_names: vec![EventName {
                        iid: next,
                        name: slice.name.clone(),
                    }],
                });
                next
            })
        });
        self.packet(TracePacket {
            timestamp: Some(time),
            interned_data: interned,
            track_event: Some(TrackEvent {
                debug_annotations: what.map(|s| s.annotations.clone()).unwrap_or_default(),
                kind,
                name_iid,
                track_uuid: track,
                categories: what.iter().map(|s| s.category.to_owned()).collect(),
            }),
            ..TracePacket::default()
        })
    }

    /// Writes the slices of a track, which are nested or disjoint, in the order of their starts.
    fn slices(&mut self, track: u64, slices: impl Iterator<Item = Slice>) -> io::Result<()> {
        // Depths and ends of open slices.
        let mut open: Vec<(usize, u64)> = Vec::new();
        for slice in slices {
            while let Some((_, end)) = open.pop_if(|(depth, _)| *depth >= slice.depth) {
                self.event(end, track, SLICE_END, None)?;
            }
            self.event(slice.start, track, SLICE_BEGIN, Some(&slice))?;
            open.push((slice.depth, slice.end));
        }
        while let Some((_, end)) = open.pop() {
            self.event(end, track, SLICE_END, None)?;
        }
        Ok(())
    }
}

/// A named time span on a track.
struct Slice {
    name: String,
    category: &'static str,
    start: u64,
    end: u64,
    depth: usize,
    annotations: Vec<DebugAnnotation>,
}

impl Slice {
    fn of_span(span: &SpanRecord) -> Self {
        Slice {
            name: span.name.to_owned(),
            category: "host",
            start: span.start,
            end: span.end,
            depth: span.depth,
            annotations: span.fields.iter().map(annotation_of).collect(),
        }
    }

    fn of_pass(pass: &PassRecord) -> Self {
        let mut annotations = Vec::new();
        if !pass.dispatches.is_empty() {
            let places = || pass.dispatches.iter().filter_map(|&d| pass.calls.get(d as usize));
            let numbers: Vec<String> = pass.dispatches.iter().map(ToString::to_string).collect();
            let calls: Vec<&str> = places().map(|p| p.label.as_str()).collect();
            let mut sources: Vec<&str> = places().filter_map(|p| p.source.as_deref()).collect();
            sources.dedup();
            for (name, list) in [
                ("dispatches", numbers.join(", ")),
                ("calls", calls.join(", ")),
                ("sources", sources.join(", ")),
            ] {
                if !list.is_empty() {
                    annotations.push(annotation(name, AnnotationValue::Text(list)));
                }
            }
        }
        Slice {
            name: pass.label.to_string(),
            category: "device",
            start: pass.start,
            end: pass.end,
            depth: 1,
            annotations,
        }
    }
}

/// Groups the passes of a track into one slice per step. Passes of a track do not overlap: a pass that begins before
/// the end of the previous one is shortened.
fn steps(passes: &[&PassRecord]) -> Vec<Slice> {
    let mut slices = Vec::with_capacity(passes.len());
    let mut last = 0;
    for step in passes.chunk_by(|a, b| a.submission == b.submission) {
        let at = slices.len();
        for pass in step {
            let mut slice = Slice::of_pass(pass);
            slice.start = slice.start.max(last);
            slice.end = slice.end.max(slice.start);
            last = slice.end;
            slices.push(slice);
        }
        let step = Slice {
            name: "step".into(),
            category: "device",
            start: slices[at].start,
            end: last,
            depth: 0,
            annotations: vec![annotation("submission", AnnotationValue::Unsigned(step[0].submission))],
        };
        slices.insert(at, step);
    }
    slices
}

/// Writes a trace.
pub(super) fn write(log: &Log, writer: &mut dyn Write) -> io::Result<()> {
    let mut packets = Packets {
        writer,
        names: HashMap::new(),
        first: true,
    };
    // Process identifiers are positive and fit.
    let pid = std::process::id() as i32;
    packets.track(TrackDescriptor {
        uuid: PROCESS_TRACK,
        process: Some(ProcessDescriptor {
            pid,
            process_name: "meganeura".into(),
        }),
        ..TrackDescriptor::default()
    })?;
    for (&thread, name) in &log.threads {
        let uuid = FIRST_THREAD_TRACK + u64::from(thread);
        packets.track(TrackDescriptor {
            uuid,
            thread: Some(ThreadDescriptor {
                pid,
                tid: i64::from(thread) + 1,
                thread_name: name.clone(),
            }),
            ..TrackDescriptor::default()
        })?;
        let mut spans: Vec<&SpanRecord> = log.spans.iter().filter(|s| s.thread == thread).collect();
        spans.sort_by_key(|s| (s.start, s.depth));
        packets.slices(uuid, spans.into_iter().map(Slice::of_span))?;
    }
    for (number, name) in log.tracks.iter().enumerate() {
        let uuid = FIRST_DEVICE_TRACK + number as u64;
        packets.track(TrackDescriptor {
            uuid,
            name: Some(name.clone()),
            parent_uuid: Some(PROCESS_TRACK),
            ..TrackDescriptor::default()
        })?;
        let passes: Vec<&PassRecord> = log.passes.iter().filter(|p| p.track == number).collect();
        packets.slices(uuid, steps(&passes).into_iter())?;
    }
    if log.dropped > 0 {
        let ends = log.spans.iter().map(|s| s.end).chain(log.passes.iter().map(|p| p.end));
        let end = ends.max().unwrap_or(0);
        let full = Slice {
            name: format!(
                "the trace is full: {} later spans and passes are not in it",
                log.dropped
            ),
            category: "host",
            start: end,
            end,
            depth: 0,
            annotations: Vec::new(),
        };
        packets.event(end, PROCESS_TRACK, INSTANT, Some(&full))?;
    }
    Ok(())
}
