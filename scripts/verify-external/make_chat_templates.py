#!/usr/bin/env python3
"""Writes tests/fixtures/chat_templates/expected.json: conversations as transformers renders them.

    python scripts/verify-external/make_chat_templates.py            # write the file
    python scripts/verify-external/make_chat_templates.py --check    # compare with the committed file
    python scripts/verify-external/make_chat_templates.py --folder DIR [--program meganeura]

The templates of the fixture are our own. They use the constructs, markers and control flow of published families. `--folder`
compares `meganeura` with transformers on published templates: files `*.jinja` and `tokenizer_config.json` in DIR and its
subfolders. It needs a `meganeura render-chat`; without this command it prints a message and exits with 0.

Needs the packages `transformers` and `jinja2`. The function `strftime_now` of templates returns the time of the field `now`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "chat_templates"
NOW = datetime(2025, 7, 6, 14, 3, 9)
BOS, EOS = "<s>", "</s>"


class FrozenTime(datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def function(name, description, properties, required=(), **more):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters, **more}}


WEATHER = function(
    "weather",
    "Reports the weather of a city",
    {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["°C", "°F"], "default": "°C"},
    },
    ["city"],
)
SEARCH = function(
    "search",
    "Finds texts with < & > in them",
    {
        "words": {"type": "array", "items": {"type": "string"}},
        "range": {
            "type": "object",
            "properties": {"from": {"type": "integer"}, "to": {"type": ["integer", "null"]}},
            "required": ["from"],
        },
        "limit": {"type": "integer", "description": "Most results", "default": 10},
        "score": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        "weights": {"type": "object", "additionalProperties": {"type": "number"}},
    },
)
TIME = function("time", "Tells the time", {})


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id, content, **more):
    return say("tool", content, tool_call_id=id, **more)


PARIS = call("weather", {"city": "Paris", "unit": "°C"}, "a1b2c3d4e")
ROME = call("weather", {"city": "Rome <\"'&>"}, "f5g6h7i8j")
DOCUMENTS = [
    {"doc_id": 1, "title": "Ponds", "text": "Ponds are small."},
    {"doc_id": 2, "title": "Lakes", "text": "Lakes are \"large\"."},
]
WORDS_OF_TOOLS = ["tool"]
WORDS_OF_THINKING = ["think", "reasoning"]

# Conversations by name: messages, tools, keyword arguments, and words of which a template has to contain one.
CONVERSATIONS = {
    "user": ([say("user", " What is 2 + 2?\n")], None, {}, []),
    "system": ([say("system", "Be brief. "), say("user", "Hello")], None, {}, []),
    "developer": ([say("developer", "Be brief."), say("user", "Hello")], None, {}, []),
    "turns": (
        [say("system", "S"), say("user", "One"), say("assistant", " Two "), say("user", "Three"), say("assistant", ""), say("user", "Four")],
        None, {}, [],
    ),
    "unicode": ([say("user", "Größe 🦆 日本語 <b>\"it's\" & \\n {{ x }} {% y %}</b>\r\n\tend")], None, {}, []),
    "answered": ([say("user", "One"), say("assistant", "Two\n")], None, {}, []),
    "two users": ([say("user", "One"), say("user", "Two")], None, {}, []),
    "parts": (
        [
            say("system", [{"type": "text", "text": "Be brief."}]),
            say("user", [{"type": "text", "text": " One "}, {"type": "text", "text": "Two"}]),
        ],
        None, {}, ["content is string", "['content'] is string"],
    ),
    "tools": ([say("system", "Be brief."), say("user", "Weather?")], [WEATHER, SEARCH, TIME], {}, []),
    "tools, no system": ([say("user", "Weather?")], [TIME], {}, WORDS_OF_TOOLS),
    "call": (
        [say("user", "Weather in Paris?"), say("assistant", "", tool_calls=[PARIS]), result("a1b2c3d4e", "{\"degrees\": 21.5}", name="weather")],
        [WEATHER], {}, WORDS_OF_TOOLS,
    ),
    "calls, null content": (
        [
            say("user", "Weather?"), say("assistant", None, tool_calls=[PARIS, ROME]), result("a1b2c3d4e", "21 °C"),
            result("f5g6h7i8j", "24 °C"), say("assistant", "Rome is warmer."), say("user", "Thanks"),
        ],
        [WEATHER], {}, WORDS_OF_TOOLS,
    ),
    "arguments as text": (
        [say("user", "Weather?"), say("assistant", "I look.", tool_calls=[call("weather", "{\"city\": \"Paris\"}", "call_1")]), result("call_1", "21")],
        None, {}, WORDS_OF_TOOLS,
    ),
    "result without call": ([say("user", "Weather?"), result("a1b2c3d4e", "21")], None, {}, WORDS_OF_TOOLS),
    "thoughts": (
        [
            say("user", "One"), say("assistant", "<think>\nHm.\n</think>\n\nTwo"), say("user", "Three"),
            say("assistant", "Four", reasoning_content="\nHm!\n", tool_calls=[PARIS]), result("a1b2c3d4e", "21"),
        ],
        None, {}, WORDS_OF_THINKING,
    ),
    "no thinking": ([say("user", "One")], None, {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}, WORDS_OF_THINKING),
    "thinking": ([say("user", "One")], None, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}, WORDS_OF_THINKING),
    "no_think in the system message": ([say("system", "Be brief. /no_think"), say("user", "One")], None, {}, ["no_think"]),
    "override": ([say("system", "Mine alone. /system_override"), say("user", "One")], None, {}, ["override"]),
    "channel": ([say("user", "One"), say("assistant", "<|channel|>final<|message|>Two"), say("user", "Three")], None, {}, ["channel"]),
    "documents": ([say("user", "Ponds?")], None, {"documents": DOCUMENTS, "enable_citations": True}, ["documents"]),
    "documents and tools": ([say("user", "Ponds?")], [TIME], {"documents": DOCUMENTS, "controls": {"citations": True}}, ["documents"]),
    "builtin tools": (
        [say("user", "Search."), say("assistant", "", tool_calls=[call("brave_search", {"query": "ponds"}, "a1b2c3d4e")]), result("a1b2c3d4e", "Ponds")],
        None, {"builtin_tools": ["code_interpreter", "brave_search", "python"]}, ["builtin_tools"],
    ),
    "tools in the system message": (
        [say("user", "Weather?")], [WEATHER],
        {"tools_in_user_message": False, "date_string": "1 Jan 2025"}, ["tools_in_user_message"],
    ),
    "python tools": ([say("user", "Weather?")], None, {"python_tools": ["def now(): ..."], "xml_tools": [TIME]}, ["python_tools"]),
}
# For templates of a line that show a construct.
OF_CONSTRUCTS = ["turns", "unicode"]


def render(source, messages, tools, kwargs):
    """Returns the text, or the message of `raise_exception`, or an empty message for another error."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token=BOS, eos_token=EOS)
    tokenizer.chat_template = source
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False, **kwargs)
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        # Errors of the engine are of classes below.
        return {"error": str(error) if type(error) is jinja2.exceptions.TemplateError else ""}
    except (TypeError, ValueError, AttributeError, KeyError):
        return {"error": ""}


