import { load } from "./inspector.js";

// The steps of a session: pages come as the reader nears them and go when they are far away; new steps come live.

const box = document.getElementById("steps");
const session = box.dataset.session;
const live = document.getElementById("live");
const NEAR = 1500; // pixels
const FAR = "9000px";

async function fetched(query) {
  const answer = await load(`/steps/${session}?${query}`);
  if (answer.status !== 200) return null;
  const made = document.createElement("template");
  made.innerHTML = await answer.text();
  return made.content.querySelector("section.page");
}

// pages that are far away are emptied and keep their height
const far = new IntersectionObserver(
  async (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting && target.childElementCount && target !== lastPage()) {
        target.style.height = `${target.offsetHeight}px`;
        target.replaceChildren();
      } else if (isIntersecting && !target.childElementCount && !target.dataset.loading) {
        target.dataset.loading = "1";
        const page = await fetched(`after=${target.dataset.after}&before=${Number(target.dataset.last) + 1}`);
        if (page) {
          target.replaceChildren(...page.childNodes);
          target.style.height = "";
        }
        delete target.dataset.loading;
      }
    }
  },
  { rootMargin: `${FAR} 0px` },
);

const pages = () => [...box.querySelectorAll("section.page")];
const lastPage = () => pages().at(-1);

// A link to further steps loads them when the reader is near it. Without this script it is an ordinary link.
function sentinel(id, load) {
  let busy = false;
  const near = () => {
    const place = document.getElementById(id)?.getBoundingClientRect();
    return place && place.top < innerHeight + NEAR && place.bottom > -NEAR;
  };
  const check = async () => {
    if (busy) return;
    busy = true;
    while (near() && (await load()));
    busy = false;
  };
  addEventListener("scroll", check, { passive: true });
  addEventListener("resize", check, { passive: true });
  check();
}

async function later() {
  const last = lastPage();
  if (last.dataset.more !== "1") return false;
  const page = await fetched(`after=${last.dataset.last}`);
  if (!page) return false;
  last.after(page);
  far.observe(page);
  if (page.dataset.more !== "1") document.getElementById("later")?.remove();
  return page.dataset.more === "1";
}

async function earlier() {
  const first = pages()[0];
  const page = await fetched(`after=-1&before=${first.dataset.first}`);
  if (!page || !page.childElementCount) {
    document.getElementById("earlier")?.remove();
    return false;
  }
  const height = document.documentElement.scrollHeight;
  first.before(page);
  scrollBy({ top: document.documentElement.scrollHeight - height, behavior: "instant" });
  far.observe(page);
  return true;
}

pages().forEach((page) => far.observe(page));
sentinel("later", later);
sentinel("earlier", earlier);
if (box.dataset.at === "end") lastPage().lastElementChild?.scrollIntoView({ block: "end", behavior: "instant" });

// live: the last page is fetched again whenever the session has grown
let newest = Number(box.dataset.newest);
let behind = false;
let refreshing = Promise.resolve();

function atEnd() {
  return innerHeight + scrollY > document.documentElement.scrollHeight - 240;
}

async function refresh() {
  const last = lastPage();
  if (last.dataset.more === "1") return; // the reader is further up; the rest comes by scrolling
  const follow = atEnd();
  const page = await fetched(`after=${last.dataset.after}`);
  if (!page) return;
  const known = new Map([...last.children].map((one) => [one.id, one]));
  const open = new Set([...last.querySelectorAll("details[open]")].map((one) => one.closest("[id]")?.id));
  for (const one of page.querySelectorAll("details")) if (open.has(one.closest("[id]")?.id)) one.open = true;
  const before = known.size;
  far.unobserve(last);
  last.replaceWith(page);
  far.observe(page);
  while (lastPage().dataset.more === "1" && (follow || page.childElementCount > before)) if (!(await later())) break;
  if (follow) scrollTo({ top: document.documentElement.scrollHeight });
  else behind = true;
}

function tell(state) {
  const badge = document.getElementById("state");
  badge.textContent = state;
  badge.className = `state ${state}`;
  live.hidden = state !== "running" && !behind;
  live.replaceChildren();
  if (state === "running") live.append("live: new steps appear as they are recorded ");
  if (behind) {
    const link = document.createElement("a");
    link.href = `/session/${session}?at=end`;
    link.textContent = "to the newest";
    live.append(link);
  }
}

let source = null;
function listen() {
  source = new EventSource(`/live/${session}?seq=${newest}`);
  source.onmessage = ({ data }) => {
    const [seq, state] = data.split(" ");
    const grown = Number(seq) > newest;
    newest = Number(seq);
    refreshing = refreshing.then(async () => {
      if (grown) await refresh();
      tell(state);
    });
  };
}
listen();
document.addEventListener("visibilitychange", () => {
  source?.close();
  if (document.visibilityState === "visible") listen();
});
addEventListener("pagehide", () => source?.close());
