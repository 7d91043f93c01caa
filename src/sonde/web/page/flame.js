// The flame graph of the brushed time, root on top: width is time, stripes are waiting.

const flame = { zoom: [], items: [], sums: null };
const ROWS = [24, 21, 18], LEAST = 2;  // pixels: heights of a frame, and the width of the least that is drawn
const HUES = { mine: 24, library: 208, python: 128, sonde: 280 };
const OWNERS = { mine: "your code", library: "a library", python: "Python itself", sonde: "sonde" };

function openFlame() {
  const pick = (name, title, options) => {
    const list = make("select", { id: `pick-${name}`, title, "aria-label": title, on: { change: () => setState({ [name]: list.value }) } },
      ...options.map(([value, text]) => make("option", { value, text })));
    return list;
  };
  const press = (name, text, title) => make("button", { type: "button", id: `press-${name}`, text, title, on: { click: () => setState({ [name]: !state[name] }) } });
  flame.search = make("input", { type: "search", id: "search", placeholder: "Search  /", "aria-label": "Search functions and files",
    on: { input: () => setState({ search: flame.search.value }) } });
  const made = makePanel("flame", "Flame graph", () => told.stacks || [],
    pick("weight", "Which time counts", [["wall", "elapsed"], ["cpu", "CPU"], ["gil", "GIL"]]),
    press("libraries", "Libraries", "Every frame of libraries, not one for each call (l)"),
    press("threads", "Threads", "A graph for each thread"), press("callers", "Callers", "Callers below what they call (i)"),
    press("idle", "Idle", "Also threads without work"),
    make("button", { type: "button", id: "pin", on: { click: pin } }), flame.search);
  Object.assign(flame, made);
  flame.box = make("div", { class: "frames", role: "tree", "aria-label": "Frames: arrows move, Enter zooms" });
  made.body.append(flame.box);
  flame.owners = make("div", { class: "owners dim", "aria-label": "Colours" });
  made.body.after(flame.owners);
  flame.box.addEventListener("click", (event) => zoomTo(itemOf(event.target)));
  flame.box.addEventListener("keydown", keyFrame);
  tip(flame.box, (event) => { const item = itemOf(event.target); return item ? describeFrame(item) : ""; });
  watch([...BRUSH, "weight", "libraries", "idle", "callers", "threads", "pinFrom", "base", "data"], drawFlame);
  watch(["search", "theme"], layFrames);
  watch(["libraries", "callers", "threads"], () => { flame.zoom = []; });
}
const itemOf = (element) => flame.items[element.closest(".frame")?.dataset.at];

// What the picture is compared with: another recording, a time of this one that was kept, or nothing.
const base = { set: null };
const isDiff = () => Boolean(base.set) || state.pinFrom !== null;
function sumBase() {
  if (base.set) return alignNodes(sumNodes(EVERYTHING, base.set), base.set);
  return state.pinFrom === null ? null : sumNodes(select(state.pinFrom, state.pinTo, state.pinPart, state.pinThread));
}
const sumBaseLines = () => (base.set ? sumLines(EVERYTHING, base.set) : sumLines(select(state.pinFrom, state.pinTo, state.pinPart, state.pinThread)));

function pin() {
  if (base.set) return setState({ against: "" });
  if (state.pinFrom !== null) return setState({ pinFrom: null, pinTo: null, pinPart: null, pinThread: null });
  const { first, end } = select();
  return setState({ pinFrom: time.from + first * time.width, pinTo: time.from + end * time.width, pinPart: state.part, pinThread: state.thread, from: null, to: null });
}

// ---- trees -----------------------------------------------------------------------------------------

const makeNode = (place, total, waits, own, kids) => ({ place, total, waits, own, kids, before: null });

function makeTree(sums, before) {
  const listKids = (list) => {
    const found = [];
    for (let node = names.first[list] ?? -1; node >= 0; node = names.next[node]) {
      if (sums.total[node] > 0) {
        const made = makeNode(names.nodes[1][node], sums.total[node], sums.waits[node], sums.own[node], () => listKids(node + 1));
        if (before) made.before = before.total[node] / (before.whole || 1);
        found.push(made);
      }
    }
    return found.sort((one, other) => other.total - one.total);
  };
  return listKids(0);
}

