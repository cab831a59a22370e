"use strict";
const at = id => document.getElementById(id);
// The conversation as the model is sent it, the model's name, and what is being answered.
let messages = [], model = null, running = null;

function headers() {
  const key = at("key").value.trim();
  return key ? { Authorization: "Bearer " + key } : {};
}

// Fields that are empty are left to the server.
function chosen() {
  const number = id => at(id).value === "" ? undefined : Number(at(id).value);
  return { temperature: number("temperature"), max_tokens: number("most") };
}

// Text is always set as text: nothing of a message, an answer or an error is read as HTML.
function show(role, text) {
  const box = document.createElement("article");
  const who = document.createElement("h2");
  const body = document.createElement("div");
  box.className = "message " + role;
  who.textContent = { user: "You", assistant: "Model", error: "Error" }[role];
  body.textContent = text;
  box.append(who, body);
  at("log").append(box);
  at("log").scrollTop = at("log").scrollHeight;
  return box;
}

function note(box, text) {
  const log = at("log"), follows = isAtEnd();
  const line = document.createElement("p");
  line.textContent = text;
  box.append(line);
  if (follows) log.scrollTop = log.scrollHeight;
}

// Whoever reads further up is left there.
function isAtEnd() {
  const log = at("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}

async function said(response) {
  // The key is there.
  if (response.status === 401) at("settings").open = true;
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? "The server answered with the status " + response.status + ".";
}

// Browsers say little about connections that fail, and each something else.
async function ask(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached (" + error.message + ").");
  }
}

async function load(signal) {
  const response = await ask("v1/models", { headers: headers(), signal });
  if (!response.ok) throw new Error(await said(response));
  model = (await response.json()).data[0].id;
  at("model").textContent = document.title = model;
}

// What the events of a stream say, one after the other.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("The connection broke off (" + error.message + ").");
    }
    if (piece.done) throw new Error("The answer broke off.");
    buffer += piece.value;
    const whole = buffer.split("\n\n");
    buffer = whole.pop();
    for (const event of whole) {
      // Others are comments, which keep the connection open.
      if (!event.startsWith("data:")) continue;
      const data = event.slice(5).trim();
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error) throw new Error(value.error.message);
      yield value;
    }
  }
}

function setRunning(control) {
  running = control;
  // A button that disappears would take the focus along.
  if (!control && document.activeElement === at("stop")) at("text").focus();
  at("send").disabled = control !== null;
  at("stop").hidden = control === null;
  // Screen readers read an answer when it is complete, not word by word.
  at("log").setAttribute("aria-busy", String(control !== null));
}

async function answer(question) {
  const chat = messages, log = at("log"), asked = log.lastElementChild;
  const control = new AbortController();
  const isShown = () => chat === messages;
  setRunning(control);
  at("state").textContent = "Waiting for the answer.";
  at("speed").textContent = "";
  const box = show("assistant", ""), body = box.lastElementChild;
  let text = "", pieces = 0, first = 0, finish = null, failure = null, speed = "", frame = 0;
  // At most once a frame: laying out the text for each token would take longer than a fast model does.
  const draw = () => {
    frame = 0;
    const follows = isAtEnd();
    body.textContent = text;
    if (follows) log.scrollTop = log.scrollHeight;
    at("speed").textContent = speed;
  };
  try {
    if (!model) await load(control.signal);
    const response = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({ model, messages: chat, stream: true, ...chosen() }),
      signal: control.signal,
    });
    if (!response.ok) throw new Error(await said(response));
    for await (const event of events(response)) {
      const choice = event.choices?.[0];
      finish = choice?.finish_reason ?? finish;
      const added = choice?.delta?.content;
      if (!added || !isShown()) continue;
      pieces++;
      if (!first) {
        first = performance.now();
        at("state").textContent = "";
      }
      text += added;
      const seconds = (performance.now() - first) / 1000;
      if (seconds > 0.1) speed = ((pieces - 1) / seconds).toFixed(1) + " tokens/s";
      frame ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    failure = error;
  }
  cancelAnimationFrame(frame);
  // Another conversation has begun.
  if (!isShown()) return;
  draw();
  const isStopped = failure?.name === "AbortError";
  if (text) {
    chat.push({ role: "assistant", content: text });
    if (isStopped) note(box, "Stopped.");
    if (finish === "length") note(box, "Cut off at the limit of tokens.");
  } else if (failure) {
    // A message without an answer is taken back, as templates want turns that alternate, and can be sent again.
    chat.pop();
    asked.remove();
    box.remove();
    at("text").value = [question, at("text").value].filter(Boolean).join("\n");
  } else {
    // An empty answer is one.
    chat.push({ role: "assistant", content: "" });
    note(box, "The answer is empty.");
  }
  if (failure && !isStopped) show("error", failure.message);
  at("state").textContent = isStopped ? "Stopped." : failure ? "There is no whole answer." : "";
  setRunning(null);
}

at("form").addEventListener("submit", event => {
  event.preventDefault();
  const text = at("text").value.trim();
  // What is written meanwhile stays where it is.
  if (running || !text) return;
  at("text").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  answer(text);
});
at("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});
at("stop").addEventListener("click", () => {
  running?.abort();
  at("text").focus();
});
document.addEventListener("keydown", event => {
  if (event.key === "Escape") running?.abort();
});
at("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  setRunning(null);
  at("log").replaceChildren();
  at("state").textContent = at("speed").textContent = "";
  at("text").focus();
});
const connect = () => load().then(() => at("state").textContent = "", error => at("state").textContent = error.message);
at("key").addEventListener("change", connect);
connect();
