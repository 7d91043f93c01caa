"use strict";
// Search and zoom in the picture.
(() => {
  const LEFT = 10, WIDTH = 1180, CHAR = 6.65;
  const find = (id) => document.getElementById(id);
  const boxes = [...document.querySelectorAll(".f")].map((g) => {
    const [title, rect, text] = g.children;
    const [name, amount] = title.textContent.split("\n");
    return {
      g, rect, text, name, amount,
      label: name.replace(/ \([^(]*\)$/, ""),
      x: +rect.getAttribute("x"), y: +rect.getAttribute("y"),
      width: +rect.getAttribute("width"),
    };
  });
  let pattern = null;

  function place(box, x, width) {
    box.rect.setAttribute("x", x.toFixed(2));
    box.rect.setAttribute("width", width.toFixed(2));
    box.text.setAttribute("x", (x + 3).toFixed(2));
    const room = Math.floor((width - 6) / CHAR);
    const fits = box.label.length <= room ? box.label : box.label.slice(0, room - 1) + "…";
    box.text.textContent = room < 3 ? "" : fits;
  }

  // Boxes were rounded to a hundredth: what is inside may stick out by as much.
  const holds = (outer, inner) =>
    inner.x >= outer.x - 0.02 && inner.x + inner.width <= outer.x + outer.width + 0.02;

  function zoom(to) {
    const whole = to === boxes[0];
    for (const box of boxes) {
      const inside = box.y >= to.y && holds(to, box);
      const outer = box.y < to.y && holds(box, to);
      box.g.classList.toggle("hide", !inside && !outer);
      box.g.classList.toggle("outer", outer);
      if (outer) place(box, LEFT, WIDTH);
      else if (inside) {
        const scale = WIDTH / to.width;
        place(box, LEFT + (box.x - to.x) * scale, box.width * scale);
      }
    }
    find("reset").classList.toggle("hide", whole);
  }

  function search(word) {
    pattern = null;
    try {
      pattern = word ? new RegExp(word, "i") : null;
    } catch {
      pattern = new RegExp(word.replace(/[^\w\s]/g, "\\$&"), "i");
    }
    let matched = 0, end = -1;
    // Callers come first: what lies inside a match is counted with it.
    for (const box of boxes) {
      const hit = pattern !== null && pattern.test(box.name);
      box.g.classList.toggle("match", hit);
    }
    const hits = boxes.filter((box) => box.g.classList.contains("match"));
    hits.sort((a, b) => a.x - b.x || b.width - a.width);
    for (const box of hits) {
      if (box.x < end - 0.02) continue;
      matched += box.width;
      end = box.x + box.width;
    }
    const share = (100 * matched / WIDTH).toFixed(2);
    find("matched").textContent = pattern ? `matched ${share} %` : " ";
    find("search").textContent = pattern ? "clear search" : "search";
  }

  function ask() {
    if (pattern) search("");
    else search(prompt("Search for (a regular expression)") || "");
  }

  for (const box of boxes) {
    box.g.addEventListener("click", () => zoom(box));
    box.g.addEventListener("mouseover", () => {
      find("details").textContent = `${box.name}  ${box.amount}`;
    });
  }
  find("reset").addEventListener("click", () => zoom(boxes[0]));
  find("search").addEventListener("click", ask);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(boxes[0]);
    if (event.key === "/" || (event.key === "f" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault();
      ask();
    }
  });
})();
