// The ribbon of time: where it went, with a brush that drives every panel.

const ribbon = { width: 1, steps: null, marks: null, findings: [], drag: null };
const PHASES = [["input_wait", "waiting for data", "--b0", 1], ["to_device", "to the device", "--b5", 3], ["forward", "forward", "--b3", 0],
  ["backward", "backward", "--b4", 2], ["optimizer", "optimizer", "--b1", 4], ["other", "other", "--b6", 5]];
const BANDS = [["gil", "holding the GIL", "--b0", 0], ["work", "working without it", "--b3", 1], ["queue", "waiting for the GIL", "--b1", 4], ["io", "for I/O", "--b5", 2], ["wait", "otherwise", "--b2", 3]];
const SIGNS = { exception: "▲", memory: "■", kernel: "■", trigger: "✚", lock: "⊗", marker: "◆", gc: "●" };
const MARK_WORDS = { exception: "uncaught exception", memory: "out of memory", kernel: "kernel's log", trigger: "trigger", lock: "lock", marker: "marker", gc: "garbage collection" };
const AXIS = 34;  // marks and the axis below the picture

function openRibbon() {
  const kind = make("div", { class: "tabs", role: "group", "aria-label": "What the ribbon shows" });
  ribbon.legend = make("div", { class: "legend" });
  const made = makePanel("ribbon", "Time", () => [...(told[usesSteps() ? "steps" : "stacks"] || []), ...(told.marks || [])], kind,
    make("button", { type: "button", id: "list-marks", title: "Exceptions, locks, collections and markers as a list (m)", on: { click: showMarks } }),
    make("button", { type: "button", id: "zoom", text: "Zoom in", title: "Show only the brushed time, in finer pieces (z)", on: { click: zoomIn } }),
    make("button", { type: "button", id: "whole", text: "All", title: "Show all time (0)", on: { click: () => setState({ viewFrom: null, viewTo: null, from: null, to: null }) } }));
  Object.assign(ribbon, made, { kind });
  made.note.replaceWith(ribbon.legend);
  ribbon.canvas = make("canvas", { tabindex: "0", role: "slider", "aria-label": "Brushed time: arrows move it, with shift they resize it" });
  ribbon.pinned = make("div", { id: "pinned", hidden: true });
  ribbon.brush = make("div", { id: "brush", hidden: true });
  ribbon.lane = make("div", { id: "marks" });
  made.body.append(ribbon.canvas, ribbon.pinned, ribbon.brush, ribbon.lane);
  ribbon.canvas.addEventListener("pointerdown", beginBrush);
  ribbon.canvas.addEventListener("pointermove", moveBrush);
  ribbon.canvas.addEventListener("pointerup", endBrush);
  ribbon.canvas.addEventListener("dblclick", () => setState({ from: null, to: null }));
  ribbon.canvas.addEventListener("keydown", keyBrush);
  tip(ribbon.canvas, describePiece);
  watch([...BRUSH, "pinFrom", "pinTo", "viewFrom"], placeBrush);
  watch(["part", "thread", "ribbon", "data", "theme", "steps", "machine"], drawRibbon);
  watch(["marks", "advice", "viewFrom", "data"], drawMarks);
}

const usesSteps = () => Boolean(ribbon.steps && ribbon.steps.piece.length) && state.ribbon !== "threads";
// The width is kept from the last drawing: to ask for it would lay out the whole page anew with each brush.
const xOf = (ns) => ((ns - time.from) / (time.width * time.pieces)) * ribbon.width;
const pieceAt = (x) => Math.max(0, Math.min(time.pieces, (x / ribbon.width) * time.pieces));
const zoomIn = () => hasBrush() && setState({ viewFrom: state.from, viewTo: state.to, from: null, to: null, hold: true });

