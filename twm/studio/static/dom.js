// Small helpers that every module uses.

export const $ = (id) => document.getElementById(id);

/** A new element: el("li", { className: "taken" }, "text", child, …). */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** A colour of the theme. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const whole = (number) => Number(number).toLocaleString("en");

/** A number as short as it can be read. */
export function short(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6) return `${Number((x / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((x / 1e3).toPrecision(3))}K`;
  if (size < 1e-3) return x.toExponential(1);
  return String(Number(x.toPrecision(3)));
}

/** Fit a canvas to its place on the screen, pixel for pixel; returns a context in CSS pixels, and its size. */
export function fit(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** Draw a frame of bytes, channels first, into a canvas of as many pixels. */
export function paint(canvas, bytes, [channels, height, width]) {
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  const size = width * height;
  const green = channels === 3 ? size : 0;
  for (let i = 0; i < size; i++) {
    image.data[4 * i] = bytes[i];
    image.data[4 * i + 1] = bytes[i + green];
    image.data[4 * i + 2] = bytes[i + 2 * green];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Call `draw` at most once a frame, however often it is asked for. */
export function lazily(draw) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      draw();
    });
  };
}

const redraws = new Set();

/** Draw again when the canvas changes its size or the theme changes; returns a function that ends it. */
export function redrawn(canvas, draw) {
  redraws.add(draw);
  const observer = new ResizeObserver(draw);
  observer.observe(canvas);
  return () => {
    redraws.delete(draw);
    observer.disconnect();
  };
}

export const redrawAll = () => redraws.forEach((draw) => draw());

/** The header and the arrays of a packet. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const parts = {};
  let offset = 4 + length;
  for (const [name, shape] of header.parts) {
    const size = shape.reduce((a, b) => a * b, 1);
    parts[name] = { shape, bytes: new Uint8Array(buffer, offset, size) };
    offset += size;
  }
  return { header, parts };
}

/** JSON from the studio, or the reason why there is none. */
export async function ask(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? response.statusText);
  return response.json();
}

export async function askPacket(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error ?? response.statusText);
  return unpack(await response.arrayBuffer());
}
