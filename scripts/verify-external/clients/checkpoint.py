"""Writes a checkpoint for the scripts of this folder: checkpoint.py FOLDER

It has the random weights of tests/fixtures/transformers/llama, a context of 4,096 tokens and a chat template with tools.
Needs no package.
"""

import json
import shutil
import sys
from pathlib import Path

FIXTURE = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "transformers" / "llama"
TEMPLATE = """{%- for tool in tools or [] %}{{ '<tools>' + tool | tojson + '</tools>\\n' }}{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' + call.function | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ["generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(FIXTURE / name, folder / name)
    config = json.loads((FIXTURE / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