// Without stacks: how much CPU time what was watched used.
function findCpuBands() {
  const chart = machine.charts.find((one) => one.title.startsWith("CPU")) || { lines: [], gap: 0 }, line = chart.lines[0];
  const sums = new Float64Array(time.pieces), counts = new Float64Array(time.pieces), gap = Math.max(1, chart.gap / time.width);
  if (line) line.pieces.forEach((piece, at) => {  // a reading is about the time since the one before it
    const last = Math.floor(piece), before = at ? Math.floor(line.pieces[at - 1]) : -1;
    for (let one = Math.max(0, piece - before > gap ? last : before === last ? last : before + 1); one <= last && one < time.pieces; one += 1) { sums[one] += line.values[at]; counts[one] += 1; }
  });
  return { bands: [["cpu", line ? `CPU, ${line.name}` : "nothing was measured", "--b3", 0]], unit: "%", seen: Uint8Array.from(counts, (count) => +(count > 0)), values: [sums.map((sum, piece) => (counts[piece] ? sum / counts[piece] : 0))] };
}
function findBands() {
  if (!cube.n && !usesSteps()) return findCpuBands();
  if (!usesSteps()) {
    const chosen = chooseThreads(state.part, state.thread);
    const [sums] = sumPieces((thread) => (!chosen || chosen[thread] ? 0 : -1), 1);
    return { bands: BANDS, unit: "threads", seen: sums.seen, values: BANDS.map(([name]) => sums[name].map((ns) => ns / time.width)) };
  }
  // Of several processes: the mean of their steps. A step longer than a piece is in all that it covers.
  const steps = ribbon.steps, seen = new Uint8Array(time.pieces), counts = new Float64Array(time.pieces);
  const values = PHASES.map(() => new Float64Array(time.pieces));
  steps.piece.forEach((piece, at) => {
    if (!isChosen(steps.host[at], steps.pid[at])) return;
    for (const one of coverPieces(piece, steps.dur[at])) {
      seen[one] = 1;
      counts[one] += steps.steps[at];
      PHASES.forEach(([name], band) => { values[band][one] += steps[name][at] * steps.steps[at]; });
    }
  });
  for (const band of values) band.forEach((sum, piece) => { band[piece] = counts[piece] ? sum / counts[piece] / 1e6 : 0; });
  return { bands: PHASES, unit: "ms of a mean step", seen, values };
}
// The parts of a mean step that begins in the chosen time, each step once; null if none begins there.
function findStepMeans({ first, end }) {
  const steps = ribbon.steps, sums = PHASES.map(() => 0);
  let count = 0;
  steps.piece.forEach((piece, at) => {
    if (piece < first || piece >= end || !isChosen(steps.host[at], steps.pid[at])) return;
    count += steps.steps[at];
    PHASES.forEach(([name], band) => { sums[band] += steps[name][at] * steps.steps[at]; });
  });
  return count ? sums.map((sum) => sum / count / 1e6) : null;
}
// The mean of each band over the chosen pieces that have data.
function findMeans(found, chosen) {
  return found.values.map((band) => {
    let sum = 0, seen = 0;
    for (let piece = chosen.first; piece < chosen.end; piece += 1) if (found.seen[piece]) { sum += band[piece]; seen += 1; }
    return seen ? sum / seen : 0;
  });
}
// The top of the scale. One step that took ten times as long would leave no room for all others: what is
// more than four times the median, and rare, is capped: cut, with a line on top.
function findScale(found) {
  const heights = Float64Array.from(found.seen, (_, piece) => found.values.reduce((sum, band) => sum + band[piece], 0));
  const ordered = heights.filter((_, piece) => found.seen[piece]).sort(), most = ordered[ordered.length - 1] || 1;
  if (found.bands !== PHASES) return { heights, most, top: most };
  const at = (share) => ordered[Math.floor(share * (ordered.length - 1))] || 0;
  return { heights, most, top: Math.min(most, Math.max(4 * at(0.5), at(0.9)) || most) };
}
function coverPieces(piece, ns) {
  const end = Math.min(time.pieces, piece + Math.max(1, Math.ceil(ns / time.width))), first = Math.max(0, piece);
  return Array.from({ length: Math.max(0, end - first) }, (_, at) => first + at);
}
function isChosen(host, pid) {
  if (state.part === null) return true;
  const one = about.processes[state.part];
  return one.host === host && one.pid === pid;
}

function drawRibbon() {
  if (!time.pieces) return;
  const { pen, width, height } = fitCanvas(ribbon.canvas);
  ribbon.width = width;
  const found = findBands(), room = height - AXIS, step = width / time.pieces;
  ribbon.found = found;
  const scale = findScale(found), { top } = scale;
  const base = new Float64Array(time.pieces);
  found.bands.forEach(([, , tone, kind], band) => {
    pen.fillStyle = makeFill(pen, colour(tone), kind);
    pen.beginPath();
    for (let piece = 0; piece < time.pieces; piece += 1) {
      const low = base[piece], high = Math.min(top, (base[piece] += found.values[band][piece]));
      if (high > low) pen.rect(piece * step, room - (high / top) * (room - 14), Math.max(step, 0.6), ((high - low) / top) * (room - 14));
    }
    pen.fill();
  });
  pen.fillStyle = colour("--text");
  scale.heights.forEach((ns, piece) => { if (ns > top) pen.fillRect(piece * step, 12, Math.max(step, 0.6), 2); });
  drawAxis(pen, width, height, scale, found.unit);
  drawLegend(found);
  placeBrush();
}

