// Hand the brushed time over to another viewer: as a file, with a line that says how to open it.

const VIEWERS = [["perfetto", "Perfetto"], ["chrome", "Perfetto or chrome://tracing, as JSON"], ["speedscope", "speedscope"], ["pprof", "pprof"], ["flamegraph", "a page with a flame graph"]];

function openSave() {
  const list = find("save"), known = inside.answers ? [["speedscope", "speedscope"]] : VIEWERS;
  list.title = "Save the brushed time as a file for another viewer; nothing is sent anywhere";
  list.replaceChildren(make("option", { value: "", text: "Open in …" }), ...known.map(([value, text]) => make("option", { value, text })));
  list.addEventListener("change", () => { const form = list.value; list.value = ""; if (form) saveFor(form).catch((error) => openDialog("It cannot be saved", make("p", { text: error.message }))); });
}
async function saveFor(form) {
  if (inside.answers) return tellSaved("sonde.speedscope.json", "drop it on speedscope, https:" + "//www.speedscope.app", JSON.stringify(makeSpeedscope()), []);
  openDialog("Saving …", make("p", { text: "The file is being made of the recording." }));
  const { data, columns, sql } = await ask("export", { to_format: form, ...(hasBrush() ? { from: state.from, to: state.to } : {}) });
  return tellSaved(data.name, data.how, columns.body, sql);
}
function tellSaved(name, how, body, statements) {
  saveText(name, body, "application/octet-stream");
  openDialog(`Saved: ${name}`, make("p", { id: "how", text: `To open it: ${how}.` }), ...statements.map((text) => make("pre", { text })));
}
// Of a file that has sums only: each stack once, as heavy as it is long.
function makeSpeedscope() {
  const sums = sumNodes(select()), frames = names.places[0].map((name, at) => ({ name, file: names.files[0][names.places[1][at]], line: names.places[2][at] }));
  const samples = [], weights = [];
  sums.own.forEach((ns, node) => {
    if (!ns) return;
    const stack = [];
    for (let at = node; at >= 0; at = names.nodes[0][at]) stack.unshift(names.nodes[1][at]);
    samples.push(stack);
    weights.push(ns);
  });
  return { $schema: "https://www.speedscope.app/file-format-schema.json", shared: { frames }, exporter: "sonde",
    profiles: [{ type: "sampled", name: document.title, unit: "nanoseconds", startValue: 0, endValue: sums.whole, samples, weights }] };
}
