"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rhobust-data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  // A warning stands once, below the table; its marks show it too.
  all(".mark").forEach((mark) => { mark.title = document.querySelector(mark.hash).textContent; });
  const colour = (run) => `var(--series-${run % data.colours})`;
  all(".needs-script").forEach((element) => { element.hidden = false; });

  // Galleries are folded without a script and on a phone; on a wide screen they are open.
  if (matchMedia("(min-width: 641px)").matches) all("details.gallery:not(.certified)").forEach((one) => { one.open = true; });

  // The menu marks the section in view, and keeps its own place in view.
  const links = new Map(all("nav a").map((link) => [document.querySelector(link.hash), link]));
  const seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
    if (!isIntersecting) return;
    links.forEach((link) => link.removeAttribute("aria-current"));
    const link = links.get(target);
    link.setAttribute("aria-current", "true");
    link.parentElement.scrollTo({ left: link.offsetLeft - link.parentElement.clientWidth / 2 });
  }), { rootMargin: "-20% 0px -75% 0px" });
  links.forEach((_, section) => seen.observe(section));

  // A table that is wider than its frame fades out where it goes on, and says so.
  all(".scroll").forEach((box) => {
    const hint = make("p", "↔ This table scrolls sideways.", box.parentElement);
    hint.className = "sideways";
    hint.setAttribute("aria-hidden", "true");
    box.after(hint);
    const fade = () => {
      const room = box.scrollWidth - box.clientWidth;
      hint.hidden = room < 2;
      box.classList.toggle("more-right", box.scrollLeft < room - 2);
      box.classList.toggle("more-left", box.scrollLeft > 2);
    };
    box.addEventListener("scroll", fade, { passive: true });
    new ResizeObserver(fade).observe(box);
  });

  // A gallery is sorted by what its pictures say of themselves; a minus sorts downward.
  all("[data-sort]").forEach((choice) => choice.addEventListener("input", () => {
    const list = choice.closest("details").querySelector("ul");
    const [, minus, name] = choice.value.match(/^(-?)(.*)$/);
    const numbers = [...list.children].every((item) => item.dataset[name] !== "" && !isNaN(item.dataset[name]));
    const order = (a, b) => (numbers ? a.dataset[name] - b.dataset[name] : a.dataset[name].localeCompare(b.dataset[name]));
    list.append(...[...list.children].sort((a, b) => (minus ? -order(a, b) : order(a, b))));
  }));

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
  // A name that starts like a formula would be run by a spreadsheet: a quote in front keeps it text.
  const cell = (value) => {
    if (typeof value === "number") return String(value);
    const text = Array.isArray(value) ? value.join("; ") : String(value ?? "");
    return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  const csv = (name, rows) => save(name, "text/csv", rows.map((row) => `${row.map(cell).join(",")}\r\n`).join(""));

  // A line is read where it holds: a proved value at the next computed point, an attack's at the last one.
  const near = 1e-9;
  const at = (series, x) => {
    if (series.rule === "next") return series.points.find((point) => point[0] >= x - near);
    if (series.rule === "last") return series.points.filter((point) => point[0] <= x + near).pop();
    return series.points.find((point) => Math.abs(point[0] - x) < near);
  };
  const number = (x) => String(Number(x.toFixed(4)));
  const off = (panel, series) => all(".legend [aria-pressed=false]", panel)
    .some((chip) => chip.dataset.run === String(series.run) || chip.dataset.kind === series.kind);

  // Legends: a chip switches the lines of its model or of its kind.
  all(".chip").forEach((chip) => chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
    const panel = chip.closest(".panel");
    if ("bands" in chip.dataset) panel.classList.toggle("no-bands", chip.getAttribute("aria-pressed") === "false");
    all(".series, .key", panel).forEach((line) => line.classList.toggle("off", off(panel, line.dataset)));
    panel.dispatchEvent(new Event("switched"));
  }));

  // Read-out: a small table, models down and kinds of line across.
  const fill = (readout, panel, chart, x) => {
    readout.replaceChildren();
    const shown = chart.series.filter((series) => !off(panel, series) && at(series, x));
    const kinds = [...new Set(shown.map((series) => series.kind))];
    const table = make("table", "", readout);
    const head = make("tr", "", make("thead", "", table));
    make("th", `${chart.at} ${number(x)}`, head);
    if (kinds.length > 1 || kinds[0] !== "training") {
      kinds.forEach((kind) => make("th", panel.querySelector(`.chip[data-kind="${CSS.escape(kind)}"]`).textContent, head));
    }
    const body = make("tbody", "", table);
    [...new Set(shown.map((series) => series.run))].forEach((run) => {
      const row = make("tr", "", body);
      make("th", data.models[run].label, row).style.borderColor = colour(run);
      kinds.forEach((kind) => {
        const box = make("td", "", row);
        shown.filter((series) => series.run === run && series.kind === kind).forEach((series, place) => {
          const point = at(series, x);
          const value = `${series.sign ? `${series.sign} ` : ""}${point[1]}${series.warned ? " ⚠" : ""}`;
          make("span", place ? ` / ${value}` : value, box);
          if (series.part) make("small", ` ${series.part}`, box);
          const elsewhere = series.rule === "last" && x - point[0] > near;
          if (elsewhere) make("small", ` at ${number(point[0])}`, box);
          else if (point[2] && series.rule === "last") make("small", ` (${point[2]})`, box);
        });
      });
    });
  };

  all(".chart").forEach((svg) => {
    const chart = data.charts[svg.dataset.chart];
    const panel = svg.closest(".panel");
    const readout = svg.closest(".plot").querySelector(".readout");
    const guide = svg.querySelector(".guide");
    const [left, right, low, high] = ["left", "right", "low", "high"].map((key) => Number(svg.dataset[key]));
    const stops = [...new Set(chart.series.flatMap((series) => series.points.map((point) => point[0])))].sort((a, b) => a - b);
    let here = 0;

    const hide = () => { readout.hidden = true; guide.setAttribute("visibility", "hidden"); };
    const mark = (x) => {
      const place = left + ((x - low) / ((high - low) || 1)) * (right - left);
      guide.setAttribute("x1", place);
      guide.setAttribute("x2", place);
      guide.setAttribute("visibility", "visible");
      return place;
    };
    const show = (position) => {
      here = Math.min(Math.max(position, 0), stops.length - 1);
      const place = mark(stops[here]);
      fill(readout, panel, chart, stops[here]);
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
    svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: stops.length - 1 };
      if (event.key === "Escape") hide();
      if (!(event.key in moves)) return;
      event.preventDefault();
      show(readout.hidden ? here : moves[event.key]);
    });
    svg.addEventListener("mark", (event) => mark(event.detail));
    panel.addEventListener("switched", () => { if (!readout.hidden) show(here); });
    readout.setAttribute("aria-live", "polite");
  });

  // A slider reads proved values at what it shows, never in between: the next computed point holds there too.
  all(".slider").forEach((box) => {
    const chart = data.charts[box.dataset.chart];
    const panel = box.closest(".panel");
    const proved = chart.series.filter((series) => series.rule === "next");
    const telling = proved.flatMap((series) => series.points.filter((point) => parseFloat(point[1]) > 0).map((point) => point[0]));
    const every = proved.flatMap((series) => series.points.map((point) => point[0]));
    const end = Math.max(0, ...(telling.length ? telling : every)) || 1;
    const start = Math.min(data.start[chart.at] ?? end / 2, end);
    let digits = Math.max(3, 2 - Math.floor(Math.log10(end)));
    while (digits < 5 && Math.abs(Number(start.toFixed(digits)) - start) > near) digits += 1;
    const slider = box.querySelector("input");
    slider.step = String(10 ** -digits);
    slider.max = end.toFixed(digits);
    // Rounded up it would read the next computed point, and less than the page quotes.
    slider.value = String(Math.floor(start * 10 ** digits + near) / 10 ** digits);
    const read = () => {
      const x = Number(Number(slider.value).toFixed(digits));
      box.querySelector("output").textContent = x.toFixed(digits);
      slider.setAttribute("aria-valuetext", `${chart.at} ${x.toFixed(digits)}`);
      const list = box.querySelector(".values");
      list.replaceChildren();
      // A curve that ends before x says nothing where another one of the same line does.
      const alive = proved.filter((series) => !off(panel, series));
      const same = (series, other) => ["run", "kind", "part"].every((name) => series[name] === other[name]);
      const shown = alive.filter((series) => at(series, x) || !alive.some((other) => same(series, other) && at(other, x)));
      const alike = new Set(shown.map((series) => series.kind)).size === 1;
      shown.forEach((series) => {
        const point = at(series, x);
        const item = make("li", "", list);
        item.style.setProperty("--own", colour(series.run));
        const label = data.models[series.run].label;
        const name = make("span", !alike ? series.label : series.part ? `${label}, ${series.part}` : label, item);
        make("small", `n = ${series.n}`, name);
        const bar = make("div", "", item);
        bar.className = "bar";
        make("i", "", bar).style.width = point && point[1].endsWith("%") ? point[1] : "0";
        const value = make("b", point ? `${series.sign}\u00a0${point[1]}${series.warned ? " ⚠" : ""}` : "not computed", item);
        if (!point) value.className = "none";
      });
      return x;
    };
    slider.addEventListener("input", () => {
      const x = read();
      all(".chart", panel).forEach((svg) => svg.dispatchEvent(new CustomEvent("mark", { detail: x })));
    });
    panel.addEventListener("switched", read);
    read();
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
  all("[data-csv]").forEach((button) => button.addEventListener("click", () => {
    const { at: name, series } = data.charts[button.dataset.csv];
    const rows = series.flatMap((line) => line.points.map(([x, value, interval]) => [line.label, x, line.sign, value, interval]));
    csv(`${button.dataset.csv}.csv`, [["line", name, "sign", "value", "95% interval"], ...rows]);
  }));
  document.getElementById("save-csv")?.addEventListener("click", () => {
    const rows = all("#numbers tbody tr").map((row) => {
      const [model, quantity, status, place, value, interval, n, record] = row.cells;
      const where = place.dataset.v === "" ? "" : Number(place.dataset.v);
      const name = place.textContent.replace(/ \S+$/, "");
      const ends = [interval.dataset.v, interval.dataset.high ?? ""].map((end) => (end === "" ? "" : Number(end)));
      const shown = value.lastChild.textContent.trim();
      const warnings = all(".mark", value).map((mark) => mark.title);
      return [model.textContent, quantity.textContent, status.textContent, name, where, Number(value.dataset.v), shown,
        ...ends, interval.textContent, Number(n.textContent), record.textContent, warnings];
    });
    csv("numbers.csv", [["model", "quantity", "status", "at", "where", "value", "shown", "low", "high", "interval", "n",
      "record", "warnings"], ...rows]);
  });

  // Tables: a heading sorts, numbers by value and text by letter.
  const key = (row, column) => {
    const place = row.cells[column];
    if (!("v" in place.dataset)) return place.textContent.trim();
    return place.dataset.v === "" ? -Infinity : Number(place.dataset.v);
  };
  all("table.sortable").forEach((table) => all("thead th", table).forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      // In the table of models a model is a group of rows, and its first row decides.
      const groups = table.tBodies.length > 1 || table.matches(".models");
      const items = groups ? [...table.tBodies] : [...table.tBodies[0].rows];
      items.sort((a, b) => {
        const [x, y] = [a, b].map((item) => key(groups ? item.rows[0] : item, column));
        const order = typeof x === "number" ? (x === y ? 0 : x - y) : x.localeCompare(y, "en", { numeric: true });
        return up ? order : -order;
      });
      (groups ? table : table.tBodies[0]).append(...items);
    });
  }));

  // The filter wants every word somewhere in the row, and the model and the status that were chosen.
  const filter = document.getElementById("filter");
  if (filter) {
    const rows = [...document.querySelector("#numbers table").tBodies[0].rows];
    const model = document.getElementById("filter-model");
    const status = document.getElementById("filter-status");
    const narrow = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word))
          || Boolean(model?.value && row.dataset.run !== model.value)
          || Boolean(status.value && row.cells[2].textContent !== status.value);
      });
      const left = rows.filter((row) => !row.hidden).length;
      document.getElementById("count").textContent = `${left} of ${rows.length} numbers`;
    };
    [filter, model, status].forEach((field) => field?.addEventListener("input", narrow));
    narrow();
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    opened.forEach((element) => { element.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((element) => { element.open = false; }));
})();