// What called each function, below it: the innermost frames are the roots.
function makeCallers(sums) {
  const roots = new Map(), floor = sums.whole * 2e-4;
  for (let node = 0; node < sums.own.length; node += 1) {
    if (sums.own[node] <= floor) continue;
    let level = roots;
    for (let at = node, deep = 0; at >= 0 && deep < 80; at = names.nodes[0][at], deep += 1) {
      const place = names.nodes[1][at];
      let known = level.get(place);
      if (!known) { known = makeNode(place, 0, 0, 0, null); known.inner = new Map(); level.set(place, known); }
      known.total += sums.own[node];
      if (!deep) known.own += sums.own[node];
      level = known.inner;
    }
  }
  const list = (level) => [...level.values()].sort((one, other) => other.total - one.total).map((one) => Object.assign(one, { kids: () => list(one.inner) }));
  return list(roots);
}

function makeThreads(chosen) {
  const found = [];
  names.threads.forEach((one, at) => {
    if (chosen.threads && !chosen.threads[at]) return;
    const alone = Uint8Array.from(names.threads, (_, number) => +(number === at));
    const sums = sumNodes({ ...chosen, threads: alone });
    if (!sums.whole) return;
    const label = listJobs().length > 1 ? `${one.name}, ${nameProcess(about.processes[one.part])}` : one.name;
    const waits = names.nodes[0].reduce((sum, parent, node) => (parent < 0 ? sum + sums.waits[node] : sum), 0);
    found.push({ ...makeNode(-1, sums.whole, waits, 0, () => (state.callers ? makeCallers(sums) : makeTree(sums))), label });
  });
  return found.sort((one, other) => other.total - one.total);
}

function drawFlame() {
  if (!time.pieces) return;
  const chosen = select(), sums = sumNodes(chosen);
  const before = sumBase();
  flame.sums = sums;
  flame.before = before;
  flame.roots = state.threads ? makeThreads(chosen) : state.callers ? makeCallers(sums) : makeTree(sums, before);
  const left = sums.rest && !state.idle && state.weight === "wall" ? showTime(sums.rest) : "";
  flame.note.textContent = sums.whole ? showTime(sums.whole) : "";
  flame.note.title = `${plural(sums.samples, "sample")} of all threads together`;
  find("press-idle").textContent = left ? `Idle ${left}` : "Idle";
  find("press-idle").title = left ? `${left} of threads without work are left out; show them as well` : "Also threads without work";
  flame.note.dataset.ns = sums.whole;
  for (const name of ["libraries", "threads", "callers", "idle"]) find(`press-${name}`).setAttribute("aria-pressed", String(state[name]));
  find("press-idle").disabled = state.weight !== "wall";
  find("pick-weight").value = state.weight;
  const button = find("pin");
  button.textContent = before ? "End diff" : "Diff";
  button.title = before ? "Forget A (d)" : "Keep this time as A; then brush another, B, to see what changed (d)";
  button.setAttribute("aria-pressed", String(Boolean(before)));
  if (flame.search.value !== state.search) flame.search.value = state.search;
  layFrames();
}

// ---- drawing ---------------------------------------------------------------------------------------

function nameOf(node) {
  if (node.place < 0) return clean(node.label);
  return clean(names.places[0][node.place]);
}
function placeOf(node) {
  if (node.place < 0) return "";
  const [, files, lines] = names.places, file = names.files[1][files[node.place]];
  return file ? clean(`${file}:${lines[node.place]}`, 160) : "";
}
function matches(node) {
  const word = state.search.toLowerCase();
  return node.place >= 0 && (names.places[0][node.place].toLowerCase().includes(word) || names.files[0][names.places[1][node.place]].toLowerCase().includes(word));
}

