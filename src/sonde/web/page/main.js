// The beginning: read the address, ask for everything, follow a live job, and hear the keyboard.

let about = { processes: [], live: false };
const SEVERITY = { critical: "✖", warning: "▲", info: "ℹ", notice: "ℹ" };
const follow = { stop: null, busy: false, at: 0, slow: 0 };

async function begin() {
  readAddress();
  applyTheme();
  watch(["theme"], applyTheme);  // before whoever draws with its colours
  openRibbon();
  openFlame();
  openLists();
  openHeat();
  openMachine();
  openNow();
  await openInside();
  openSql();
  openSave();
  openTop();
  watch(["max"], applyMax);
  watch(["viewFrom", "viewTo"], () => reloadData().catch(fail));
  watch(["target"], () => load().catch(fail));
  watch(["target", "against"], () => loadBase().catch(fail));
  watch([...BRUSH, "search", "hold", "against"], drawChips);
  addEventListener("resize", () => tell(["data", "theme"]));
  addEventListener("hashchange", () => { readAddress(); load().catch(fail); });
  document.addEventListener("keydown", hearKey);
  await load();
}

function fail(error) {
  showProblem(error.isOffline ? `${error.message} Trying again …` : clean(error.message));
  clearTimeout(follow.retry);
  if (error.isOffline) follow.retry = setTimeout(() => load().catch(fail), 2000);
}

async function load() {
  if (follow.stop) follow.stop.abort();
  about = (await ask("about")).data;
  showProblem("");
  drawTop();
  applyMax();
  drawVerdict(null);
  const series = await loadData();  // what is drawn first; a machine that is busy does one thing after the other
  judge().catch((error) => drawVerdict(null, error.message));
  ask("now").then(({ data: found }) => { now.found = found; tell(["now"]); }, () => {});
  ask("cost").then(({ data: found }) => drawFoot(found), () => {});
  askProfiles().catch(() => {});
  if (!inside.answers) listRecordings();
  if (state.against) loadBase().catch(fail);
  await series();
  if (about.live && !inside.answers) followLive();
}

// A day of many ranks takes a minute to judge: its end says first what is wrong now. Beside a live job, that is all.
const LONG_NS = 2 * 3600e9, LATE_NS = 600e9, LATE_LIVE_NS = 3600e9;
async function judge() {
  if (about.until > LONG_NS && !inside.answers) {
    const late = about.live ? LATE_LIVE_NS : LATE_NS;
    const { data: found } = await ask("advice", { from: about.until - late, to: about.until });
    drawVerdict(found.advice, "", about.live ? "of the last hour" : "of the last ten minutes; all of it is being judged …");
    if (about.live) return;
  }
  const { data: found } = await ask("advice");
  drawVerdict(found.advice, found.problem);
}

// ---- data over time --------------------------------------------------------------------------------

async function loadData() {
  const from = state.viewFrom ?? 0, until = state.viewTo ?? about.until;
  // Without a width, the server picks one that makes no more rows than a brush can sum up at once.
  const found = await ask("stacks", { from, to: until, known: known() });
  const width = found.data.width, asked = { from, to: until, width };
  Object.assign(time, { from, until, width, pieces: Math.max(1, Math.ceil((until - from) / width)) });
  takeNames(found.data);
  takePieces(found.columns, 0);
  document.body.classList.toggle("no-stacks", Boolean(inside.answers && inside.answers.measured) && !cube.n);
  tell(["data"]);
  drawChips();
  document.body.dataset.ready = "stacks";
  return async () => {
    await loadSeries(asked);
    document.body.dataset.ready = "all";
  };
}
// The stacks of another recording, all of its time: to be compared with.
async function loadBase() {
  const against = state.against;
  if (!against || inside.answers) { base.set = null; tell(["base"]); return; }
  const set = makeSet(), found = await ask("stacks", { target: against, most: 24 });
  if (against !== state.against) return;
  takeNames(found.data, set);
  takePieces(found.columns, 0, set);
  base.set = set;
  setState({ pinFrom: null, pinTo: null });
  tell(["base"]);
}
async function reloadData() { await (await loadData())(); }
async function loadSeries(asked) {
  const [steps, marks, charts, events] = await Promise.all(["steps", "marks", "machine", "events"].map((name) => ask(name, asked)));
  ribbon.steps = steps.data.steps;
  ribbon.marks = marks.data;
  takeCharts(charts.data.charts);
  lists.events = events.data;
  lists.asked = "";
  tell(["steps", "marks", "machine", "events"]);
  askModules();
}
// ---- live ------------------------------------------------------------------------------------------

