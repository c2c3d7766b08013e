"use strict";
// Filters the matrix, and shows the comparisons of a place with arrays as heatmaps. The data is packed into the page;
// texts of it are only ever set as text.

const MOST = 100; // comparisons of a place before a button shows the rest
const NUMBERS = 8; // up to this many columns, heatmaps have their numbers in them
const get = (id) => document.getElementById(id);
const buttons = [...document.querySelectorAll("#matrix button")];
const initial = new Map(buttons.map((button) => [button, [button.className, button.textContent]]));

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const loaded = {};
function unpacked(id) {
  loaded[id] ??= (async () => {
    const bytes = Uint8Array.from(atob(get(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  })();
  return loaded[id];
}

// ---------------------------------------------------------------------------------------------- filters

function filters(data) {
  const dtype = data.dtypes.indexOf(get("dtype").value);
  const kind = get("quantity").value;
  const kept = data.quantities.map((name) => {
    const gradient = name.startsWith("gradient_");
    return !kind || (kind === "gradients" ? gradient : kind === "outputs" ? !gradient : `=${name}` === kind);
  });
  const { rows } = data;
  return (row) => (dtype < 0 || rows.dtype[row] === dtype) && kept[rows.quantity[row]];
}

function share(rows, row) {
  const error = rows.error[row], tolerance = rows.tolerance[row];
  if (error === null || tolerance === null) return null;
  return tolerance ? error / tolerance : error ? null : 0;
}

const short = (number) =>
  number && (number >= 1e5 || number < 1e-3) ? number.toExponential(2) : Number(number.toPrecision(4));
const percent = (part) => (part === 0 ? "exact" : part < 0.01 ? "<1%" : `${Math.round(100 * part)}%`);
const style = (part, steps) => (part === 0 ? "exact" : `step${1 + steps.slice(0, -1).filter((limit) => part > limit).length}`);

// As `entry` of matrix.py.
function entry(data, chosen) {
  const { rows, statuses } = data;
  const names = new Set(chosen.map((row) => statuses[rows.status[row]].name));
  const red = chosen.filter((row) => statuses[rows.status[row]].red).length;
  if (red) return ["red", `✕ ${red.toLocaleString("en")}`];
  if (!chosen.length) return ["none", "–"];
  const known = names.has("known-divergence") ? " †" : "";
  const shares = chosen
    .filter((row) => statuses[rows.status[row]].name === "pass")
    .map((row) => share(rows, row))
    .filter((part) => part !== null);
  if (shares.length) {
    const worst = shares.reduce((most, part) => Math.max(most, part));
    return [style(worst, data.steps), percent(worst) + known];
  }
  if (known) return ["none", "known †"];
  if (names.size === 1 && names.has("not-applicable")) return ["none", "n/a"];
  return ["none", names.has("informational") ? "measured" : "missing"];
}

async function filter() {
  const counting = get("dtype").value || get("quantity").value;
  const places = new Map();
  let data;
  if (counting) {
    data = await unpacked("comparisons");
    const keeps = filters(data);
    data.rows.operator.forEach((operator, row) => {
      if (!keeps(row)) return;
      const key = `${operator} ${data.rows.column[row]}`;
      places.has(key) ? places.get(key).push(row) : places.set(key, [row]);
    });
  }
  const word = get("operator").value.trim().toLowerCase();
  let count = 0;
  for (const line of document.querySelectorAll("#matrix [data-operator]")) {
    [...line.querySelectorAll("button")].forEach((button, column) => {
      const now = counting ? entry(data, places.get(`${line.dataset.operator} ${column}`) ?? []) : initial.get(button);
      [button.className, button.textContent] = now;
    });
    const red = line.querySelector("button.red") !== null;
    line.hidden = (get("red").checked && !red) || !line.dataset.name.includes(word);
    count += !line.hidden;
  }
  for (const body of document.querySelectorAll("#matrix tbody")) {
    body.hidden = !body.querySelector("[data-operator]:not([hidden])");
  }
  get("shown").textContent = count ? `${count} operators` : "no operator fits";
  reachable();
}

// One place is in the order of the tab key; arrows move between places.
function reachable(button = buttons.find((one) => one.offsetParent)) {
  buttons.forEach((one) => (one.tabIndex = one === button ? 0 : -1));
  return button;
}

const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
function move(event) {
  const step = STEPS[event.key];
  if (!step || !event.target.matches("#matrix button")) return;
  event.preventDefault();
  const lines = [...document.querySelectorAll("#matrix [data-operator]:not([hidden])")];
  const line = lines.indexOf(event.target.closest("tr")), column = event.target.parentElement.cellIndex - 1;
  reachable(lines[line + step[0]]?.querySelectorAll("button")[column + step[1]] ?? event.target).focus();
}

// ---------------------------------------------------------------------------------------------- a place

async function show() {
  const [operator, column] = decodeURIComponent(location.hash.slice(1)).split("/");
  const data = await unpacked("comparisons");
  const number = data.operators.findIndex((one) => one.name === operator), place = data.columns.indexOf(column);
  if (number < 0 || place < 0) return get("place").close();
  const { rows, statuses } = data;
  const keeps = filters(data);
  const judged = (row) => statuses[rows.status[row]].judged;
  const rank = (row) => (statuses[rows.status[row]].red ? 3 : Math.min(share(rows, row) ?? (judged(row) ? 2 : -1), 2));
  const chosen = [...rows.operator.keys()]
    .filter((row) => rows.operator[row] === number && rows.column[row] === place && keeps(row))
    .sort((first, second) => rank(second) - rank(first));
  const described = data.operators[number];
  const selected = [get("dtype").value, get("quantity").value.replace("=", "")].filter(Boolean).join(", ");
  get("place-title").textContent = `${operator === "*" ? "all operators" : operator} · ${column}`;
  get("about").replaceChildren(
    element("p", { textContent: described.summary }),
    element("code", { textContent: described.formula }),
    element("p", { className: "quiet", textContent: described.source }),
    element("p", { textContent: counted(chosen.filter(judged).length, chosen.length, selected) }),
  );
  list(data, chosen, 0);
  if (!get("place").open) get("place").showModal();
  get("place").scrollTop = 0;
  get("place-title").focus();
}

function counted(judged, all, selected) {
  const rest = all - judged ? `, and ${(all - judged).toLocaleString("en")} that were not compared` : "";
  return `${judged.toLocaleString("en")} comparisons${selected && ` of ${selected}`}, the worst first${rest}`;
}

function list(data, chosen, from) {
  const more = element("button", { className: "more", textContent: `show all ${chosen.length.toLocaleString("en")}` });
  more.onclick = () => list(data, chosen, MOST);
  const shown = chosen.slice(from, from ? undefined : MOST).map((row) => comparison(data, row));
  if (from) get("cases").lastChild.remove();
  else get("cases").replaceChildren();
  get("cases").append(...shown, ...(!from && chosen.length > MOST ? [more] : []));
}

function comparison(data, row) {
  const { rows } = data;
  const status = data.statuses[rows.status[row]], part = share(rows, row);
  const green = status.name === "pass" && part !== null;
  const [look, text] = status.red ? ["red", `✕ ${status.name}`] : green ? [style(part, data.steps), percent(part)] : ["none", status.name.replaceAll("-", " ").replace("known divergence", "† known")];
  const against = data.names[rows.against[row]];
  const pair = against === "reference" ? "" : `, ${data.names[rows.name[row]]} against ${against}`;
  const what = `${data.cases[rows.case[row]].id} ${data.dtypes[rows.dtype[row]]} ${data.quantities[rows.quantity[row]]}${pair}`;
  const made = element("details", {}, element("summary", {}, element("b", { className: look, textContent: text }), what.replaceAll("_", "_\u200b")));
  made.addEventListener("toggle", async () => {
    if (made.open && !made.querySelector(".body")) made.append(await body(data, row));
  });
  return made;
}

async function body(data, row) {
  const { rows, texts } = data;
  const found = data.cases[rows.case[row]], red = data.statuses[rows.status[row]].red;
  const error = rows.error[row], tolerance = rows.tolerance[row], command = texts[rows.command[row]];
  const like = data.looks_like.find(([name, operator]) => name === data.names[rows.name[row]] && operator === data.operators[rows.operator[row]].name);
  const lines = {
    "what is wrong": red && texts[rows.reason[row]],
    "looks like": red && like?.[2],
    error: error !== null && `${short(error)} eps`,
    allowed: tolerance !== null && `${short(tolerance)} eps`,
    [tolerance === null ? "reason" : "tolerance"]: texts[rows.sentence[row]],
    case: found.shows,
    arguments: found.call,
  };
  const shown = Object.entries(lines).filter(([, text]) => text);
  const copy = element("button", { className: "copy", type: "button", textContent: "copy" });
  copy.onclick = async () => {
    await navigator.clipboard.writeText(command);
    copy.textContent = "copied";
  };
  return element("div", { className: "body" },
    element("dl", {}, ...shown.flatMap(([name, text]) => [element("dt", { textContent: name }), element("dd", { textContent: text })])),
    element("code", { className: "command", textContent: command }), ...(navigator.clipboard ? [copy] : []),
    ...(await figures(`${found.id}/${data.dtypes[rows.dtype[row]]}`, data.quantities[rows.quantity[row]], row)));
}

// ---------------------------------------------------------------------------------------------- heatmaps

async function figures(cell, quantity, row) {
  const arrays = await unpacked("arrays");
  const values = arrays.values[row];
  if (!values) {
    const id = cell.slice(0, cell.lastIndexOf("/"));
    const text = `The page has the arrays of red comparisons and of the largest error of each place. For others: attention-parity show ${id} --values`;
    return [element("p", { className: "quiet", textContent: text })];
  }
  const both = Math.max(largest(values.actual), largest(values.expected));
  const compared = Object.entries(values).map(([name, part]) => heatmap(name, part, name === "difference" ? largest(part) : both));
  const given = ([title, group]) => {
    const parts = Object.entries(group[cell]).map(([name, part]) => heatmap(name, part, largest(part)));
    return parts.length ? [element("h3", { textContent: title }), element("div", { className: "figures" }, ...parts)] : [];
  };
  return [
    element("div", { className: "figures" }, ...compared),
    ...byQuery(quantity, values),
    ...[["Inputs", arrays.inputs], ["Parameters", arrays.parameters]].flatMap(given),
  ];
}

// Attention weights, actual and expected, of those heads of which all queries are in the page.
function byQuery(quantity, { actual, expected, difference }) {
  const [queries] = actual.shape.slice(-2);
  if (quantity !== "weights" || actual.shape.length < 2 || !difference) return [];
  const heads = [];
  for (let start = (queries - (actual.top % queries)) % queries; start + queries <= actual.rows.length; start += queries) {
    const index = indices(actual.shape, actual.top + start, 0).split(", ").slice(0, -2).join(", ");
    for (const [name, { rows }] of Object.entries({ actual, expected })) {
      heads.push({ title: `${name}${index && `[${index}]`}`, weights: rows.slice(start, start + queries), limit: 1 });
    }
  }
  if (!heads.length) return [];
  const outputs = heads[0].weights.map((_, query) => `${query}`);
  const inputs = actual.rows[0].map((_, key) => `${actual.left + key}`);
  const query = (actual.top + actual.worst[0]) % queries;
  return [
    element("h3", { textContent: "Weights by query" }),
    element("attention-heatmap", { data: { outputs, inputs, heads, query }, ariaLabel: "weights by query" }),
  ];
}

const largest = (part) => part.rows.flat().reduce((most, value) => (typeof value === "number" ? Math.max(most, Math.abs(value)) : most), 0);

function heatmap(name, part, scale) {
  const { shape, top, left, rows } = part;
  const width = rows[0]?.length ?? 0, block = shape.at(-2) ?? 1;
  const table = element("table", { className: width <= NUMBERS ? "heat numbers" : "heat" });
  rows.forEach((values, down) => {
    const line = table.insertRow();
    line.className = down && (top + down) % block === 0 ? "next" : "";
    values.forEach((value, across) => {
      const cell = line.insertCell();
      cell.textContent = typeof value === "number" ? Number(value.toPrecision(3)) : value;
      cell.title = `${name}[${indices(shape, top + down, left + across)}] = ${value}`;
      if (typeof value !== "number") cell.classList.add("strange");
      else if (scale) cell.style.background = `color-mix(in srgb, var(--${value < 0 ? "negative" : "positive"}) ${Math.min(100, (100 * Math.abs(value)) / scale)}%, var(--page))`;
      if (part.worst && part.worst[0] === down && part.worst[1] === across) cell.classList.add("worst");
    });
  });
  const size = shape.reduce((product, length) => product * length, 1);
  const cut = rows.length * width < size ? `, ${rows.length}×${width} of it` : "";
  const range = size ? `, colours to ±${Number(scale.toPrecision(3))}` : "";
  return element("figure", {}, element("figcaption", {}, element("strong", { textContent: name }), element("span", { textContent: ` ${shape.join("×") || "scalar"} ${part.dtype}${cut}${range}` })), table);
}

function indices(shape, row, column) {
  const index = shape.length ? [column] : [];
  for (const length of shape.slice(0, -1).reverse()) {
    index.unshift(row % length);
    row = Math.floor(row / length);
  }
  return index.join(", ");
}

// ---------------------------------------------------------------------------------------------- events

get("filters").hidden = false;
get("filters").addEventListener("input", filter);
get("filters").addEventListener("reset", () => setTimeout(filter));
get("filters").addEventListener("submit", (event) => event.preventDefault());
get("matrix").addEventListener("keydown", move);
get("matrix").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  reachable(button);
  const { operator } = button.closest("tr").dataset;
  unpacked("comparisons").then((data) => {
    location.hash = `${data.operators[operator].name}/${data.columns[button.parentElement.cellIndex - 1]}`;
  });
});
addEventListener("hashchange", show);
get("place").addEventListener("close", () => {
  if (location.hash) history.replaceState(null, "", "#");
  buttons.find((button) => button.tabIndex === 0)?.focus();
});
get("place").addEventListener("click", (event) => event.target === get("place") && get("place").close());
addEventListener("beforeprint", () => document.querySelectorAll("main details").forEach((one) => (one.open = true)));
reachable();
setTimeout(() => unpacked("comparisons"), 200); // so that the first place opens at once
if (location.hash) show();
