// Light, dark, or as the system has it.

import { $, redrawAll } from "./dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = "auto";

function apply() {
  const dark = chosen === "dark" || (chosen === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").title = `Theme: ${chosen === "auto" ? "as the system has it" : chosen}`;
  $("theme").setAttribute("aria-label", $("theme").title);
  redrawAll();
}

export function startTheme() {
  chosen = NEXT[localStorage.getItem("twm-theme")] ? localStorage.getItem("twm-theme") : "auto";
  system.addEventListener("change", apply);
  $("theme").addEventListener("click", () => {
    chosen = NEXT[chosen];
    localStorage.setItem("twm-theme", chosen);
    apply();
  });
  apply();
}
