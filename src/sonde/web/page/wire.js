// Where data comes from: the server, or the file itself. Both speak the same bytes.

const inside = { answers: null, wasThere: false };
const told = {};  // the statements of the newest answer to each question

const KINDS_OF = { int32: Int32Array, uint8: Uint8Array, double: Float64Array };

function unpack(buffer) {
  const view = new DataView(buffer), size = view.getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  let at = 4 + size;
  const columns = {};
  for (const [name, [kind, count]] of Object.entries(head.columns)) {
    columns[name] = new KINDS_OF[kind](buffer, at, count);
    at += Math.ceil(columns[name].byteLength / 8) * 8;
  }
  return { ...head, columns };
}

async function openInside() {
  const text = find("inside");
  if (!text) return;
  const packed = Uint8Array.from(atob(text.textContent), (one) => one.charCodeAt(0));
  text.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = await new Response(stream).arrayBuffer();
  const size = new DataView(whole).getUint32(0, true);
  const list = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, size)));
  inside.answers = {};
  let at = 4 + size;
  for (const [name, kind, length] of list) {
    const part = whole.slice(at, at + length);
    inside.answers[name] = kind === "application/json" ? JSON.parse(new TextDecoder().decode(part)) : unpack(part);
    at += length;
  }
}

const makeOffline = () => Object.assign(new Error("The server does not answer. Is `sonde ui` still running?"), { isOffline: true });
// The one way to the server. Without an answer, it was killed; with another token, it was started anew.
async function reach(path, options = {}) {
  const headers = { Authorization: `Bearer ${state.token}` };
  const response = await fetch(path, { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw makeOffline();
  });
  if (response.status === 401 && inside.wasThere) throw new Error("`sonde ui` was started anew, with a new link: open the link that it printed.");
  inside.wasThere ||= response.ok;
  return response;
}
async function ask(name, asked = {}) {
  if (inside.answers) {
    const found = inside.answers[name];
    if (!found) throw new Error("this is not in the file; `sonde ui` shows it");
    told[name] = found.sql || [];
    return cutInside(name, found, asked);
  }
  const words = new URLSearchParams(asked);
  if (state.target && !asked.target) words.set("target", state.target);
  const response = name === "query"
    ? await reach("api/query", { method: "POST", body: JSON.stringify(Object.fromEntries(words)) })
    : await reach(`api/${name}?${words}`);
  const isJson = response.headers.get("Content-Type") === "application/json";
  const found = isJson ? await response.json() : unpack(await response.arrayBuffer());
  if (!response.ok) throw Object.assign(new Error(found.error || response.statusText), { status: response.status });
  told[name] = found.sql || [];
  return found;
}

// A part of the time of a file: its pieces stay as they are, and count from where the part begins.
function cutInside(name, found, { from, to }) {
  const width = inside.answers.stacks.data.width, until = inside.answers.about.data.until;
  if (from === undefined || (from <= 0 && to >= until)) return found;
  const first = Math.round(from / width), end = Math.ceil(to / width), isIn = (piece) => piece >= first && piece < end;
  const cutColumns = (columns) => {
    const keep = [...columns.piece.keys()].filter((at) => isIn(columns.piece[at]));
    const cut = Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, values.constructor.from(keep, (at) => values[at])]));
    cut.piece = cut.piece.map((piece) => piece - first);
    return cut;
  };
  const cutLine = (line) => {
    if (line.at) return line;
    const keep = [...line.pieces.keys()].filter((at) => isIn(line.pieces[at]));
    return { ...line, pieces: keep.map((at) => line.pieces[at] - first), values: keep.map((at) => line.values[at]) };
  };
  const data = { ...found.data };
  if (name === "steps") data.steps = cutColumns(data.steps);
  if (name === "machine") data.charts = data.charts.map((chart) => ({ ...chart, lines: chart.lines.map(cutLine) }));
  if (name === "events") data.counters = data.counters.map(cutLine);
  return { ...found, data, columns: name === "stacks" ? cutColumns(found.columns) : found.columns };
}

// Server-sent events; `EventSource` cannot send the token in a header.
async function listen(hear, stop) {
  const words = new URLSearchParams(state.target ? { target: state.target } : {});
  const response = await reach(`api/live?${words}`, { signal: stop });
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const one of events) {
      const event = /^event: (.*)$/m.exec(one), data = /^data: (.*)$/m.exec(one);
      if (event && data) hear(event[1], JSON.parse(data[1]));
    }
  }
}

// What changes something or asks the job itself: only where the server was told that it may.
const steering = { allowed: false };
async function steer(name, asked = {}) {
  const body = JSON.stringify({ ...asked, ...(state.target ? { target: state.target } : {}) });
  const response = await reach(`api/steer/${name}`, { method: "POST", body });
  const found = await response.json();
  if (!response.ok) throw new Error(found.error || response.statusText);
  return found.data;
}

const showProblem = (text) => { const place = find("banner"); place.hidden = !text; place.textContent = text; };
