// The modules of a mean step: as an icicle, whose widths are time, and as a tree with numbers.

async function askModules() {
  if (findTab() !== "modules" && lists.modules) return;
  if (!ribbon.steps || !ribbon.steps.piece.length) return;
  const { first, end } = select();
  const asked = { from: time.from + first * time.width, to: time.from + end * time.width };
  const key = JSON.stringify(asked);
  if (lists.asked === key) return;
  lists.asked = key;
  try { lists.modules = (await ask("modules", asked)).data; } catch (error) { lists.modules = { modules: [], why: error.message }; }
  if (lists.asked === key) tell(["modules"]);
}

function drawModules() {
  const found = lists.modules;
  if (!found) return make("p", { class: "empty", text: "Reading …" });
  if (!found.modules.length) return make("p", { class: "empty", text: found.why || "No module was recorded in this time." });
  const all = inside.answers && hasBrush() ? "; of all time: a file has them once" : "";
  const late = found.of ? `, in ${found.of}: brush to see another` : "";
  lists.note.textContent = `of a mean step of ${showTime(found.step_ns)}${late}${all}`;
  const table = drawModuleTree(found);
  return make("div", { class: "modules" }, drawIcicle(found, table), table);
}

function drawModuleTree(found) {
  const hasDevice = found.modules.some((one) => one.device_ns);
  const head = ["share", "forward", "backward", ...(hasDevice ? ["device"] : []), "memory"];
  return make("table", { "data-table": "modules" }, make("thead", {}, make("tr", {}, make("th", { class: "clip", text: "module" }), ...head.map((text) => make("th", { class: "num", text })))),
    make("tbody", {}, ...found.modules.map((one) => make("tr", { "data-ns": one.total_ns },
      make("td", { class: "clip", title: clean(`${one.module} (${one.type})`) }, make("span", { class: "tree", text: "  ".repeat(one.depth || 0) }), clean(one.label, 80), make("span", { class: "dim", text: ` ${clean(one.type, 40)}` })),
      make("td", { class: "num" }, make("span", { class: "share" }, make("i", { style: { width: Math.min(100, one.share_pct) + "%" } })), make("span", { class: "pct", text: showPct(one.share_pct / 100) })),
      make("td", { class: "num", text: showTime(one.forward_ns) }), make("td", { class: "num", text: showTime(one.backward_ns) }),
      hasDevice ? make("td", { class: "num", text: one.device_ns === null ? "–" : showTime(one.device_ns) }) : null,
      make("td", { class: "num", text: one.allocated_bytes === null ? "–" : showBytes(one.allocated_bytes) })))));
}

// Where each module lies, as shares of the step: below its caller, beside its siblings. Backward passes of
// several threads may add up to more than that of their caller; they then share its width.
function placeModules(found) {
  const shown = found.modules.map((one) => ({ one, kids: [] })), roots = [], path = [];
  for (const item of shown) {
    path.length = item.one.depth;
    (item.one.depth ? path[item.one.depth - 1].kids : roots).push(item);
    path.push(item);
  }
  const place = (items, x, room) => {
    const sum = items.reduce((whole, item) => whole + item.one.total_ns / found.step_ns, 0), scale = sum > room ? room / sum : 1;
    for (const item of items) {
      item.x = x;
      item.w = (scale * item.one.total_ns) / found.step_ns;
      place(item.kids, x, item.w);
      x += item.w;
    }
  };
  place(roots, 0, 1);
  return shown;
}

function drawIcicle(found, table) {
  const shown = placeModules(found), levels = 1 + Math.max(...shown.map((item) => item.one.depth));
  const boxes = shown.map((item, at) => {
    const { one } = item, label = `${clean(one.label, 60)} ${showPct(one.share_pct / 100)}`;
    const box = make("div", { class: "module", "data-module": clean(one.module), text: item.w > 0.03 ? label : "", "aria-label": label, on: { click: () => showRow(table, at) } },
      make("i", { style: { width: one.total_ns ? (100 * one.backward_ns) / one.total_ns + "%" : "0" } }));
    Object.assign(box.style, { left: 100 * item.x + "%", width: 100 * item.w + "%", top: 19 * one.depth + "px" });
    tip(box, () => describeModule(one));
    return box;
  });
  const area = make("div", { style: { height: 19 * levels + "px" } }, ...boxes);
  return make("div", { class: "icicle", role: "img", "aria-label": "Modules by their share of a step, as in the table: plain is forward, striped backward" }, area);
}
function describeModule(one) {
  const lines = [`${clean(one.module)} (${clean(one.type, 60)})`, `${showTime(one.total_ns)}, ${showPct(one.share_pct / 100)} of a step; ${showTime(one.self_ns)} in itself`, `forward ${showTime(one.forward_ns)}, backward ${showTime(one.backward_ns)} (striped)`];
  if (one.device_ns !== null) lines.push(`device ${showTime(one.device_ns)}`);
  if (one.allocated_bytes !== null) lines.push(`memory ${showBytes(one.allocated_bytes)}`);
  return lines.join("\n");
}
function showRow(table, at) {
  const row = table.tBodies[0].rows[at];
  for (const other of table.tBodies[0].rows) other.classList.toggle("chosen", other === row);
  row.scrollIntoView({ block: "nearest" });
}
