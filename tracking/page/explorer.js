
// KL over cost on two log axes. Point at it, or tab to a mark, and the nearest record is told in words.
const explorer = document.getElementById("explorer");

function explore() {
  const svg = "http://www.w3.org/2000/svg";
  const data = JSON.parse(explorer.dataset.front);
  const colours = JSON.parse(explorer.dataset.colours);
  const variant = document.getElementById("explore-variant");
  const told = document.getElementById("explore-value");
  const methods = document.getElementById("explore-methods");
  const boxes = [...methods.querySelectorAll("input")];
  const box = { width: 860, height: 420, left: 64, right: 14, top: 12, bottom: 46 };
  let records = [];

  for (const input of boxes) {
    const swatch = document.createElementNS(svg, "svg");
    swatch.setAttribute("viewBox", "0 0 10 10");
    swatch.append(drawn("circle", { cx: 5, cy: 5, r: 4, fill: colours[input.value] }));
    input.after(swatch);
  }

  function drawn(name, attributes, text) {
    const element = document.createElementNS(svg, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function decades(values) {
    const logs = values.map(Math.log10);
    return [Math.min(...logs) - 0.08, Math.max(...logs) + 0.08];
  }

  function draw() {
    const measure = document.querySelector("[name=measure]:checked").value;
    const column = measure === "kl_f" ? 1 : 3;
    const { methods: curves, levels } = data[variant.value];
    const chosen = boxes.filter((input) => input.checked && curves[input.value]).map((input) => input.value);
    for (const input of boxes) input.parentElement.hidden = !curves[input.value];
    const lines = chosen.map((method) => ({
      method,
      rows: curves[method].filter((row) => row[0] > 0 && row[column] > 0),
    })).filter(({ rows }) => rows.length);
    const known = Object.entries(levels).map(([name, kl]) => [name, kl[column === 1 ? 0 : 1]]).filter(([, kl]) => kl > 0);
    const all = lines.flatMap(({ rows }) => rows);
    if (!all.length) {
      explorer.replaceChildren();
      told.textContent = "Choose a method.";
      return;
    }
    const [x0, x1] = decades(all.map((row) => row[0]));
    const [y0, y1] = decades([...all.map((row) => row[column]), ...known.map(([, kl]) => kl)]);
    const x = (value) => box.left + (Math.log10(value) - x0) / (x1 - x0) * (box.width - box.left - box.right);
    const y = (value) => box.top + (y1 - Math.log10(value)) / (y1 - y0) * (box.height - box.top - box.bottom);
    const chart = drawn("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": "KL over cost" });
    const bottom = box.height - box.bottom;
    for (let power = Math.ceil(x0); power <= x1; power++) {
      const at = x(10 ** power);
      chart.append(drawn("line", { x1: at, x2: at, y1: box.top, y2: bottom, class: "grid" }));
      chart.append(drawn("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, String(Number((10 ** power).toPrecision(1)))));
    }
    for (let power = Math.ceil(y0); power <= y1; power++) {
      const at = y(10 ** power);
      chart.append(drawn("line", { x1: box.left, x2: box.width - box.right, y1: at, y2: at, class: "grid" }));
      chart.append(drawn("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, String(Number((10 ** power).toPrecision(1)))));
    }
    chart.append(drawn("text", { x: (box.left + box.width) / 2, y: box.height - 8, "text-anchor": "middle" }, "cost, % of a retrain"));
    chart.append(drawn("text", { x: 14, y: (box.top + bottom) / 2, transform: `rotate(-90 14 ${(box.top + bottom) / 2})`, "text-anchor": "middle" }, "KL to the retrain, nats"));
    for (const [name, kl] of known) {
      chart.append(drawn("line", { x1: box.left, x2: box.width - box.right, y1: y(kl), y2: y(kl), class: `level ${name}` }));
      chart.append(drawn("text", { x: box.width - box.right, y: y(kl) - 4, "text-anchor": "end" }, name));
    }
    records = [];
    for (const { method, rows } of lines) {
      const colour = colours[method];
      const points = rows.map((row) => `${x(row[0])},${y(row[column])}`).join(" ");
      chart.append(drawn("polyline", { points, fill: "none", stroke: colour, "stroke-width": method === "short" ? 2.5 : 1.3 }));
      rows.forEach((row, i) => {
        const mark = drawn("circle", { cx: x(row[0]), cy: y(row[column]), r: i === rows.length - 1 ? 5 : 2, fill: colour });
        chart.append(mark);
        records.push({ method, row, mark, x: x(row[0]), y: y(row[column]) });
      });
    }
    chart.addEventListener("pointermove", (event) => {
      const place = chart.getBoundingClientRect();
      const scale = box.width / place.width;
      const at = { x: (event.clientX - place.left) * scale, y: (event.clientY - place.top) * scale };
      const distance = (record) => (record.x - at.x) ** 2 + (record.y - at.y) ** 2;
      tell(records.reduce((a, b) => (distance(b) < distance(a) ? b : a)), column);
    });
    explorer.replaceChildren(chart);
    told.textContent = "Point at the chart for values. Large mark: the method's last record.";
  }

  function tell({ method, row, mark }, column) {
    for (const record of records) record.mark.classList.toggle("pointed", record.mark === mark);
    const spread = row[column + 1] ? ` ± ${row[column + 1]}` : "";
    told.textContent = `${method}: ${row[column]}${spread} nats at ${row[0]} % of a retrain's cost`;
  }

  variant.addEventListener("change", draw);
  methods.addEventListener("change", draw);
  for (const radio of document.querySelectorAll("[name=measure]")) radio.addEventListener("change", draw);
  for (const button of methods.querySelectorAll("[data-choose]")) {
    button.addEventListener("click", () => {
      for (const input of boxes) input.checked = button.dataset.choose === "all";
      draw();
    });
  }
  draw();
}

if (explorer) explore();
