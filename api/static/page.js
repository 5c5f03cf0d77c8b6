// What every page does by itself: theme, keyboard, copying, filters, and a word when a request fails.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => Array.from(within.querySelectorAll(selector));

// Colours for canvases: what a custom property is in the theme that holds now.
function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("lockstep-theme", theme);
  } catch (refused) {
    // Storage is switched off: the choice lasts as long as the page.
  }
  document.dispatchEvent(new CustomEvent("themechange"));
}

async function copy(button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch (refused) {
    const text = $("code", button.parentElement);
    if (text) getSelection().selectAllChildren(text);
    button.textContent = "Press Ctrl-C";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = before; }, 1500);
}

function say(message) {
  const element = $("#announcement");
  if (element) element.textContent = message;
}

function filterRows(input) {
  const wanted = input.value.trim().toLowerCase();
  for (const row of $$(`#${CSS.escape(input.dataset.filter)} [data-row]`)) {
    row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
  }
}

let chosen = -1;

function chooseRow(step) {
  const rows = $$("[data-row]").filter((row) => !row.hidden);
  if (!rows.length) return;
  chosen = Math.min(Math.max(chosen + step, 0), rows.length - 1);
  const link = $("a", rows[chosen]) || rows[chosen];
  link.focus();
  rows[chosen].scrollIntoView({ block: "nearest" });
}

let awaitsPlace = false;

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const link = awaitsPlace && $(`[data-go="${CSS.escape(event.key)}"]`);
  awaitsPlace = event.key === "g" && !awaitsPlace;
  if (link) {
    location.assign(link.href);
    return;
  }
  const act = {
    j: () => chooseRow(1),
    k: () => chooseRow(-1),
    d: switchTheme,
    "?": () => $("#keys").showModal(),
    "/": () => { const input = $("[data-filter]"); if (input) { event.preventDefault(); input.focus(); } },
  }[event.key];
  if (act) act();
}

function click(event) {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "theme") switchTheme();
  if (button.dataset.open) document.getElementById(button.dataset.open).showModal();
  if (button.dataset.copy) copy(button);
  if (button.dataset.print !== undefined) print();
}

function showFailure(sentence) {
  const element = $("#failure");
  element.textContent = sentence;
  element.hidden = !sentence;
}

document.addEventListener("keydown", press);
document.addEventListener("click", click);
document.addEventListener("input", (event) => {
  if (event.target.dataset.filter) filterRows(event.target);
  const shown = event.target.dataset.shows && document.getElementById(event.target.dataset.shows);
  if (shown) shown.textContent = event.target.value;
});
document.addEventListener("change", (event) => {
  if (event.target.dataset.submits !== undefined) event.target.form.requestSubmit();
});
document.addEventListener("htmx:sendError", () => showFailure("The server does not answer. This page shows what was known before."));
document.addEventListener("htmx:responseError", (event) => showFailure(`The server refused to update this page (${event.detail.xhr.status}). It shows what was known before.`));
const announcementNow = () => { const element = $("[data-announcement]"); return element ? element.dataset.announcement : ""; };
let announced = announcementNow();
document.addEventListener("htmx:afterSwap", () => {
  showFailure("");
  if (announcementNow() !== announced) say(announced = announcementNow());
  for (const input of $$("[data-filter]")) filterRows(input);
});