def as_transformers_has_it(raw):
    """One template, or templates by name."""
    return raw if isinstance(raw, str) else {each["name"]: each["template"] for each in raw}


def cases():
    for file in sorted(FIXTURES.glob("*.jinja")) + [FIXTURES / "named.json"]:
        if file.stem == "constructs":
            for source in filter(None, file.read_text().split("\n")):
                for name in OF_CONSTRUCTS:
                    yield from case("constructs", source, name, {"source": source})
            continue
        source = as_transformers_has_it(json.loads(file.read_text())["chat_template"]) if file.suffix == ".json" else file.read_text()
        for name, (_, _, _, words) in CONVERSATIONS.items():
            if not words or any(word in str(source) for word in words):
                yield from case(file.stem, source, name, {})


def case(template, source, name, more):
    messages, tools, kwargs, _ = CONVERSATIONS[name]
    rendered = render(source, messages, tools, kwargs)
    if rendered.get("error") == "":
        # Its text is Jinja's own, and other engines accept some of these expressions.
        print(f"skipped: {template}, {name}: the template does not support this conversation", file=sys.stderr)
        return
    yield {"template": template, "conversation": name, **more, "messages": messages, "tools": tools, "kwargs": kwargs, **rendered}


def file_text():
    lines = [json.dumps(each, ensure_ascii=False) for each in cases()]
    made_with = {name: version(name) for name in ["transformers", "jinja2"]}
    head = {"made_with": made_with, "now": NOW.isoformat(), "bos_token": BOS, "eos_token": EOS}
    return json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"


def published(folder):
    """Templates of files in a folder, by path."""
    for file in sorted(folder.rglob("*.jinja")):
        yield file, file.read_text()
    for file in sorted(folder.rglob("tokenizer_config.json")):
        template = json.loads(file.read_text()).get("chat_template")
        if template:
            yield file, as_transformers_has_it(template)


def compare(folder, program):
    """Renders with the command and with transformers; the command reads a case of this file's form from its input."""
    known = subprocess.run([program, "render-chat", "--help"], capture_output=True)
    if known.returncode != 0:
        print(f"skipped: `{program}` has no command `render-chat`")
        return 0
    different = count = 0
    for file, source in published(folder):
        for name, (messages, tools, kwargs, _) in CONVERSATIONS.items():
            count += 1
            expected = render(source, messages, tools, kwargs)
            with tempfile.TemporaryDirectory() as checkpoint:
                named = source if isinstance(source, str) else [{"name": n, "template": t} for n, t in source.items()]
                config = {"bos_token": BOS, "eos_token": EOS, "chat_template": named}
                (Path(checkpoint) / "tokenizer_config.json").write_text(json.dumps(config))
                request = json.dumps({"messages": messages, "tools": tools, "kwargs": kwargs, "now": NOW.isoformat()})
                done = subprocess.run([program, "render-chat", "--model", checkpoint], input=request, capture_output=True, text=True)
            is_same = done.stdout == expected["text"] if "text" in expected else done.returncode != 0 and expected["error"] in done.stderr
            if not is_same:
                different += 1
                print(f"{file}, {name}:\n  expected {expected}\n  found {done.stdout or done.stderr!r}")
    print(f"{count} renderings, {different} of them different")
    return int(different > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    parser.add_argument("--folder", type=Path, help="folder with published templates to compare")
    parser.add_argument("--program", default="meganeura", help="command to compare with --folder (default: meganeura)")
    arguments = parser.parse_args()
    chat_template_utils.datetime = FrozenTime
    if arguments.folder:
        sys.exit(compare(arguments.folder, arguments.program))
    text = file_text()
    path = FIXTURES / "expected.json"
    if arguments.check:
        expected, found = (json.loads(each)["cases"] for each in [path.read_text(), text])
        for ours, theirs in zip(expected, found):
            if ours != theirs:
                sys.exit(f"expected {ours}\nfound {theirs}")
        sys.exit(0 if len(expected) == len(found) else f"expected {len(expected)} cases, found {len(found)}")
    path.write_text(text)
    print(f"{text.count(chr(10)) - 2} cases in {path}")


if __name__ == "__main__":
    main()
