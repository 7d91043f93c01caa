// Sums of sampled stacks over any stretch of time, made here: a brush need not ask anybody.

const IDLE = 1, GIL = 2, IO = 4, FOR_GIL = 8;
const time = { from: 0, until: 0, width: 1e9, pieces: 0 };  // what is in view, in pieces
const COLUMNS = { piece: Int32Array, thread: Int32Array, stack: Int32Array, state: Uint8Array, samples: Int32Array, wall: Float64Array, cpu: Float64Array };
const SHAPES = { stacks: 5, nodes: 2, places: 4, hot: 6, files: 3 };

// Stacks with their names: those of the page, and those of another recording that it is compared with.
function makeSet() {
  const cube = { n: 0, round: 0 };
  for (const [name, Kind] of Object.entries(COLUMNS)) cube[name] = new Kind(0);
  const names = { version: 0 };
  forgetNames(names);
  return { names, cube, weights: { key: "", of: new Float64Array(0) } };
}
function forgetNames(names) {
  for (const [name, width] of Object.entries(SHAPES)) names[name] = Array.from({ length: width }, () => []);
  Object.assign(names, { waits: [], threads: [], first: [], next: [] });
}
const here = makeSet(), { names, cube } = here;
const known = () => [names.version, names.stacks[0].length, names.nodes[0].length, names.places[0].length, names.hot[0].length, names.waits.length, names.files[0].length].join();

function takeNames(data, { names } = here) {
  if (data.all) forgetNames(names);
  names.version = data.version;
  names.threads = data.threads;
  const before = names.nodes[0].length;
  for (const name of Object.keys(SHAPES)) {
    data.names[name].forEach((column, at) => { for (const one of column) names[name][at].push(one); });
  }
  for (const one of data.names.waits) names.waits.push(one);
  // Children as linked lists; list 0 are the roots, list n + 1 the children of node n.
  for (let node = before; node < names.nodes[0].length; node += 1) {
    const list = names.nodes[0][node] + 1;
    names.next[node] = names.first[list] ?? -1;
    names.first[list] = node;
  }
}

// Replace all pieces from `first` on by those of an answer, whose pieces count from there.
function takePieces(columns, first, { cube } = here) {
  let keep = cube.n;
  while (keep > 0 && cube.piece[keep - 1] >= first) keep -= 1;
  const count = columns.piece.length, total = keep + count;
  for (const name of Object.keys(COLUMNS)) {
    if (cube[name].length < total) {
      const larger = new cube[name].constructor(Math.max(total, Math.ceil(1.5 * keep)));
      larger.set(cube[name].subarray(0, keep));
      cube[name] = larger;
    }
    cube[name].set(columns[name], keep);
  }
  if (first) for (let at = keep; at < total; at += 1) cube.piece[at] += first;
  cube.n = total;
  cube.round += 1;
}

// ---- selections ------------------------------------------------------------------------------------

// What is brushed, as pieces from `first` up to but without `end`, and a choice of threads.
const EVERYTHING = { first: 0, end: Infinity, threads: null };
function select(from = state.from, to = state.to, part = state.part, thread = state.thread) {
  const has = from !== null && to !== null;
  const first = has ? Math.max(0, Math.round((from - time.from) / time.width)) : 0;
  const end = has ? Math.min(time.pieces, Math.max(first + 1, Math.round((to - time.from) / time.width))) : time.pieces;
  return { first, end, threads: chooseThreads(part, thread) };
}
function chooseThreads(part, thread) {
  if (part === null && thread === null) return null;
  return Uint8Array.from(names.threads, (one) => +((part === null || one.part === part) && (thread === null || one.thread === thread)));
}
function bound(piece, cube) {  // the first row of a piece
  let low = 0, high = cube.n;
  while (low < high) { const middle = (low + high) >> 1; if (cube.piece[middle] < piece) low = middle + 1; else high = middle; }
  return low;
}
function isRest(at, { cube, names } = here) {
  if ((cube.state[at] & (IDLE | GIL)) !== IDLE) return false;
  return (names.stacks[4][cube.stack[at]] & (names.threads[cube.thread[at]].main ? 1 : 2)) !== 0;
}
// The time of each row that counts; made once for each kind of time, until there are more rows.
function findWeights(set) {
  const { cube, weights } = set, key = `${state.weight} ${state.idle} ${cube.round}`;
  if (weights.key === key) return weights.of;
  const of = new Float64Array(cube.n);
  for (let at = 0; at < cube.n; at += 1) {
    if (state.weight === "cpu") of[at] = cube.cpu[at];
    else if (state.weight === "gil") of[at] = cube.state[at] & GIL ? cube.wall[at] : 0;
    else of[at] = state.idle || !isRest(at, set) ? cube.wall[at] : 0;
  }
  Object.assign(weights, { key, of });
  return of;
}

