"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rhobust-data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  all(".needs-script").forEach((element) => { element.hidden = false; });

  // Theme: what was chosen last is kept where the browser lets a file keep anything.
  const root = document.documentElement;
  const kept = { read() { try { return localStorage.getItem("rhobust-theme"); } catch { return null; } },
    write(value) { try { localStorage.setItem("rhobust-theme", value); } catch { /* nothing is kept */ } } };
  if (kept.read()) root.dataset.theme = kept.read();
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    kept.write(root.dataset.theme);
  });

  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  // Legends: a chip switches the lines of its model or of its kind.
  const off = (panel, run, kind) =>
    all(".legend [aria-pressed=false]", panel).some((chip) => chip.dataset.run === String(run) || chip.dataset.kind === kind);
  all(".chip").forEach((chip) => chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
    const panel = chip.closest(".panel");
    if ("bands" in chip.dataset) panel.classList.toggle("no-bands", chip.getAttribute("aria-pressed") === "false");
    all(".series, .key", panel).forEach((line) => line.classList.toggle("off", off(panel, line.dataset.run, line.dataset.kind)));
  }));

  // Read-out: lower limits are read at the next point, upper limits at the last one; both hold at x.
  const at = (series, x) => {
    const near = 1e-9;
    if (series.rule === "next") return series.points.find((point) => point[0] >= x - near);
    if (series.rule === "last") return series.points.filter((point) => point[0] <= x + near).pop();
    return series.points.find((point) => Math.abs(point[0] - x) < near);
  };
  const colour = (run) => `var(--series-${run % 8})`;
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const number = (x) => String(Number(x.toFixed(4)));

  all(".chart").forEach((svg) => {
    const chart = data.charts[svg.dataset.chart];
    const panel = svg.closest(".panel");
    const plot = svg.closest(".plot");
    const readout = plot.querySelector(".readout");
    const guide = svg.querySelector(".guide");
    const { left, right, low, high } = Object.fromEntries(
      Object.entries(svg.dataset).filter(([key]) => ["left", "right", "low", "high"].includes(key)).map(([key, value]) => [key, Number(value)]));
    const stops = [...new Set(chart.series.flatMap((series) => series.points.map((point) => point[0])))].sort((a, b) => a - b);
    let here = 0;

    const hide = () => { readout.hidden = true; guide.setAttribute("visibility", "hidden"); };
    const show = (position) => {
      here = Math.min(Math.max(position, 0), stops.length - 1);
      const x = stops[here];
      const place = left + ((x - low) / ((high - low) || 1)) * (right - left);
      guide.setAttribute("x1", place);
      guide.setAttribute("x2", place);
      guide.setAttribute("visibility", "visible");
      readout.replaceChildren();
      make("b", `${svg.dataset.chart === "radius" ? "radius" : svg.dataset.chart === "shift" ? "eps" : "epoch"} ${number(x)}`, readout);
      chart.series.filter((series) => !off(panel, series.run, series.kind)).forEach((series) => {
        const point = at(series, x);
        if (!point) return;
        const row = make("div", "", readout);
        make("span", series.label, row).style.borderColor = colour(series.run);
        const elsewhere = series.rule === "last" && x - point[0] > 1e-9;
        const interval = elsewhere ? ` (scored at ${number(point[0])})` : point[2] ? ` (${point[2]})` : "";
        make("span", `${series.sign} ${point[1]}${interval}`, row);
      });
      readout.hidden = false;
      const box = svg.getBoundingClientRect();
      const pixel = (place / svg.viewBox.baseVal.width) * box.width;
      const room = pixel + 16 + readout.offsetWidth < box.width;
      readout.style.left = `${Math.max(0, room ? pixel + 14 : pixel - 14 - readout.offsetWidth)}px`;
    };
    const follow = (event) => {
      const box = svg.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const x = low + ((place - left) / (right - left)) * (high - low);
      let best = 0;
      stops.forEach((stop, position) => { if (Math.abs(stop - x) < Math.abs(stops[best] - x)) best = position; });
      show(best);
    };
    svg.addEventListener("pointermove", follow);
    svg.addEventListener("pointerdown", follow);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: stops.length - 1 };
      if (event.key === "Escape") hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(readout.hidden ? here : moves[event.key]);
    });
    readout.setAttribute("aria-live", "polite");
  });

  // A saved figure shows its own legend and the light colours, and needs no page around it.
  all("[data-save]").forEach((button) => button.addEventListener("click", () => {
    const copy = document.querySelector(`.chart[data-chart="${button.dataset.save}"]`).cloneNode(true);
    const [, , width, height] = copy.dataset.whole.split(" ");
    copy.setAttribute("viewBox", copy.dataset.whole);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    all(".guide, .off", copy).forEach((element) => element.remove());
    if (button.closest(".panel").classList.contains("no-bands")) all(".band", copy).forEach((band) => band.remove());
    const text = new XMLSerializer().serializeToString(copy).replace(/var\(--[\w-]+,\s*([^()]+)\)/g, "$1");
    save(`${button.dataset.save}.svg`, "image/svg+xml", text);
  }));

  // The slider reads the shift certificates at any eps: the next computed eps holds there too.
  const slider = document.getElementById("eps");
  if (slider) {
    const series = data.charts.shift.series.filter((line) => line.rule === "next");
    const end = Math.max(...series.flatMap((line) => line.points.map((point) => point[0])));
    const read = () => {
      const eps = (end * Number(slider.value)) / Number(slider.max);
      document.getElementById("eps-value").textContent = eps.toFixed(3);
      slider.setAttribute("aria-valuetext", `eps ${eps.toFixed(3)}`);
      const list = document.getElementById("eps-list");
      list.replaceChildren();
      series.forEach((line) => {
        const item = make("li", `${line.label}: `, list);
        const point = at(line, eps);
        make("b", point ? `≥\u00a0${point[1]}` : "not computed", item).style.color = colour(line.run);
      });
    };
    slider.addEventListener("input", read);
    read();
  }

  // Table: a heading sorts, numbers by value and text by letter; the filter wants every word somewhere in the row.
  const table = document.querySelector("#numbers table");
  if (table) {
    const body = table.tBodies[0];
    const key = (row, column) => {
      const cell = row.cells[column];
      if (!("v" in cell.dataset)) return cell.textContent.trim();
      return cell.dataset.v === "" ? -Infinity : Number(cell.dataset.v);
    };
    all("th", table).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const sorted = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a, column), key(b, column)];
          const order = typeof x === "number" ? (x === y ? 0 : x - y) : x.localeCompare(y, "en", { numeric: true });
          return up ? order : -order;
        });
        body.append(...sorted);
      });
    });
    const filter = document.getElementById("filter");
    const count = document.getElementById("count");
    const narrow = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      [...body.rows].forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += row.hidden ? 0 : 1;
      });
      count.textContent = `${left} of ${body.rows.length} numbers`;
    };
    filter.addEventListener("input", narrow);
    narrow();
  }

  // A name that starts like a formula would be run by a spreadsheet: a quote in front keeps it text.
  const cell = (value) => {
    if (typeof value === "number") return String(value);
    const text = Array.isArray(value) ? value.join("; ") : String(value ?? "");
    return `"${(/^[=+\-@\t]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  document.getElementById("save-csv")?.addEventListener("click", () => {
    const { columns, rows } = data.numbers;
    const lines = [columns.join(","), ...rows.map((row) => row.map(cell).join(","))];
    save("rhobust-numbers.csv", "text/csv", `${lines.join("\r\n")}\r\n`);
  });

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((element) => { element.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((element) => { element.open = false; }));
})();