function measureFlame() {  // only if it can have changed: it makes the browser lay out the whole page
  const key = `${innerWidth} ${innerHeight} ${state.max} ${cube.round} ${document.body.dataset.ready}`;
  if (flame.measured !== key) Object.assign(flame, { measured: key, width: flame.body.clientWidth, height: flame.body.clientHeight });
}
function layFrames() {
  drawOwners();
  if (!flame.sums) return;
  measureFlame();
  const width = flame.width, found = [];
  let roots = flame.roots, depth = 0;
  const whole = flame.sums.whole;
  for (const place of flame.zoom) {  // what is above the zoomed frame is as wide as the panel
    const node = roots.find((one) => one.place === place && (place >= 0 || one.label === flame.zoomLabel));
    if (!node) { flame.zoom = flame.zoom.slice(0, depth); break; }
    found.push({ node, x: 0, w: width, depth, path: flame.zoom.slice(0, depth), above: depth < flame.zoom.length - 1 });
    roots = node.kids();
    depth += 1;
  }
  const last = found.length ? found[found.length - 1].node.total : whole;
  const waiting = [[roots, 0, depth, [...flame.zoom]]], narrow = [];
  while (waiting.length) {
    const [nodes, from, level, path] = waiting.pop();
    let x = from;
    for (const node of nodes) {
      const w = (node.total / last) * width;
      if (w < LEAST) {  // those that follow are narrower still
        const left = nodes.slice(nodes.indexOf(node)), room = (left.reduce((sum, one) => sum + one.total, 0) / last) * width;
        if (room > 16) narrow.push({ x, w: room, depth: level, count: left.length });
        break;
      }
      found.push({ node, x, w, depth: level, path });
      if (level < 400) waiting.push([node.kids(), x, level + 1, [...path, node.place]]);
      x += w;
    }
  }
  flame.items = found;
  const deepest = Math.max(0, ...found.map((item) => item.depth), ...narrow.map((item) => item.depth)) + 1;
  flame.row = ROWS.find((row) => row * deepest <= flame.height - 4) || ROWS[2];
  flame.box.style.setProperty("--row", flame.row + "px");
  const drawn = found.map(drawFrame).concat(narrow.map(drawNarrow));
  if (!drawn.length) drawn.push(make("p", { class: "empty", text: explainEmpty() }));
  flame.box.replaceChildren(...drawn);
  flame.box.style.height = deepest * flame.row + 4 + "px";
  showMatches();
}
function drawNarrow({ x, w, depth, count }) {
  const box = make("div", { class: "narrow", text: `${showCount(count)} narrow frames`, title: `${showCount(count)} frames are too narrow to draw; zoom or search shows them` });
  Object.assign(box.style, { left: x + "px", width: w + "px", top: depth * flame.row + 2 + "px" });
  return box;
}
function explainEmpty() {
  if (!cube.n) return "No stacks were recorded here. `sonde config TARGET source.stack=on` turns sampling on.";
  return state.weight === "wall" ? "No thread had work in this time; “Idle” shows those without." : `No ${state.weight === "cpu" ? "CPU time was used" : "time with the GIL was seen"} in this time.`;
}

function drawFrame(item, at) {
  const { node } = item, owner = node.place < 0 ? "sonde" : names.places[3][node.place];
  const change = node.before === null ? null : node.total / flame.sums.whole - node.before;
  const sign = change === null || Math.abs(change) < 0.001 ? "" : `${change > 0 ? "▲ +" : "▼ −"}${Math.abs(100 * change).toFixed(1)}  `;
  const box = make("div", { class: `frame ${owner}${item.above ? " above" : ""}`, role: "treeitem", tabindex: at ? "-1" : "0", "data-at": at,
    "data-ns": node.total, "data-name": nameOf(node), "aria-label": `${nameOf(node)}, ${showPct(node.total / flame.sums.whole)}` });
  box.style.left = item.x + "px";
  box.style.width = item.w + "px";
  box.style.top = item.depth * flame.row + 2 + "px";
  box.style.background = change === null ? tone(node, owner) : toneOfChange(change);
  if (item.w > 24) box.append(make("b", { text: sign + nameOf(node) }), item.w > 110 ? ` ${showPct(node.total / flame.sums.whole)}` : "", item.w > 260 && node.place >= 0 ? make("span", { class: "at", text: `  ${placeOf(node)}` }) : "");
  if (node.waits > 0 && change === null) box.append(make("span", { class: "wait", style: { width: (100 * node.waits) / node.total + "%" } }));
  return box;
}
// What the colours mean: whose code it is, or how its share has changed.
function drawOwners() {
  const change = [["grow", "more"], ["shrink", "less"]].map(([name, text]) => [`var(--${name})`, text]);
  const owners = ["mine", "library", "python"].map((owner) => [`hsl(${HUES[owner]} var(--sat) var(--${owner === "mine" ? "mine" : "lib"}-l))`, OWNERS[owner]]);
  flame.owners.replaceChildren(...(isDiff() ? change : owners).map(([background, text]) => make("span", {}, make("i", { style: { background } }), text)));
}

