// Shapes to turn by hand (drawing.js), and the answers of networks in the pose nearest to the present one.

const byId = (id) => document.getElementById(id);
const TYPES = { f4: Float32Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };
const ROWS = 8; // bars of a network; a row for all other classes follows
const STEP = Math.PI / 24; // of an arrow key: 7.5 degrees
const SPEED = 0.4; // radians in a second, while it plays
const PER_PIXEL = 0.01; // radians that a drag turns
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Put typed arrays in the places of { type, start, shape }.
function withArrays(value, buffer) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map((one) => withArrays(one, buffer));
  if (TYPES[value.type] && "start" in value)
    return new TYPES[value.type](buffer, value.start, value.shape.reduce((a, b) => a * b, 1));
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, withArrays(one, buffer)]));
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const percent = (p) => `${(100 * p).toFixed(1)} %`;
const tiny = (x) => (x === 0 ? "0" : x.toExponential(1));

// Bars of one network, in the same rows for all networks of a shape.
class Bars {
  constructor(answers, exhibit, rows, data) {
    const { classes, truth } = exhibit, count = classes.length, poses = answers.change.length;
    Object.assign(this, { answers, classes, truth, rows, levels: data.levels, items: [] });
    this.top = element("p", { class: "top" });
    this.live = element("dd", { class: "live" });
    this.moved = element("dd", { class: "moved" });
    const { parts, points } = answers.picture || {};
    this.parts = parts && 3 * parts.length === poses * points.length ? parts : null; // of the points in each pose
    this.section = element("section", { "aria-label": answers.network }, element("h2", {}, answers.network));
    const facts = element("dl");
    if (answers.probabilities) {
      const list = element("ul", { class: "bars", "aria-label": `${data.quantity}, ${answers.network}` });
      for (const row of [...rows, -1]) {
        if (row === -1 && rows.length === count) break;
        const name = row === -1 ? `${count - rows.length} others` : classes[row];
        const fill = element("i");
        const meter = { class: "bar", role: "meter", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100 };
        const bar = element("div", meter, fill), value = element("span", { class: "value", "aria-hidden": true });
        const label = element("span", { class: "name", title: name, "aria-hidden": true }, name);
        list.append(element("li", name === truth ? { class: "true" } : {}, label, bar, value));
        this.items.push({ row, bar, fill, value });
      }
      this.section.append(...(this.parts ? [] : [this.top]), list);
    }
    if (this.parts) facts.append(element("dt", {}, "points of another part"), this.moved);
    else if (answers.probabilities) {
      let same = 0;
      for (let pose = 0; pose < poses; pose++) same += this.best(pose) === this.best(0);
      facts.append(element("dt", {}, "same answer"));
      facts.append(element("dd", {}, `${same} of ${poses} poses`));
    }
    const most = answers.change.reduce((a, b) => Math.max(a, b), 0);
    facts.append(element("dt", {}, "equivariance error"), this.live);
    facts.append(element("dt", {}, `largest of ${poses} poses`), element("dd", { class: "largest" }, tiny(most)));
    this.section.append(facts);
  }

  at(pose, row) {
    return this.answers.probabilities[pose * this.classes.length + row] / this.levels;
  }

  best(pose) {
    let best = 0;
    for (let row = 1; row < this.classes.length; row++) if (this.at(pose, row) > this.at(pose, best)) best = row;
    return best;
  }

  show(pose) {
    this.live.textContent = tiny(this.answers.change[pose]);
    if (!this.answers.probabilities) return `${this.answers.network}: changed by ${this.live.textContent}`;
    const shown = this.rows.reduce((sum, row) => sum + this.at(pose, row), 0);
    for (const { row, bar, fill, value } of this.items) {
      const p = row === -1 ? Math.max(0, 1 - shown) : this.at(pose, row);
      fill.style.transform = `scaleX(${p})`;
      value.textContent = percent(p);
      bar.setAttribute("aria-valuenow", (100 * p).toFixed(1));
      bar.setAttribute("aria-valuetext", percent(p));
    }
    if (this.parts) {
      const count = this.parts.length / this.answers.change.length, now = this.parts.subarray(pose * count);
      const moved = this.parts.subarray(0, count).reduce((sum, part, i) => sum + (part !== now[i]), 0) / count;
      this.moved.textContent = percent(moved);
      return `${this.answers.network}: ${percent(moved)} of the points are of another part`;
    }
    const best = this.best(pose), name = this.classes[best];
    this.top.textContent = this.truth === null ? name : `${name} ${name === this.truth ? "✓" : "✗"}`;
    return `${this.answers.network}: ${name}, ${percent(this.at(pose, best))}`;
  }
}

