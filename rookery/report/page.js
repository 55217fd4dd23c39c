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

// What the pointer finds: stops that the arrow keys visit one after the other. Each has a place, as shares of the width
// and height of the plot, a heading, rows of numbers, and dots.

const share = ([low, high], value) => (value - low) / (high - low);

const curveStops = ({ x, y, unit, lines }) => {
  const allSteps = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  return {
    count: allSteps.length,
    find: (across) => nearest(allSteps, x[0] + across * (x[1] - x[0])),
    stop: (index) => {
      const step = allSteps[index];
      const found = lines.map((line) => ({ line, at: nearest(line.x, step) }));
      return {
        across: share(x, step),
        heading: `${step.toLocaleString("en-US")} ${unit}`,
        rows: found.map(({ line, at }) => ({
          style: line.style,
          name: line.name,
          value: line.y[at],
          interval: line.low && line.low[at] !== null ? [line.low[at], line.high[at]] : null,
        })),
        dots: found
          .filter(({ line, at }) => line.y[at] !== null)
          .map(({ line, at }) => ({ style: line.style, across: share(x, line.x[at]), up: share(y, line.y[at]) })),
      };
    },
  };
};

const pointStops = ({ x, y, names, groups }) => {
  const all = groups.flatMap((group) =>
    group.points.map((values) => ({ group, values, across: share(x, values[0]), up: share(y, values[1]) })),
  );
  return {
    count: all.length,
    find: (across, up, aspect) => {
      const distance = (point) => Math.hypot((point.across - across) * aspect, point.up - up);
      return all.reduce((best, point, index) => (distance(point) < distance(all[best]) ? index : best), 0);
    },
    stop: (index) => {
      const { group, values, across, up } = all[index];
      return {
        across,
        heading: group.name,
        rows: values.map((value, at) => ({ style: group.style, name: names[at], value, interval: null })),
        dots: [{ style: group.style, across, up }],
      };
    },
  };
};

const addPointer = (plot) => {
  const data = JSON.parse(plot.parentElement.querySelector("script").textContent);
  const { count, find, stop } = data.lines ? curveStops(data) : pointStops(data);
  if (!count) return;
  const overlay = make("div", "overlay");
  const crosshair = make("div", "crosshair");
  const box = make("div", "tooltip");
  box.setAttribute("role", "status");
  overlay.append(...(data.lines ? [crosshair] : []), box);
  overlay.hidden = true;
  plot.append(overlay);
  let current = count - 1;

  const plotMargin = plot.querySelector("svg").getBoundingClientRect().left - plot.getBoundingClientRect().left;

  const show = (index) => {
    current = Math.min(Math.max(index, 0), count - 1);
    const { across, heading, rows, dots } = stop(current);
    box.replaceChildren(...(heading ? [make("strong", "", heading)] : []));
    for (const { style, name, value, interval } of rows) {
      const row = make("div", style);
      row.append(
        make("i", "key"),
        make("span", "", name),
        make("b", "", value === null ? "—" : formatNumber(value)),
        make("span", "interval", interval ? interval.map(formatNumber).join(" to ") : ""),
      );
      box.append(row);
    }
    overlay.querySelectorAll(".dot").forEach((dot) => dot.remove());
    for (const { style, across, up } of dots) {
      const dot = make("div", `dot ${style}`);
      dot.style.left = `${100 * across}%`;
      dot.style.bottom = `${100 * up}%`;
      overlay.append(dot);
    }
    crosshair.style.left = `${100 * across}%`;
    overlay.hidden = false;
    // Above the plot, so that no curve is covered; below it where the window ends.
    const fits = overlay.getBoundingClientRect().top > box.offsetHeight + 8;
    box.classList.toggle("below", !fits);
    const left = across * overlay.clientWidth - box.offsetWidth / 2;
    box.style.left = `${Math.max(-plotMargin, Math.min(left, overlay.clientWidth - box.offsetWidth))}px`;
  };

  const hide = () => {
    overlay.hidden = true;
  };

  const follow = (event) => {
    const bounds = plot.querySelector("svg").getBoundingClientRect();
    const across = (event.clientX - bounds.left) / bounds.width;
    show(find(across, (bounds.bottom - event.clientY) / bounds.height, bounds.width / bounds.height));
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
