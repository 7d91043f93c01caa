// Processes (or the threads of one) over time: dark is busy, or slow against the others.

const heat = {};

function openHeat() {
  Object.assign(heat, makePanel("heat", "Processes", () => told[heat.isSteps ? "steps" : "stacks"] || []));
  watch([...BRUSH, "data", "steps", "theme"], drawHeat, true);
}

function drawHeat() {
  if (!time.pieces) return;
  const many = listJobs().length > 1;
  heat.isSteps = many && Boolean(ribbon.steps && ribbon.steps.piece.length);
  const key = `${cube.round} ${time.pieces} ${heat.isSteps} ${many} ${about.processes.length} ${names.threads.length}`;
  if (heat.key !== key && !heat.isSteps) heat.sums = many ? sumPieces((thread) => names.threads[thread].part, about.processes.length) : sumPieces((thread) => thread, names.threads.length);
  heat.key = key;
  const rows = heat.isSteps ? findStepRows() : many ? findProcessRows() : findThreadRows();
  heat.bar.querySelector("h2").textContent = many ? (about.processes.some((one) => one.rank !== null) ? "Ranks" : "Processes") : "Threads";
  heat.note.textContent = heat.isSteps ? "step time against the median; striped: no data" : "share of the time at work; striped: no data";
  if (!rows.length) { heat.body.replaceChildren(make("p", { class: "empty", text: "No stacks and no steps were recorded in this time." })); return; }
  // Of many rows all are drawn, as low as need be; those that stand out are higher, and named.
  const named = rows.filter((row) => row.stands || row.pressed).length, height = heat.body.clientHeight;
  const low = rows.length * 11 > height, cell = low ? Math.max(3, Math.floor((height - 13 * named) / (rows.length - named || 1))) : Math.min(20, Math.floor(height / rows.length));
  heat.body.classList.toggle("dense", low && cell < 11);
  heat.body.style.setProperty("--cell", cell + "px");
  heat.body.replaceChildren(...rows.slice(0, 128).map(drawHeatRow));
  if (rows.length > 128) heat.body.append(make("p", { class: "empty", text: `${rows.length - 128} more are not drawn` }));
  heat.body.querySelectorAll("canvas").forEach((canvas, at) => drawCells(canvas, rows[at]));
}

const mean = (values, seen) => {
  const { first, end } = select();
  let sum = 0, count = 0;
  for (let piece = first; piece < end; piece += 1) if (seen[piece]) { sum += values[piece]; count += 1; }
  return count ? sum / count : null;
};

function findThreadRows() {
  const sums = heat.sums;
  return names.threads.map((one, at) => {
    const values = sums[at].gil.map((ns, piece) => (ns + sums[at].work[piece]) / time.width);
    const share = mean(values, sums[at].seen);
    return { label: one.name, title: `thread ${one.thread}`, values, seen: sums[at].seen, top: 1, share, shown: share === null ? "no data" : showPct(share),
      pressed: state.thread === one.thread, pick: () => setState({ thread: state.thread === one.thread ? null : one.thread }) };
  }).sort((one, other) => (other.share ?? -1) - (one.share ?? -1));
}
function pickPart(one) { return { pressed: state.part === one.part, pick: () => setState({ part: state.part === one.part ? null : one.part, thread: null }) }; }
const byRank = (one, other) => (one.rank ?? Infinity) - (other.rank ?? Infinity) || one.part - other.part;
function findProcessRows() {
  const sums = heat.sums;
  const rows = listJobs().sort(byRank).map((one) => {
    const values = sums[one.part].gil.map((ns, piece) => (ns + sums[one.part].work[piece]) / time.width);
    const share = mean(values, sums[one.part].seen);
    return { label: `${nameProcess(one)} ${one.command}`, title: `${one.argv} on ${one.host}, pid ${one.pid}, ${one.state}`, values, seen: sums[one.part].seen, top: 1, shown: share === null ? "no data" : showPct(share), ...pickPart(one) };
  });
  const top = Math.max(1, ...rows.map((row) => Math.max(...row.values)));
  return rows.map((row) => ({ ...row, top }));
}
function findStepRows() {
  const steps = ribbon.steps, by = new Map(about.processes.map((one) => [`${one.host} ${one.pid}`, { dur: new Float64Array(time.pieces), seen: new Uint8Array(time.pieces) }]));
  steps.piece.forEach((piece, at) => {
    const row = by.get(`${steps.host[at]} ${steps.pid[at]}`);
    if (row) for (const one of coverPieces(piece, steps.dur[at])) { row.dur[one] = steps.dur[at]; row.seen[one] = 1; }
  });
  const middle = new Float64Array(time.pieces);
  for (let piece = 0; piece < time.pieces; piece += 1) {
    const known = [...by.values()].filter((row) => row.seen[piece]).map((row) => row.dur[piece]).sort((one, other) => one - other);
    middle[piece] = known.length ? known[(known.length - 1) >> 1] : 0;
  }
  return about.processes.filter((one) => by.get(`${one.host} ${one.pid}`).seen.some(Boolean) || one.rank !== null).sort(byRank).map((one) => {
    const row = by.get(`${one.host} ${one.pid}`), values = row.dur.map((ns, piece) => (middle[piece] ? ns / middle[piece] - 1 : 0));
    const slower = mean(values, row.seen), step = mean(row.dur, row.seen);
    return { label: `${nameProcess(one)} ${one.rank === null ? one.command : one.host}`, title: `${one.argv} on ${one.host}, pid ${one.pid}, ${one.state}`, values, seen: row.seen, top: 0.5, stands: slower === null || Math.abs(slower) >= 0.1,
      shown: slower === null ? "no data" : Math.abs(slower) < 0.005 ? showTime(step) : `${slower > 0 ? "+" : "−"}${showPct(Math.abs(slower))}`, ...pickPart(one) };
  });
}

function drawHeatRow(row) {
  return make("div", { class: row.stands || row.pressed ? "row stands" : "row", title: clean(row.title) }, make("button", { type: "button", text: clean(row.label, 60), "aria-pressed": String(row.pressed), on: { click: row.pick } }), make("canvas"), make("span", { class: "value", text: row.shown }));
}
function drawCells(canvas, row) {
  const { pen, width, height } = fitCanvas(canvas), step = width / time.pieces, tone = colour("--heat");
  const none = makeFill(pen, colour("--soft"), 1), margin = height < 11 ? 0 : 1;
  for (let piece = 0; piece < time.pieces; piece += 1) {
    const share = Math.max(0, Math.min(1, row.values[piece] / row.top));
    pen.fillStyle = row.seen[piece] ? `rgba(${tone}, ${0.06 + 0.94 * share})` : none;
    pen.fillRect(piece * step, margin, step + 0.6, height - 2 * margin);
  }
  if (hasBrush()) {
    const { first, end } = select();
    pen.fillStyle = colour("--accent");
    pen.fillRect(first * step, 0, 1, height);
    pen.fillRect(end * step - 1, 0, 1, height);
  }
}
