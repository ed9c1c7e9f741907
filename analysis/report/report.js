// Draws the plots, sorts the tables, switches the colours. Everything it needs is in this page.
(() => {
  "use strict";
  const root = document.documentElement;
  const printing = matchMedia("print");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)").matches;
  const button = document.getElementById("theme");
  const said = document.getElementById("said");
  const PRINTED_WIDTH = 620; // pixels between the margins of A4 and of letter paper
  const LEGEND_LINE = 18; // pixels

  // Colours ---------------------------------------------------------------------------------------------------------

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
  }

  function remember(theme) {
    try {
      localStorage.setItem("specsim-report-theme", theme);
    } catch {
      // Some browsers keep nothing for files: the choice then lasts as long as the page.
    }
  }

  function tellTheme() {
    button.textContent = isDark() ? "Light colours" : "Dark colours";
  }

  function colours(layout) {
    const style = getComputedStyle(root);
    const value = (name) => style.getPropertyValue(name).trim();
    const changes = {
      paper_bgcolor: value("--page"),
      plot_bgcolor: value("--page"),
      "font.color": value("--text"),
      "hoverlabel.bgcolor": value("--panel"),
      "hoverlabel.font.color": value("--text"),
      "hoverlabel.bordercolor": value("--soft"),
    };
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) {
        for (const part of ["gridcolor", "zerolinecolor", "linecolor", "tickcolor"]) {
          changes[`${name}.${part}`] = value("--plot-line");
        }
      }
    }
    (layout.shapes || []).forEach((shape, index) => {
      changes[`shapes[${index}].line.color`] = value("--soft");
    });
    return changes;
  }

  // Plots -----------------------------------------------------------------------------------------------------------

  const plots = [...document.querySelectorAll(".plot")];

  function size(figure, width) {
    const longest = Math.max(0, ...figure.names.map((name) => name.length));
    const aside = Math.max(1, Math.floor(width / (48 + 6.2 * longest))); // entries that fit into a line
    return spaced(figure, figure.names.length > 1 ? LEGEND_LINE * Math.ceil(figure.names.length / aside) : 0, width);
  }

  function spaced(figure, legend, width) {
    return { width, height: figure.height + legend, "margin.b": figure.margin.b + legend };
  }

  // How wide names are is only known once they are drawn; without room for the legend, titles end up on the numbers.
  function settle(plot) {
    const box = plot.querySelector(".legend .bg");
    const legend = box ? Math.ceil(box.getBoundingClientRect().height) : 0;
    if (legend > plot.layout.margin.b - plot.figure.margin.b) {
      return Plotly.relayout(plot, spaced(plot.figure, legend, plot.layout.width));
    }
    return plot;
  }

  function put(target, path, value) {
    const keys = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const last = keys.pop();
    let place = target;
    for (const key of keys) {
      place = place[key] ??= {};
    }
    place[last] = value;
  }

  function draw(plot) {
    const figure = JSON.parse(plot.parentElement.querySelector("script").textContent);
    const layout = figure.layout;
    const named = figure.data.filter((trace) => trace.showlegend !== false && trace.name);
    plot.figure = { names: named.map((trace) => trace.name), height: layout.height, margin: { ...layout.margin } };
    layout.showlegend = named.length > 1;
    layout.dragmode = coarse ? false : "zoom"; // a finger on a plot should still scroll the page
    for (const [path, value] of Object.entries({ ...colours(layout), ...size(plot.figure, plot.clientWidth) })) {
      put(layout, path, value);
    }
    const config = { displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    if (coarse) {
      config.displayModeBar = false;
    }
    return Plotly.newPlot(plot, figure.data, layout, config).then(() => settle(plot)).then(() => {
      // Bits of text without order: the caption and the table say the same to a screen reader.
      plot.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("aria-hidden", "true"));
    });
  }

  function fail(plot) {
    plot.classList.add("failed");
    plot.textContent = "This plot could not be drawn here; its numbers are in the table below it.";
  }

  function drawAll() {
    const waiting = [...plots];
    const next = () => {
      const plot = waiting.shift();
      if (!plot) {
        root.dataset.plots = "done";
        return;
      }
      try {
        draw(plot).then(() => setTimeout(next), () => (fail(plot), next()));
      } catch {
        fail(plot);
        next();
      }
    };
    next();
  }

  function drawn() {
    return plots.filter((plot) => plot.classList.contains("js-plotly-plot"));
  }

  function recolour() {
    for (const plot of drawn()) {
      Plotly.relayout(plot, colours(plot.layout));
    }
  }

  function fit() {
    for (const plot of drawn()) {
      const width = printing.matches ? PRINTED_WIDTH : plot.clientWidth;
      Plotly.relayout(plot, { ...colours(plot.layout), ...size(plot.figure, width) }).then(settle);
    }
  }

  // Tables ----------------------------------------------------------------------------------------------------------

  const collator = new Intl.Collator("en", { numeric: true });

  function key(row, column) {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    if (value === undefined) {
      return cell.textContent.trim() || null;
    }
    return value === "" ? null : Number(value);
  }

  function compare(a, b) {
    return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
  }

  function sort(header) {
    const table = header.closest("table");
    const body = table.tBodies[0];
    const falling = header.getAttribute("aria-sort")
      ? header.getAttribute("aria-sort") === "ascending"
      : header.classList.contains("n");
    const rows = [...body.rows].map((row) => [key(row, header.cellIndex), row]);
    const known = rows.filter(([value]) => value !== null);
    const unknown = rows.filter(([value]) => value === null); // last, whichever way
    known.sort(([a], [b]) => (falling ? compare(b, a) : compare(a, b)));
    body.append(...[...known, ...unknown].map(([, row]) => row));
    table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    said.textContent = `Sorted by ${header.textContent.trim()}, ${falling ? "descending" : "ascending"}.`;
  }

  // Wiring ----------------------------------------------------------------------------------------------------------

  document.querySelectorAll(".sort").forEach((one) => {
    one.addEventListener("click", () => sort(one.closest("th")));
  });
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    tellTheme();
    recolour();
  });
  dark.addEventListener("change", () => {
    tellTheme();
    recolour();
  });
  printing.addEventListener("change", fit);
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(fit, 100);
  });
  tellTheme();
  drawAll();
})();
