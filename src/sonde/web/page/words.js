// Elements, numbers, times and names, as people read them. Nothing here makes HTML of a text.

const find = (id) => document.getElementById(id);

function make(tag, options, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "text") element.textContent = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((one) => one !== null && one !== undefined));
  return element;
}

// Text in which what stands between backticks is code.
const makeProse = (text) => text.split("`").map((part, at) => (at % 2 ? make("code", { text: part }) : part));

// Characters that change the direction of what follows, or cannot be seen, are written out.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
function clean(text, most = 300) {
  const seen = String(text).replace(UNSEEN, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
  return seen.length > most ? seen.slice(0, most) + "…" : seen;
}

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}
function showTime(ns) {
  const size = Math.abs(ns), two = (n) => String(n).padStart(2, "0");
  if (size >= 59.95e9) {  // as in the terminal: 1m16s, 3h07m
    const s = Math.round(size / 1e9), m = Math.floor(s / 60), sign = ns < 0 ? "−" : "";
    return sign + (m < 60 ? `${m}m${two(s % 60)}s` : `${Math.floor(m / 60)}h${two(m % 60)}m`);
  }
  if (size >= 999.5e6) return threeDigits(ns / 1e9) + " s";
  if (size >= 999.5e3) return threeDigits(ns / 1e6) + " ms";
  if (size >= 999.5) return threeDigits(ns / 1e3) + " µs";
  return ns.toFixed(0) + " ns";
}
function showClock(ns) {  // a moment, counted from the start
  const s = ns / 1e9, whole = Math.floor(s), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return (Math.round(s * 10) / 10).toFixed(s % 1 > 0.04 ? 1 : 0) + " s";
  const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
  return h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
}
function showPct(share) {
  const pct = 100 * share;
  return (pct >= 10 || pct === 0 ? pct.toFixed(0) : pct.toFixed(1)) + " %";
}
function showBytes(count) {
  let unit = 0;
  while (Math.abs(count) >= 1000 && unit < 5) { count /= 1024; unit += 1; }
  return threeDigits(count).replace(/\.?0+$/, (zeros) => (zeros.includes(".") ? "" : zeros)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}
function showValue(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "B") return showBytes(value);
  if (unit === "B/s") return showBytes(value) + "/s";
  if (unit === "%") return (value >= 10 ? value.toFixed(0) : value.toFixed(1)) + " %";
  return (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4))) + (unit ? ` ${unit}` : "");
}
const showCount = (count) => Number(count).toLocaleString("en");
const plural = (count, one, many) => `${showCount(count)} ${count === 1 ? one : many || one + "s"}`;
const nameProcess = (one) => (one.rank === null ? `${one.pid}` : `rank ${one.rank}`);

const listJobs = () => about.processes.filter((one) => !one.monitor);  // a monitor watches others

const fill = (element, ...children) => element.replaceChildren(...children.filter((one) => one !== null && one !== undefined));

// ---- tooltips, dialogs, panels --------------------------------------------------------------------

function tip(element, write) {
  const show = (event) => {
    const text = write(event);
    const box = find("tip");
    box.hidden = !text;
    if (!text) return;
    box.textContent = text;
    const x = event.clientX ?? element.getBoundingClientRect().left, y = event.clientY ?? element.getBoundingClientRect().bottom;
    box.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 6)) + "px";
    box.style.top = (y + 18 + box.offsetHeight > innerHeight ? Math.max(4, y - box.offsetHeight - 10) : y + 18) + "px";
  };
  const hide = () => { find("tip").hidden = true; };
  element.addEventListener("mousemove", show);
  element.addEventListener("mouseleave", hide);
}

function openDialog(title, ...children) {
  const dialog = find("dialog");
  fill(dialog, make("h2", { text: title }), ...children,
    make("div", { class: "buttons" }, make("button", { type: "button", text: "Close", on: { click: () => dialog.close() } })));
  const other = dialog.querySelector(".buttons");  // a dialog's own buttons stand beside ours
  if (other !== dialog.lastElementChild) { dialog.lastElementChild.append(...other.childNodes); other.remove(); }
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;  // the button that has the focus is the last
}

async function copyText(text, button) {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
  catch { openDialog("Copy this", make("pre", { text })); }
  setTimeout(() => { button.textContent = before; }, 1500);
}

function saveText(name, text, kind = "text/plain") {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
const quoteCsv = (value) => (value === null || value === undefined ? "" : /[",\n\r]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
const makeCsv = (rows) => rows.map((row) => row.map(quoteCsv).join(",")).join("\r\n") + "\r\n";

// The bar and the body of a panel. `sql` returns the statements that its numbers come from.
function makePanel(id, title, sql, ...tools) {
  const panel = find(id), body = make("div", { class: "body" });
  const note = make("span", { class: "note" });
  const bar = make("div", { class: "bar" }, typeof title === "string" ? make("h2", { text: title }) : title, note,
    make("span", { class: "grow" }), ...tools,
    make("button", { class: "icon how", type: "button", text: "SQL", title: "How was this computed?", on: { click: () => explain(title, sql()) } }),
    id === "ribbon" ? null : make("button", { class: "icon", type: "button", text: "⤢", title: "Large, and back (Esc)", "aria-label": "Large, and back", on: { click: () => setState({ max: state.max === id ? "" : id }) } }));
  panel.replaceChildren(bar, body);
  return { panel, body, note, bar };
}

function explain(title, statements) {
  const name = typeof title === "string" ? title : "These numbers";
  openDialog(`${name}: how was this computed?`,
    make("p", { text: "From these statements; each can be run in the SQL box, or with `sonde query`." }),
    ...statements.map((one) => make("pre", { class: "statement", text: one })));
}

function fitCanvas(canvas) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width, height };
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Fills that can be told apart without colours: plain, stripes either way, dots, a grid, lines.
function makeFill(pen, tone, kind) {
  if (!kind) return tone;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const ink = tile.getContext("2d");
  ink.fillStyle = tone;
  ink.fillRect(0, 0, 8, 8);
  ink.strokeStyle = ink.fillStyle = colour("--panel");
  ink.globalAlpha = 0.55;
  ink.lineWidth = 1.4;
  ink.beginPath();
  if (kind === 1) { ink.moveTo(-2, 10); ink.lineTo(10, -2); ink.moveTo(-2, 2); ink.lineTo(2, -2); ink.moveTo(6, 10); ink.lineTo(10, 6); }
  if (kind === 2) { ink.moveTo(-2, -2); ink.lineTo(10, 10); ink.moveTo(6, -2); ink.lineTo(10, 2); ink.moveTo(-2, 6); ink.lineTo(2, 10); }
  if (kind === 3) { ink.arc(2, 2, 1.1, 0, 7); ink.moveTo(6, 6); ink.arc(6, 6, 1.1, 0, 7); ink.fill(); }
  if (kind === 4) { ink.moveTo(0, 4); ink.lineTo(8, 4); }
  if (kind === 5) { ink.moveTo(4, 0); ink.lineTo(4, 8); }
  ink.stroke();
  return pen.createPattern(tile, "repeat");
}