// The classes that get most of any network in any pose, the largest in the first pose on top.
function chooseRows(exhibit) {
  const count = exhibit.classes.length, most = new Array(count).fill(0), first = new Array(count).fill(0);
  for (const { probabilities } of exhibit.answers)
    (probabilities || []).forEach((p, i) => {
      most[i % count] = Math.max(most[i % count], p);
      if (i < count) first[i] = Math.max(first[i], p);
    });
  const order = [...most.keys()].sort((a, b) => most[b] - most[a]);
  const kept = order.slice(0, order.length === ROWS + 1 ? ROWS + 1 : ROWS);
  const truth = exhibit.classes.indexOf(exhibit.truth);
  if (truth >= 0 && !kept.includes(truth)) kept[kept.length - 1] = truth;
  return kept.sort((a, b) => first[b] - first[a] || most[b] - most[a]);
}

async function start() {
  const plain = JSON.parse(byId("data").textContent);
  const data = withArrays(plain, await inflate(byId("arrays").textContent));
  const poses = data.rotations.length / 9;
  const axes = [0, 3, 6].map((i) => Array.from(data.camera.slice(i, i + 3))); // right, up, toward
  const state = { turn: IDENTITY, zoom: 1, pose: -1, playing: false, waiting: false, canvases: [], bars: [] };

  function choose(index) {
    const exhibit = data.exhibits[index];
    const palette = data.palette.map((hex) => rgb(hex).map((x) => (dark.matches ? x + 0.3 * (255 - x) : x)));
    const pictures = [[exhibit.caption, exhibit.picture]];
    for (const { network, picture } of exhibit.answers)
      if (picture) pictures.push([picture.faces ? `${network}: mesh of the first pose` : network, picture]);
    byId("pictures").replaceChildren();
    state.canvases = pictures.map(([caption, picture], i) => {
      const what = `${exhibit.title}, ${caption}: ${picture.faces ? "mesh" : `${picture.points.length / 3} points`}`;
      const role = { role: "application", "aria-roledescription": "turnable picture" };
      const label = { "aria-label": `${what}. Arrow keys turn it.`, tabindex: 0 };
      const canvas = element("canvas", { ...role, ...label, "aria-describedby": "pose" });
      byId("pictures").append(element("figure", {}, canvas, element("figcaption", {}, caption)));
      listen(canvas);
      return new Canvas(canvas, picture, palette);
    });
    byId("stage").className = pictures.length > 1 ? "many" : exhibit.answers.length ? "" : "alone";
    const rows = chooseRows(exhibit);
    state.bars = exhibit.answers.map((answers) => new Bars(answers, exhibit, rows, data));
    byId("answers").replaceChildren(...state.bars.map((bars) => bars.section));
    const swatch = (i) => element("span", { style: `background: rgb(${palette[i % palette.length]})` });
    byId("legend").replaceChildren(...exhibit.parts.map((name, i) => element("li", {}, swatch(i), name)));
    byId("legend").hidden = !exhibit.parts.length;
    state.pose = -1;
    redraw();
  }

  function nearest() {
    let best = 0, most = -Infinity;
    for (let pose = 0; pose < poses; pose++) {
      let trace = 0;
      for (let i = 0; i < 9; i++) trace += data.rotations[9 * pose + i] * state.turn[i];
      if (trace > most) [best, most] = [pose, trace];
    }
    return [best, degrees(most)];
  }

  let speech = 0;
  function draw() {
    state.waiting = false;
    const [pose, away] = nearest(), back = rgb(dark.matches ? "#1c1d20" : "#f4f5f7");
    const view = product(axes.flat(), state.turn);
    for (const canvas of state.canvases) canvas.draw(view, state.zoom, pose, back);
    const turned = degrees(state.turn[0] + state.turn[4] + state.turn[8]).toFixed(0);
    byId("pose").textContent = state.bars.length
      ? `Turned by ${turned}° from the first pose; the answers are those of pose ${pose + 1} of ${poses}, ` +
        `${away.toFixed(0)}° away.`
      : `Turned by ${turned}°.`;
    if (pose === state.pose) return;
    state.pose = pose;
    document.body.dataset.pose = pose;
    const words = state.bars.map((bars) => bars.show(pose)).join("; ");
    clearTimeout(speech);
    speech = setTimeout(() => (byId("spoken").textContent = words), 500);
  }

  function redraw() {
    if (!state.waiting) requestAnimationFrame(draw);
    state.waiting = true;
  }

  function turn(axis, angle) {
    state.turn = orthonormal(product(axisAngle(axis, angle), state.turn));
    redraw();
  }

  function zoom(factor) {
    state.zoom = Math.min(8, Math.max(0.3, state.zoom * factor));
    redraw();
  }

  function play(on) {
    state.playing = on;
    byId("play").setAttribute("aria-pressed", on);
    byId("play").textContent = on ? "Pause" : "Play";
    let before = performance.now();
    const step = (now) => {
      if (!state.playing) return;
      // About a slanted axis, so that upright networks lose the thread; in steps where motion is unwelcome.
      if (!still.matches || now - before > 1000) {
        turn([0.6, 0, 0.8], (SPEED * (now - before)) / 1000);
        before = now;
      }
      requestAnimationFrame(step);
    };
    if (on) requestAnimationFrame(step);
  }

  const actions = {
    play: () => play(!state.playing),
    random: () => { state.turn = randomRotation(); redraw(); },
    reset: () => { play(false); Object.assign(state, { turn: IDENTITY, zoom: 1 }); redraw(); },
    smaller: () => zoom(1 / 1.2),
    larger: () => zoom(1.2),
  };
  const up = [0, 0, 1], [right, , toward] = axes; // about the vertical axis, upright shapes stay upright
  const keys = {
    ArrowLeft: (shift) => turn(shift ? toward : up, shift ? STEP : -STEP),
    ArrowRight: (shift) => turn(shift ? toward : up, shift ? -STEP : STEP),
    ArrowUp: () => turn(right, -STEP),
    ArrowDown: () => turn(right, STEP),
    "+": actions.larger, "=": actions.larger, "-": actions.smaller,
    r: actions.reset, n: actions.random, " ": actions.play,
  };

  addEventListener("keydown", (event) => {
    const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("select") || (event.key === " " && event.target.closest("button"))) return;
    event.preventDefault(); // scrolling
    action(event.shiftKey);
  });

  function listen(canvas) {
    const held = new Map();
    const gap = () => {
      const [a, b] = held.values();
      return Math.hypot(a.x - b.x, a.y - b.y) || 1;
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, { x: event.clientX, y: event.clientY });
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = held.get(event.pointerId);
      if (!last) return;
      const before = held.size === 2 ? gap() : 0;
      const dx = event.clientX - last.x, dy = event.clientY - last.y;
      Object.assign(last, { x: event.clientX, y: event.clientY });
      if (held.size === 2) return zoom(gap() / before);
      if (event.shiftKey) return turn(toward, -PER_PIXEL * dx);
      turn(up, PER_PIXEL * dx);
      turn(right, PER_PIXEL * dy);
    });
    for (const end of ["pointerup", "pointercancel"])
      canvas.addEventListener(end, (event) => held.delete(event.pointerId));
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas) return; // the page scrolls
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 500));
    }, { passive: false });
  }

  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", action);
  data.exhibits.forEach((one, i) => byId("shape").append(element("option", { value: i }, one.title)));
  byId("chooser").hidden = data.exhibits.length === 1;
  byId("shape").addEventListener("change", (event) => choose(Number(event.target.value)));
  dark.addEventListener("change", () => choose(Number(byId("shape").value))); // in other colors
  addEventListener("resize", redraw);
  choose(0);
  requestAnimationFrame(() => (document.body.dataset.ready = Math.round(performance.now()))); // after the first picture
}

start().catch((error) => {
  byId("problem").textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the page: it lacks DecompressionStream (Chrome 80, Firefox 113, Safari 16.4)."
    : `The page is damaged: ${error.message}`;
  byId("problem").hidden = false;
});
