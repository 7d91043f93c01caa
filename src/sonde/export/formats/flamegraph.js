"use strict";
// Data in, tree, boxes, picture: each step is a function of the one before and of `state`.
(() => {
  const ROW = 20, FONT = 12, THIN = 0.5, GAP = 1;
  const NAMES = { wall: "Wall", cpu: "CPU", gil: "GIL" };
  const find = (id) => document.getElementById(id);
  const view = find("view"), canvas = find("canvas"), pen = canvas.getContext("2d");
  const state = { weight: "wall", thread: "all", inverted: false, idle: false, pattern: null };
  let data, root, focus, selected, hovered, rows = [], letter = 7, waiting = false;

  // ---- data ------------------------------------------------------------------------------

  async function unpack() {
    const packed = Uint8Array.from(atob(find("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  const isChosen = (thread, index) =>
    state.thread === "all" || state.thread === `t${index}` || state.thread === `p${thread.process}`;

  // ---- the tree --------------------------------------------------------------------------

  const makeNode = (place, parent) =>
    ({ place, parent, own: 0, total: 0, kids: new Map(), x: 0, hit: false });

  function descend(node, place) {
    let kid = node.kids.get(place);
    if (!kid) node.kids.set(place, (kid = makeNode(place, node)));
    return kid;
  }

  // Every node of a tree, with the places from its root to itself.
  function* eachPath(tree) {
    for (let i = 0, path = []; i < tree.place.length; i++) {
      path.length -= tree.up[i];
      path.push(tree.place[i]);
      yield [path, tree[state.weight][i]];
    }
  }

  function grow() {
    const top = makeNode(-1, null);
    data.threads.forEach((thread, index) => {
      if (!isChosen(thread, index)) return;
      addTree(top, thread);
      if (state.idle) addTree(top, thread.rest);
    });
    finish(top);
    return top;
  }

  function addTree(top, tree) {
    const nodes = [top];
    for (const [path, own] of eachPath(tree)) {
      if (state.inverted) {
        addInverted(top, path, own);
        continue;
      }
      nodes.length = path.length;
      const node = descend(nodes[path.length - 1], path[path.length - 1]);
      node.own += own;
      nodes.push(node);
    }
  }

  function addInverted(top, path, own) {
    if (!own) return;
    let node = top;
    for (let i = path.length - 1; i >= 0; i--) node = descend(node, path[i]);
    node.own += own;
  }

  // Totals from the leaves up, then places from the root down; without recursion, stacks are deep.
  function finish(top) {
    const order = [top];
    for (let i = 0; i < order.length; i++) order.push(...order[i].kids.values());
    for (let i = order.length - 1; i >= 0; i--) {
      const node = order[i];
      node.total += node.own;
      if (node.parent) node.parent.total += node.total;
    }
    for (const node of order) {
      let x = node.x;
      node.kids = [...node.kids.values()].filter((kid) => kid.total)
        .sort((a, b) => b.total - a.total || a.place - b.place);
      for (const kid of node.kids) x = (kid.x = x) + kid.total;
    }
  }

  // ---- boxes and picture -----------------------------------------------------------------

  const nameOf = (node) => (node.place < 0 ? "all" : data.places.func[node.place]);

  function whereOf(node) {
    if (node.place < 0) return "";
    const file = data.places.files[data.places.file[node.place]];
    return file && `${file}:${data.places.line[node.place]}`;
  }

  // What is on screen, by row: the callers of the focus at full width, and all below it.
  function layOut(width) {
    rows = [];
    const scale = width / Math.max(1, focus.total);
    const callers = [];
    for (let node = focus.parent; node; node = node.parent) callers.unshift(node);
    for (const node of callers) rows.push([{ node, x: 0, width, outer: true }]);
    let level = [focus];
    while (level.length) {
      const wide = level.filter((node) => node.total * scale >= THIN);
      if (!wide.length) break;
      rows.push(wide.map((node) =>
        ({ node, x: (node.x - focus.x) * scale, width: node.total * scale, outer: false })));
      level = wide.flatMap((node) => node.kids);
    }
  }

  function hash(text) {
    let value = 2166136261;
    for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
    return value >>> 0;
  }

  // A hue says whose code a file is, and differs a little by file; as _asset.py picks it for pictures.
  function colour(box, dark) {
    const { node } = box;
    if (node.hit) return "#ffc933";
    if (node.place < 0) return dark ? "#3a404b" : "#d8dce3";
    const at = data.places.file[node.place], shade = hash(nameOf(node)) % 8;
    const hue = data.places.hues[at] + hash(data.places.files[at]) % data.spread;
    return dark ? `hsl(${hue} 34% ${30 + shade}%)` : `hsl(${hue} 58% ${74 + shade}%)`;
  }

  // The name, and where it is if there is room for all of that.
  function labelOf(node, width) {
    const name = nameOf(node), short = node.place < 0 ? "" : data.places.short[data.places.file[node.place]];
    const label = short ? `${name}  ${short}:${data.places.line[node.place]}` : name;
    return label.length <= Math.floor((width - 8) / letter) ? label : name;
  }

  function cut(text, width) {
    const most = Math.floor((width - 8) / letter);
    if (most < 2) return "";
    let shown = text.length <= most ? text : text.slice(0, most - 1) + "…";
    // Letters outside ASCII may be wider than the others.
    while (/[^ -~…]/.test(shown) && shown && pen.measureText(shown).width > width - 8)
      shown = shown.slice(0, -2) + (shown.length > 2 ? "…" : "");
    return shown;
  }

  function draw() {
    waiting = false;
    const width = Math.max(100, view.clientWidth - 20), height = view.clientHeight;
    const ratio = devicePixelRatio || 1, dark = document.documentElement.classList.contains("dark");
    layOut(width);
    find("room").style.height = `${Math.max(height, rows.length * ROW + 8)}px`;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = `${FONT}px ui-monospace, Menlo, Consolas, monospace`;
    pen.textBaseline = "middle";
    letter = pen.measureText("m").width;
    const first = Math.floor(view.scrollTop / ROW);
    const last = Math.min(rows.length, first + Math.ceil(height / ROW) + 1);
    for (let at = first; at < last; at++)
      for (const box of rows[at]) drawBox(box, at * ROW - view.scrollTop + 4, dark);
  }

  function drawBox(box, y, dark) {
    const wide = Math.max(THIN, box.width - (box.width > 3 ? GAP : 0));
    const faint = box.outer || (state.pattern !== null && !box.node.hit);
    pen.globalAlpha = faint ? 0.5 : 1;
    pen.fillStyle = colour(box, dark);
    pen.fillRect(box.x, y, wide, ROW - GAP);
    const text = cut(labelOf(box.node, box.width), box.width);
    if (text) {
      pen.fillStyle = dark && !box.node.hit ? "#f0f2f5" : "#15181d";
      pen.fillText(text, box.x + 4, y + ROW / 2);
    }
    pen.globalAlpha = 1;
    if (box.node === selected || box.node === hovered) {
      pen.strokeStyle = dark ? "#fff" : "#000";
      pen.lineWidth = box.node === selected ? 2 : 1;
      pen.strokeRect(box.x + 1, y + 1, Math.max(1, wide - 2), ROW - GAP - 2);
    }
  }

  function redraw() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  // ---- what is said ----------------------------------------------------------------------

  function showTime(us) {
    if (us >= 59.95e6) {  // as in the terminal: 1m16s, 3h07m
      const s = Math.round(us / 1e6), m = Math.floor(s / 60), two = (n) => String(n).padStart(2, "0");
      return m < 60 ? `${m}m${two(s % 60)}s` : `${Math.floor(m / 60)}h${two(m % 60)}m`;
    }
    if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
    return us >= 1e3 ? `${(us / 1e3).toFixed(1)} ms` : `${us} µs`;
  }

  function showBytes(bytes) {
    const at = bytes < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(bytes) / 10));
    return `${(bytes / 1024 ** at).toFixed(at ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][at]}`;
  }

  const showAmount = (amount) => (data.unit === "bytes" ? showBytes : showTime)(amount);

  const share = (part, whole) => `${(100 * part / Math.max(1, whole)).toFixed(2)} %`;

  function make(tag, text, kind) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  }

  function tell() {
    const node = hovered || selected || focus;
    const ofView = focus === root ? "" : `, ${share(node.total, focus.total)} of the view`;
    const amounts = `total ${showAmount(node.total)} (${share(node.total, root.total)}${ofView})` +
      ` · self ${showAmount(node.own)} (${share(node.own, root.total)})`;
    find("details").replaceChildren(
      make("b", nameOf(node)), make("span", whereOf(node), "where"), make("div", amounts, "amounts"));
  }

  function search(word) {
    const regex = /^\/(.+)\/$/.exec(word);
    const plain = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    try {
      state.pattern = word ? new RegExp(regex ? regex[1] : plain, "i") : null;
    } catch {
      state.pattern = new RegExp(plain, "i");
    }
    mark();
  }

  // Outermost matches only: what a match calls is part of it already.
  function mark() {
    const hits = data.places.func.map((func, at) => state.pattern !== null &&
      state.pattern.test(`${func} ${data.places.files[data.places.file[at]]}:${data.places.line[at]}`));
    let matched = 0;
    const pile = [[root, false]];
    while (pile.length) {
      const [node, inside] = pile.pop();
      node.hit = node.place >= 0 && hits[node.place];
      if (node.hit && !inside) matched += node.total;
      for (const kid of node.kids) pile.push([kid, inside || node.hit]);
    }
    find("matched").textContent = state.pattern ? `matched ${share(matched, root.total)}` : "";
    redraw();
  }

  // ---- what can be done ------------------------------------------------------------------

  function rebuild() {
    root = focus = grow();
    selected = hovered = null;
    for (const button of find("weights").children)
      button.setAttribute("aria-pressed", String(button.value === state.weight));
    find("invert").setAttribute("aria-pressed", String(state.inverted));
    find("idle").setAttribute("aria-pressed", String(state.idle));
    // A thread that never had work has nothing to show without its idle time.
    for (const option of find("thread").options)
      if (option.value[0] === "t") option.hidden = !state.idle && !data.threads[option.value.slice(1)].place.length;
    find("idle").disabled = state.weight !== "wall";
    mark();
    zoom(root);
  }

  function zoom(node) {
    focus = node;
    hovered = null;
    find("reset").disabled = focus === root;
    if (focus === root) view.scrollTop = 0;
    tell();
    redraw();
  }

  function select(node) {
    selected = node;
    hovered = null;
    layOut(Math.max(100, view.clientWidth - 20));
    const row = rows.findIndex((boxes) => boxes.some((box) => box.node === node));
    if (row >= 0 && (row + 1) * ROW > view.scrollTop + view.clientHeight)
      view.scrollTop = (row + 2) * ROW - view.clientHeight;
    if (row >= 0 && row * ROW < view.scrollTop) view.scrollTop = row * ROW;
    tell();
    redraw();
  }

  function move(key) {
    const node = selected || focus;
    const siblings = node.parent ? node.parent.kids : [node];
    const at = siblings.indexOf(node);
    const step = {
      ArrowUp: node.parent, ArrowDown: node.kids[0],
      ArrowLeft: siblings[at - 1], ArrowRight: siblings[at + 1],
    }[key];
    if (!step) return;
    // Beside or above what is zoomed into: show it there.
    let inside = step;
    while (inside && inside !== focus) inside = inside.parent;
    if (!inside) zoom(key === "ArrowUp" ? step : step.parent);
    select(step);
  }

  function hit(event) {
    const box = canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top + view.scrollTop - 4) / ROW)];
    const x = event.clientX - box.left;
    const found = row && row.find((one) => x >= one.x && x < one.x + one.width);
    return found ? found.node : null;
  }

  function hover(node) {
    if (node === hovered) return;
    hovered = node;
    canvas.style.cursor = node ? "pointer" : "";
    tell();
    redraw();
  }

  function setWeight(weight) {
    if (!data.weights.includes(weight)) return;
    state.weight = weight;
    rebuild();
  }

  function invert() {
    state.inverted = !state.inverted;
    rebuild();
  }

  function setIdle() {
    if (!data.rest || state.weight !== "wall") return;
    state.idle = !state.idle;
    rebuild();
  }

  function setTheme() {
    document.documentElement.classList.toggle("dark");
    redraw();
  }

  const out = () => (focus.parent ? zoom(focus.parent) : search((find("search").value = "")));
  const KEYS = {
    "/": () => find("search").focus(), 0: () => zoom(root), i: invert, d: setIdle,
    t: setTheme, "?": () => find("help").showModal(), w: () => setWeight("wall"),
    c: () => setWeight("cpu"), g: () => setWeight("gil"), Escape: out, Backspace: out,
    Enter: () => zoom(selected || focus),
  };

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
    if (/^(INPUT|SELECT)$/.test(event.target.tagName)) {
      if (/^(Escape|Enter)$/.test(event.key)) event.target.blur();
      return;
    }
    const act = event.key.startsWith("Arrow") ? () => move(event.key) : KEYS[event.key];
    if (!act || (event.target.tagName === "BUTTON" && event.key === "Enter")) return;
    event.preventDefault();
    act();
  }

  // ---- the page --------------------------------------------------------------------------

  function fillTools() {
    for (const weight of data.weights) {
      const name = data.unit === "bytes" ? data.names[weight] : NAMES[weight];
      const what = data.unit === "bytes" ? "bytes" : "time";
      const button = make("button", name);
      Object.assign(button, { type: "button", value: weight, title: `${name} ${what} (${weight[0]})` });
      button.onclick = () => setWeight(weight);
      find("weights").append(button);
    }
    const processes = [...new Set(data.threads.map((thread) => thread.process))];
    const add = (parent, value, text) => parent.append(Object.assign(make("option", text), { value }));
    add(find("thread"), "all", `all ${data.threads.length}`);
    for (const process of processes) {
      let parent = find("thread");
      if (processes.length > 1) {
        parent = Object.assign(document.createElement("optgroup"), { label: process });
        find("thread").append(parent);
        add(parent, `p${process}`, `all of ${process}`);
      }
      data.threads.forEach((thread, index) => {
        if (thread.process === process) add(parent, `t${index}`, thread.name);
      });
    }
    find("about").textContent = `${data.samples.toLocaleString("en")} ` +
      `${data.unit === "bytes" ? "blocks alive after" : "samples in"} ` +
      `${showTime(data.seconds * 1e6)} from ${data.start.replace("T", " ").replace("+00:00", " UTC")}` +
      ` · ${data.legend}`;
    find("idle").hidden = !data.rest;
    find("idle").textContent = `Idle ${showTime(data.rest)}`;
  }

  function listen() {
    find("thread").onchange = (event) => {
      state.thread = event.target.value;
      rebuild();
    };
    find("invert").onclick = invert;
    find("idle").onclick = setIdle;
    find("reset").onclick = () => zoom(root);
    find("theme").onclick = setTheme;
    find("keys").onclick = () => find("help").showModal();
    find("search").oninput = (event) => search(event.target.value);
    canvas.onmousemove = (event) => hover(hit(event));
    canvas.onmouseleave = () => hover(null);
    canvas.onclick = (event) => {
      const node = hit(event);
      selected = null;
      if (node) zoom(node);
    };
    view.onscroll = redraw;
    addEventListener("keydown", press);
    new ResizeObserver(redraw).observe(view);
  }

  async function main() {
    document.documentElement.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches);
    data = await unpack();
    state.weight = data.weights.includes(data.weight) ? data.weight : data.weights[0];
    fillTools();
    listen();
    rebuild();
    draw();
    document.body.dataset.ready = "yes";
  }

  main().catch((error) => {
    find("details").textContent = `This page cannot be drawn: ${error.message}`;
  });
})();