function drawAxis(pen, width, height, { top, most }, unit) {
  pen.fillStyle = colour("--dim");
  pen.font = "11px system-ui, sans-serif";
  const shown = +top.toPrecision(3), more = most > top ? `; capped ones up to ${+most.toPrecision(3)}` : "";
  pen.fillText(`${shown} ${shown === 1 && unit === "threads" ? "thread" : unit}${more}`, 4, 10);
  pen.strokeStyle = colour("--edge");
  pen.beginPath();
  pen.moveTo(0, height - AXIS + 0.5);
  pen.lineTo(width, height - AXIS + 0.5);
  const whole = time.width * time.pieces, least = (whole / width) * 90;
  const nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1e9);
  const step = nice.find((one) => one >= least) || 86400e9 * Math.ceil(least / 86400e9);
  for (let at = Math.ceil(time.from / step) * step; at <= time.from + whole; at += step) {
    const x = xOf(at);
    pen.moveTo(x, height - 17);
    pen.lineTo(x, height - 12);
    pen.fillText(showClock(at), Math.min(Math.max(x - 10, 2), width - 44), height - 3);
  }
  pen.stroke();
}

function drawLegend(found) {
  const chosen = select(), means = (found.bands === PHASES && findStepMeans(chosen)) || findMeans(found, chosen);
  const whole = means.reduce((sum, one) => sum + one, 0);
  ribbon.legend.replaceChildren(...found.bands.map(([name, label, tone, kind], band) => {
    const swatch = make("i", { class: `swatch fill${kind}`, style: { "--tone": `var(${tone})` } });
    const value = found.unit === "threads" ? threeDigits(means[band]) : found.unit === "%" ? showValue(means[band], "%") : showPct(whole ? means[band] / whole : 0);
    return make("span", { "data-band": name }, swatch, `${label} `, make("b", { text: value }));
  }), make("span", { class: "dim unit", text: { threads: "threads at a time", "%": "100 % is one processor" }[found.unit] || `of ${showTime(whole * 1e6)} a step`, "data-ns": Math.round(whole * 1e6) }));
  const tabs = ribbon.steps && ribbon.steps.piece.length ? [["", "Steps"], ["threads", "Threads"]] : [];
  ribbon.kind.replaceChildren(...tabs.map(([value, text]) => make("button", { type: "button", text, "aria-pressed": String(state.ribbon === value), on: { click: () => setState({ ribbon: value }) } })));
}

function describePiece(event) {
  if (!ribbon.found || ribbon.drag) return "";
  const piece = Math.min(time.pieces - 1, Math.floor(pieceAt(event.offsetX)));
  const lines = ribbon.found.bands.map(([, label], band) => `${label}: ${threeDigits(ribbon.found.values[band][piece])}`);
  const until = time.from + (piece + 1) * time.width;
  return `${showClock(time.from + piece * time.width)} to ${showClock(until)}\n` + (ribbon.found.seen[piece] ? lines.join("\n") + `\n(${ribbon.found.unit})` : "no data");
}

// ---- the brush -------------------------------------------------------------------------------------

function placeBrush() {
  const place = (element, from, to) => {
    element.hidden = from === null || to === null || !time.pieces;
    if (element.hidden) return;
    element.style.left = xOf(from) + "px";
    element.style.width = Math.max(3, xOf(to) - xOf(from)) + "px";
  };
  place(ribbon.brush, state.from, state.to);
  place(ribbon.pinned, state.pinFrom, state.pinTo);
  ribbon.brush.classList.toggle("b", state.pinFrom !== null);
  if (ribbon.found) drawLegend(ribbon.found);
  find("zoom").disabled = !hasBrush();
  find("whole").disabled = !hasBrush() && state.viewFrom === null;
  for (const [name, value] of [["min", 0], ["max", time.pieces], ["now", select().first]]) ribbon.canvas.setAttribute(`aria-value${name}`, value);
  ribbon.canvas.setAttribute("aria-valuetext", hasBrush() ? `${showClock(state.from)} to ${showClock(state.to)}` : "all");
}
function setBrush(first, end) {
  const low = Math.max(0, Math.min(first, end)), high = Math.min(time.pieces, Math.max(first, end));
  setState({ from: time.from + low * time.width, to: time.from + Math.max(high, low + 1) * time.width });
}
function beginBrush(event) {
  if (event.button) return;
  ribbon.canvas.setPointerCapture(event.pointerId);
  ribbon.drag = { x: event.offsetX, piece: Math.floor(pieceAt(event.offsetX)), moved: false };
}
function moveBrush(event) {
  const drag = ribbon.drag;
  if (!drag || (!drag.moved && Math.abs(event.offsetX - drag.x) < 4)) return;
  drag.moved = true;
  const at = pieceAt(event.offsetX);
  setBrush(at < drag.piece ? drag.piece + 1 : drag.piece, at < drag.piece ? Math.floor(at) : Math.ceil(at));
}
function endBrush() {
  const drag = ribbon.drag;
  ribbon.drag = null;
  if (!drag || drag.moved) return;
  if (about.live && !state.hold) setState({ hold: true });
  else if (hasBrush()) setState({ from: null, to: null });
  else setBrush(drag.piece, drag.piece + 1);
}
function keyBrush(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key] * (event.ctrlKey ? 10 : 1);
  if (!by) return;
  event.preventDefault();
  const { first, end } = hasBrush() ? select() : { first: Math.floor(time.pieces / 2), end: Math.floor(time.pieces / 2) + 1 };
  if (!hasBrush()) setBrush(first, end);
  else if (event.shiftKey) setBrush(first, Math.max(first + 1, end + by));
  else if (first + by >= 0 && end + by <= time.pieces) setBrush(first + by, end + by);
}

