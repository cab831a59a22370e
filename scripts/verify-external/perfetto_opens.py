#!/usr/bin/env python3
"""Opens a trace with Perfetto's own trace processor and checks what it finds.

    pip install perfetto
    MEGANEURA_TRACE=/tmp/run.pftrace cargo run --release -- train digits --epochs 1 --batch 512 --device cpu
    python3 scripts/verify-external/perfetto_opens.py /tmp/run.pftrace [--save]

The package downloads the trace processor's program when it is first used; `--processor FILE` names one that is there
already. `--schema` checks the file against Perfetto's own message definitions instead, which are in the package: that
every byte belongs to a field that they have, that slices end and are nested, and that time goes on. `--save` copies the
trace to tests/fixtures/perfetto and writes beside it what was found, for tests/trace.rs.
"""

import argparse
import json
import pathlib
import shutil
import sys
from collections import Counter, defaultdict
from importlib.metadata import version

FIXTURES = pathlib.Path(__file__).parents[2] / "tests" / "fixtures" / "perfetto"
QUERY = """
select slice.id, slice.ts, slice.dur, slice.depth, slice.name, slice.parent_id,
       coalesce(thread.name, track.name) as track
from slice join track on slice.track_id = track.id
left join thread_track on thread_track.id = track.id
left join thread using (utid)
order by slice.ts, slice.depth
"""


def with_processor(path, program):
    """Slices and errors, as the trace processor reads the file."""
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TraceProcessor(trace=str(path), config=TraceProcessorConfig(bin_path=program)) as processor:
        bad = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        errors = [f"{row.name}: {row.value}" for row in processor.query(bad)]
        slices = [(r.track, r.name, r.ts, r.ts + r.dur, r.depth) for r in processor.query(QUERY)]
    return slices, errors


def unknown_fields(message):
    """Number of fields that the definitions do not have, in a message and all within it."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            count += sum(map(unknown_fields, value if field.is_repeated else [value]))
    return count


def with_schema(path):
    """The same, by Perfetto's message definitions."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as definitions

    trace = definitions.Trace()
    trace.ParseFromString(path.read_bytes())
    errors = []
    if unknown := unknown_fields(trace):
        errors.append(f"{unknown} fields are unknown")
    tracks, names, stacks, last, slices = {}, {}, defaultdict(list), defaultdict(int), []
    kinds = definitions.TrackEvent
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            tracks[track.uuid] = track.name or track.thread.thread_name or track.process.process_name
        for name in packet.interned_data.event_names:
            names[name.iid] = name.name
        if not packet.HasField("track_event"):
            continue
        event, now = packet.track_event, packet.timestamp
        if event.track_uuid not in tracks:
            errors.append(f"track {event.track_uuid} is not described")
        if now < last[event.track_uuid]:
            errors.append(f"time goes back on {tracks[event.track_uuid]}")
        last[event.track_uuid] = now
        stack = stacks[event.track_uuid]
        if event.type == kinds.TYPE_SLICE_BEGIN:
            stack.append((names[event.name_iid], now))
        elif event.type == kinds.TYPE_SLICE_END:
            name, begin = stack.pop()
            slices.append((tracks[event.track_uuid], name, begin, now, len(stack)))
    errors += [f"{len(stack)} slices of {tracks[uuid]} do not end" for uuid, stack in stacks.items() if stack]
    return slices, errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--processor", metavar="FILE", help="program of the trace processor")
    parser.add_argument("--schema", action="store_true", help="check against the message definitions only")
    parser.add_argument("--save", action="store_true", help="write the fixtures")
    args = parser.parse_args()

    slices, errors = with_schema(args.trace) if args.schema else with_processor(args.trace, args.processor)
    assert not errors, errors
    tracks = defaultdict(list)
    for track, name, begin, end, depth in slices:
        assert begin <= end, (track, name)
        tracks[track].append((name, begin, end, depth))
    devices = [track for track in tracks if ", session " in track]
    assert devices, f"no device among {list(tracks)}"
    host = Counter(name for track in tracks if track not in devices for name, *_ in tracks[track])
    for name in ["build", "optimize", "saturate", "extract", "compile", "prepare", "step", "submit"]:
        assert host[name], f"no span {name} in {host}"
    passes = Counter()
    for track in devices:
        steps = [s for s in tracks[track] if s[3] == 0]
        assert steps and all(name == "step" for name, *_ in steps), track
        for name, begin, end, depth in tracks[track]:
            if depth:
                assert depth == 1 and any(b <= begin and end <= e for _, b, e, _ in steps), (track, name)
                passes[name] += 1
    assert passes, "no passes"
    found = {
        "made_with": f"perfetto {version('perfetto')}, " + ("message definitions" if args.schema else "trace processor"),
        "devices": devices,
        "host": dict(sorted(host.items())),
        "passes": sum(passes.values()),
        "kinds_of_passes": sorted(passes),
    }
    print(json.dumps(found, indent=1))
    if args.save:
        FIXTURES.mkdir(exist_ok=True)
        shutil.copyfile(args.trace, FIXTURES / "trace.pftrace")
        (FIXTURES / "found.json").write_text(json.dumps(found, indent=1) + "\n")
    print("the trace is sound", file=sys.stderr)


if __name__ == "__main__":
    main()
