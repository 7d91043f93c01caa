// Lists: the lines that take the time, what changed, modules, the program's own events.

const lists = { modules: null, events: null, profiles: null, asked: "" };
const TABS = { measured: "Measured", lines: "Lines", change: "Change", modules: "Modules", events: "Events", profiles: "Profiles" };

function openLists() {
  lists.tabs = make("div", { class: "tabs", role: "tablist" });
  const made = makePanel("lists", lists.tabs, () => told[{ modules: "modules", events: "events", profiles: "profiles" }[findTab()] || "stacks"] || []);
  Object.assign(lists, made);
  watch([...BRUSH, "weight", "idle", "tab", "data", "pinFrom", "base", "comparison", "modules", "events", "profiles", "theme"], drawLists, true);
  watch([...BRUSH, "tab"], askModules);
}

function listTabs() {
  const found = inside.answers && inside.answers.measured ? ["measured"] : [];
  if (cube.n || !found.length) found.push("lines");
  if (isDiff()) found.push("change");
  if (ribbon.steps && ribbon.steps.piece.length) found.push("modules");
  if (lists.events && (lists.events.summary.length || lists.events.counters.length)) found.push("events");
  if (lists.profiles && lists.profiles.runs.length + lists.profiles.snapshots.length) found.push("profiles");
  return found;
}
const findTab = () => (listTabs().includes(state.tab) ? state.tab : isDiff() ? "change" : cube.n ? "lines" : listTabs()[0]);

function drawLists() {
  if (!time.pieces) return;
  const tab = findTab();
  lists.tabs.replaceChildren(...listTabs().map((name) => make("button", { type: "button", role: "tab", text: TABS[name], "aria-selected": String(name === tab), on: { click: () => setState({ tab: name }) } })));
  lists.note.textContent = "";
  lists.body.replaceChildren({ measured: drawMeasured, lines: drawLines, change: drawChange, modules: drawModules, events: drawEvents, profiles: drawProfiles }[tab]());
}

function describeLine(hot, { names }) {
  const [funcs, files, lines, calls, kinds, sources] = names.hot;
  const file = names.files[1][files[hot]], place = file ? `${file}:${lines[hot]}` : "";
  return { func: funcs[hot], place, call: calls[hot], kind: kinds[hot], source: sources[hot] };
}
function showLine(one) {
  const { names } = one.set, told = describeLine(one.hot, one.set), what = told.call ? `${told.call}${told.kind ? ` (${told.kind})` : ""}` : "";
  const wait = one.waits && names.waits[one.wait] ? `waits for ${names.waits[one.wait]}` : "";
  const cell = make("td", { class: "clip" }, make("b", { text: clean(told.func || what || "(outside of your code)", 80) }), " ",
    make("span", { class: "dim", text: clean(told.place, 120) }), told.func && what ? make("span", { text: ` → ${clean(what, 80)}` }) : null, wait ? make("span", { class: "dim", text: ` · ${wait}` }) : null,
    told.source ? make("span", { class: "src", text: clean(told.source, 160) }) : null);
  cell.title = clean(`${told.func} ${told.place} ${what}`);
  return cell;
}

function drawLines() {
  const sums = sumLines(select()), most = sums.lines.slice(0, 60);
  if (!most.length) return make("p", { class: "empty", text: explainEmpty() });
  lists.note.textContent = "of your own code, and the calls they make";
  return make("table", { "data-table": "lines" }, make("thead", {}, make("tr", {}, make("th", { text: "share" }), make("th", { class: "num", text: "time" }), make("th", { class: "clip", text: "line" }))),
    make("tbody", {}, ...most.map((one) => make("tr", { "data-ns": one.ns },
      make("td", { class: "num" }, make("span", { class: "share" }, make("i", { class: one.waits ? "waits" : "", style: { width: (100 * one.ns) / sums.whole + "%" } })), make("span", { class: "pct", text: showPct(one.ns / sums.whole) })),
      make("td", { class: "num" }, showTime(one.ns), make("span", { class: "state", text: one.waits ? "waiting" : "working" })), showLine(one)))));
}