async function followLive() {
  follow.stop = new AbortController();
  const stop = follow.stop;
  try {
    await listen((event, said) => hear(event, said), stop.signal);
    if (!stop.signal.aborted && about.live) fail(makeOffline());
  } catch (error) {
    if (!stop.signal.aborted) fail(error instanceof TypeError ? makeOffline() : error);  // cut off, or refused
  }
}
function hear(event, said) {
  if (event === "gone") { about.live = false; showProblem(clean(said.error)); drawTop(); return; }
  if (said.states.length !== about.processes.length) { load().catch(fail); return; }  // the job has started others
  about.until = said.until;
  said.states.forEach((one, at) => { if (about.processes[at]) about.processes[at].state = one; });
  if (event === "end") {
    about.live = false;
    load().catch(fail);
    return;
  }
  drawTop();
  if (!state.hold && !follow.busy) refresh();
}
async function refresh() {
  follow.busy = true;
  const begin = performance.now();
  try {
    // The newest rows may still come: those of the last two seconds are asked for again.
    const first = Math.max(0, Math.floor((about.until - 3e9 - time.from) / time.width) - 1);
    const due = performance.now() - follow.slow > 5000;
    if ((about.until - time.from) / time.width > 1200 || cube.n > 5e5) {
      await reloadData();
    } else {
      const from = time.from + Math.min(first, Math.max(0, time.pieces - 1)) * time.width, at = Math.round((from - time.from) / time.width);
      const found = await ask("stacks", { from, to: about.until, width: time.width, known: known() });
      takeNames(found.data);
      takePieces(found.columns, found.data.all ? 0 : at);
      if (found.data.all && at) await reloadData();
      Object.assign(time, { until: about.until, pieces: Math.max(1, Math.ceil((about.until - time.from) / time.width)) });
      tell(["data"]);
    }
    const shown = await ask("now");
    now.found = shown.data;
    tell(["now"]);
    if (due) {
      follow.slow = performance.now();
      await loadSeries({ from: time.from, to: about.until, width: time.width });
      drawFoot((await ask("cost")).data);
      if (performance.now() - follow.at > 20000) { follow.at = performance.now(); await askProfiles(); await judge(); }
    }
    showProblem("");
  } catch (error) { fail(error); }
  // A machine that is slow to answer is asked less often.
  setTimeout(() => { follow.busy = false; }, Math.min(5000, 2 * (performance.now() - begin)));
}

// ---- the top, the verdict, the foot -----------------------------------------------------------------

function openTop() {
  find("follow").addEventListener("click", () => setState({ hold: !state.hold }));
  find("share").addEventListener("click", (event) => copyText(makeAddress(), event.currentTarget));
  find("theme").addEventListener("click", turnTheme);
  find("help").addEventListener("click", showHelp);
  find("pick").addEventListener("change", () => setState({ target: find("pick").value, part: null, thread: null, from: null, to: null, viewFrom: null, viewTo: null, pinFrom: null }));
  find("against").addEventListener("change", () => setState({ against: find("against").value, tab: "" }));
  watch(["hold"], drawTop);
}
function drawTop() {
  const first = about.processes[0], count = listJobs().length, running = about.processes.filter((one) => one.state === "running").length;
  const said = about.live ? (count > 1 ? `live, ${running} of ${count} processes` : "live") : count > 1 ? `${count} processes: ${tellStates()}` : first.ending && first.ending !== "has ended" ? clean(first.ending, 80) : first.state;
  const isBad = count === 1 && !about.live && first.state === "killed";
  find("status").replaceChildren(make("b", { class: about.live ? "live" : isBad ? "bad" : "", text: said }), ` · ${showTime(about.until)}`,
    make("span", { class: "far dim", text: ` · ${new Date(about.base_ms).toISOString().slice(0, 19).replace("T", " ")} UTC · ${clean(first.host, 40)} · Python ${clean(first.python, 12)}` }));
  find("status").title = about.processes.filter((one) => one.ending).slice(0, 12).map((one) => `${nameProcess(one)} ${clean(one.ending)}`).join("\n");
  const title = inside.answers && inside.answers.measured ? inside.answers.measured.data.title : first.command;
  document.title = `${clean(title, 120)} – sonde`;
  const button = find("follow");
  button.hidden = !about.live;
  button.textContent = state.hold ? "Follow" : "Hold";
  button.setAttribute("aria-pressed", String(state.hold));
  if (inside.answers) find("pick").replaceChildren(make("option", { text: clean(inside.answers.measured ? title : `${first.command} (${count > 1 ? count + " processes" : first.pid})`, 100) }));
}
function tellStates() {  // "3 ended, 1 killed"; "ended" alone if all did
  const counts = new Map();
  for (const { state: word } of listJobs()) counts.set(word, (counts.get(word) || 0) + 1);
  return counts.size === 1 ? [...counts.keys()][0] : [...counts].map(([word, n]) => `${n} ${word}`).join(", ");
}

