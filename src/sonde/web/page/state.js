// What is shown: the state of the page, which its address keeps, so that a link shows the same.

const KEPT = { target: "", from: null, to: null, part: null, thread: null, weight: "wall", idle: false, libraries: false,
  callers: false, threads: false, search: "", tab: "", ribbon: "", max: "", pinFrom: null, pinTo: null, pinPart: null, pinThread: null, viewFrom: null, viewTo: null, hold: false, theme: "" };
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
const tell = (names) => listeners.forEach((one) => { if (one.names.some((name) => names.includes(name))) one.draw(); });
const watch = (names, draw) => listeners.push({ names, draw });

const BRUSH = ["from", "to", "part", "thread"];
const hasBrush = () => state.from !== null && state.to !== null;
