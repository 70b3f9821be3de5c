
"use strict";
// Comfort only: without this script the page shows the same, with the browser's own tooltips.
(() => {
  const make = (name, text, properties) => Object.assign(
    document.createElement(name), { textContent: text }, properties);

  // --- The confidence of a token, at the pointer, by touch and with the arrow keys. ---
  const tip = make("div", "", { className: "tip", role: "status", hidden: true });
  document.body.append(tip);
  let current = null;

  const hide = () => {
    if (current) {
      current.title = current.dataset.tip;
      current.classList.remove("at");
    }
    current = null;
    tip.hidden = true;
  };
  const show = (token, marked) => {
    if (token === current) return;
    hide();
    current = token;
    token.dataset.tip = token.title;
    token.removeAttribute("title");
    token.classList.toggle("at", marked);
    tip.textContent = token.dataset.tip;
    tip.hidden = false;
    const box = token.getClientRects()[0], page = document.documentElement;
    const left = Math.min(box.left, page.clientWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 7;
    tip.style.left = `${Math.max(left, 8) + scrollX}px`;
    tip.style.top = `${(above > 0 ? above : box.bottom + 7) + scrollY}px`;
  };
  const tokenAt = (event) => event.target instanceof Element
    ? event.target.closest(".tokens .t, .diff .t") : null;

  document.addEventListener("pointerover", (event) => {
    const token = tokenAt(event);
    if (token) show(token, false);
    else hide();
  });
  document.addEventListener("click", (event) => {
    const token = tokenAt(event);
    if (token) show(token, false);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const list = document.activeElement;
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way || !list || !list.classList.contains("tokens")) return;
    event.preventDefault();
    const tokens = [...list.querySelectorAll(".t")];
    const from = tokens.indexOf(current);
    const to = from < 0 ? (way > 0 ? 0 : tokens.length - 1) : from + way;
    if (tokens[to]) show(tokens[to], true);
  });

  // --- The same numbers as a table, made when it is asked for. ---
  const fill = (details, list) => {
    const body = make("tbody");
    for (const token of list.querySelectorAll(".t")) {
      const row = make("tr");
      const notes = (token.title || token.dataset.tip).split(" · ");
      row.append(make("th", token.textContent, { scope: "row" }), make("td", notes[0]),
                 make("td", notes.slice(1).join(", ")));
      body.append(row);
    }
    const table = make("table");
    table.append(body);
    details.append(table);
  };
  for (const list of document.querySelectorAll(".tokens")) {
    const details = make("details", "", { className: "exact" });
    details.append(make("summary", "Confidences as a table"));
    details.addEventListener("toggle", () => {
      if (details.open && !details.querySelector("table")) fill(details, list);
    });
    list.parentElement.append(details);
  }

  // --- Answers of a page with several: a link opens its answer. ---
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.localName === "details") at.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // --- Buttons. ---
  const tools = make("div", "", { className: "tools" });
  const button = (text, press) => {
    const made = make("button", text, { type: "button" });
    made.addEventListener("click", () => press(made));
    tools.append(made);
    return made;
  };
  const root = document.documentElement;
  const schemes = ["", "light", "dark"];
  button("Colours: as the system", (self) => {
    const next = schemes[(schemes.indexOf(root.dataset.scheme || "") + 1) % schemes.length];
    if (next) root.dataset.scheme = next;
    else delete root.dataset.scheme;
    self.textContent = `Colours: ${next || "as the system"}`;
  });
  if (document.querySelector(".sentence.plain")) {
    button("Only sentences with a search", (self) => {
      const on = document.body.classList.toggle("searched-only");
      self.setAttribute("aria-pressed", String(on));
    }).setAttribute("aria-pressed", "false");
  }
  const answers = [...document.querySelectorAll("details.answer")];
  if (answers.length) {
    button("Open or close all answers", () => {
      const open = !answers.every((answer) => answer.open);
      for (const answer of answers) answer.open = open;
    });
  }
  const first = document.querySelector("main .contents, main .facts");
  first.after(tools);
})();
