"use strict";

// Values under the pointer, or under the arrow keys: a vertical line, a dot on each curve, and a box of numbers.

const formatNumber = (value) => {
  const short = Number(value.toPrecision(4));
  return Math.abs(short) > 0 && Math.abs(short) < 1e-3
    ? short.toExponential()
    : short.toLocaleString("en-US", { maximumSignificantDigits: Math.abs(short) < 1e4 ? 4 : 8 });
};

const make = (tag, className, text) => {
  const element = document.createElement(tag);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

const nearest = (values, target) => {
  let low = 0;
  let high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < target) low = middle;
    else high = middle;
  }
  return Math.abs(values[low] - target) <= Math.abs(values[high] - target) ? low : high;
};

const addPointer = (plot) => {
  const data = JSON.parse(plot.parentElement.querySelector("script").textContent);
  const overlay = make("div", "overlay");
  const crosshair = make("div", "crosshair");
  const box = make("div", "tooltip");
  box.setAttribute("role", "status");
  overlay.append(crosshair, box);
  overlay.hidden = true;
  plot.append(overlay);
  const allSteps = [...new Set(data.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  let current = allSteps.length - 1;

  const plotMargin = plot.querySelector("svg").getBoundingClientRect().left - plot.getBoundingClientRect().left;

  const across = (step) => (step - data.x[0]) / (data.x[1] - data.x[0]);
  const up = (value) => (value - data.y[0]) / (data.y[1] - data.y[0]);

  const show = (index) => {
    current = Math.min(Math.max(index, 0), allSteps.length - 1);
    const step = allSteps[current];
    box.replaceChildren(make("strong", "", `${step.toLocaleString("en-US")} ${data.unit}`));
    overlay.querySelectorAll(".dot").forEach((dot) => dot.remove());
    for (const line of data.lines) {
      const at = nearest(line.x, step);
      const value = line.y[at];
      const known = line.low && line.low[at] !== null;
      const row = make("div", line.style);
      row.append(
        make("i", "key"),
        make("span", "", line.name),
        make("b", "", value === null ? "—" : formatNumber(value)),
        make("span", "interval", known ? `${formatNumber(line.low[at])} to ${formatNumber(line.high[at])}` : ""),
      );
      box.append(row);
      if (value !== null) {
        const dot = make("div", `dot ${line.style}`);
        dot.style.left = `${100 * across(line.x[at])}%`;
        dot.style.bottom = `${100 * up(value)}%`;
        overlay.append(dot);
      }
    }
    crosshair.style.left = `${100 * across(step)}%`;
    overlay.hidden = false;
    // Above the plot, so that no curve is covered; below it where the window ends.
    const fits = overlay.getBoundingClientRect().top > box.offsetHeight + 8;
    box.classList.toggle("below", !fits);
    const left = across(step) * overlay.clientWidth - box.offsetWidth / 2;
    box.style.left = `${Math.max(-plotMargin, Math.min(left, overlay.clientWidth - box.offsetWidth))}px`;
  };

  const hide = () => {
    overlay.hidden = true;
  };

  const follow = (event) => {
    const bounds = plot.querySelector("svg").getBoundingClientRect();
    const share = (event.clientX - bounds.left) / bounds.width;
    show(nearest(allSteps, data.x[0] + share * (data.x[1] - data.x[0])));
  };

  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(overlay.hidden ? current : current + move);
  });
};

// The recorded episode: a button stops it at the frame that is shown; it starts stopped where motion is unwanted.

const addPlayback = (figure) => {
  const image = figure.querySelector("img");
  const still = figure.querySelector("canvas");
  const button = figure.querySelector("button");

  const setPlaying = (playing) => {
    if (!playing) {
      still.width = image.naturalWidth;
      still.height = image.naturalHeight;
      still.getContext("2d").drawImage(image, 0, 0);
    }
    still.hidden = playing;
    button.textContent = playing ? "Pause" : "Play";
  };

  button.addEventListener("click", () => setPlaying(!still.hidden));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) image.decode().then(() => setPlaying(false));
};

document.querySelectorAll(".plot").forEach(addPointer);
document.querySelectorAll("figure.episode").forEach(addPlayback);
