"use strict";
// Values under the pointer, filters, token colours and the reading of pieces. Text is only ever set as text; without this script the page still says everything.
(() => {
  const values = document.createElement("p");
  values.className = "values";

  function point(hit) {
    values.hidden = !hit;
    if (!hit) return;
    const title = hit.querySelector("title");
    if (title) {
      hit.dataset.says = title.textContent;
      title.remove();
    }
    const plot = hit.closest(".plot");
    plot.append(values);
    values.textContent = hit.dataset.says;
    const [around, box] = [plot.getBoundingClientRect(), hit.getBoundingClientRect()];
    values.classList.toggle("beyond", box.left - around.left < around.right - box.right);
  }

  document.addEventListener("pointerover", (event) => point(event.target.closest(".hit")));

  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  if (!form) return;
  const field = (name) => form.elements.namedItem(name);
  const responses = [...document.querySelectorAll("details.response")];
  const streams = [...document.querySelectorAll("article.stream")];
  const batches = responses.map((r) => Number(r.dataset.batch));
  const first = Math.min(...batches);
  const width = (Math.max(...batches) - first + 1) / 3;
  const texts = new Map(responses.map((r) => [r, [...r.querySelectorAll(".text span"), r.querySelector(".what")].map((e) => e.textContent).join("\n").toLowerCase()]));

  function matches(r) {
    const { kind, batch, round, length, turns } = r.dataset;
    const words = field("words").value.toLowerCase();
    const wanted = (name, value) => !field(name) || field(name).value === "" || field(name).value === value;
    return wanted("kind", kind) && wanted("round", round)
      && wanted("part", String(Math.min(2, Math.floor((Number(batch) - first) / width))))
      && !(field("least").value && Number(length) < Number(field("least").value))
      && !(field("turns") && field("turns").value && Number(turns) < Number(field("turns").value))
      && !(field("most").value && Number(length) > Number(field("most").value))
      && (!words || texts.get(r).includes(words));
  }

  function filter() {
    let shown = 0;
    for (const r of responses) {
      r.hidden = !matches(r);
      shown += r.hidden ? 0 : 1;
    }
    for (const s of streams) s.hidden = ![...s.querySelectorAll("details.response")].some((r) => !r.hidden);
    document.getElementById("count").textContent = `${shown} of ${responses.length} shown`;
  }

  // Orders responses within their prompt or stream, and those by their first response.
  function order() {
    const sign = Number(field("order").value);
    const key = (r) => (sign ? sign * Number(r.dataset.length) : responses.indexOf(r));
    const least = (s) => Math.min(...[...s.querySelectorAll("details.response")].map(key));
    for (const s of streams) {
      const inside = [...s.querySelectorAll("details.response")];
      inside[0].parentElement.append(...inside.sort((a, b) => key(a) - key(b)));
    }
    form.parentElement.append(...[...streams].sort((a, b) => least(a) - least(b)));
  }

  const level = (chance) => (chance >= 90 ? 0 : chance >= 50 ? 1 : chance >= 20 ? 2 : chance >= 5 ? 3 : 4);

  // Rewrites a text as one span a token, so that each can be coloured, greyed or marked.
  function paint(r, from = -1, to = -1) {
    const tokens = data[r.id.slice(1)];
    if (!tokens) return null;
    let chosen = null;
    const boxes = r.querySelectorAll(".own");
    for (const [place, [begin, end, shift]] of tokens.parts.entries()) {
      const box = boxes[place];
      const text = box.textContent;
      const spans = document.createDocumentFragment();
      for (let i = begin, at = 0; i < end; at += tokens.n[i], i += 1) {
        const span = document.createElement("span");
        const chance = Number(tokens.p.slice(2 * i, 2 * i + 2));
        const position = i + shift;
        span.textContent = text.slice(at, at + tokens.n[i]);
        span.title = `token ${position}, probability ${chance === 99 ? "99% or more" : chance === 0 ? "below 1%" : `${chance}%`}`;
        if (field("colour").checked && level(chance)) span.classList.add(`t${level(chance)}`);
        if (position < tokens.inherited) span.classList.add("inherited");
        if (position >= from && position < to) {
          span.classList.add("chosen");
          chosen = chosen || span;
        }
        spans.append(span);
      }
      box.replaceChildren(spans);
    }
    return chosen;
  }

  function read(event) {
    const link = event.target.closest("a[data-track]");
    if (!link) return;
    const r = document.getElementById(`r${link.dataset.track}`);
    if (!r) return;
    event.preventDefault();
    r.hidden = false;
    const around = r.closest(".tracks");
    if (around) around.open = true;
    r.open = true;
    const chosen = link.dataset.from ? paint(r, Number(link.dataset.from), Number(link.dataset.to)) : paint(r);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    r.scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
    const box = r.querySelector(".text");
    if (chosen) box.scrollTop = chosen.offsetTop - box.offsetTop - 40;
    r.querySelector("summary").focus({ preventScroll: true });
  }

  for (const r of responses) r.addEventListener("toggle", () => r.open && !r.querySelector(".chosen") && paint(r));
  form.addEventListener("input", (event) => (event.target.name === "colour" ? responses.forEach((r) => r.open && paint(r)) : event.target.name === "order" ? order() : filter()));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", read);
  form.hidden = false;
  document.getElementById("key").hidden = Object.keys(data).length === 0;
  filter();
})();
