// Line plots and bars on a canvas.

import { colour, fit, short } from "./dom.js";

const FONT = '11px ui-sans-serif, system-ui, "DejaVu Sans", sans-serif';

/** Round limits around [low, high]. */
function limits(low, high) {
  if (!(low <= high)) return [0, 1];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 0.5;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

function extent(lines, axis, given) {
  let [low, high] = [Infinity, -Infinity];
  for (const line of lines) {
    for (const point of line.points) {
      if (point[axis] < low) low = point[axis];
      if (point[axis] > high) high = point[axis];
    }
  }
  for (const value of given ?? []) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

/**
 * Draw lines ({ points: [[x, y], …], colour, width, band }) over each other. Options: label, cursor (an x), include
 * (values that y must show), x: [low, high], axis (label of x), title and note (above a small plot without axis of x).
 */
export function lines(canvas, all, options = {}) {
  const { context: c, width, height } = fit(canvas);
  const small = Boolean(options.title);
  const area = { left: 40, top: small ? 20 : 6, right: width - 6, bottom: height - (small ? 4 : 18) };
  const [x0, x1] = options.x ?? extent(all, 0);
  const [y0, y1] = limits(...extent(all, 1, options.include));
  const span = Math.max(1e-12, x1 - x0);
  const x = (value) => area.left + ((value - x0) / span) * (area.right - area.left);
  const y = (value) => area.bottom - ((value - y0) / (y1 - y0)) * (area.bottom - area.top);

  c.font = FONT;
  c.textBaseline = "middle";
  c.strokeStyle = colour("line");
  c.fillStyle = colour("muted");
  c.lineWidth = 1;
  const step = tick(y1 - y0, Math.min(7, (area.bottom - area.top) / (small ? 22 : 34)));
  for (let value = Math.ceil(y0 / step) * step; value <= y1; value += step) {
    c.beginPath();
    c.moveTo(area.left, Math.round(y(value)) + 0.5);
    c.lineTo(area.right, Math.round(y(value)) + 0.5);
    c.stroke();
    c.textAlign = "right";
    c.fillText(short(Math.abs(value) < step / 1e6 ? 0 : value), area.left - 5, y(value));
  }
  if (!small && x1 > x0) {
    c.textAlign = "left";
    c.fillText(short(x0), area.left, height - 7);
    c.textAlign = "right";
    c.fillText(`${short(x1)} ${options.axis ?? ""}`, area.right, height - 7);
  }
  c.save();
  c.beginPath();
  c.rect(area.left - 4, area.top - 4, area.right - area.left + 8, area.bottom - area.top + 8);
  c.clip();
  for (const line of all) stroke(c, line, x, y);
  if (options.cursor !== undefined) {
    c.strokeStyle = colour("muted");
    c.setLineDash([3, 3]);
    c.beginPath();
    c.moveTo(x(options.cursor), area.top);
    c.lineTo(x(options.cursor), area.bottom);
    c.stroke();
    c.setLineDash([]);
  }
  c.restore();
  if (small) {
    c.textAlign = "left";
    c.fillStyle = colour("text");
    c.fillText(options.title, 0, 7);
    c.textAlign = "right";
    c.fillStyle = colour("muted");
    c.fillText(options.note ?? "", area.right, 7);
  }
  return { x, y, area, x0, x1 };
}

function stroke(c, line, x, y) {
  if (!line.points.length) return;
  c.strokeStyle = c.fillStyle = line.colour;
  if (line.band) {
    c.globalAlpha = 0.15;
    c.beginPath();
    line.band.forEach(([at, low], i) => (i ? c.lineTo(x(at), y(low)) : c.moveTo(x(at), y(low))));
    [...line.band].reverse().forEach(([at, , high]) => c.lineTo(x(at), y(high)));
    c.fill();
    c.globalAlpha = 1;
  }
  c.globalAlpha = line.alpha ?? 1;
  c.lineWidth = line.width ?? 1.75;
  c.lineJoin = "round";
  c.setLineDash(line.dash ?? []);
  c.beginPath();
  line.points.forEach(([at, value], i) => (i ? c.lineTo(x(at), y(value)) : c.moveTo(x(at), y(value))));
  if (line.points.length === 1 || line.dots) {
    for (const [at, value] of line.points) {
      c.moveTo(x(at) + 2.5, y(value));
      c.arc(x(at), y(value), 2.5, 0, 7);
    }
  }
  c.stroke();
  c.setLineDash([]);
  c.globalAlpha = 1;
}

/** 1, 2 or 5 times a power of ten, so that about `count` of them make up the span. */
function tick(span, count) {
  const rough = span / Math.max(1.5, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

/** Bars between `edges`, as high as `values`. */
export function bars(canvas, edges, values, axis) {
  const { context: c, width, height } = fit(canvas);
  const area = { left: 34, top: 6, right: width - 4, bottom: height - 18 };
  const most = Math.max(0, ...values) || 1;
  c.font = FONT;
  c.fillStyle = colour("muted");
  c.textBaseline = "middle";
  c.textAlign = "right";
  if (values.some(Boolean)) c.fillText(short(most), area.left - 5, area.top + 4);
  c.fillText("0", area.left - 5, area.bottom);
  c.fillText(`${short(edges.at(-1) ?? 0)} ${axis}`, area.right, height - 7);
  c.textAlign = "left";
  c.fillText(short(edges[0] ?? 0), area.left, height - 7);
  c.strokeStyle = colour("line");
  c.strokeRect(area.left - 0.5, area.bottom + 0.5, area.right - area.left, 0);
  c.fillStyle = colour("series-1");
  const span = (edges.at(-1) ?? 1) - (edges[0] ?? 0) || 1;
  values.forEach((value, i) => {
    const left = area.left + ((edges[i] - edges[0]) / span) * (area.right - area.left);
    const right = area.left + ((edges[i + 1] - edges[0]) / span) * (area.right - area.left);
    const top = area.bottom - (value / most) * (area.bottom - area.top);
    c.fillRect(left, top, Math.max(0.5, right - left - 0.5), area.bottom - top);
  });
}
