// Tabs that the arrow keys move between, as people expect of them.

import { $ } from "./dom.js";

export function tabs(list, onChange = () => {}) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const choose = (tab) => {
    for (const other of all) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      $(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    onChange(tab.id);
  };
  all.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.stopPropagation();
      const next = all[(i + step + all.length) % all.length];
      next.focus();
      choose(next);
    });
  });
}
