// SQL: a line that grows when it is used, completion from the catalogue, results as table and chart.

const sql = { words: [], chosen: 0 };
const EXAMPLES = [
  ["The functions that ran most", "SELECT f.func, f.file, SUM(s.wall_ns) / 1e9 AS seconds\nFROM python.stack_sample s JOIN python.frame f USING (stack)\nWHERE f.depth = 0 AND NOT s.idle GROUP BY ALL ORDER BY seconds DESC LIMIT 20"],
  ["CPU of the machine", "SELECT ts, busy_pct, iowait_pct FROM system.cpu ORDER BY ts"],
  ["Garbage collections", "SELECT generation, COUNT(*) AS pauses, MAX(dur_ns) / 1e6 AS longest_ms\nFROM python.gc_pause GROUP BY 1 ORDER BY 1"],
  ["Steps of training", "SELECT step, dur_ns / 1e6 AS ms, input_wait_ns / 1e6 AS wait_ms FROM python.torch_step ORDER BY step"],
  ["What was lost", "SELECT table_name, written, kept, dropped, overwritten FROM sonde.loss ORDER BY written DESC"],
  ["What is recorded", "SELECT source, state, detail FROM sonde.source ORDER BY source"],
];

function openSql() {
  const place = find("sql");
  if (inside.answers) {
    place.replaceChildren(make("span", { class: "dim" }, ...makeProse("This file holds sums, not rows: for SQL, open the recording with `sonde ui` or ask it with `sonde query`.")));
    return;
  }
  sql.text = make("textarea", { id: "sql-text", spellcheck: "false", rows: 1, placeholder: "SQL   (s)   SELECT … FROM python.stack_sample", "aria-label": "SQL" });
  sql.list = make("ul", { class: "complete", role: "listbox", hidden: true });
  const examples = make("select", { "aria-label": "Examples" }, make("option", { value: "", text: "Examples" }), ...EXAMPLES.map(([text], value) => make("option", { value, text })));
  examples.addEventListener("change", () => { if (examples.value) { sql.text.value = EXAMPLES[+examples.value][1]; examples.value = ""; openText(); sql.text.focus(); } });
  place.replaceChildren(make("div", { class: "wrap" }, sql.text, sql.list), examples, make("button", { type: "button", id: "sql-run", text: "Run", title: "Run it (Ctrl+Enter)", on: { click: runSql } }));
  sql.text.addEventListener("focus", openText);
  sql.text.addEventListener("input", complete);
  sql.text.addEventListener("keydown", keySql);
  sql.text.addEventListener("blur", () => setTimeout(() => { sql.list.hidden = true; }, 150));
}
function openText() {
  find("sql").classList.add("open");
  if (!sql.words.length) ask("tables").then(({ data }) => {
    sql.words = data.tables.flatMap((one) => [[one.table, one.doc], ...one.columns.map(([name, kind, doc]) => [name, `${kind}, ${one.table}: ${doc}`])]);
  }, () => {});
}
function complete() {
  const before = sql.text.value.slice(0, sql.text.selectionStart), word = /[\w.]+$/.exec(before)?.[0].toLowerCase() || "";
  const seen = new Set(), found = [];
  if (word.length > 1) for (const [name, doc] of sql.words) {
    if (name.includes(word) && name !== word && !seen.has(name)) { seen.add(name); found.push([name, doc]); }
  }
  found.sort((one, other) => other[0].startsWith(word) - one[0].startsWith(word) || one[0].length - other[0].length);
  sql.chosen = 0;
  sql.list.hidden = !found.length;
  sql.list.replaceChildren(...found.slice(0, 12).map(([name, doc], at) => make("li", { role: "option", "aria-selected": String(!at), on: { mousedown: () => take(name) } }, clean(name, 80), make("span", { text: clean(doc, 90) }))));
  sql.found = found;
}
function take(name) {
  const end = sql.text.selectionStart, before = sql.text.value.slice(0, end).replace(/[\w.]+$/, name);
  sql.text.value = before + sql.text.value.slice(end);
  sql.text.selectionStart = sql.text.selectionEnd = before.length;
  sql.list.hidden = true;
}
function keySql(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); runSql(); return; }
  if (event.key === "Escape") { sql.list.hidden ? closeSql() : (sql.list.hidden = true); event.stopPropagation(); return; }
  if (sql.list.hidden) return;
  if (event.key === "Tab" || event.key === "Enter") { event.preventDefault(); take(sql.found[sql.chosen][0]); }
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const size = sql.list.children.length;
  sql.list.children[sql.chosen].setAttribute("aria-selected", "false");
  sql.chosen = (sql.chosen + by + size) % size;
  sql.list.children[sql.chosen].setAttribute("aria-selected", "true");
}
function closeSql() { find("sql").classList.remove("open"); sql.text.blur(); }

async function runSql() {
  const text = sql.text.value.trim();
  if (!text) return;
  const button = find("sql-run");
  button.disabled = true;
  const begin = performance.now();
  try { showResult((await ask("query", { sql: text })).data, performance.now() - begin); }
  catch (error) { openDialog("This query cannot be run", make("pre", { id: "sql-error", text: error.message })); }
  button.disabled = false;
}
function showResult(data, took) {
  const rows = Array.from({ length: data.shown }, (_, row) => data.columns.map((column) => column[row]));
  const table = make("table", { id: "result" }, make("thead", {}, make("tr", {}, ...data.names.map((name, at) => make("th", { text: clean(name, 60), title: data.kinds[at] })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((value) => make("td", { class: typeof value === "number" ? "num" : "", text: value === null ? "–" : clean(typeof value === "object" ? JSON.stringify(value) : value, 400) }))))));
  const cut = data.rows > data.shown ? `; the first ${showCount(data.shown)} are shown` : "";
  const copy = make("button", { type: "button", text: "Copy as CSV", on: { click: () => copyText(makeCsv([data.names, ...rows]), copy) } });
  openDialog("Result", make("p", { class: "dim", text: `${plural(data.rows, "row")} in ${showTime(took * 1e6)}${cut}` }), make("div", { class: "scroll" }, table), drawResult(data), make("div", { class: "buttons" }, copy));
}
// The first column across, every column of numbers as a line; a few names and numbers as bars.
function drawResult(data) {
  const isNumber = (at) => data.columns[at].some((one) => typeof one === "number") && data.columns[at].every((one) => one === null || typeof one === "number");
  const numbers = data.names.map((_, at) => at).filter((at) => at && isNumber(at)).slice(0, 4);
  if (!numbers.length || data.shown < 3) return null;
  const lines = numbers.map((at) => ({ name: data.names[at], pieces: data.columns[at].map((_, row) => row), values: data.columns[at].map((one) => one ?? 0) }));
  const canvas = make("canvas", { role: "img", "aria-label": `Chart of ${lines.map((line) => line.name).join(", ")}` });
  requestAnimationFrame(() => {
    const before = { pieces: time.pieces, from: state.from };
    time.pieces = data.shown;
    state.from = null;
    drawCurves(canvas, lines, "");
    time.pieces = before.pieces;
    state.from = before.from;
  });
  const keys = lines.map((line, at) => make("span", { class: "dim" }, make("i", { class: `line${at % 3}` }), clean(line.name, 40)));
  return make("div", {}, make("div", { class: "keys" }, ...keys, make("span", { class: "dim", text: `≤ ${showValue(findTop(lines, ""), "")}; ${clean(data.names[0], 40)} from left to right` })), canvas);
}
