"use strict";
// Charts in the colours of the reader's theme; shared by reports and the explorer.
const paceline = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const hasFinger = matchMedia("(pointer: coarse)").matches;
  const button = document.getElementById("theme");

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
      dragmode: hasFinger ? false : "zoom",
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

  // Calls `redraw` whenever the reader changes the theme, here or for the whole system.
  function onTheme(redraw) {
    const tell = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      redraw();
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      tell();
    });
    dark.addEventListener("change", tell);
    button.textContent = isDark() ? "Light" : "Dark";
  }

  return { root, hasFinger, themed, onTheme };
})();
