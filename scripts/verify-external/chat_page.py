"""Uses the server's chat page in a headless Chromium: chat_page.py MEGANEURA [--chromium PROGRAM] [--screenshots DIR]

MEGANEURA is the command, which serves a copy of a small fixture here. Chromium reaches nothing but that server: a request to
another address is a failure. Needs the package `playwright`, which takes the system's Chromium and downloads none, and no other.
Prints what it tried, and fails with the first difference.
"""

import argparse
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

# Tokens that an answer has room for: it takes a minute and more to fill it.
CONTEXT = 131_072
ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-for-the-page"
# Runs if it is ever read as HTML.
HOSTILE = '<img src=x onerror="window.ran = 1"><script>window.ran = 1</script><b>&amp;</b>'
PROGRAMS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


class Server:
    """The command, serving the model at a port that stays the same when it is started again."""

    def __init__(self, program, model, log, *options):
        self.command = [program, "serve", "--model", str(model), "--device", "cpu", "--no-plan-cache", *options]
        self.log, self.port, self.process = log, 0, None
        self.start()

    def start(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([*self.command, "--port", str(self.port)], stderr=log, stdout=log)
        for _ in range(600):
            found = re.search(r"^serving .* at (http://[^ ]+) \(", self.log.read_text(), re.MULTILINE)
            if found:
                self.address = found[1]
                self.port = int(self.address.rsplit(":", 1)[1])
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"the server does not start:\n{self.log.read_text()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ends it as Ctrl-C does."""
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log.read_text()

    def get(self, path):
        with urllib.request.urlopen(self.address + path) as response:
            return response.read().decode()

    def answer(self, body, key=None):
        """What the API answers to a request that the page has sent, not streamed."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = json.dumps({**body, "stream": False}).encode()
        request = urllib.request.Request(self.address + "/v1/chat/completions", data, headers)
        with urllib.request.urlopen(request) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.MULTILINE)[1])


class Page:
    """A page of a browser, with what it asked for and complained of."""

    def __init__(self, browser, address, size=(1000, 700)):
        self.address = address
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]})
        self.context.set_default_timeout(30_000)
        # Everything else is cut off, and counted below.
        self.context.route(lambda url: not self.is_own(url), lambda route: route.abort())
        self.context.add_init_script(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation', e => window.violations.push(e.violatedDirective))"
        )
        self.page = self.context.new_page()
        self.asked, self.sent, self.errors = [], [], []
        self.page.on("request", self.request)
        self.page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.response = self.page.goto(address)
        self.text = self.page.get_by_role("textbox", name="Message")
        self.log = self.page.get_by_role("log")
        self.send = self.page.get_by_role("button", name="Send")
        self.stop = self.page.get_by_role("button", name="Stop")
        self.state = self.page.get_by_role("status")

    def choose(self, most, key=None):
        """Opens the settings, if need be, and sets them; without chance."""
        if self.page.locator("#settings").get_attribute("open") is None:
            self.page.get_by_text("Settings").click()
        self.page.get_by_label("Temperature").fill("0")
        self.page.get_by_label("Max. tokens").fill(most)
        if key is not None:
            self.page.get_by_label("API key").fill(key)
            self.page.get_by_label("API key").press("Tab")

    def is_own(self, url):
        return url.startswith((self.address + "/", "data:"))

    def request(self, request):
        self.asked.append(request.url)
        if request.method == "POST":
            self.sent.append(json.loads(request.post_data))

    def messages(self, role):
        return self.log.locator(f".{role} > div")

    def ask(self, text):
        self.text.fill(text)
        self.text.press("Enter")

    def turn(self, text):
        """Asks, and waits until the whole answer is there."""
        count = self.messages("assistant").count()
        self.ask(text)
        expect(self.messages("assistant")).to_have_count(count + 1)
        self.settled()
        return self.messages("assistant").last.text_content()

    def settled(self):
        expect(self.log).to_have_attribute("aria-busy", "false", timeout=60_000)
        expect(self.stop).to_be_hidden()

    def grown(self, least):
        """Waits until the last answer has so many characters."""
        last = "[...document.querySelectorAll('.assistant > div')].at(-1)"
        self.page.wait_for_function(f"least => ({last}?.textContent.length ?? 0) >= least", arg=least)

    def refused(self, text):
        """Asks, and expects an error beside which nothing is lost; gives the error."""
        before = [self.messages(role).all_text_contents() for role in ("user", "assistant")]
        errors = self.messages("error").count()
        self.ask(text)
        expect(self.messages("error")).to_have_count(errors + 1)
        self.settled()
        assert [self.messages(role).all_text_contents() for role in ("user", "assistant")] == before
        # The message is where it was written, and can be sent again.
        expect(self.text).to_have_value(text)
        return self.messages("error").last.text_content()

    def failures(self, *expected):
        """Forgets what the browser says of responses that are errors: it must be these, in this order."""
        said = [e for e in self.errors if e.startswith("Failed to load resource")]
        assert len(said) == len(expected) and all(part in e for part, e in zip(expected, said)), self.errors
        self.errors = [e for e in self.errors if e not in said]

    def close(self):
        elsewhere = [url for url in self.asked if not self.is_own(url)]
        assert not elsewhere, f"requests to other addresses: {elsewhere}"
        assert self.page.evaluate("window.violations") == []
        assert not self.errors, f"the console has {self.errors}"
        self.context.close()


def conversation(browser, server, picture):
    page = Page(browser, server.address)
    headers = page.response.headers
    assert "default-src 'none'" in headers["content-security-policy"], headers
    assert "unsafe" not in headers["content-security-policy"], headers
    expect(page.page).to_have_title("model")
    expect(page.text).to_be_focused()
    for field in page.page.locator("input, textarea, button").all():
        assert field.get_attribute("aria-label") or field.evaluate(
            "e => e.labels?.length || e.textContent.trim()"
        ), f"no name: {field.evaluate('e => e.outerHTML')}"
    page.choose("40")

    page.text.press_sequentially("Name three")
    page.text.press("Shift+Enter")
    page.text.press_sequentially("colours.")
    expect(page.text).to_have_value("Name three\ncolours.")
    assert not page.sent
    page.text.press("Enter")
    page.settled()
    expect(page.text).to_have_value("")
    first = page.messages("assistant").last.text_content()
    assert page.sent[0]["messages"] == [{"role": "user", "content": "Name three\ncolours."}]
    assert first and first == server.answer(page.sent[0]), first
    second = page.turn("And three more?")
    assert [m["role"] for m in page.sent[1]["messages"]] == ["user", "assistant", "user"]
    assert page.sent[1]["messages"][1]["content"] == first
    assert second and second == server.answer(page.sent[1]), second
    expect(page.log.locator(".assistant p").last).to_have_text("Cut off at the limit of tokens.")
    picture(page, "conversation")
    print("two turns: answers are those of the API for the same messages")

    page.turn(HOSTILE)
    assert page.sent[2]["messages"][4]["content"] == HOSTILE
    assert page.messages("user").last.text_content() == HOSTILE
    hostile_server(page)
    assert page.log.locator("img, script, b").count() == 0
    assert page.page.evaluate("window.ran") is None
    print("messages, answers, errors and a name of a model that are HTML are shown, not run")

    page.page.get_by_role("button", name="New chat").click()
    expect(page.log.locator("article")).to_have_count(0)
    page.turn("Once")
    assert len(page.sent[-1]["messages"]) == 1
    # Keys alone reach everything: what is behind the text is the button, and what is before it the conversation.
    page.text.focus()
    page.page.keyboard.press("Tab")
    expect(page.send).to_be_focused()
    page.text.focus()
    page.page.keyboard.press("Shift+Tab")
    expect(page.log).to_be_focused()
    page.close()
    print("new chats, keys")


def hostile_server(page):
    """A server that answers with HTML, in pieces that cut tags."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (HOSTILE[:9], HOSTILE[9:])]
    events = "".join(f"data: {json.dumps(value)}\n\n" for value in deltas) + "data: [DONE]\n\n"
    chat, models = "**/v1/chat/completions", "**/v1/models"
    page.page.route(chat, lambda route: route.fulfill(body=events, content_type="text/event-stream"))
    assert page.turn("An answer") == HOSTILE
    page.page.unroute(chat)
    wrong = {"error": {"message": HOSTILE}}
    page.page.route(chat, lambda route: route.fulfill(status=500, json=wrong))
    assert page.refused("An error") == HOSTILE
    page.page.unroute(chat)
    page.failures("500")
    page.page.route(models, lambda route: route.fulfill(json={"data": [{"id": HOSTILE}]}))
    page.choose("40", key="1")
    expect(page.page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    page.page.unroute(models)
    page.choose("40", key="")
    expect(page.page).to_have_title("model")


def stopping(browser, server):
    page = Page(browser, server.address)
    page.choose("")
    for number, stop in enumerate([page.stop.click, lambda: page.text.press("Escape")]):
        before = server.metric("meganeura_generated_tokens_total")
        page.ask(f"Tell me story {number}.")
        answer = page.messages("assistant").last
        # It grows while it is generated.
        length = 0
        for _ in range(3):
            page.grown(length + 1)
            expect(page.stop).to_be_visible()
            length = len(answer.text_content())
        page.ask("The next one.")
        expect(page.text).to_have_value("The next one.")
        assert len(page.sent) == number + 1, "a message was sent while an answer came"
        stop()
        page.settled()
        expect(page.state).to_have_text("Stopped.")
        expect(page.text).to_have_value("The next one.")
        part = answer.text_content()
        for _ in range(200):
            if server.metric("meganeura_sequences_running") == 0:
                break
            time.sleep(0.05)
        generated = server.metric("meganeura_generated_tokens_total") - before
        assert server.metric("meganeura_sequences_running") == 0 and generated < CONTEXT // 2, generated
        assert len(part) >= length
    page.choose("")
    page.ask("And then?")
    page.stop.focus()
    page.page.keyboard.press("Enter")
    page.settled()
    expect(page.text).to_be_focused()
    assert page.sent[-1]["messages"][3]["content"] == part, "the part that was there is part of the conversation"
    page.close()
    print("answers come piece by piece and can be stopped, which ends the sequence on the server")


def lost_server(browser, server):
    page = Page(browser, server.address)
    page.choose("")
    page.ask("A long one.")
    page.grown(100)
    server.kill()
    expect(page.messages("error")).to_have_count(1)
    page.settled()
    assert "broke off" in page.messages("error").last.text_content()
    part = page.messages("assistant").last.text_content()
    assert len(part) >= 100
    assert "cannot be reached" in page.refused("Are you there?")
    assert page.messages("assistant").last.text_content() == part
    server.start()
    page.choose("8")
    page.text.press("Enter")
    expect(page.messages("assistant")).to_have_count(2)
    page.settled()
    assert [m["content"] for m in page.sent[-1]["messages"]] == ["A long one.", part, "Are you there?"]
    # The browser says how the first connection broke off, and that the second was refused.
    page.failures("ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_REFUSED")
    page.close()
    print("a server that is gone: what was there stays, and the message can be sent again")


def keys_and_queues(browser, server):
    page = Page(browser, server.address)
    expect(page.state).to_contain_text("API key is missing")
    expect(page.page.get_by_label("API key")).to_be_visible()
    page.choose("8")
    assert "API key is missing" in page.refused("May I?")
    page.choose("8", key=KEY)
    page.text.press("Enter")
    expect(page.messages("assistant")).to_have_count(1)
    page.settled()
    assert page.messages("assistant").last.text_content() == server.answer(page.sent[-1], KEY)
    page.failures("401", "401")
    assert not any(KEY in url for url in page.asked)
    print("a key: its lack is said, and it is sent as a header")

    # One sequence is computed, and none may wait.
    busy = http.client.HTTPConnection("127.0.0.1", server.port)
    body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    busy.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = busy.getresponse()
    assert response.status == 200 and response.read(1)
    assert "the queue has no space" in page.refused("And now?")
    response.close()
    busy.close()
    page.failures("429")
    for _ in range(100):
        page.text.press("Enter")
        page.settled()
        if page.messages("assistant").count() == 2:
            break
        time.sleep(0.1)
    assert page.messages("user").last.text_content() == "And now?"
    page.errors = [e for e in page.errors if "429" not in e]
    page.close()
    print("a full queue is said, and the message can be sent again")


def narrow(browser, server, picture):
    page = Page(browser, server.address, (320, 568))
    page.choose("30")
    page.turn("A word without end: " + "a" * 200)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 320
    for element in (page.text, page.send, page.page.get_by_label("API key"), page.messages("assistant").last):
        box = element.bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= 320, box
    box = page.send.bounding_box()
    assert box["y"] + box["height"] <= 568, box
    picture(page, "settings")
    page.page.get_by_text("Settings").click()
    assert page.log.bounding_box()["height"] > 300
    picture(page, "narrow")
    page.close()
    print("a screen of 320 pixels")


def model_at(folder):
    """A fixture whose answers go on until they are stopped: it has a long context (positions are rotations, not weights), and
    no token that ends texts."""
    shutil.copytree(ROOT / "tests/fixtures/transformers/llama", folder)
    # The server stops at the end tokens of all three files.
    changes = {
        "config.json": {"eos_token_id": None, "max_position_embeddings": CONTEXT},
        "generation_config.json": {"eos_token_id": None},
        "tokenizer_config.json": {"eos_token": None},
    }
    for name, change in changes.items():
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("meganeura")
    parser.add_argument("--chromium", help="the browser's program; one of " + ", ".join(PROGRAMS) + " if not given")
    parser.add_argument("--screenshots", type=Path, help="where pictures of the page are written")
    args = parser.parse_args()
    # Other programs may keep the machine busy.
    expect.set_options(timeout=30_000)
    program = args.chromium or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit("there is no Chromium; name it with --chromium")

    def picture(page, name):
        if args.screenshots:
            args.screenshots.mkdir(parents=True, exist_ok=True)
            page.page.screenshot(path=args.screenshots / f"{name}.png")

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = Path(folder)
        model = model_at(folder / "model")
        servers = []
        try:
            server = Server(args.meganeura, model, folder / "log", "--context", str(CONTEXT), "--cache", str(CONTEXT))
            servers.append(server)
            # The sandbox cannot be had by root. No name is looked up.
            options = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(
                executable_path=program, args=[*options, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
            )
            print("Chromium", browser.version)
            conversation(browser, server, picture)
            narrow(browser, server, picture)
            stopping(browser, server)
            lost_server(browser, server)
            server.end()
            limits = ("--context", str(CONTEXT), "--sequences", "1", "--queue", "0", "--api-key", KEY)
            server = Server(args.meganeura, model, folder / "log", *limits)
            servers.append(server)
            keys_and_queues(browser, server)
            server.end()
            browser.close()
        finally:
            for server in servers:
                if server.process.poll() is None:
                    server.kill()


if __name__ == "__main__":
    main()
