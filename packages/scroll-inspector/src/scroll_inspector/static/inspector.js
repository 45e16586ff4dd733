// What every page does: keys, texts that load when asked for, and the modules of pages that have more to do.

const items = () => [...document.querySelectorAll("[data-item]")].filter((one) => one.getClientRects().length);
const current = () => document.querySelector("[data-item][aria-current]");

function choose(item) {
  current()?.removeAttribute("aria-current");
  item.setAttribute("aria-current", "true");
  item.scrollIntoView({ block: "nearest" });
}

function move(by) {
  const all = items();
  if (!all.length) return;
  const at = all.indexOf(current());
  const visible = all.findIndex((one) => one.getBoundingClientRect().bottom > 60);
  const next = at < 0 ? Math.max(visible, 0) : Math.min(Math.max(at + by, 0), all.length - 1);
  choose(all[next]);
}

function toggleHelp() {
  const help = document.getElementById("help");
  if (help.open) help.close();
  else help.showModal();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => document.getElementById("q").focus(),
  "?": toggleHelp,
  Enter: () => current()?.querySelector("a.title, a.saw, a.seq, a")?.click(),
  "[": () => document.querySelector("a[rel=prev]")?.click(),
  "]": () => document.querySelector("a[rel=next]")?.click(),
  c: () => document.getElementById("changes-only")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target !== document.body && event.target.id !== "main") return;
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

document.getElementById("help-button").addEventListener("click", toggleHelp);

// A button with data-load is replaced by what that address gives. The server has escaped it.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-load]");
  if (!button) return;
  button.disabled = true;
  const answer = await fetch(button.dataset.load);
  const box = document.createElement("div");
  if (answer.ok) box.innerHTML = await answer.text();
  else box.textContent = "It could not be loaded.";
  const line = button.closest(".more") ?? button;
  if (!("append" in button.dataset) && answer.ok) {
    const preview = line.previousElementSibling;
    if (preview?.matches("pre, .json")) preview.remove();
  }
  line.replaceWith(...box.childNodes);
});

if (document.getElementById("steps")) import("./steps.js");

// At a request: open every message, or only what changed.
const all = document.getElementById("changes-only");
all?.addEventListener("click", () => {
  const open = all.getAttribute("aria-pressed") !== "true";
  all.setAttribute("aria-pressed", String(open));
  all.textContent = open ? "Only what changed" : "Open all";
  for (const one of document.querySelectorAll("details.sent")) one.open = open || !one.classList.contains("kept");
});

// In the graph of variables: the edges of the node under the pointer stand out.
document.querySelector("svg.graph")?.addEventListener("pointerover", (event) => {
  const key = event.target.closest("[data-node]")?.dataset.node;
  for (const edge of document.querySelectorAll("svg.graph .edge")) {
    edge.classList.toggle("lit", key !== undefined && (edge.dataset.from === key || edge.dataset.to === key));
  }
});