// Visit the rows of a selection.
function eachRow(chosen, visit, set) {
  const { cube } = set, end = bound(chosen.end, cube), of = findWeights(set);
  for (let at = bound(chosen.first, cube); at < end; at += 1) if (!chosen.threads || chosen.threads[cube.thread[at]]) visit(at, of[at]);
}

// Times by node: in itself and with what it called, and the part of that in which it waited.
function sumNodes(chosen, set = here) {
  const { names, cube } = set, size = names.nodes[0].length, node = names.stacks[state.libraries ? 0 : 1], parent = names.nodes[0];
  const own = new Float64Array(size), total = new Float64Array(size), waits = new Float64Array(size);
  let whole = 0, rest = 0, samples = 0;
  eachRow(chosen, (at, ns) => {
    if (!ns) { if (state.weight === "wall") rest += cube.wall[at]; return; }
    own[node[cube.stack[at]]] += ns;
    samples += cube.samples[at];
    if (cube.state[at] & IDLE && state.weight === "wall") waits[node[cube.stack[at]]] += ns;
    whole += ns;
  }, set);
  total.set(own);
  for (let at = size - 1; at >= 0; at -= 1) {  // a node comes after its caller
    if (parent[at] >= 0) { total[parent[at]] += total[at]; waits[parent[at]] += waits[at]; }
  }
  return { own, total, waits, whole, rest, samples };
}

// The times of another recording by the nodes of this one: functions are the same if their names and
// files are, and those of their callers; lines move when a file is changed.
function alignNodes(sums, set) {
  const paths = new Map(), number = ({ names }) => {
    const found = new Int32Array(names.nodes[0].length);
    for (let node = 0; node < found.length; node += 1) {
      const place = names.nodes[1][node], up = names.nodes[0][node];
      const key = `${up < 0 ? -1 : found[up]}\n${names.places[0][place]}\n${names.files[1][names.places[1][place]]}`;
      if (!paths.has(key)) paths.set(key, paths.size);
      found[node] = paths.get(key);
    }
    return found;
  };
  const theirs = number(set), ours = number(here), byPath = new Float64Array(paths.size);
  theirs.forEach((path, node) => { byPath[path] += sums.total[node]; });
  return { total: Float64Array.from(ours, (path) => byPath[path]), whole: sums.whole };
}

// Times by line of the user's own code, working and waiting apart.
function sumLines(chosen, set = here) {
  const { names, cube } = set, size = names.hot[0].length * 2, sums = new Float64Array(size), waitOf = new Int32Array(size);
  const hot = names.stacks[2], byWall = state.weight === "wall";
  let whole = 0;
  eachRow(chosen, (at, ns) => {
    if (!ns) return;
    const stack = cube.stack[at], key = hot[stack] * 2 + (byWall && cube.state[at] & IDLE ? 1 : 0);
    sums[key] += ns;
    waitOf[key] = names.stacks[3][stack];
    whole += ns;
  }, set);
  const lines = [];
  sums.forEach((ns, key) => { if (ns) lines.push({ hot: key >> 1, waits: key & 1, ns, wait: waitOf[key], set }); });
  return { whole, lines: lines.sort((one, other) => other.ns - one.ns) };
}

// Threads by piece: how many held the GIL, worked without it, and waited; `row` says of whom.
// A row may stand for a second: what does not fit its piece belongs to those before.
const BAND_NAMES = ["gil", "work", "queue", "io", "wait", "rest"];
const bandOf = (at) => (cube.state[at] & GIL ? "gil" : !(cube.state[at] & IDLE) ? "work" : cube.state[at] & FOR_GIL ? "queue" : isRest(at) ? "rest" : cube.state[at] & IO ? "io" : "wait");
function sumPieces(rowOf, rows) {
  const empty = () => Object.fromEntries(BAND_NAMES.map((name) => [name, new Float64Array(time.pieces)]));
  const made = Array.from({ length: rows }, () => ({ ...empty(), seen: new Uint8Array(time.pieces) })), threads = new Map();
  for (let at = 0; at < cube.n; at += 1) {
    const thread = cube.thread[at];
    if (rowOf(thread) < 0 || cube.piece[at] < 0 || cube.piece[at] >= time.pieces) continue;
    if (!threads.has(thread)) threads.set(thread, empty());
    threads.get(thread)[bandOf(at)][cube.piece[at]] += cube.wall[at];
  }
  for (const [thread, ends] of threads) {
    const sums = made[rowOf(thread)], left = BAND_NAMES.map(() => 0);
    for (let piece = time.pieces - 1; piece >= 0; piece -= 1) {
      let room = time.width;
      BAND_NAMES.forEach((name, band) => {
        left[band] += ends[name][piece];
        const part = Math.min(left[band], room);
        if (part) { left[band] -= part; room -= part; sums[name][piece] += part; sums.seen[piece] = 1; }
      });
    }
  }
  return made;
}
