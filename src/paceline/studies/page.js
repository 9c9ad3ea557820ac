"use strict";
(() => {
  const sections = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hasFinger = matchMedia("(pointer: coarse)");
  let isPrinting = false;
  const drawn = new Map(); // element -> its figure

  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

  function themed(layout) {
    const style = getComputedStyle(root);
    const [ink, soft, line, raised] = ["--ink", "--soft", "--line", "--raised"]
      .map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    const found = {
      height: 320,
      margin: { l: 56, r: 12, t: 10, b: 44 },
      hovermode: "closest",
      ...layout,
      autosize: true,
      showlegend: false,
      // On a touch screen a finger scrolls the page, also over a chart.
      dragmode: hasFinger.matches ? false : "zoom",
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: ink },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
      hoverlabel: { bgcolor: raised, bordercolor: line, font: { color: ink } },
    };
    for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
      found[key] = { ...axis, ...layout[key] };
    }
    return found;
  }

  // A chart that leaves the page takes its title and a legend along, on white.
  function pictured({ title, data, layout }) {
    root.classList.add("printing");
    const found = {
      ...themed(layout),
      title: { text: title, font: { size: 15 } },
      showlegend: true,
      legend: { orientation: "h", itemsizing: "constant", yref: "container", y: 0, yanchor: "bottom" },
      margin: { l: 56, r: 12, t: 48, b: 110 },
      paper_bgcolor: "#ffffff",
    };
    root.classList.toggle("printing", isPrinting);
    return { data, layout: found };
  }

  const size = ({ layout }) => ({ format: "svg", width: 800, height: 120 + (layout.height ?? 320) });

  function draw(element, figure, name) {
    drawn.set(element, figure);
    const camera = {
      name: "picture",
      title: "Save as SVG",
      icon: Plotly.Icons.camera,
      click: () => Plotly.downloadImage(pictured(figure), { ...size(figure), filename: name }),
    };
    const config = {
      responsive: true,
      displaylogo: false,
      displayModeBar: hasFinger.matches ? false : "hover",
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", camera]],
    };
    Plotly.react(element, figure.data, themed(figure.layout), config);
  }

  function redraw() {
    themeButton.textContent = isDark() ? "Light" : "Dark";
    for (const [element, figure] of drawn) {
      // A view that is not in sight is drawn again when it is shown.
      if (element.closest("[hidden]")) drawn.delete(element);
      else Plotly.relayout(element, themed(figure.layout));
    }
  }

  function hide(element, hidden) {
    element.data.forEach((trace, place) => {
      const isVisible = !hidden.has(trace.legendgroup);
      if ((trace.visible ?? true) !== isVisible) Plotly.restyle(element, { visible: isVisible }, [place]);
    });
  }

  function show(section, views, place, hidden) {
    views.forEach((view, other) => { view.hidden = other !== place; });
    views[place].querySelectorAll(".plot").forEach((element, panel) => {
      if (!drawn.has(element)) draw(element, section.views[place][panel], section.name);
      else Plotly.Plots.resize(element);
      hide(element, hidden);
    });
  }

  function save(text, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function start(section) {
    const place = document.getElementById(section.name);
    const views = [...place.querySelectorAll(".view")];
    const hidden = new Set();
    const buttons = [...place.querySelectorAll(".switch button")];
    buttons.forEach((button, chosen) => button.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      show(section, views, chosen, hidden);
    }));
    place.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
      const { name } = button.dataset;
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      place.querySelectorAll(".view:not([hidden]) .plot").forEach((element) => hide(element, hidden));
    }));
    place.querySelector(".csv").addEventListener("click", () => save(section.csv, `${section.name}.csv`));
    show(section, views, 0, hidden);
  }

  function print(begins) {
    isPrinting = begins;
    root.classList.toggle("printing", begins);
    redraw();
    for (const element of drawn.keys()) Plotly.Plots.resize(element);
  }

  // For write_pictures: every chart of every view as SVG, in place of the page.
  async function showPictures() {
    const found = {};
    for (const { name, views } of sections) {
      for (const [view, figures] of views.entries()) {
        for (const [panel, figure] of figures.entries()) {
          found[`${name}-${view + 1}-${panel + 1}`] = await Plotly.toImage(
            pictured(figure), { ...size(figure), imageDataOnly: true });
        }
      }
    }
    const text = document.createElement("pre");
    text.textContent = JSON.stringify(found);
    document.body.replaceChildren(text);
  }

  const themeButton = document.getElementById("theme");
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  if (location.hash === "#pictures") {
    showPictures();
  } else {
    sections.forEach(start);
    themeButton.textContent = isDark() ? "Light" : "Dark";
  }
})();