// What `sonde monitor` measured: statistics, the votes of patterns, and what it could not measure.
function drawMeasured() {
  const found = inside.answers.measured.data, list = (name, texts) => make("ul", { class: "plain", "data-list": name }, ...texts.map((text) => make("li", { text: clean(text, 400) })));
  const table = ([title, heads, rows]) => make("table", { "data-table": title, "aria-label": title }, make("thead", {}, make("tr", {}, ...heads.map((text, at) => make("th", { class: at ? "num" : "", text })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((text, at) => make("td", { class: at ? "num" : "", text: clean(text, 120) }))))));
  const part = (title, ...children) => make("div", { class: "part" }, make("h3", { text: title }), ...children);
  return make("div", { class: "parts" }, list("about", found.about), ...found.tables.map(table),
    found.patterns.length ? part("Patterns", list("patterns", found.patterns)) : "",
    part("Not measured", list("missing", found.missing.length ? found.missing : ["all of it was measured"])));
}

function drawChange() {
  const before = sumBaseLines(), after = sumLines(select()), rows = new Map();
  const keyOf = (one) => {
    if (!base.set) return one.hot * 2 + one.waits;
    const { func, place, call } = describeLine(one.hot, one.set);  // of two recordings, by function: lines move
    return [func, place.replace(/:\d+$/, ""), call, one.waits].join("\n");
  };
  const add = (sums, side) => sums.lines.forEach((one) => {
    const key = keyOf(one), known = rows.get(key) || { ...one, shares: [0, 0] };
    known.shares[side] += one.ns / (sums.whole || 1);
    rows.set(key, known);
  });
  add(after, 1);
  add(before, 0);
  const found = [...rows.values()].map((one) => ({ ...one, by: one.shares[1] - one.shares[0] })).sort((one, other) => Math.abs(other.by) - Math.abs(one.by)).slice(0, 40);
  lists.note.textContent = base.set ? "from the other recording to this one, in points of the share" : hasBrush() || state.part !== state.pinPart ? "from A to B, in points of the share" : "A is kept; brush another time, B";
  return make("div", {}, drawComparison(), make("table", { "data-table": "change" }, make("thead", {}, make("tr", {}, ...["change", base.set ? "before" : "A", base.set ? "now" : "B"].map((text) => make("th", { class: "num", text })), make("th", { class: "clip", text: "line" }))),
    make("tbody", {}, ...found.map((one) => make("tr", {}, make("td", { class: `num ${one.by > 0.001 ? "grew" : one.by < -0.001 ? "shrank" : ""}`, text: `${one.by > 0 ? "▲ +" : one.by < 0 ? "▼ −" : ""}${Math.abs(100 * one.by).toFixed(1)}` }),
      make("td", { class: "num", text: showPct(one.shares[0]) }), make("td", { class: "num", text: showPct(one.shares[1]) }), showLine(one))))));
}

// Whether it is more than noise: `sonde compare`, asked when the user wants to know.
function drawComparison() {
  if (inside.answers) return null;
  const asked = { ...(base.set ? { against: state.against } : { pinFrom: state.pinFrom, pinTo: state.pinTo }), ...(hasBrush() ? { from: state.from, to: state.to } : {}) };
  const key = JSON.stringify(asked), known = lists.compared && lists.compared.key === key ? lists.compared : null;
  if (!known) return make("p", { class: "ask" }, make("button", { type: "button", id: "compare", text: "Is it more than noise?", title: "Compare steps, functions, waiting and the machine, as `sonde compare` does", on: { click: () => askComparison(key, asked) } }));
  if (!known.found) return make("p", { class: "ask dim", text: known.problem ? `It cannot be compared: ${clean(known.problem)}` : "Comparing …" });
  const { rows, compared } = known.found;
  const show = (value) => String(+value.toPrecision(4));
  return make("div", {}, make("p", { class: "ask", text: rows.length ? `${rows.length} of ${plural(compared, "number")} changed by more than noise:` : `Nothing changed by more than noise; ${plural(compared, "number was", "numbers were")} compared.` }),
    rows.length ? make("table", { "data-table": "comparison" }, make("tbody", {}, ...rows.map((one) => make("tr", {}, make("td", { class: `num ${{ worse: "grew", better: "shrank" }[one.verdict] || "dim"}`, text: one.verdict }),
      make("td", { class: "num", text: `${show(one.before)} → ${show(one.after)} ${one.unit}` }), make("td", { class: "clip", text: clean(one.name, 120), title: clean(one.name) }))))) : null);
}
async function askComparison(key, asked) {
  lists.compared = { key };
  tell(["comparison"]);
  try { lists.compared = { key, found: (await ask("compare", asked)).data.comparison }; } catch (error) { lists.compared = { key, problem: error.message }; }
  tell(["comparison"]);
}

