"use strict";
(() => {
  const state = JSON.parse(document.getElementById("data").textContent);
  const names = ["batch", "arithmetic", "memory_bandwidth", "link", "workers"];
  const form = document.querySelector(".controls");
  const results = document.querySelector(".results");
  const ranges = Object.fromEntries(names.map((name) => [name, form.elements[name]]));
  const switches = [...form.querySelectorAll(".switch button")];
  const hidden = new Set();
  let sliders = null; // places by name; null: the cluster as it is
  let scales = null;
  let latest = null;
  let isAsking = false;
  let hasChanged = false;
  let timer = 0;

  function textIn(place, lines, make) {
    document.getElementById(place).replaceChildren(...lines.map(make));
  }

  function paragraph(text) {
    const found = document.createElement("p");
    found.textContent = text;
    return found;
  }

  function card([name, value, beside]) {
    const found = document.createElement("div");
    const [term, data, small] = ["dt", "dd", "small"].map((tag) => document.createElement(tag));
    term.textContent = name;
    data.textContent = value;
    small.textContent = beside;
    data.append(small);
    found.append(term, data);
    return found;
  }

  function label(name) {
    const output = ranges[name].parentElement.querySelector("output");
    output.textContent = scales?.[name][ranges[name].value] ?? "";
    ranges[name].setAttribute("aria-valuetext", output.textContent);
  }

  function place(found) {
    scales = found.scales;
    for (const name of names) {
      ranges[name].max = scales[name].length - 1;
      if (sliders === null) ranges[name].value = found.sliders[name];
      label(name);
    }
    sliders ??= found.sliders;
  }

  function draw() {
    // What belongs to another place of the sliders fades until it is timed for this one.
    document.querySelectorAll(".plot").forEach((plot) => {
      plot.classList.toggle("is-old", !(plot.id in latest.figures));
    });
    for (const [id, { data, layout }] of Object.entries(latest.figures)) {
      for (const trace of data) trace.visible = !hidden.has(trace.legendgroup);
      const config = { responsive: true, displayModeBar: false };
      Plotly.react(id, data, paceline.themed(layout), config);
    }
  }

  function show(found) {
    results.classList.toggle("is-waiting", found.state !== "ready");
    document.getElementById("status").textContent = found.status;
    if (found.state !== "ready") return;
    latest = found;
    // An answer to where a slider was a moment ago moves the curves, and never the slider.
    place(found);
    textIn("numbers", found.numbers, card);
    textIn("sentences", found.sentences, paragraph);
    textIn("tested", found.tested, paragraph);
    draw();
  }

  // One question at a time; what changed meanwhile is asked when the answer is there.
  async function ask() {
    clearTimeout(timer);
    if (isAsking) {
      hasChanged = true;
      return;
    }
    isAsking = true;
    hasChanged = false;
    let found;
    try {
      const query = new URLSearchParams({ ...state, ...(sliders ?? {}) });
      const reply = await fetch(`/answer?${query}`);
      found = await reply.json();
      // After another cluster was chosen, an answer about the one before is of no use.
      if (reply.ok && !(hasChanged && sliders === null)) show(found);
      else if (!reply.ok) document.getElementById("status").textContent = found.error;
    } catch {
      document.getElementById("status").textContent = "The explorer has ended; start it again.";
    }
    isAsking = false;
    if (hasChanged) ask();
    else if (found && found.state !== "failed" && !found.is_settled) timer = setTimeout(ask, 300);
  }

  form.addEventListener("input", ({ target }) => {
    if (target.type === "range") {
      sliders = Object.fromEntries(names.map((name) => [name, Number(ranges[name].value)]));
      label(target.name);
    } else {
      state[target.name] = target.value;
      sliders = null;
    }
    ask();
  });
  switches.forEach((button) => button.addEventListener("click", () => {
    switches.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    state.strategy = button.value;
    ask();
  }));
  document.getElementById("reset").addEventListener("click", () => {
    sliders = null;
    ask();
  });
  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    const { name } = button.dataset;
    if (!hidden.delete(name)) hidden.add(name);
    button.setAttribute("aria-pressed", String(!hidden.has(name)));
    draw();
  }));
  paceline.onTheme(() => { if (latest) draw(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  ask();
})();