const nameRecording = (one) => clean(`${one.command} (${one.rank === null ? one.pid : "rank " + one.rank}, ${one.state}, ${new Date(one.start).toISOString().slice(5, 16).replace("T", " ")})`, 90);
async function listRecordings() {
  const { data } = await ask("recordings").catch(() => ({ data: { recordings: [] } }));
  steering.allowed = Boolean(data.steer);
  tell(["now"]);
  const list = find("pick"), shown = state.target || data.target;
  const options = data.recordings.map((one) => make("option", { value: one.session, text: nameRecording(one) }));
  if (!data.recordings.some((one) => one.session === shown)) options.unshift(make("option", { value: shown, text: clean(about.processes.length > 1 ? `${about.processes[0].command} (${shown})` : `${about.processes[0].command} (${about.processes[0].pid})`, 80) }));
  list.replaceChildren(...options);
  list.value = shown;
  const others = data.recordings.filter((one) => one.session !== shown && !(about.processes.length === 1 && one.session === about.processes[0].session));
  find("against").hidden = !others.length;
  find("against").replaceChildren(make("option", { value: "" }), ...others.map((one) => make("option", { value: one.session, text: nameRecording(one) })));
  if (state.against && !others.some((one) => one.session === state.against)) find("against").append(make("option", { value: state.against, text: clean(state.against, 80) }));
  drawChips();
}