function tone(node, owner) {
  let hash = 7;
  const text = node.place < 0 ? "thread" : names.files[0][names.places[1][node.place]] + names.places[0][node.place];
  for (let at = 0; at < Math.min(text.length, 200); at += 1) hash = (hash * 31 + text.charCodeAt(at)) >>> 0;
  return `hsl(${HUES[owner] + (hash % 22) - 8} var(--sat) calc(var(--${owner === "mine" ? "mine" : "lib"}-l) + ${hash % 7}%))`;
}
function toneOfChange(change) {
  const strength = Math.min(75, 14 + 420 * Math.abs(change));
  if (Math.abs(change) < 0.001) return "var(--soft)";
  return `color-mix(in srgb, var(--${change > 0 ? "grow" : "shrink"}) ${strength}%, var(--panel))`;
}

function describeFrame({ node }) {
  const lines = [nameOf(node), placeOf(node)].filter(Boolean), whole = flame.sums.whole;
  lines.push(`${showTime(node.total)}, ${showPct(node.total / whole)} of the selection` + (node.own ? `; ${showTime(node.own)} in itself` : ""));
  if (node.waits) lines.push(`${showPct(node.waits / node.total)} of it waiting (striped)`);
  if (node.before !== null) lines.push(`${base.set ? "the other recording" : "A"}: ${showPct(node.before)}, ${base.set ? "this one" : "B"}: ${showPct(node.total / whole)}`);
  if (node.place >= 0) lines.push(OWNERS[names.places[3][node.place]]);
  return lines.join("\n");
}

function showMatches() {
  const searching = state.search !== "";
  flame.items.forEach((item, at) => {
    const hit = searching && matches(item.node), box = flame.box.children[at];
    box.classList.toggle("hit", hit);
    box.classList.toggle("miss", searching && !hit);
  });
  flame.search.title = searching ? `${showPct(sumMatches() / (flame.sums.whole || 1))} of the time is in what was found` : "";
  flame.search.dataset.ns = searching ? sumMatches() : "";
  if (searching) flame.note.textContent = `found: ${showPct(sumMatches() / (flame.sums.whole || 1))} of ${showTime(flame.sums.whole)}`;
}
function sumMatches() {  // time in what matches; a match below another counts once
  const size = names.nodes[0].length, covered = new Uint8Array(size), hits = new Map();
  let sum = 0;
  for (let node = 0; node < size; node += 1) {
    const up = names.nodes[0][node], place = names.nodes[1][node];
    if (!hits.has(place)) hits.set(place, matches({ place }));
    if (up >= 0 && covered[up]) covered[node] = 1;
    else if (hits.get(place)) { covered[node] = 1; sum += flame.sums.total[node]; }
  }
  return sum;
}

// ---- moving ----------------------------------------------------------------------------------------

function zoomTo(item) {
  if (!item) return;
  const path = [...item.path, item.node.place], same = path.join() === flame.zoom.join();
  if (item.node.place < 0) flame.zoomLabel = item.node.label;
  flame.zoom = same ? path.slice(0, -1) : path;
  layFrames();
}
function keyFrame(event) {
  const item = itemOf(event.target);
  if (!item) return;
  const middle = item.x + item.w / 2;
  const near = (depth, choose) => flame.items.filter((one) => one.depth === depth && choose(one)).sort((one, other) => Math.abs(one.x + one.w / 2 - middle) - Math.abs(other.x + other.w / 2 - middle))[0];
  const next = {
    ArrowDown: () => near(item.depth + 1, (one) => one.x >= item.x - 1 && one.x < item.x + item.w),
    ArrowUp: () => near(item.depth - 1, () => true),
    ArrowLeft: () => near(item.depth, (one) => one.x < item.x),
    ArrowRight: () => near(item.depth, (one) => one.x > item.x),
  }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); zoomTo(item); flame.box.firstElementChild?.focus(); }
  if (!next) return;
  event.preventDefault();
  const found = next();
  if (found) flame.box.children[flame.items.indexOf(found)].focus();
}
