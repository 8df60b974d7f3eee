// Live captions: the microphone goes to /v1/realtime, a file to /v1/audio/transcriptions.

const element = (id) => document.getElementById(id);
const captions = element("captions");
const start = element("start");
const QUIET = -60; // decibels, the left end of the level meter

function say(text, kind = "") {
  element("status").textContent = text;
  element("status").dataset.kind = kind;
}

// ---- captions: one paragraph an utterance; text is only ever appended ----

function paragraph(item) {
  let shown = captions.querySelector(`[data-item="${CSS.escape(item)}"]`);
  if (!shown) {
    shown = document.createElement("p");
    shown.dataset.item = item;
    captions.append(shown);
  }
  return shown;
}

function append(item, text) {
  const atEnd = captions.scrollTop + captions.clientHeight >= captions.scrollHeight - 40;
  paragraph(item).textContent += text;
  if (atEnd) captions.scrollTop = captions.scrollHeight; // whoever scrolled back to read is left alone
  element("copy").disabled = element("clear").disabled = false;
}

function complete(item, text) {
  const shown = paragraph(item);
  if (!text.trim()) shown.remove();
  else if (shown.textContent !== text) shown.textContent = text;
}

element("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText([...captions.children].map((p) => p.textContent.trim()).join("\n"));
  say("Copied.");
});

element("clear").addEventListener("click", () => {
  captions.replaceChildren();
  element("copy").disabled = element("clear").disabled = true;
});

// ---- the server ----

function authorization() {
  const key = element("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function failure(answer) {
  const body = await answer.json().catch(() => ({}));
  return new Error(body.error?.message ?? `The server answered ${answer.status} ${answer.statusText}.`);
}

async function describe() {
  const answer = await fetch("v1/models", { headers: authorization() });
  if (answer.status === 401) return say("This server asks for an API key.");
  if (!answer.ok) throw await failure(answer);
  const [model] = (await answer.json()).data;
  element("model").textContent = model.id;
  const fill = (id, values, chosen, label) =>
    element(id).replaceChildren(...values.map((value) => new Option(label(value), value, false, value === chosen)));
  const languages = new Intl.DisplayNames([navigator.language], { type: "language", fallback: "code" });
  const name = (code) => (code === "auto" ? "detect" : languages.of(code));
  const preferred = [navigator.language, model.language].find((code) => model.languages.includes(code));
  fill("language", model.languages, preferred, name);
  element("language").disabled = model.languages.length < 2;
  fill("latency", model.latencies, model.latency, (value) => `${value} ms`);
  say("Ready.");
}

// ---- the microphone ----

let call = null;

class Call {
  constructor(context, stream) {
    this.context = context;
    this.stream = stream;
    const key = element("key").value.trim();
    const url = new URL(`v1/realtime?intent=transcription&latency=${element("latency").value}`, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    this.socket = new WebSocket(url, key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"]);
    this.socket.onopen = () => this.begin();
    this.socket.onmessage = ({ data }) => this.hear(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) => this.end(code, reason);
  }

  async begin() {
    this.socket.send(JSON.stringify({
      type: "session.update",
      session: {
        type: "transcription",
        audio: {
          input: {
            format: { type: "audio/pcm", rate: this.context.sampleRate },
            transcription: { language: element("language").value },
            turn_detection: { type: "server_vad" },
          },
        },
      },
    }));
    await this.context.audioWorklet.addModule("page/microphone.js");
    this.node = new AudioWorkletNode(this.context, "microphone");
    this.node.port.onmessage = ({ data }) => {
      element("level").value = Math.max(QUIET, data.decibels);
      if (this.socket.readyState === WebSocket.OPEN && data.packet.byteLength) this.socket.send(data.packet);
      if (this.stopping) this.socket.send(JSON.stringify({ type: "input_audio_buffer.commit" }));
      this.stopping = false;
    };
    this.context.createMediaStreamSource(this.stream).connect(this.node);
    say("Listening.");
  }

  hear(event) {
    const kind = event.type.replace("conversation.item.input_audio_transcription.", "");
    if (kind === "delta") append(event.item_id, event.delta);
    if (kind === "completed") {
      complete(event.item_id, event.transcript);
      if (this.committed) this.socket.close(1000);
    }
    if (kind === "input_audio_buffer.committed" && this.closing) this.committed = true;
    if (kind === "error") this.problem = event.error.message;
  }

  stop() {
    this.closing = this.stopping = true;
    this.stream.getTracks().forEach((track) => track.stop());
    if (this.node) this.node.port.postMessage("rest"); // its answer is followed by the commit
    else this.socket.close(1000);
    say("Waiting for the last words.");
  }

  end(code, reason) {
    this.stream.getTracks().forEach((track) => track.stop());
    this.context.close();
    element("level").value = QUIET;
    start.textContent = "Start microphone";
    call = null;
    if (code === 1000 && !this.problem) say("Stopped.");
    else say(this.problem || reason || `The connection was lost (${code}).`, "error");
  }
}

element("controls").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (call) return call.stop();
  try {
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    call = new Call(new AudioContext(), stream);
    start.textContent = "Stop microphone";
  } catch (error) {
    const denied = error.name === "NotAllowedError";
    say(denied ? "The browser may not use the microphone; allow it and try again." : error.message, "error");
  }
});

// ---- files: chosen, or dropped on the captions ----

async function transcribe(file) {
  const form = new FormData();
  form.append("file", file);
  form.append("model", element("model").textContent);
  form.append("language", element("language").value);
  form.append("latency", element("latency").value);
  form.append("stream", "true");
  say(`Transcribing ${file.name}.`);
  const answer = await fetch("v1/audio/transcriptions", { method: "POST", body: form, headers: authorization() });
  if (!answer.ok) throw await failure(answer);
  const item = `file-${Date.now()}`;
  let rest = "";
  for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines.filter((each) => each.startsWith("data: {"))) {
      const event = JSON.parse(line.slice(6));
      if (event.type === "transcript.text.delta") append(item, event.delta);
      if (event.type === "transcript.text.done") complete(item, event.text);
      if (event.error) throw new Error(event.error.message);
    }
  }
  say(`Done with ${file.name}.`);
}

const attempt = (file) => file && transcribe(file).catch((error) => say(error.message, "error"));

element("file").addEventListener("change", ({ target }) => attempt(target.files[0]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.body.addEventListener(kind, (event) => {
    event.preventDefault();
    captions.classList.toggle("drop", kind === "dragover");
    if (kind === "drop") attempt(event.dataTransfer.files[0]);
  });
}

element("key").addEventListener("change", () => describe().catch((error) => say(error.message, "error")));
describe().catch((error) => say(error.message, "error"));
