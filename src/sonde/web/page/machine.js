// The machine on the same axis of time, and the stacks of this moment.

const machine = { charts: [] };
const now = {};

function openMachine() {
  Object.assign(machine, makePanel("machine", "Machine", () => told.machine || [],
    make("button", { type: "button", class: "icon", text: "CSV", title: "Save these values as CSV", on: { click: () => saveText("machine.csv", makeMachineCsv(), "text/csv") } })));
  watch([...BRUSH, "machine", "data", "theme"], drawMachine, true);
}
// Values come for pieces, or with moments of their own; a moment lies within a piece.
function takeCharts(charts) {
  machine.charts = charts.map((chart) => ({ ...chart, lines: chart.lines.map(placeLine) }));
}
function placeLine(line) {
  if (!line.at) return { ...line, half: 0.5 };
  const whole = time.pieces, keep = [...line.at.keys()].filter((at) => line.at[at] > time.from && line.at[at] <= time.from + whole * time.width);
  const pick = (values) => values && keep.map((at) => values[at]);
  return { ...line, half: 0, pieces: keep.map((at) => (line.at[at] - time.from) / time.width - 1e-6), values: pick(line.values), low: pick(line.low), high: pick(line.high) };
}
function makeMachineCsv() {
  const rows = [["seconds", "chart", "line", "unit", "value"]];
  for (const chart of machine.charts) for (const line of chart.lines) line.pieces.forEach((piece, at) => rows.push([+((time.from + (piece + line.half) * time.width) / 1e9).toFixed(3), chart.title, line.name, chart.unit, line.values[at]]));
  return makeCsv(rows);
}
function findMean(line) {
  const { first, end } = select();
  let sum = 0, count = 0;
  line.pieces.forEach((piece, at) => { if (piece >= first && piece < end && Number.isFinite(line.values[at])) { sum += line.values[at]; count += 1; } });
  return count ? sum / count : null;
}
function showMean(line, unit) {
  const mean = findMean(line);
  return mean === null ? "no data" : showValue(mean, unit);
}
// Up to three lines are named; of more, those that stand out: the lowest and the highest.
function drawKeys({ lines, unit }) {
  const key = (line, at, word) => make("span", { class: "dim" }, at < 0 ? null : make("i", { class: `line${at % 3}` }), `${word}${clean(line.name, 24)} `, make("b", { text: showMean(line, unit) }));
  if (lines.length <= 3) return lines.map((line, at) => key(line, at, ""));
  const ordered = lines.filter((line) => findMean(line) !== null).sort((one, other) => findMean(one) - findMean(other));
  return ordered.length ? [key(ordered[0], -1, `of ${lines.length}: least `), key(ordered[ordered.length - 1], -1, "most ")] : [make("span", { class: "dim", text: "no data" })];
}
function drawMachine() {
  if (!machine.charts.length) { machine.body.replaceChildren(make("p", { class: "empty", text: "Nothing about the machine was recorded in this time." })); return; }
  machine.note.textContent = hasBrush() ? "means of the brushed time" : "means of all time";
  const made = machine.charts.map((chart) => {
    const canvas = make("canvas");
    const box = make("div", { class: "chart", "data-chart": chart.title }, make("div", { class: "head" }, make("h3", { text: chart.title, title: chart.title }), make("span", { class: "grow" }), make("span", { class: "dim", title: "The top of the scale", text: hasValues(chart.lines) ? `≤ ${showValue(findTop(chart.lines, chart.unit), chart.unit)}` : "" })),
      make("div", { class: "keys" }, ...drawKeys(chart)), canvas);
    tip(canvas, (event) => {
      const piece = Math.floor((event.offsetX / canvas.clientWidth) * time.pieces);
      return `${chart.title}, ${showClock(time.from + piece * time.width)}\n` + chart.lines.map((line) => {
        let best = -1;
        line.pieces.forEach((one, at) => { if (one < piece + 1) best = at; });
        const range = best >= 0 && line.low && line.low[best] !== line.high[best] ? ` (${showValue(line.low[best], chart.unit)} … ${showValue(line.high[best], chart.unit)})` : "";
        return `${clean(line.name, 60)}: ${best < 0 ? "no data" : showValue(line.values[best], chart.unit)}${range}`;
      }).join("\n");
    });
    return { box, canvas, chart };
  });
  machine.body.classList.toggle("many", made.length > 8 && state.max !== "machine");  // so that none has to be scrolled to
  machine.body.replaceChildren(...made.map((one) => one.box));
  made.forEach((one) => drawCurves(one.canvas, one.chart.lines, one.chart.unit));
}

const hasValues = (lines) => lines.some((line) => (line.high || line.values).some((value) => value > 0));
function findTop(lines, unit) {
  let top = 0;
  for (const line of lines) for (const value of line.high || line.values) top = Math.max(top, value);
  return unit === "%" && top <= 100 ? 100 : top || 1;
}

