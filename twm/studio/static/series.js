// What every step of the dream has said so far: rewards, discounts, values, actions; and reality's.

export class Series {
  sum = "score"; // what the sum of the rewards is called

  constructor() {
    this.clear();
  }

  clear() {
    [this.a, this.r, this.gamma, this.value] = [[], [], [], []];
    [this.difference, this.floor, this.realRewards] = [[], [], []];
  }

  /** Take in what a moment brings: later steps of another future are forgotten. */
  add({ first, length, steps, reality }) {
    for (const name of ["a", "r", "gamma", "value"]) this[name] = [...this[name].slice(0, first), ...steps[name]].slice(0, length + 1);
    if (!reality) return;
    const from = reality.first;
    this.difference = [...this.difference.slice(0, from), ...reality.difference];
    this.floor = [...this.floor.slice(0, from), ...reality.floor];
    this.realRewards = [...this.realRewards.slice(0, from), ...reality.r];
  }

  get length() {
    return this.value.length;
  }

  /** Points of a row for a plot. The start has no step that led to it, so no reward and no discount. */
  points(name, row) {
    const points = this[name].map((values, t) => [t, values[row]]);
    return name === "value" ? points : points.slice(1);
  }

  score(row, t) {
    let sum = 0;
    for (let i = 1; i <= t && i < this.r.length; i++) sum += this.r[i][row];
    return sum;
  }

  realScore(t) {
    return this.realRewards.slice(1, t + 1).reduce((a, b) => a + b, 0);
  }
}
