// The keyboard: game keys become actions, a few letters steer the studio.

import { $, el } from "./dom.js";

const GAME = {
  ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", Space: "fire",
  KeyW: "up", KeyS: "down", KeyA: "left", KeyD: "right",
};
for (let digit = 0; digit < 10; digit++) GAME[`Digit${digit}`] = String(digit);
const SYMBOLS = { up: "↑", down: "↓", left: "←", right: "→", fire: "space" };

/** Elements that need these keys for themselves. */
function taken(target, code) {
  const dialog = target.closest("dialog");
  if (dialog) return dialog.open; // closed just now: it has the focus until the browser draws, but needs no keys
  if (target.closest("select, textarea, input[type=number], input[type=search], input[readonly]")) return true;
  const arrows = code.startsWith("Arrow");
  if (target.matches("input[type=range], input[type=radio]")) return arrows || code === "Space";
  return code === "Space" && Boolean(target.closest("button, a, input"));
}

export class Keys {
  #bindings = [];
  #held = new Set();
  #action = null;
  #onAct;

  /** `onAct(action, pressed)`: the action of the keys now held, null for none; pressed: a key went down just now. */
  constructor(onAct, shortcuts) {
    this.#onAct = onAct;
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || $("page-dream").hidden) return;
      const symbol = GAME[event.code];
      if (taken(event.target, event.code)) return;
      if (symbol && this.#used(symbol)) {
        event.preventDefault();
        if (!event.repeat) this.#hold(symbol, true);
      } else if (shortcuts[event.key.toLowerCase()]) {
        event.preventDefault();
        shortcuts[event.key.toLowerCase()]();
      }
    });
    document.addEventListener("keyup", ({ code }) => GAME[code] && this.#hold(GAME[code], false));
    window.addEventListener("blur", () => {
      this.#held.clear();
      this.#update(false);
    });
  }

  build(actions, bindings) {
    this.#bindings = bindings;
    this.#held.clear();
    this.#action = null;
    const used = [...new Set([...Object.keys(SYMBOLS), ...bindings.flat()])].filter((symbol) => this.#used(symbol));
    const caps = used.map((symbol) => el("kbd", { title: this.#meaning(actions, symbol) }, SYMBOLS[symbol] ?? symbol));
    used.forEach((symbol, i) => (caps[i].dataset.symbol = symbol));
    $("keycaps").replaceChildren(...(caps.length ? caps : ["none"]));
  }

  #meaning(actions, symbol) {
    const i = this.#bindings.findIndex((keys) => keys.length === 1 && keys[0] === symbol);
    return i < 0 ? symbol : actions[i];
  }

  #used(symbol) {
    return this.#bindings.some((keys) => keys.includes(symbol));
  }

  #hold(symbol, down) {
    if (down) this.#held.add(symbol);
    else this.#held.delete(symbol);
    this.#update(down);
  }

  /** The action with the most of the held keys, and no others. */
  #update(pressed) {
    let [best, size] = [null, 0];
    this.#bindings.forEach((keys, action) => {
      if (keys.length > size && keys.every((key) => this.#held.has(key))) [best, size] = [action, keys.length];
    });
    for (const cap of $("keycaps").children) cap.classList.toggle("held", this.#held.has(cap.dataset.symbol));
    if (best !== this.#action || (pressed && best !== null)) this.#onAct(best, pressed && best !== null);
    this.#action = best;
  }
}
