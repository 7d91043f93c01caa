// What is shown: the state of the page, which its address keeps, so that a link shows the same.

const KEPT = { target: "", from: null, to: null, part: null, thread: null, weight: "wall", idle: false, libraries: false,
  callers: false, threads: false, search: "", tab: "", ribbon: "", max: "", against: "", pinFrom: null, pinTo: null, pinPart: null, pinThread: null, viewFrom: null, viewTo: null, hold: false, theme: "" };
const state = { ...KEPT, token: "" };
const listeners = [];

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  for (const [name, usual] of Object.entries(KEPT)) {
    const text = words.get(name);
    if (text === null) state[name] = usual;
    else if (typeof usual === "boolean") state[name] = text === "1";
    else if (usual === null) state[name] = Number.isFinite(+text) ? +text : null;
    else state[name] = text.slice(0, 2000);
  }
  state.token = words.get("token") || state.token;
}

function makeAddress() {
  const words = new URLSearchParams();
  if (state.token) words.set("token", state.token);
  for (const [name, usual] of Object.entries(KEPT)) {
    if (state[name] !== usual) words.set(name, state[name] === true ? "1" : state[name]);
  }
  return location.href.split("#")[0] + "#" + words;
}

// Change some of it, and have whoever looks at that draw anew.
function setState(change) {
  const changed = Object.keys(change).filter((name) => state[name] !== change[name]);
  if (!changed.length) return;
  Object.assign(state, change);
  history.replaceState(null, "", makeAddress());
  tell(changed);
}
// What follows late is drawn once the browser has nothing else to do: a brush moves faster than all panels.
const late = new Set();
function tell(names) {
  for (const one of listeners) {
    if (!one.names.some((name) => names.includes(name))) continue;
    if (!one.isLate) one.draw();
    else if (!late.size) { late.add(one.draw); setTimeout(drawLate); }
    else late.add(one.draw);
  }
}
function drawLate() {
  const due = [...late];
  late.clear();
  due.forEach((draw) => draw());
}
const watch = (names, draw, isLate = false) => listeners.push({ names, draw, isLate });

const BRUSH = ["from", "to", "part", "thread"];
const hasBrush = () => state.from !== null && state.to !== null;
