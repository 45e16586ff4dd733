// What every page does: keys, texts that load when asked for, meanings of words, and the modules of pages that have more to do.

const items = () => [...document.querySelectorAll("[data-item]")].filter((item) => item.getClientRects().length);
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
  const visible = all.findIndex((item) => item.getBoundingClientRect().bottom > 60);
  const next = at < 0 ? Math.max(visible, 0) : Math.min(Math.max(at + by, 0), all.length - 1);
  choose(all[next]);
}

function toggleHelp() {
  const help = document.getElementById("help");
  if (help.open) help.close();
  else help.showModal();
}

function openCurrent() {
  const item = current();
  if (item?.matches("details")) item.open = !item.open;
  else item?.querySelector("a.title, a.saw, a.seq, a")?.click();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  "/": () => document.getElementById("q").focus(),
  "?": toggleHelp,
  Enter: openCurrent,
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

// The line at the top moves while something is loaded: a part of this page, or the next page.
const loading = document.getElementById("loading");
let underWay = 0;

function busy(by) {
  underWay += by;
  loading.hidden = underWay <= 0;
}

export async function load(address) {
  busy(1);
  try {
    return await fetch(address);
  } finally {
    busy(-1);
  }
}

function leaving(event) {
  const link = event.target.closest("a[href]");
  const stays = !link || link.target || link.hasAttribute("download") || link.getAttribute("href").startsWith("#");
  if (stays || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  loading.hidden = false;
}
addEventListener("click", leaving);
addEventListener("submit", (event) => {
  if (event.target.method !== "dialog") loading.hidden = false;
});
addEventListener("pageshow", () => busy(0));

// What an address gives, as nodes. The server has escaped it.
async function loaded(address) {
  const box = document.createElement("div");
  const answer = await load(address).catch(() => null);
  if (answer?.ok) box.innerHTML = await answer.text();
  else box.innerHTML = '<p class="bad">It could not be loaded. Is <code>scroll serve</code> still running?</p>';
  return box;
}

// A button with data-load is replaced by what that address gives.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-load]");
  if (!button) return;
  button.disabled = true;
  const label = button.textContent;
  button.textContent = "Loading…";
  const box = await loaded(button.dataset.load);
  const line = button.closest(".more") ?? button;
  if (box.querySelector(":scope > .bad")) {
    button.disabled = false;
    button.textContent = label;
    line.after(...box.childNodes);
    return;
  }
  if (!("append" in button.dataset)) {
    const preview = line.previousElementSibling;
    if (preview?.matches("pre, .json")) preview.remove();
  }
  line.replaceWith(...box.childNodes);
});

// A closed part with data-fill gets its content when it is opened. Toggle events do not bubble.
document.addEventListener(
  "toggle",
  async (event) => {
    const part = event.target;
    if (!part.open || !part.dataset?.fill) return;
    const address = part.dataset.fill;
    delete part.dataset.fill;
    const line = part.querySelector(":scope > .more");
    line.textContent = "Loading…";
    line.replaceWith(...(await loaded(address)).childNodes);
  },
  true,
);

// The meaning of a word opens beside it. Without this script it opens in the middle of the screen.
document.addEventListener("click", (event) => {
  const word = event.target.closest("button.term");
  if (!word) return;
  const meaning = document.getElementById(word.getAttribute("popovertarget"));
  if (!meaning?.matches(":popover-open")) return;
  const at = word.getBoundingClientRect();
  const { width, height } = meaning.getBoundingClientRect();
  const below = at.bottom + 6;
  meaning.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
  meaning.style.top = `${below + height < innerHeight ? below : Math.max(8, at.top - height - 6)}px`;
});

if (document.getElementById("steps")) import("./steps.js");

// On a request: open every message, or only those that changed.
const all = document.getElementById("changes-only");
all?.addEventListener("click", () => {
  const open = all.getAttribute("aria-pressed") !== "true";
  all.setAttribute("aria-pressed", String(open));
  all.textContent = open ? "Only changes" : "Open all";
  for (const message of document.querySelectorAll("details.sent")) message.open = open || !message.classList.contains("kept");
});
