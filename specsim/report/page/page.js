"use strict";
// Goes through the events of a schedule. Texts of the payload are set as text, never as markup; what is drawn is made
// from elements. States are Maps, so that a request may be called __proto__.
(() => {
  const P = JSON.parse(document.getElementById("payload").textContent);
  const byId = (id) => document.getElementById(id);
  document.body.classList.add("scripted");

  function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }
  const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
  const s = (tag, properties, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

  byId("copy").addEventListener("click", async () => {
    const code = byId("command");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    byId("copy").textContent = "Copied";
    setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
  });
  const track = byId("track"), aim = byId("access1") || byId("access2") || byId("wrong");
  if (track && aim) track.scrollLeft = aim.getBBox().x + Math.min(aim.getBBox().width, track.clientWidth) / 2 - track.clientWidth / 2;
  const S = P.play; // what a schedule has to go through its events
  if (!S || !S.events.length) return;

  // States: what each event changed, applied to a copy of every 64th state.

  const FRAME = 64;
  const frames = [new Map()];
  const last = S.events.length - 1;
  const EMPTY = new Map();

  function apply(state, changes) {
    for (const [section, entries] of Object.entries(changes || {})) {
      if (!state.has(section)) state.set(section, new Map());
      const values = state.get(section);
      for (const [key, value] of Object.entries(entries)) {
        if (value === null) values.delete(key);
        else values.set(key, value);
      }
    }
  }
  const copied = (state) => new Map([...state].map(([section, values]) => [section, new Map(values)]));

  function before(count) { // the state before event `count`
    for (let at = frames.length; at * FRAME <= count; at++) {
      const state = copied(frames[at - 1]);
      for (let n = (at - 1) * FRAME; n < at * FRAME; n++) apply(state, S.changes[n]);
      frames.push(state);
    }
    const from = Math.floor(count / FRAME);
    const state = copied(frames[from]);
    for (let n = from * FRAME; n < count; n++) apply(state, S.changes[n]);
    return state;
  }
  const section = (state, name) => state.get(name) || EMPTY;

  // Owners, and what a slot is

  const owners = [...S.requests];
  for (const changes of S.changes)
    for (const name of Object.keys(changes.owners || {})) if (!owners.includes(name)) owners.push(name);
  const colour = (name) => "owner " + (owners.includes(name) ? "o" + (owners.indexOf(name) % 7) : "o7");
  const FREE = ["", -1, "", ""];
  const hasTree = S.changes.some((changes) => "slots of the tree" in (changes.lists || {}));

  function kindOf([owner, , holds, should]) {
    if (owner === "") return "free";
    if (owner === "leaked" || owner.includes(" and ")) return "leaked";
    if (owner === "freed") return "freed";
    if (should !== "" && holds !== should) return "differs";
    return should !== "" ? "owned" : "reserved";
  }
  const SIGNS = { differs: "\u2260", leaked: "!", owned: "", reserved: "", free: "", freed: "" };

  function describe(slot, leaf) {
    const [owner, position, holds, should] = leaf;
    const held = holds === "" ? "nothing yet" : holds;
    switch (kindOf(leaf)) {
      case "free": return `slot ${slot}: free` + (holds ? `, still holds ${holds}` : "");
      case "leaked": return `slot ${slot}: ${owner === "leaked" ? "nobody's, and not free" : "owned by " + owner}, holds ${held}`;
      case "freed": return `slot ${slot}: freed in the open free group, holds ${held}`;
      case "differs": return `slot ${slot}: ${owner}, position ${position}: holds ${held}, should hold ${should}`;
      case "owned": return `slot ${slot}: ${owner}, position ${position}: holds ${held}, as it should`;
      default: return position < 0 ? `slot ${slot}: the rest of a page of ${owner}, holds ${held}`
        : `slot ${slot}: allocated to ${owner}, position ${position}; holds ${held}`;
    }
  }
  const sameLeaf = (one, two) => JSON.stringify(one) === JSON.stringify(two);

  function ranges(numbers) {
    const runs = [];
    for (const n of [...numbers].sort((a, b) => a - b)) {
      if (runs.length && n === runs[runs.length - 1][1] + 1) runs[runs.length - 1][1] = n;
      else runs.push([n, n]);
    }
    return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
  }
  const shown = (value) => (value === undefined ? "none" : Array.isArray(value) ? `[${value.join(", ")}]` : String(value));
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);

  // The parts of the page

  const broken = new Map();
  for (const violation of P.violations) broken.set(violation.event, [...(broken.get(violation.event) || []), violation]);
  const goal = P.violations.length ? P.violations.find((v) => v.rule === P.finding.rule) || P.violations[0] : null;
  let now = -1;
  let timer = 0;
  let drawTimeline = null;

  const slider = h("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Event", id: "slider",
    oninput: () => select(Number(slider.value)) });
  const play = h("button", { type: "button", class: "play", text: "Play", onclick: () => setPlaying(!timer) });
  const speed = h("select", { "aria-label": "Events a second", onchange: () => timer && setPlaying(true) },
    ...[["1", "1/s"], ["3", "3/s"], ["10", "10/s"]].map(([value, text]) => h("option", { value, text })));
  const icon = (path, label, action) =>
    h("button", { type: "button", "aria-label": label, title: label, onclick: action },
      s("svg", { width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" }, s("path", { d: path })));
  const count = h("span", { class: "count" });
  const line = h("code", { id: "line" });
  const nowline = h("div", { class: "nowline" }, count, line);
  const live = h("div", { class: "quiet", role: "status", "aria-live": "polite" });
  const transport = h("div", { class: "transport", id: "transport", role: "group", "aria-label": "Go through the events" },
    h("div", { class: "keys" },
      icon("M1 1h2v12H1zM13 1v12L4 7z", "First event", () => select(0)),
      icon("M11 1v12L3 7z", "Event before", () => select(now - 1)),
      play,
      icon("M3 1v12l8-6z", "Next event", () => select(now + 1)),
      icon("M11 1h2v12h-2zM1 1v12l9-6z", "Last event", () => select(last)),
      slider, speed,
      goal ? h("button", { type: "button", class: "broken", title: "To the broken rule", "aria-label": `To the broken rule ${P.finding.rule_label}`,
        text: P.finding.rule_label, onclick: () => select(goal.event) }) : null),
    nowline, live);

  const panel = (title, kind, ...children) =>
    h("section", { class: `panel ${kind}` }, h("h2", { text: title }), ...children);
  const brokenHere = h("div", { class: "changes" });
  const changes = h("ul", { class: "changes" });
  const eventList = h("ol", { class: "events", "aria-label": "Events" },
    ...S.events.map((event) => h("li", { class: (broken.has(event.number) ? "bad" : "") },
      h("button", { type: "button", text: event.line, onclick: () => select(event.number) }))));
  const slotGrid = h("div", { class: "grid", role: "group", "aria-label": "KV slots" });
  const slotSaid = h("p", { class: "said", id: "slot-said" });
  const slotNote = h("p", { class: "note" });
  const rulers = h("div");
  const fields = h("table", { class: "fields" });
  const lists = h("dl", { class: "pairs" });
  const hasMany = S.requests.length > 3;
  const queues = panel("Queues and free lists", hasMany ? "late" : "", lists);
  const changePanel = panel("What this event changed", "changepanel", brokenHere, changes);
  const player = byId("player");
  player.append(
    transport, timelinePanel(),
    h("div", { class: "state" },
      h("div", { class: "left" },
        changePanel,
        panel(`Events, ${S.events.length}`, "late", eventList,
          h("p", { class: "keyhelp" }, ...keyHelp())),
        hasMany ? queues : null),
      h("div", { class: "right" },
        panel("KV slots", "wide", legend(), slotGrid, slotSaid, slotNote),
        panel("Rows of req_to_token", "wide", rulers),
        panel("Requests", hasMany ? "wide" : "", h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Request fields" }, fields)),
        hasMany ? null : queues)));
  player.hidden = false;

  function keyHelp() {
    const keys = [["\u2190 \u2192", "step"], ["Space", "play"], ["Home End", "ends"], ["V", "broken rule"]];
    return keys.flatMap(([key, text]) => [h("kbd", { text: key }), ` ${text}  `]);
  }

  function legend() {
    const item = (kind, text, owner) => h("span", null, h("i", { class: `swatch ${kind} ${owner || ""}` }), text);
    return h("div", { class: "legend" },
      ...owners.slice(0, 12).map((name) => item("owned", short(name, 24), colour(name))),
      hasTree ? item("owned", "radix cache", "owner") : null,
      item("reserved", "allocated, no KV due", "owner"), item("differs", "\u2260 wrong content"),
      item("leaked", "! leaked or shared"), item("free", "free"), item("changed", "changed here"));
  }

  // Slots

  const touched = new Set();
  for (const each of S.changes) for (const slot of Object.keys(each.slots || {})) touched.add(Number(slot));
  const slotNumbers = [...touched].sort((a, b) => a - b);
  const slotCells = slotNumbers.map((slot, index) =>
    h("div", { class: "cell", tabindex: index ? -1 : 0, role: "img" },
      h("span", { class: "id", text: slot }), h("span", { class: "sign" }), document.createTextNode("")));
  slotCells.forEach((cell, index) => {
    cell.addEventListener("focus", () => pick(index));
    cell.addEventListener("pointerenter", () => pick(index));
    cell.addEventListener("click", () => cell.focus());
  });
  slotGrid.append(...slotCells);
  const unused = S.pool_slots - slotNumbers.filter((slot) => slot > 0 && slot <= S.pool_slots).length;
  slotNote.textContent = `The number in a cell is the position that it holds. ${S.pool_slots} slots in pages of ${S.page_size}` +
    (unused > 0 ? `; the ${unused} that nobody ever had are left out.` : ".");
  let picked = -1;
  let slotsNow = EMPTY;

  function pick(index) {
    if (slotCells[picked]) { slotCells[picked].classList.remove("picked"); slotCells[picked].tabIndex = -1; }
    picked = index;
    const cell = slotCells[index];
    if (!cell) return;
    cell.classList.add("picked");
    cell.tabIndex = 0;
    const leaf = slotsNow.get(String(slotNumbers[index])) || FREE;
    slotSaid.textContent = describe(slotNumbers[index], leaf);
    slotSaid.className = "said" + (["differs", "leaked"].includes(kindOf(leaf)) ? " bad" : "");
  }

  slotGrid.addEventListener("keydown", (event) => {
    const across = Math.max(1, Math.floor((slotGrid.clientWidth + 5) / 47));
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    const cell = slotCells[Math.min(slotCells.length - 1, Math.max(0, picked + steps[event.key]))];
    if (cell) cell.focus();
  });

  function drawSlots(was, is) {
    slotsNow = section(is, "slots");
    const old = section(was, "slots");
    slotNumbers.forEach((slot, index) => {
      const leaf = slotsNow.get(String(slot)) || FREE;
      const kind = kindOf(leaf);
      const isNew = !sameLeaf(leaf, old.get(String(slot)) || FREE);
      const cell = slotCells[index];
      const start = S.page_size > 1 && slot % S.page_size === 0 ? " pagestart" : "";
      cell.className = `cell ${kind} ${colour(leaf[0])}${isNew ? " changed" : ""}${start}${index === picked ? " picked" : ""}`;
      cell.childNodes[1].textContent = SIGNS[kind];
      cell.lastChild.data = leaf[1] >= 0 ? String(leaf[1]) : kind === "free" && leaf[2] ? "\u00b7" : "";
      cell.setAttribute("aria-label", describe(slot, leaf) + (isNew ? ", changed" : ""));
    });
    const wrong = slotNumbers.findIndex((slot) => ["differs", "leaked"].includes(kindOf(slotsNow.get(String(slot)) || FREE)));
    pick(picked >= 0 && slotGrid.contains(document.activeElement) ? picked : wrong >= 0 ? wrong : Math.max(picked, 0));
  }

  // Rows: one ruler for each owner

  function drawRows(was, is) {
    const rows = [...section(is, "owners")].sort((a, b) => a[1][0] - b[1][0]);
    const cells = section(is, "cells"), oldCells = section(was, "cells"), oldSlots = section(was, "slots");
    rulers.replaceChildren(...rows.map(([name, [row, committed, allocated, , ready]]) => {
      const request = section(is, `request ${name}`);
      const tokens = [...(request.get("prompt") || []), ...(request.get("outputs") || [])];
      const made = [];
      for (let position = 0; position < allocated; position++) {
        const slot = cells.get(`${row},${position}`) || 0;
        const leaf = slotsNow.get(String(slot)) || FREE;
        const own = leaf[0] === name && leaf[1] !== position ? [name, position, leaf[2], "position " + leaf[1]] : leaf;
        const kind = kindOf(own);
        const isNew = oldCells.get(`${row},${position}`) !== slot || !sameLeaf(leaf, oldSlots.get(String(slot)) || FREE);
        const token = position < tokens.length ? `, token ${tokens[position]}` : "";
        made.push(h("div", { class: `cell ${kind} ${colour(leaf[0])}${isNew ? " changed" : ""}`, title: describe(slot, own) + token },
          h("span", { class: "id", text: `${position}\u2192${slot}` }), h("span", { class: "sign", text: SIGNS[kind] }),
          document.createTextNode(position < tokens.length ? short(String(tokens[position]), 7) : "")));
      }
      const bar = (label, length) => {
        const element = h("div", { class: `bar ${colour(name)}` }, h("span"), h("em", null, `${label} `, h("b", { text: length })));
        element.style.setProperty("width", `${Math.max(length * 66 - 4, 2)}px`);
        return element;
      };
      const heading = `${name}: row ${row}`;
      return h("div", { class: "ruler" }, h("h3", { text: heading }),
        h("div", { class: "scroll", tabindex: 0, role: "region",
          "aria-label": `${heading}, committed ${committed}, KVready ${ready}, allocated ${allocated}` },
          h("div", { class: "cells" }, ...made),
          h("div", { class: "bars" }, bar("committed", committed), bar("KVready", ready), bar("allocated", allocated))));
    }));
    if (!rows.length) rulers.append(h("p", { class: "note", text: "Nobody owns a row." }));
    else rulers.append(h("p", { class: "note", text: "position \u2192 slot, and the token at that position as far as the host knows it." }));
  }

  // Requests

  const everUsed = new Set(["state", "prompt", "outputs"]);
  for (const each of S.changes)
    for (const [name, entries] of Object.entries(each))
      if (name.startsWith("request "))
        for (const [key, value] of Object.entries(entries))
          if (value && !(Array.isArray(value) && !value.length)) everUsed.add(key);

  // What is wrong beside slots: a field of a request, or a list.
  const isBlamed = (kind, name, who) => Boolean(S.wrong) && goal !== null && now >= goal.event &&
    S.wrong.kind === kind && S.wrong.name === name && S.wrong.who === who;

  function fieldCell(key, value, old, isFirst, rid) {
    const isWrong = isBlamed("request", key, rid);
    const same = JSON.stringify(value) === JSON.stringify(old);
    if (key === "prompt" || key === "outputs") {
      const had = isFirst || same ? Infinity : Array.isArray(old) ? old.length : 0;
      return h("td", { class: isWrong ? "wrong" : null }, ...(value || []).map((token, i) => h("span", { class: "token" + (i >= had ? " new" : ""), text: token })));
    }
    if (same || isFirst) return h("td", { class: isWrong ? "wrong" : null, text: shown(value) });
    return h("td", { class: isWrong ? "new wrong" : "new" }, h("del", { text: shown(old) }), shown(value));
  }

  function drawRequests(was, is) {
    const rids = S.requests.filter((rid) => section(is, `request ${rid}`).size);
    const keys = [...new Set(rids.flatMap((rid) => [...section(is, `request ${rid}`).keys()]))].filter((key) => everUsed.has(key));
    const lists = ["prompt", "outputs"];
    keys.sort((a, b) => lists.indexOf(a) - lists.indexOf(b));
    fields.replaceChildren(
      h("thead", null, h("tr", null, h("td"), ...rids.map((rid) => h("th", { class: colour(rid), scope: "col", text: rid })))),
      h("tbody", null, ...keys.map((key) => h("tr", null, h("th", { scope: "row", text: key }),
        ...rids.map((rid) => {
          const old = section(was, `request ${rid}`);
          return fieldCell(key, section(is, `request ${rid}`).get(key), old.get(key), !old.size, rid);
        })))));
  }

  // Queues

  function drawLists(was, is) {
    const old = section(was, "lists");
    lists.replaceChildren(...[...section(is, "lists")].flatMap(([name, value]) => {
      const text = Array.isArray(value) ? value.join(" ") : String(value);
      const isNew = old.size && JSON.stringify(old.get(name)) !== JSON.stringify(value);
      const kinds = [isNew ? "new" : "", S.wrong && isBlamed("list", name, S.wrong.who) ? "wrong" : ""].join(" ").trim();
      return [h("dt", { text: name }), h("dd", { class: kinds || null, text: text === "" ? "\u2013" : text })];
    }));
  }

  // What an event changed, in words

  function drawChanges(was, is) {
    const found = [], groups = new Map(), news = S.changes[now] || {};
    const old = section(was, "slots");
    for (const [slot, value] of Object.entries(news.slots || {})) {
      const leaf = value || FREE, past = old.get(slot) || FREE, kind = kindOf(leaf);
      let text;
      if (leaf[0] !== past[0]) text = `${past[0] || "free"} \u2192 ${leaf[0] || "free"}`;
      else if (leaf[1] !== past[1]) text = `${leaf[0]}: at another position`;
      else if (kind === "differs") text = `${leaf[0]}: wrong content`;
      else if (kind === "owned") text = `${leaf[0]}: written, as due`;
      else text = `${leaf[0] || "free"}: written`;
      groups.set(text, [...(groups.get(text) || []), Number(slot)]);
    }
    for (const [name, entries] of Object.entries(news)) {
      if (!name.startsWith("request ")) continue;
      const rid = name.slice(8), past = section(was, name);
      if (!past.size) { found.push([rid, "new"]); continue; }
      for (const [key, value] of Object.entries(entries)) {
        if (key === "prompt") continue;
        if (key === "outputs") found.push([rid, `outputs ${(past.get(key) || []).length} \u2192 ${(value || []).length} tokens`]);
        else found.push([rid, `${key} ${shown(past.get(key))} \u2192 ${shown(value === null ? undefined : value)}`]);
      }
    }
    const byRequest = new Map();
    for (const [rid, text] of found) byRequest.set(rid, [...(byRequest.get(rid) || []), text]);
    const lines = [...byRequest].map(([rid, texts]) => [rid, texts.join(", ")]);
    for (const [text, slots] of groups) lines.push([slots.length > 1 ? `${slots.length} slots` : "1 slot", `${text} (${ranges(slots)})`]);
    const queues = section(was, "lists");
    for (const [name, value] of Object.entries(news.lists || {}))
      if (!["free list", "freed in the open group", "free rows"].includes(name) && queues.size)
        lines.push([name, `${shown(queues.get(name))} \u2192 ${shown(value)}`]);
    changes.replaceChildren(...lines.map(([what, text]) => h("li", null, h("b", { text: what }), " ", h("code", { text }))));
    if (!lines.length) changes.append(h("li", { text: "Nothing of what is shown here." }));
    const violations = broken.get(now) || [];
    brokenHere.replaceChildren(...violations.map((v) => h("div", { class: "compare" },
      h("div", { class: "actual" }, h("dt", { text: `${v.rule_label}: ${v.sentence}` }),
        h("dd", { text: `expected ${v.expected}\nactual   ${v.actual}` })))));
  }

  // The timeline: only what is in view is drawn

  function timelinePanel() {
    const lanes = [...S.agents, ...S.requests];
    const names = h("ul", { class: "lanes", "aria-hidden": "true" },
      ...lanes.map((name, i) => h("li", { class: i < S.agents.length ? "agent" : colour(name), title: name, text: name })));
    const svg = s("svg", { "aria-hidden": "true" });
    const track = h("div", { class: "track" }, svg);
    const AGENT = 50, LANE = 34, TOP = 40, agents = S.agents.length;
    const height = TOP + agents * AGENT + S.requests.length * LANE + 6;
    const extent = h("div", { class: "extent" });
    extent.style.setProperty("height", `${height}px`);
    track.append(extent);
    let COL = 84, HALF = 42;
    function measure() {
      COL = S.events.length > 400 ? 26 : Math.max(84, Math.min(130, Math.floor(track.clientWidth / S.events.length)));
      HALF = COL / 2;
      extent.style.setProperty("width", `${S.events.length * COL}px`);
    }
    const x = (n) => n * COL + HALF;
    const y = (lane) => TOP + (lane < agents ? lane * AGENT + AGENT / 2 : agents * AGENT + (lane - agents) * LANE + LANE / 2);
    const laneOf = (event) => Math.max(0, S.agents.indexOf(event.agent));
    const lives = S.requests.map((rid) => {
      const found = [];
      S.changes.forEach((each, n) => {
        const state = (each[`request ${rid}`] || {}).state;
        if (state !== undefined) { if (found.length) found[found.length - 1].to = n; found.push({ from: n, to: last + 1, state }); }
      });
      return found;
    });

    function draw() {
      measure();
      const from = track.scrollLeft, width = track.clientWidth;
      const first = Math.max(0, Math.floor(from / COL)), end = Math.min(last, Math.ceil((from + width) / COL));
      svg.style.setProperty("left", `${from}px`);
      svg.setAttribute("width", width);
      svg.setAttribute("height", height);
      const parts = [], isIn = (a, b) => b >= first && a <= end;
      lanes.forEach((_, lane) => parts.push(s("line", { class: "rail", x1: 0, x2: width, y1: y(lane), y2: y(lane) })));
      for (let n = first; n <= end; n++) {
        const kind = n === now ? "now" : broken.has(n) ? "violation" : "";
        if (kind) parts.push(s("rect", { class: `column ${kind}`, x: n * COL - from, y: 22, width: COL, height: height - 22 }));
        if (COL > 40 || n % 5 === 0) parts.push(s("text", { class: "number", "text-anchor": "middle", x: x(n) - from, y: 35, text: n }));
      }
      lives.forEach((segments, i) => {
        for (const { from: a, to: b, state } of segments)
          if (isIn(a, b) && state !== "finished")
            parts.push(s("line", { class: `life ${state} ${colour(S.requests[i])}`, x1: x(a) - from, x2: (b > last ? x(last) : x(b)) - from,
              y1: y(S.agents.length + i), y2: y(S.agents.length + i) }));
      });
      for (let n = first; n <= end; n++) {
        const event = S.events[n], lane = laneOf(event);
        for (const rid of event.touches)
          parts.push(s("circle", { class: `dot ${colour(rid)}`, cx: x(n) - from, cy: y(S.agents.length + S.requests.indexOf(rid)), r: COL > 40 ? 6 : 4 }));
        const kind = broken.has(n) ? "violation" : "";
        const label = COL > 40 ? short(`${event.event} ${event.who}`.trim(), Math.floor(COL / 6.5)) : event.event.slice(0, 2);
        parts.push(s("rect", { class: `pill ${kind}${n === now ? " now" : ""}`, x: n * COL + 2 - from, y: y(lane) - 12, width: COL - 4, height: 24, rx: 6 },
          s("title", { text: event.line.trim() })),
          s("text", { "text-anchor": "middle", x: x(n) - from, y: y(lane) + 4, text: label }));
      }
      svg.replaceChildren(...parts);
    }

    let asked = false;
    const soon = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } };
    track.addEventListener("scroll", soon);
    addEventListener("resize", () => drawTimeline());
    svg.addEventListener("click", (event) => select(Math.floor((event.clientX - svg.getBoundingClientRect().left + track.scrollLeft) / COL)));
    drawTimeline = () => {
      svg.setAttribute("width", 0); // what is drawn shall not be what can be scrolled to
      svg.style.setProperty("left", "0");
      measure();
      const left = now * COL;
      if (left < track.scrollLeft + COL || left + 2 * COL > track.scrollLeft + track.clientWidth)
        track.scrollLeft = left - track.clientWidth / 2 + HALF;
      draw();
    };
    return h("section", { class: "panel timeline", "aria-label": "Timeline" }, names, track);
  }


  // Going through them

  function select(number) {
    const next = Math.min(last, Math.max(0, number));
    if (next === now) return;
    const old = now;
    now = next;
    const was = before(now), is = copied(was);
    apply(is, S.changes[now]);
    slider.value = now;
    slider.setAttribute("aria-valuetext", S.events[now].line.trim());
    count.textContent = `${now} of ${last}`;
    line.textContent = S.events[now].line.trim().replace(/^\d+ +/, "").replace(/ {3,}/g, "  ");
    nowline.className = "nowline" + (broken.has(now) ? " bad" : "");
    live.textContent = `event ${now}: ${line.textContent}` + (broken.has(now) ? `. Breaks ${broken.get(now).map((v) => v.rule_label).join(", ")}` : "");
    if (old >= 0) eventList.children[old].firstChild.removeAttribute("aria-current");
    const item = eventList.children[now];
    item.firstChild.setAttribute("aria-current", "true");
    const top = item.offsetTop - eventList.offsetTop;
    if (top < eventList.scrollTop || top + item.offsetHeight > eventList.scrollTop + eventList.clientHeight)
      eventList.scrollTop = top - eventList.clientHeight / 2;
    drawSlots(was, is);
    drawRows(was, is);
    drawRequests(was, is);
    drawLists(was, is);
    drawChanges(was, is);
    drawTimeline();
    if (track && S.events[now].column >= 0) track.scrollLeft = S.events[now].column * 116 - track.clientWidth / 3;
    try { history.replaceState(null, "", `#e${now}`); } catch { /* where a page may not say where it is */ }
    if (timer && now === last) setPlaying(false);
  }

  function setPlaying(wanted) {
    clearInterval(timer);
    timer = 0;
    if (wanted) {
      if (now === last) select(0);
      timer = setInterval(() => select(now + 1), 1000 / Number(speed.value));
    }
    play.textContent = timer ? "Pause" : "Play";
  }

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const target = event.target;
    if (target.closest("select, .scroll, pre") || (target === slider && event.key !== " ")) return;
    const actions = { ArrowRight: () => select(now + 1), ArrowLeft: () => select(now - 1), Home: () => select(0), End: () => select(last),
      v: () => goal && select(goal.event), V: () => goal && select(goal.event), " ": () => setPlaying(!timer) };
    if (!(event.key in actions) || (event.key === " " && target.closest("button, a, summary"))) return;
    event.preventDefault();
    actions[event.key]();
  });

  const fromHash = () => { const found = /^#e(\d+)$/.exec(location.hash); return found ? Number(found[1]) : null; };
  addEventListener("hashchange", () => { const number = fromHash(); if (number !== null) { select(number); transport.scrollIntoView({ block: "nearest" }); } });
  const asked = fromHash();
  select(asked !== null ? asked : goal ? goal.event : 0);
})();