// ---- marks -----------------------------------------------------------------------------------------

function nameOwner({ host, pid }) {  // of a mark, if there are several
  const owner = listJobs().length > 1 && about.processes.find((one) => one.host === host && one.pid === pid);
  return owner ? nameProcess(owner) : "";
}
function describeMark(one) {
  return `${nameOwner(one) && `${nameOwner(one)}, `}${MARK_WORDS[one.kind] || one.kind}: ${clean(one.text, 240)}${one.dur_ns ? ", " + showTime(one.dur_ns) : ""}`;
}
function drawMarks() {
  const width = ribbon.width, taken = new Map(), made = [], all = ribbon.marks ? ribbon.marks.marks : [];
  const count = ribbon.marks ? Object.values(ribbon.marks.counts).reduce((sum, one) => sum + one, 0) : 0;
  find("list-marks").textContent = plural(count, "mark");
  find("list-marks").disabled = !count;
  for (const one of all) {
    const x = Math.round(xOf(one.at) / 9) * 9;
    if (x < 0 || x > width) continue;
    if (xOf(one.at + one.dur_ns) - x > 12) made.push(make("span", { class: `lasting ${one.kind}`, style: { left: x + "px", width: Math.min(width, xOf(one.at + one.dur_ns)) - x + "px" } }));
    const key = `${x} ${one.kind}`, known = taken.get(key);
    if (known) { known.push(one); continue; }
    const group = [one];
    taken.set(key, group);
    const sign = make("span", { class: one.kind, text: SIGNS[one.kind] || "●", style: { left: x + "px" }, on: { click: () => brushMark(one) } });
    tip(sign, () => group.slice(0, 6).map((mark) => `${showClock(mark.at)}  ${describeMark(mark)}`).join("\n") + (group.length > 6 ? `\n… ${group.length - 6} more` : ""));
    made.push(sign);
  }
  for (const one of ribbon.findings) {
    const from = Math.max(0, xOf(one.from)), to = Math.min(width, xOf(one.to));
    if (to <= from) continue;
    const line = make("span", { class: `finding ${one.severity}`, style: { left: from + "px", width: to - from + "px" } });
    tip(line, () => `${one.severity}: ${clean(one.title)}\n${showClock(one.from)} to ${showClock(one.to)}`);
    made.push(line);
  }
  ribbon.lane.replaceChildren(...made);
}
// The time of a mark, and a little around it: a moment alone has hardly any samples.
function brushMark(one) {
  const piece = (ns) => (ns - time.from) / time.width;
  setBrush(Math.floor(piece(one.at)) - 1, Math.ceil(piece(one.at + one.dur_ns)) + 1);
}
function showMarks() {
  const { marks, counts } = ribbon.marks, count = Object.values(counts).reduce((sum, one) => sum + one, 0);
  const row = (one) => make("tr", {}, make("td", {}, make("button", { type: "button", text: showClock(one.at), title: "Brush this time", on: { click: () => { find("dialog").close(); brushMark(one); } } })),
    make("td", { text: `${SIGNS[one.kind] || "●"} ${MARK_WORDS[one.kind] || one.kind}` }), make("td", { text: nameOwner(one) }), make("td", { class: "num", text: one.dur_ns ? showTime(one.dur_ns) : "" }), make("td", { class: "prose", text: clean(one.text, 400), title: clean(one.text, 900) }));
  openDialog("Marks on the time line", make("p", { class: "dim", text: `${Object.entries(counts).map(([kind, n]) => `${SIGNS[kind] || "●"} ${MARK_WORDS[kind] || kind} ${showCount(n)}`).join(" · ")}${count > marks.length ? `; ${showCount(marks.length)} are listed, the gravest of each kind` : ""}. The gravest come first; a click on a time brushes it.` }),
    make("div", { class: "scroll" }, make("table", { "data-table": "marks" }, make("tbody", {}, ...marks.map(row)))));
}