function drawVerdict(advice, problem, of = "") {
  const place = find("verdict");
  place.className = "";
  if (!advice) {
    fill(place, make("div", { class: "level" }, make("b", { text: "…" })), make("div", {}, make("h2", { text: problem ? `No verdict: ${clean(problem)}` : "Judging …" })), make("div"));
    return;
  }
  const [worst, ...others] = advice.findings, clear = advice.outcomes.filter((one) => one.state === "clear").length;
  const silent = advice.outcomes.filter((one) => one.state === "abstained" || one.state === "failed");
  const base = about.base_ms;
  ribbon.findings = advice.findings.map((one) => ({ ...one, from: (Date.parse(one.since) - base) * 1e6, to: (Date.parse(one.until) - base) * 1e6 }));
  tell(["advice"]);
  const button = make("button", { type: "button", text: others.length ? `${others.length} more` : "All rules", on: { click: () => showRules(advice) } });
  const less = [of || silent.length && `${silent.length} of ${advice.outcomes.length} rules lack data`, advice.thinned && "looked at in parts"].filter(Boolean).join("; ");
  const notJudged = less ? make("span", { class: "dim", title: advice.thinned || "", text: less }) : null;
  if (!worst) {
    const ends = advice.endings || [], looked = clear ? `Nothing${ends.length ? " else" : ""} is wrong: ${plural(clear, "rule")} looked` : "Nothing can be said: no rule has the data it needs";
    const sentence = ends.length ? ends.slice(0, 2).join("; ") : advice.summary || looked;
    place.className = ends.length ? "warning" : clear ? "clear" : "info";
    const places = advice.places.slice(0, 3).map((one) => make("li", {}, make("b", { text: `${one.share_pct.toFixed(0)} % ` }), `${one.state} in ${clean(one.func || one.call, 160)}${one.place ? ` (${clean(one.place, 80)})` : ""}`));
    const [mark, level] = ends.length ? ["▲", "ended"] : clear ? ["✔", "clear"] : ["ℹ", "unknown"];
    fill(place, make("div", { class: "level" }, make("b", { text: mark }), level),
      make("div", {}, make("h2", { text: clean(ends.length ? sentence : sentence[0].toUpperCase() + sentence.slice(1), 400) }),
        ends.length ? make("p", { class: "dim", text: looked }) : null,
        places.length ? make("ul", {}, make("li", { class: "dim", text: "where the time went:" }), ...places) : advice.pieces ? make("p", { class: "dim", text: `${plural(advice.pieces, "piece")} of ${showTime(advice.piece_ns)} ${advice.pieces === 1 ? "was" : "were"} judged` }) : null),
      make("div", { class: "more" }, button, notJudged));
    return;
  }
  place.className = worst.severity;
  const who = worst.who.length && listJobs().length > 1 ? ` (${worst.who.slice(0, 4).join(", ")})` : "";
  fill(place, make("div", { class: "level" }, make("b", { text: SEVERITY[worst.severity] || "▲" }), worst.severity),
    make("div", {}, make("h2", { text: clean(worst.title + who) }),
      make("p", { class: "evidence", title: clean([worst.line || "", ...worst.shown].join("\n"), 2000) }, make("span", { class: "dim", text: "Evidence: " }), worst.line ? make("code", { text: `${clean(worst.place, 160)}  ` }) : null,
        make("span", { class: "dim", text: `confidence ${worst.sureness}${worst.lost_pct === null ? "" : `, about ${worst.lost_pct.toFixed(0)} % of the time lost`}; ` }), clean(worst.shown.join(", "), 600)),
      make("p", { class: "next", title: clean(worst.todo, 2000) }, make("span", { class: "dim", text: "Next: " }), ...makeProse(clean(worst.todo, 500)))),
    make("div", { class: "more" }, button, notJudged));
}
const RULE_ORDER = ["found", "a little", "failed", "clear", "abstained"];
const sortRules = (outcomes) => [...outcomes].sort((one, other) => RULE_ORDER.indexOf(one.state) - RULE_ORDER.indexOf(other.state));
function showRules(advice) {
  openDialog("What was judged", ...advice.findings.map((one) => make("div", {}, make("p", {}, make("b", { text: `${SEVERITY[one.severity] || ""} ${one.severity}: ${clean(one.title)}` }), make("span", { class: "dim", text: ` [${one.rule}] ${clean(one.shown.join(", "), 900)}` })),
    make("p", { class: "dim", text: clean(one.why, 600) }), make("p", {}, ...makeProse(`Next: ${clean(one.todo, 600)}`)))),
    make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...sortRules(advice.outcomes).map((one) => make("tr", {}, make("td", { text: one.rule }), make("td", { text: one.state }), make("td", { class: "prose", text: clean(one.detail, 600) })))))));
}

function drawFoot(cost) {
  const lost = cost.loss.reduce((sum, one) => sum + Number(one.lost), 0), written = cost.loss.reduce((sum, one) => sum + Number(one.written), 0);
  const cpu = cost.sampling.reduce((most, one) => Math.max(most, one.cpu_pct || 0), 0), due = cost.sampling.reduce((sum, one) => sum + Number(one.due), 0), taken = cost.sampling.reduce((sum, one) => sum + Number(one.taken), 0);
  const torch = cost.torch_pct ? make("span", {}, "of PyTorch's steps ", make("b", { text: cost.torch_pct[1] === null ? `≥ ${cost.torch_pct[0].toFixed(1)} %` : `${cost.torch_pct[0].toFixed(1)}–${cost.torch_pct[1].toFixed(1)} %` })) : null;
  const isMonitor = !listJobs().length;  // whose process has no stacks to sample
  fill(find("foot"), isMonitor ? null : make("span", {}, "recording costs ", make("b", { id: "cost", text: cost.sampling.length ? `${cpu.toFixed(1)} % of one CPU` : "unknown" })), torch,
    isMonitor ? null : make("span", {}, "samples taken ", make("b", { text: due ? showPct(taken / due) : "unknown" })),
    make("span", {}, "rows written ", make("b", { text: showCount(written) }), ", lost ", make("b", { id: "lost", class: lost ? "bad" : "", text: showCount(lost) })),
    cost.sources.length ? make("span", { class: cost.sources.some((one) => one.state === "failed") ? "bad" : "", text: `not recorded: ${cost.sources.map((one) => one.source).join(", ")}`, title: cost.sources.map((one) => `${one.source}: ${one.detail || one.state}`).join("\n") }) : null,
    make("button", { type: "button", text: "how?", on: { click: () => explain("Cost and loss", told.cost) } }), make("span", { class: "grow" }),
    inside.answers ? make("span", { id: "thinned", text: clean(inside.answers.about.data.thinned || "", 200) }) : make("span", { text: steering.allowed ? "may steer the job (--allow-steer)" : "read-only; the job is not asked anything" }));
}