// ---- events ----------------------------------------------------------------------------------------

function drawEvents() {
  const found = lists.events, box = make("div");
  for (const one of found.counters) {
    const canvas = one.values.length > 1 ? make("canvas") : null;  // a single value is no curve
    box.append(make("div", { class: "chart" }, make("div", {}, make("h3", { text: clean(one.name, 60) }), make("span", { class: "dim", text: "counter, mean" }), make("b", { text: showMean(one, "") })), canvas || ""));
    if (canvas) requestAnimationFrame(() => drawCurves(canvas, [one], ""));
  }
  if (found.spans.length) {
    const lanes = make("canvas");
    box.append(make("div", { class: "chart" }, make("div", {}, make("h3", { text: `The ${plural(found.spans.length, "longest region", "longest regions")}` })), lanes));
    requestAnimationFrame(() => drawSpans(lanes, found.spans));
  }
  box.append(make("table", { "data-table": "events" }, make("thead", {}, make("tr", {}, ...["name", "kind"].map((text) => make("th", { text })), ...["count", "time", "longest"].map((text) => make("th", { class: "num", text })))),
    make("tbody", {}, ...found.summary.map((one) => make("tr", {}, make("td", { text: clean(one.name, 80) }), make("td", { class: "dim", text: one.kind }), make("td", { class: "num", text: showCount(one.count) }),
      make("td", { class: "num", text: one.total_ns ? showTime(+one.total_ns) : "" }), make("td", { class: "num", text: one.max_ns ? showTime(+one.max_ns) : "" }))))));
  return box;
}
function drawSpans(canvas, spans) {
  const lanes = [...new Set(spans.map((one) => one.name))].slice(0, 8);
  canvas.style.height = 14 * lanes.length + 2 + "px";
  const { pen, width } = fitCanvas(canvas), whole = time.width * time.pieces;
  pen.font = "10px system-ui, sans-serif";
  lanes.forEach((name, lane) => {
    pen.fillStyle = colour(["--b3", "--b4", "--b0", "--b5"][lane % 4]);
    for (const one of spans) if (one.name === name) pen.fillRect(((one.at - time.from) / whole) * width, 14 * lane + 1, Math.max(1.5, (one.dur_ns / whole) * width), 11);
    pen.fillStyle = colour("--text");
    pen.fillText(clean(name, 60), 3, 14 * lane + 10);
  });
}

// ---- runs and snapshots ----------------------------------------------------------------------------

async function askProfiles() {
  lists.profiles = (await ask("profiles")).data;
  tell(["profiles"]);
}
function drawProfiles() {
  const { runs, snapshots } = lists.profiles, many = listJobs().length > 1;
  lists.note.textContent = "runs and snapshots; a click on a time brushes it";
  const row = (one, what, state, how) => {
    const from = Math.max(0, one.from ?? 0), to = one.to ?? about.until;
    return make("tr", {}, make("td", {}, make("button", { type: "button", text: showClock(from), title: "Brush this time", disabled: one.from === null, on: { click: () => brushMark({ at: from, dur_ns: to - from }) } })),
      make("td", { class: "num", text: one.from === null ? "" : showTime(to - from) }), make("td", { class: "line" }, make("b", { text: clean(what, 80) }), many ? ` of ${one.pid}` : ""), make("td", { class: "dim", text: clean(state, 80) }), make("td", { class: "clip" }, make("code", { class: "dim", text: clean(how, 300), title: clean(how, 600) })), make("td", {}, make("button", { type: "button", text: "Copy", title: "Copy this command", on: { click: (event) => copyText(how, event.currentTarget) } })));
  };
  const rows = [...runs.map((one) => row(one, `run ${one.name || one.tags || ""}`, one.state.toLowerCase() + (one.reason ? `: ${one.reason}` : ""), `sonde profile results ${one.run}`)),
    ...snapshots.map((one) => row(one, `snapshot ${one.number}`, one.kind === "calls" ? "exact calls" : showBytes(one.size_bytes), `python -m pstats ${one.path}`))];
  return make("table", { "data-table": "profiles" }, make("thead", {}, make("tr", {}, make("th", { text: "from" }), make("th", { class: "num", text: "lasted" }), make("th", { text: "what" }), make("th", { text: "state" }), make("th", { class: "clip", text: "how to open it" }), make("th"))), make("tbody", {}, ...rows));
}
