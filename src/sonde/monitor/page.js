"use strict";
// Data in, charts, pictures of them: all charts share one stretch of time and one cursor.
(() => {
  const HEIGHT = 170, LEFT = 48, RIGHT = 10, TOP = 8, BOTTOM = 22, CLICK = 4;
  const LIGHT = ["#2f6fde", "#e8710a", "#1b9e77", "#d0328c", "#7c5cd6", "#a6761d", "#0aa5c2", "#c43c3c"];
  const DARK = ["#6ea2ff", "#ff9d4d", "#4fd1a5", "#f272b8", "#a58bff", "#d3a549", "#4fd0e7", "#ff7b72"];
  const find = (id) => document.getElementById(id);
  const root = document.documentElement;
  const state = { from: 0, to: 1, cursor: null, drag: null };
  let data, charts = [], waiting = false;

  async function unpack() {
    const packed = Uint8Array.from(atob(find("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function make(tag, text, kind) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  }

  // ---- numbers ---------------------------------------------------------------------------

  function showTime(seconds) {
    if (seconds < 60) return `${+seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    const rest = `${minutes % 60}:${String(whole % 60).padStart(2, "0")}`;
    return minutes < 60 ? `${rest} min` : `${Math.floor(minutes / 60)}:${rest.padStart(5, "0")} h`;
  }

  const showValue = (value) =>
    value === null || value === undefined ? "–" : String(+value.toPrecision(value >= 1000 ? 4 : 3));

  // 1, 2 or 5 times a power of ten: so many steps or fewer.
  function pickStep(span, most) {
    const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((times) => times * power >= rough);
  }

  function pickTimeStep(span, most) {
    const steps = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    if (span / most < 30) return pickStep(span, most);
    return steps.find((step) => span / step <= most) || pickStep(span, most);
  }

  // The first place at or behind a time.
  function search(seconds) {
    let low = 0, high = data.seconds.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (data.seconds[middle] < seconds) low = middle + 1; else high = middle;
    }
    return low;
  }

  function nearest(seconds) {
    const at = search(seconds), times = data.seconds;
    if (at === times.length) return at - 1;
    return at > 0 && seconds - times[at - 1] < times[at] - seconds ? at - 1 : at;
  }

  // ---- charts ----------------------------------------------------------------------------

  function makeChart(spec) {
    const box = make("div", undefined, "chart"), top = make("div", undefined, "top");
    const title = make("h3", spec.title), legend = make("div", undefined, "legend");
    title.append(" ", make("small", spec.unit));
    const canvas = make("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${spec.title} over time, in ${spec.unit}`);
    top.append(title, legend);
    box.append(top, canvas);
    const chart = { ...spec, canvas, pen: canvas.getContext("2d"), outputs: [], focus: null, shown: spec.lines.map(() => true) };
    spec.lines.forEach((line, at) => legend.append(makeKey(chart, line, at)));
    listenTo(chart);
    find("charts").append(box);
    return chart;
  }

  function makeKey(chart, line, at) {
    const key = make("button"), swatch = make("i"), output = make("output");
    Object.assign(key, { type: "button", title: `Show or hide ${line.name}` });
    key.setAttribute("aria-pressed", "true");
    swatch.style.background = LIGHT[at % LIGHT.length];
    key.append(swatch, line.name, output);
    key.onclick = () => {
      chart.shown[at] = !chart.shown[at];
      key.setAttribute("aria-pressed", String(chart.shown[at]));
      redraw();
    };
    key.onpointerenter = () => { chart.focus = at; redraw(); };
    key.onpointerleave = () => { chart.focus = null; redraw(); };
    chart.outputs.push({ output, swatch });
    return key;
  }

  // The places of what is on screen, with a neighbour on each side so that lines reach the edges.
  const range = () => [Math.max(0, search(state.from) - 1), Math.min(data.seconds.length, search(state.to) + 2)];

  function findTop(chart) {
    if (chart.top) return chart.top * 1.03;
    const [first, last] = range();
    let top = 0;
    chart.lines.forEach((line, at) => {
      const values = line.high || line.mean;
      if (chart.shown[at]) for (let i = first; i < last; i++) if (values[i] > top) top = values[i];
    });
    return (top || 1) * 1.08;
  }

  function draw() {
    waiting = false;
    const dark = root.classList.contains("dark"), style = getComputedStyle(root);
    const ink = { line: style.getPropertyValue("--line"), soft: style.getPropertyValue("--soft"), accent: style.getPropertyValue("--accent") };
    for (const chart of charts) drawChart(chart, dark ? DARK : LIGHT, ink);
  }

  function drawChart(chart, colours, ink) {
    const { canvas, pen } = chart, ratio = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    canvas.style.height = `${HEIGHT}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    const top = findTop(chart), span = state.to - state.from;
    chart.x = (seconds) => LEFT + (seconds - state.from) / span * (width - LEFT - RIGHT);
    chart.y = (value) => HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
    chart.time = (x) => state.from + (x - LEFT) / (width - LEFT - RIGHT) * span;
    drawAxes(chart, top, width, ink);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT - RIGHT, HEIGHT);
    pen.clip();
    chart.lines.forEach((line, at) => {
      // The one whose key is pointed at is to be found among many.
      pen.globalAlpha = chart.focus === null || chart.focus === at ? 1 : 0.15;
      if (chart.shown[at]) drawLine(chart, line, colours[at % colours.length], pen.globalAlpha);
    });
    pen.globalAlpha = 1;
    pen.restore();
    drawCursor(chart, colours, ink);
  }

  function drawAxes(chart, top, width, ink) {
    const { pen } = chart, step = pickStep(top, 4);
    pen.strokeStyle = ink.line;
    pen.fillStyle = ink.soft;
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.beginPath();
    for (let value = 0; value <= top; value += step) {
      const y = Math.round(chart.y(value)) + 0.5;
      pen.moveTo(LEFT, y);
      pen.lineTo(width - RIGHT, y);
      pen.fillText(showValue(value), LEFT - 6, y);
    }
    pen.stroke();
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    const tick = pickTimeStep(state.to - state.from, Math.max(2, Math.floor(width / 110)));
    for (let at = Math.ceil(state.from / tick) * tick; at <= state.to; at += tick) {
      const x = Math.min(Math.max(chart.x(at), LEFT + 8), width - RIGHT - 18);
      pen.fillText(showTime(at), x, HEIGHT - 6);
    }
  }

  // Stretches without a hole: a value that is missing, or a time that nobody looked at.
  function* eachStretch(values) {
    const [first, last] = range();
    let begin = -1;
    for (let i = first; i < last; i++) {
      const hole = i > first && data.seconds[i] - data.seconds[i - 1] > data.gap;
      if (begin >= 0 && (hole || values[i] === null)) {
        yield [begin, i];
        begin = -1;
      }
      if (begin < 0 && values[i] !== null) begin = i;
    }
    if (begin >= 0) yield [begin, last];
  }

  function drawLine(chart, line, colour, alpha) {
    const { pen, x, y } = chart, times = data.seconds;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.4;
    pen.lineJoin = "round";
    for (const [begin, end] of eachStretch(line.mean)) {
      if (line.low) {
        pen.globalAlpha = 0.2 * alpha;
        pen.beginPath();
        for (let i = begin; i < end; i++) pen.lineTo(x(times[i]), y(line.high[i]));
        for (let i = end - 1; i >= begin; i--) pen.lineTo(x(times[i]), y(line.low[i]));
        pen.fill();
        pen.globalAlpha = alpha;
      }
      pen.beginPath();
      for (let i = begin; i < end; i++) pen.lineTo(x(times[i]), y(line.mean[i]));
      pen.stroke();
      if (end - begin === 1) pen.fillRect(x(times[begin]) - 1.5, y(line.mean[begin]) - 1.5, 3, 3);
    }
  }

  function drawCursor(chart, colours, ink) {
    const { pen } = chart;
    if (state.drag) {
      const [from, to] = [state.drag.from, state.drag.to].map(chart.x);
      pen.globalAlpha = 0.14;
      pen.fillStyle = ink.accent;
      pen.fillRect(Math.min(from, to), TOP, Math.abs(to - from), HEIGHT - TOP - BOTTOM);
      pen.globalAlpha = 1;
    }
    const at = state.cursor;
    chart.lines.forEach((line, index) => {
      const { output, swatch } = chart.outputs[index];
      swatch.style.background = colours[index % colours.length];
      output.textContent = at === null ? "" : showValue(line.mean[at]);
      if (at !== null && line.low && line.low[at] !== line.high[at])
        output.textContent += ` (${showValue(line.low[at])} … ${showValue(line.high[at])})`;
    });
    if (at === null) return;
    const x = Math.round(chart.x(data.seconds[at])) + 0.5;
    pen.strokeStyle = ink.soft;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, HEIGHT - BOTTOM);
    pen.stroke();
    pen.setLineDash([]);
    chart.lines.forEach((line, index) => {
      if (!chart.shown[index] || line.mean[at] === null) return;
      pen.fillStyle = colours[index % colours.length];
      pen.beginPath();
      pen.arc(x, chart.y(line.mean[at]), 3, 0, 7);
      pen.fill();
    });
  }

  function redraw() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  // ---- what can be done ------------------------------------------------------------------

  const clamp = (seconds) => Math.min(Math.max(seconds, 0), data.end);

  function zoom(from, to) {
    state.from = from;
    state.to = to;
    find("reset").disabled = from === 0 && to === data.end;
    redraw();
  }

  function point(at) {
    state.cursor = at;
    find("hint").textContent = at === null ? "drag to zoom, double-click for all" : showTime(data.seconds[at]);
    redraw();
  }

  function listenTo(chart) {
    const { canvas } = chart;
    const timeOf = (event) => clamp(chart.time(event.clientX - canvas.getBoundingClientRect().left));
    canvas.onpointerdown = (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      state.drag = { from: timeOf(event), to: timeOf(event), x: event.clientX };
    };
    canvas.onpointermove = (event) => {
      if (state.drag) state.drag.to = timeOf(event);
      point(nearest(timeOf(event)));
    };
    canvas.onpointerup = (event) => {
      const drag = state.drag;
      state.drag = null;
      if (drag && Math.abs(event.clientX - drag.x) > CLICK)
        zoom(Math.min(drag.from, drag.to), Math.max(drag.from, drag.to));
      redraw();
    };
    canvas.onpointercancel = () => { state.drag = null; redraw(); };
    canvas.onpointerleave = () => { if (!state.drag) point(null); };
    canvas.ondblclick = () => zoom(0, data.end);
  }

  function setTheme() {
    root.classList.toggle("dark");
    redraw();
  }

  const KEYS = { t: setTheme, 0: () => zoom(0, data.end), Escape: () => zoom(0, data.end) };

  // ---- the page --------------------------------------------------------------------------

  function makeFinding(finding) {
    const box = make("article", undefined, `finding ${finding.severity}`), title = make("h3");
    const who = finding.who.length ? ` (${finding.who.join(", ")})` : "";
    title.append(make("span", finding.severity, "badge"), finding.title + who);
    const chips = make("ul", undefined, "chips");
    finding.evidence.forEach((text) => chips.append(make("li", text)));
    const list = make("dl");
    const add = (word, text, tag) => {
      if (!text) return;
      const place = make("dd");
      place.append(tag ? make(tag, text) : text);
      list.append(make("dt", word), place);
    };
    add("code", finding.line, "code");
    add("why", finding.why);
    add("next", finding.todo);
    box.append(title, chips, list);
    return box;
  }

  function makeTable([title, heads, rows]) {
    const box = make("div", undefined, "scroll"), table = make("table");
    const line = (cells, tag) => {
      const row = make("tr");
      cells.forEach((text) => row.append(make(tag, text)));
      return row;
    };
    table.setAttribute("aria-label", title);
    table.append(line(heads, "th"), ...rows.map((row) => line(row, "td")));
    box.append(table);
    return box;
  }

  function fillPage() {
    const list = (id, texts) => find(id).append(...texts.map((text) => make("li", text)));
    list("about", data.about);
    list("patterns", data.patterns);
    list("missing", data.missing.length ? data.missing : ["all of it was measured"]);
    if (data.findings.length) find("findings").append(...data.findings.map(makeFinding));
    else find("findings").append(make("p", data.summary, "fine"));
    find("tables").append(...data.tables.map(makeTable));
    charts = data.charts.map(makeChart);
    if (!charts.length) find("charts").append(make("p", "nothing was measured", "fine"));
  }

  async function main() {
    root.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
    data = await unpack();
    data.end = data.seconds.length ? Math.max(data.seconds[data.seconds.length - 1], 0.001) : 1;
    state.to = data.end;
    fillPage();
    find("theme").onclick = setTheme;
    find("reset").onclick = () => zoom(0, data.end);
    addEventListener("keydown", (event) => {
      if (KEYS[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) KEYS[event.key]();
    });
    new ResizeObserver(redraw).observe(find("charts"));
    draw();
    document.body.dataset.ready = "yes";
  }

  main().catch((error) => {
    find("findings").textContent = `This page cannot be drawn: ${error.message}`;
  });
})();