// Lines over time: the first plain, the others dashed. A gap is a gap.
function drawCurves(canvas, lines, unit) {
  const { pen, width, height } = fitCanvas(canvas);
  const top = findTop(lines, unit), low = Math.min(0, ...lines.flatMap((line) => line.values));
  if (hasBrush()) {
    const { first, end } = select();
    pen.fillStyle = colour("--brush");
    pen.fillRect((first / time.pieces) * width, 0, ((end - first) / time.pieces) * width, height);
  }
  lines.slice(0, 8).forEach((line, number) => {
    const steps = line.pieces.slice(1).map((piece, at) => piece - line.pieces[at]).sort((one, other) => one - other);
    const gap = 3 * Math.max(1, steps[steps.length >> 1] || 1);
    pen.strokeStyle = colour(["--b3", "--b0", "--b4", "--b5"][number % 4]);
    pen.setLineDash([[], [5, 2], [2, 2]][number % 3]);
    pen.lineWidth = 1.4;
    const xOfLine = (piece) => ((piece + (line.half ?? 0.5)) / time.pieces) * width, yOf = (value) => height - 2 - ((value - low) / (top - low)) * (height - 4);
    pen.beginPath();
    line.pieces.forEach((piece, at) => {
      if (at && piece - line.pieces[at - 1] <= gap) pen.lineTo(xOfLine(piece), yOf(line.values[at])); else pen.moveTo(xOfLine(piece), yOf(line.values[at]));
    });
    pen.stroke();
    if (!line.low) return;
    pen.globalAlpha = 0.35;  // from the lowest to the highest of each step
    pen.setLineDash([]);
    pen.beginPath();
    line.pieces.forEach((piece, at) => { pen.moveTo(xOfLine(piece), yOf(line.low[at])); pen.lineTo(xOfLine(piece), yOf(line.high[at])); });
    pen.stroke();
    pen.globalAlpha = 1;
  });
}

// ---- now -------------------------------------------------------------------------------------------

function openNow() {
  const act = (id, text, title, run) => make("button", { type: "button", id, text, title, "data-title": title, class: "steer", on: { click: () => run().catch((error) => openDialog("It was not done", make("p", { id: "steer-error", text: error.message }))) } });
  now.acts = [act("look", "Locals", "Local variables of every frame, and asyncio's tasks, as they are now", lookNow), act("snap", "Snapshot", "The profile since the last snapshot, as a file for pstats", snapNow), act("config", "Settings", "Change settings of this recording", showSettings)];
  Object.assign(now, makePanel("now", "Now", () => told.now || [], ...now.acts));
  watch(["now"], drawNow);
}
function drawNow() {
  const found = now.found;
  if (!found) return;
  for (const one of now.acts) {
    one.hidden = !about.live || Boolean(inside.answers);
    one.disabled = !steering.allowed;
    one.title = steering.allowed ? one.dataset.title : `${one.dataset.title}: the job is asked for it, so start \`sonde ui --allow-steer\``;
  }
  now.bar.querySelector("h2").textContent = about.live ? "Now" : "At the end";
  now.note.textContent = [about.live ? "the newest stack of every thread" : "the last stack of every thread", ...found.notes].join("; ");
  if (!found.groups.length) { now.body.replaceChildren(make("p", { class: "empty", text: about.live ? "No stacks were recorded here." : "No thread was at work any more." })); return; }
  const open = new Set([...now.body.querySelectorAll("details")].filter((one) => !one.open).map((one) => one.dataset.key));
  now.body.replaceChildren(...found.groups.map((group) => {
    const many = listJobs().length > 1;
    const label = group.threads.slice(0, 3).map((one) => (one.name || String(one.thread)) + (many ? ` (${one.rank === null ? one.pid : "rank " + one.rank})` : ""));
    const key = group.threads.map((one) => one.thread).join();
    const title = clean(label.join(", ") + (group.threads.length > 3 ? `, … ${group.threads.length - 3} more` : ""), 120);
    const words = [group.gil ? "holds the GIL" : "", group.wait ? `waits for ${group.wait}` : "", group.lasted >= 1e9 ? `${group.idle && group.has_run ? "at this line " : ""}for ${showTime(group.lasted)}` : ""].filter(Boolean).join(", ");
    const frames = group.frames.slice(0, 30);
    const details = make("details", { class: "stack", "data-key": key }, make("summary", {}, make("b", { text: title }), " ", make("span", { class: `badge ${group.idle ? "" : "run"}`, text: group.idle ? "idle" : "running" }), " ", make("span", { class: "dim", text: words })),
      make("ol", {}, ...frames.map((frame) => make("li", { class: frame.owner, title: clean(frame.source, 200) }, make("b", { class: frame.owner === "mine" ? "" : "dim", text: clean(frame.func, 80) }), make("span", { class: "dim", text: ` ${clean(frame.file, 80)}:${frame.line} ` }), frame.owner === "mine" && frame.source ? make("code", { class: "dim", text: clean(frame.source, 120) }) : null))));
    details.open = !open.has(key);
    return details;
  }));
}

// ---- asked of the job itself ------------------------------------------------------------------------

async function lookNow() {
  openDialog("Asking the job …");
  const { text } = await steer("look");
  openDialog("Stacks, local variables and tasks, now", make("pre", { id: "looked", text: text.split("\n").map((line) => clean(line, 400)).join("\n") }));
}
async function snapNow() {
  const { text } = await steer("snapshot");
  askProfiles().catch(() => {});
  openDialog("Snapshot", make("p", { text: "Written on the machine of the server; `python -m pstats FILE` opens it:" }), make("pre", { id: "snapped", text: clean(text.trim(), 2000) }));
}
async function showSettings() { drawSettings((await steer("settings")).settings); }
function drawSettings(found, problem) {
  const row = ({ key, value, doc }) => {
    const input = make("input", { type: "text", value, size: "12", "aria-label": key, "data-key": key });
    const set = async () => { try { drawSettings((await steer("configure", { key, value: input.value })).settings); } catch (error) { drawSettings(found, error.message); } };
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") set(); });
    return make("tr", {}, make("td", { text: key }), make("td", {}, input, " ", make("button", { type: "button", text: "Set", on: { click: set } })), make("td", { class: "prose", text: clean(doc, 600) }));
  };
  openDialog("Settings of this recording", make("p", { id: "settings-note", class: problem ? "grew" : "dim", text: problem || "A change holds at once, for every process shown, and until the job ends." }),
    make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...found.map(row)))));
}
