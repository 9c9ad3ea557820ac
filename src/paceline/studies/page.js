"use strict";
(() => {
  const sections = JSON.parse(document.getElementById("data").textContent);
  const { root, hasFinger, themed } = paceline;
  let isPrinting = false;
  const drawn = new Map(); // element -> its figure

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
      displayModeBar: hasFinger ? false : "hover",
      modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", camera]],
    };
    Plotly.react(element, figure.data, themed(figure.layout), config);
  }

  function redraw() {
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

  // For write_pictures: every chart of every view as a picture, in place of the page.
  async function showPictures(format) {
    const found = {};
    for (const { name, views } of sections) {
      for (const [view, figures] of views.entries()) {
        for (const [panel, figure] of figures.entries()) {
          found[`${name}-${view + 1}-${panel + 1}`] = await Plotly.toImage(
            pictured(figure), { ...size(figure), format, scale: format === "png" ? 2 : 1, imageDataOnly: true });
        }
      }
    }
    const text = document.createElement("pre");
    text.textContent = JSON.stringify(found);
    document.body.replaceChildren(text);
  }

  paceline.onTheme(redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  const pictures = location.hash.match(/^#(svg|png)-pictures$/);
  if (pictures) {
    showPictures(pictures[1]);
  } else {
    sections.forEach(start);
  }
})();
