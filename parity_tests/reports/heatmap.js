"use strict";
// <attention-heatmap data="JSON">: a heatmap for each head, side by side. The query that is pointed at, or moved to by the
// arrow keys, is marked in all of them, and its weights are listed by number. The data, {outputs, inputs, heads: [{title,
// weights, limit}]} and the number of the first query to list, may also be the property `data`; texts are set as text.
{
  const NUMBERS = 8; // up to this many inputs, heatmaps have their numbers in them
  const STEPS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

  function make(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  const written = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : value); // or nan, inf
  const part = (value, limit) => (typeof value === "number" ? Math.min(1, Math.max(0, value / limit)) : 0);

  class AttentionHeatmap extends HTMLElement {
    connectedCallback() {
      if (this.list) return; // it was moved
      const { outputs, inputs, heads, query = 0 } = this.data ?? JSON.parse(this.getAttribute("data"));
      Object.assign(this, { outputs, inputs, heads });
      this.setAttribute("role", "group");
      this.line = make("p", { className: "ah-line", ariaLive: "polite" });
      this.list = make("tbody");
      const titles = heads.map(({ title }) => make("th", { scope: "col", textContent: title || "weight" }));
      const top = make("thead", {}, make("tr", {}, make("th", { scope: "col", textContent: "input" }), ...titles));
      const list = make("table", { className: "ah-list" }, top, this.list);
      this.append(
        make("div", { className: "ah-heads" }, ...heads.map((head, number) => this.map(head, number))),
        make("div", { className: "ah-query" }, this.line, make("div", { className: "ah-scroll", tabIndex: 0, role: "group", ariaLabel: "weights of the query" }, list)),
      );
      if (outputs.length && heads.length) this.choose(0, query);
      this.addEventListener("pointerover", (event) => this.pick(event));
      this.addEventListener("focusin", (event) => this.pick(event));
      this.addEventListener("click", (event) => this.pick(event));
      this.addEventListener("keydown", (event) => this.move(event));
    }

    map({ title, weights, limit }, head) {
      const names = this.inputs.map((input) => make("th", { scope: "col" }, make("span", { textContent: input })));
      const rows = weights.map((values, query) => {
        const button = make("button", { type: "button", textContent: this.outputs[query] });
        const row = make("tr", { className: "ah-row" }, make("th", { scope: "row" }, button));
        Object.assign(row.dataset, { head, query });
        values.forEach((value, key) => {
          const share = part(value, limit);
          const look = typeof value !== "number" ? "ah-strange" : share > 0.82 ? "ah-high" : share > 0.57 ? "ah-middle" : "ah-low";
          const cell = make("td", { className: look, textContent: written(value, 2), title: `${this.outputs[query]} ← ${this.inputs[key]}: ${value}` });
          cell.style.setProperty("--part", `${100 * share}%`);
          row.append(cell);
        });
        return row;
      });
      const table = make("table", { className: this.inputs.length <= NUMBERS ? "ah-map ah-numbers" : "ah-map" });
      table.append(make("caption", { textContent: title || this.ariaLabel }), make("thead", {}, make("tr", {}, make("td"), ...names)), make("tbody", {}, ...rows));
      return make("div", { className: "ah-scroll" }, table);
    }

    pick(event) {
      const row = event.target.closest(".ah-row");
      if (row) this.choose(Number(row.dataset.head), Number(row.dataset.query));
    }

    move(event) {
      const row = event.target.closest(".ah-row"), step = STEPS[event.key];
      if (!row || !(step || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      const last = this.outputs.length - 1;
      const head = Number(row.dataset.head) + (step?.[0] ?? 0);
      const query = step ? Number(row.dataset.query) + step[1] : event.key === "Home" ? 0 : last;
      const next = this.querySelector(`.ah-row[data-head="${head}"][data-query="${query}"] button`);
      next?.focus(); // which chooses it
    }

    // One button is in the order of the tab key: that of the chosen query, in the head in which it was chosen.
    choose(head, query) {
      for (const row of this.querySelectorAll(".ah-row")) {
        const same = Number(row.dataset.query) === query, button = row.querySelector("button");
        row.classList.toggle("ah-chosen", same);
        button.ariaCurrent = same;
        button.tabIndex = same && Number(row.dataset.head) === head ? 0 : -1;
      }
      if (this.query === query) return;
      this.query = query;
      this.line.replaceChildren("query ", make("strong", { textContent: this.outputs[query] }), `, ${query + 1} of ${this.outputs.length}`);
      this.list.replaceChildren(...this.inputs.map((input, key) => make("tr", {}, make("th", { scope: "row", textContent: input }),
        ...this.heads.map(({ weights, limit }) => {
          const cell = make("td", { textContent: written(weights[query][key], 3) });
          cell.style.setProperty("--part", `${100 * part(weights[query][key], limit)}%`);
          return cell;
        }))));
    }
  }

  if (!customElements.get("attention-heatmap")) customElements.define("attention-heatmap", AttentionHeatmap);
}