// ---- chips, keys, help ------------------------------------------------------------------------------

function drawChips() {
  const chip = (text, change) => make("span", { class: "chip" }, text, make("button", { type: "button", text: "✕", "aria-label": `Forget ${text}`, on: { click: () => setState(change) } }));
  const found = [];
  if (hasBrush()) found.push(chip(`${showClock(state.from)} – ${showClock(state.to)}`, { from: null, to: null }));
  if (state.part !== null && about.processes[state.part]) found.push(chip(nameProcess(about.processes[state.part]), { part: null }));
  if (state.thread !== null) found.push(chip(clean((names.threads.find((one) => one.thread === state.thread) || { name: "thread" }).name, 30), { thread: null }));
  if (state.against) found.push(chip("compared", { against: "" }));
  find("chips").replaceChildren(...found);
  if (find("against").value !== state.against) find("against").value = state.against;
  if (find("against").options.length) find("against").options[0].text = state.against ? "compare with nothing" : "compare with …";
}
function applyMax() {
  for (const one of document.querySelectorAll(".panel")) one.classList.toggle("max", one.id === state.max && one.id !== "");
  tell(["data", "now", "machine"]);
}
function applyTheme() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
function turnTheme() { setState({ theme: document.documentElement.dataset.theme === "dark" ? "light" : "dark" }); }
function hearKey(event) {
  if (event.key === "Escape") { find("tip").hidden = true; if (state.max) setState({ max: "" }); else if (!find("dialog").open) { flame.zoom = []; setState({ from: null, to: null, search: "" }); layFrames(); } return; }
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey || find("dialog").open) return;
  const act = { "/": () => flame.search.focus(), s: () => sql.text && sql.text.focus(), t: turnTheme, "?": showHelp, z: zoomIn, m: () => find("list-marks").click(), d: pin, l: () => setState({ libraries: !state.libraries }), i: () => setState({ callers: !state.callers }),
    c: () => find("share").click(), b: () => ribbon.canvas.focus(), f: () => flame.box.firstElementChild?.focus(), 0: () => find("whole").click(), " ": () => { if (about.live && event.target.tagName !== "BUTTON" && !event.target.closest(".frame")) setState({ hold: !state.hold }); else return true; return false; } }[event.key];
  if (act && act() !== true) event.preventDefault();
}
function showHelp() {
  const rows = [["drag on the time", "brush: every panel shows that time; a click without a drag takes one piece, a double click all"], ["b, then ← →", "move the brush; with Shift resize it"], ["z, 0", "zoom into the brushed time; all"], ["m", "list the marks: exceptions, locks, collections, markers"], ["d", "keep this time as A and compare it with another, B; “compare with …” takes another recording"], ["f, then arrows, Enter", "walk the flame graph; zoom"], ["/", "search functions and files"], ["l, i", "frames of libraries; callers"], ["s", "SQL; Ctrl+Enter runs it"], ["space", "follow a live job, or hold"], ["c", "copy a link to this view"], ["t", "dark or light"], ["Esc", "back to everything"]];
  openDialog("Keys and meaning", make("dl", {}, ...rows.flatMap(([key, text]) => [make("dt", {}, make("kbd", { text: key })), make("dd", { text })])),
    make("p", { text: "Flame graph: width is time, callers are on top, stripes are waiting. Orange and bold is your code, blue a library, green Python itself. In a diff, ▲ and red grew, ▼ and blue shrank." }),
    make("p", { text: "Marks: ▲ exception, ■ out of memory or the kernel's log, ✚ trigger, ⊗ lock that another thread holds for a second or more, ◆ marker of the program, ● garbage collection of 5 ms or more; lines under them are findings." }));
}

begin().catch(fail);
