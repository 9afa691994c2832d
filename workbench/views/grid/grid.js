// The picture grid: draws the moments of an attack, live in a notebook or from a recording in a page.
//
// `Player` holds what there is to see and which moment is looked at. Views draw it. A host connects a player to a
// kernel (`default`, for anywidget) or to the data in a page (`playPage`). Text reaches the page as text nodes only.

const MOST_BYTES = 64 * 2 ** 20;
const PLAY_MILLISECONDS = 150;
const MATCH_MILLISECONDS = 800;
const SETTLED_MILLISECONDS = 300;
const ASK_MILLISECONDS = 1500;
// Until the last step, a new pairing with the truth is shown only if it is better by this much, so that noise stays in place.
const PAIRING_GAIN = 0.3;
// Of two attacks that are compared, both cannot stay where they are shown when the truth does: they move more rarely.
const COMPARED_GAIN = 1;
const PSNR_CAP = 100;
const LARGEST_SCALE = 8;
// An image above the threshold that is better than a blank one by less than this shows little.
const BLANK_GAIN = 3;
const AXIS = [0, 60];
// Seven terms and six colours: a consensus and a custom term share one. Others have the colour of their place.
const TERM_COLOURS = { consensus: 6, custom: 6, span: 5 };

// ---------------------------------------------------------------------------------------------------------------
// Pure functions on pixels and permutations. Pixels are bytes; `size` is the number of bytes of an image.

/** PSNR in dB of two images of `size` bytes, at most 100. */
export function psnr(first, firstAt, second, secondAt, size) {
  let sum = 0;
  for (let index = 0; index < size; index += 1) {
    const difference = first[firstAt + index] - second[secondAt + index];
    sum += difference * difference;
  }
  return -10 * Math.log10(Math.max(sum / (size * 255 * 255), 10 ** (-PSNR_CAP / 10)));
}

/** The permutation that undoes another one. */
export function inverse(order) {
  const result = new Array(order.length);
  order.forEach((value, index) => {
    result[value] = index;
  });
  return result;
}

export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** The mean or median of the first `count` epochs, matched: bytes in the order of the combined images. */
export function combineEpochs(frame, numImages, size, count, how) {
  const combined = new Uint8Array(numImages * size);
  const sorted = new Uint8Array(count);
  const middle = count >> 1;
  for (let image = 0; image < numImages; image += 1) {
    const starts = [];
    for (let epoch = 0; epoch < count; epoch += 1) {
      starts.push((epoch * numImages + frame.permutations[epoch][image]) * size);
    }
    for (let at = 0; at < size; at += 1) {
      let sum = 0;
      for (let epoch = 0; epoch < count; epoch += 1) {
        const value = frame.epochs[starts[epoch] + at];
        sum += value;
        let place = epoch;
        while (place > 0 && sorted[place - 1] > value) {
          sorted[place] = sorted[place - 1];
          place -= 1;
        }
        sorted[place] = value;
      }
      const median = count % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
      combined[image * size + at] = Math.round(how === "mean" ? sum / count : median);
    }
  }
  return combined;
}

/** [N, N] likeness of the images of two epochs, PSNR in dB: rows are images of the first. */
export function likeness(frame, numImages, size, first, second) {
  return Array.from({ length: numImages }, (_, row) =>
    Array.from({ length: numImages }, (__, column) =>
      psnr(frame.epochs, (first * numImages + row) * size, frame.epochs, (second * numImages + column) * size, size),
    ),
  );
}

/** For every image of the first set the one of the second that stands beside it: the most alike pairs first. */
export function pairAlike(first, second, count, size) {
  const pairs = [];
  for (let one = 0; one < count; one += 1) {
    for (let other = 0; other < count; other += 1) pairs.push([psnr(first, one * size, second, other * size, size), one, other]);
  }
  const found = new Array(count);
  const taken = new Set();
  for (const [, one, other] of pairs.sort((a, b) => b[0] - a[0])) {
    if (found[one] === undefined && !taken.has(other)) {
      found[one] = other;
      taken.add(other);
    }
  }
  return found;
}

/** Which of the lines from places `above` to places `below` cross another one. */
export function crossing(above, below) {
  return above.map((a, i) => above.some((b, j) => i !== j && (a - b) * (below[i] - below[j]) < 0));
}

/** The images, the best first; equal ones keep their order. */
export function sorted(values) {
  return values.map((_, index) => index).sort((a, b) => values[b] - values[a] || a - b);
}

/** The number of columns that gives the fewest rows, filled as evenly as possible. */
export function balanced(count, most) {
  const rows = Math.ceil(count / Math.max(1, most));
  return Math.ceil(count / rows);
}

/** The largest whole factor up to `largest` at which `count` cells fit into width and height, and the columns it gives. */
export function fit(count, width, height, cell, largest = LARGEST_SCALE) {
  for (let scale = largest; scale >= 1; scale -= 1) {
    const [cellWidth, cellHeight] = cell(scale);
    const most = Math.floor(width / cellWidth);
    const columns = balanced(count, most);
    if (most >= 1 && (scale === 1 || Math.ceil(count / columns) * cellHeight <= height)) {
      return { scale, columns, cellWidth, cellHeight };
    }
  }
  const [cellWidth, cellHeight] = cell(1);
  return { scale: 1, columns: 1, cellWidth, cellHeight };
}

/** How many times larger pictures are: twice for a projector. */
function zoomOf(root) {
  return root.closest(".wb-present") ? 2 : 1;
}

/** How high a sheet of pictures should be at most: seen without scrolling, unless it is presented. */
function tallest(root) {
  return Math.max(580, 0.68 * window.innerHeight) * zoomOf(root) ** 2;
}

/** As `fit`, in a view; the sheet leaves a margin, and takes a share of the height. */
function fitView(root, count, cell, margin = 0, share = 1) {
  return fit(count, root.clientWidth - margin, share * tallest(root), cell, LARGEST_SCALE * zoomOf(root));
}

/** Round values for the marks of an axis. */
export function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(9)));
  return found;
}

/** Round values for the marks of a logarithmic axis: powers of ten, and others where that would be fewer than two. */
export function logTicks(low, high) {
  const [first, last] = [low, high].map((value) => Math.floor(Math.log10(value)));
  const within = (values) => values.filter((value) => value >= low && value <= high);
  const powers = within(ticks(first, last, 5).filter(Number.isInteger).map((power) => 10 ** power));
  if (powers.length > 1) return powers;
  const others = within(identity(last - first + 1).flatMap((index) => [1, 2, 5].map((digit) => digit * 10 ** (first + index))));
  return others.length > 1 ? others : ticks(low, high, 5);
}

export function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// ---------------------------------------------------------------------------------------------------------------
// What there is to see

/** The frames that the page keeps, at most so many bytes, thinned evenly over the steps. */
export class FrameStore {
  constructor(mostBytes = MOST_BYTES) {
    this.mostBytes = mostBytes;
    this.clear();
  }

  clear() {
    this.frames = new Map();
    this.bytes = 0;
    this.steps = [];
  }

  get(step) {
    return this.frames.get(step);
  }

  /** Keep a frame; pixels that an earlier one of the same step had stay. Neither it nor the one at `shown` is dropped. */
  put(frame, shown = null) {
    const before = this.frames.get(frame.step);
    if (before) {
      frame.pixels ??= before.pixels;
      frame.epochs ??= before.epochs;
      frame.residuals ??= before.residuals;
      frame.confidence ??= before.confidence;
      frame.reads ??= before.reads;
      frame.isWhole ||= before.isWhole;
      this.bytes -= sizeOf(before);
    } else {
      const at = this.steps.findIndex((step) => step > frame.step);
      this.steps.splice(at < 0 ? this.steps.length : at, 0, frame.step);
    }
    this.frames.set(frame.step, frame);
    this.bytes += sizeOf(frame);
    while (this.bytes > this.mostBytes && this.dropOne(frame.step, shown));
    return frame;
  }

  /** Drop the frame whose neighbours are closest; the first, the newest and these two stay. Whether there was one. */
  dropOne(...staying) {
    let least = null;
    const gap = (index) => this.steps[index + 1] - this.steps[index - 1];
    for (let index = 1; index < this.steps.length - 1; index += 1) {
      if (!staying.includes(this.steps[index]) && (least === null || gap(index) < gap(least))) least = index;
    }
    if (least === null) return false;
    const [step] = this.steps.splice(least, 1);
    this.bytes -= sizeOf(this.frames.get(step));
    this.frames.delete(step);
    return true;
  }

  /** The latest frame at or before a step that passes a test. */
  latest(step, test = () => true) {
    for (let index = this.steps.length - 1; index >= 0; index -= 1) {
      const frame = this.frames.get(this.steps[index]);
      if (frame.step <= step && test(frame)) return frame;
    }
    return undefined;
  }

  dropAfter(step) {
    for (const later of this.steps.filter((one) => one > step)) {
      this.bytes -= sizeOf(this.frames.get(later));
      this.frames.delete(later);
    }
    this.steps = this.steps.filter((one) => one <= step);
  }
}

function sizeOf(frame) {
  return (frame.pixels?.length ?? 0) + (frame.epochs?.length ?? 0) + 1000;
}

/**
 * A source (an attack or a recording), its frames, and what a person does with them.
 *
 * Place i belongs to true image i; where the truth is not known, to reconstruction i. `pairs[i]` is the reconstruction
 * in place i, at every moment. `places` is the order in which places are shown. A reconstruction stays where it is shown
 * from the first noise on, until a person sorts: where another pairing becomes much better, the truths change places.
 */
export class Player {
  constructor(host = {}) {
    this.host = host;
    this.store = new FrameStore();
    this.listeners = new Set();
    this.matched = true;
    this.showsTruth = true;
    this.leastGain = PAIRING_GAIN;
    this.epoch = 2;
    this.count = null;
    this.begin(null, null);
  }

  /** Show another source from now on. */
  begin(source, truth) {
    this.stop();
    clearTimeout(this.settling);
    this.source = source;
    this.truth = truth;
    this.store.clear();
    this.moments = [];
    this.history = null;
    this.step = null;
    this.marked = null;
    this.enlarged = null;
    this.pairs = source ? identity(source.numImages) : [];
    this.hasPairs = false;
    this.places = [...this.pairs];
    this.sort = "in order";
    this.version = 0;
    this.changed();
  }

  get size() {
    const [height, width, channels] = this.source.shape;
    return height * width * channels;
  }

  /** What `combine` starts at: all epochs. */
  countOf(frame) {
    return Math.min(this.count ?? frame.sets, frame.sets);
  }

  /** The steps that can be looked at. */
  get steps() {
    const kept = this.store.steps.filter((step) => this.store.get(step).pixels);
    return [...new Set([...this.moments, ...kept])].sort((a, b) => a - b);
  }

  get newest() {
    return this.store.steps.at(-1) ?? 0;
  }

  /** The step that is looked at. */
  get shownStep() {
    return this.step ?? this.newest;
  }

  get isFollowing() {
    return this.step === null;
  }

  /** The frame to show. A view of epochs shows the latest one that has them, and says so. */
  frame(needsEpochs = false) {
    const step = this.shownStep;
    const exact = this.store.get(step);
    const isLacking = !exact?.pixels || (needsEpochs && exact.hasEpochs && !exact.epochs);
    // The newest one comes by itself.
    if (isLacking && !this.isFollowing && this.moments.includes(step)) this.host.want?.(step, needsEpochs);
    if (exact?.pixels && (!needsEpochs || exact.epochs || exact.sets === 1)) return exact;
    return this.store.latest(step, (one) => one.pixels && (!needsEpochs || one.epochs));
  }

  put(frame) {
    const kept = this.store.put(frame, this.step);
    if (frame.step === this.newest) this.pair();
    this.changed();
    return kept;
  }

  /** Pair truth and reconstructions as at the newest frame; before and after the last step only if that is much better. */
  pair() {
    const newest = this.store.latest(Infinity, (one) => one.order && one.pixels);
    if (!newest || newest.order.every((value, index) => value === this.pairs[index])) {
      this.hasPairs ||= Boolean(newest);
      return;
    }
    const gain = () => mean(newest.psnr) - mean(this.qualities(newest));
    if (this.hasPairs && newest.step !== this.source.totalSteps && gain() < this.leastGain) return;
    const shown = this.places.map((place) => this.pairs[place]);
    this.pairs = [...newest.order];
    if (this.hasPairs) {
      // The reconstructions stay where they are, and the truth follows.
      const placeOf = inverse(this.pairs);
      this.places = shown.map((found) => placeOf[found]);
      this.sort = "";
    }
    this.hasPairs = true;
    this.version += 1;
  }

  /** [N] PSNR in dB of the reconstruction in every place; null where the truth is not known or not shown. */
  qualities(frame) {
    if (!this.truth) return null;
    const size = this.size;
    return this.pairs.map((found, place) => {
      // The score's own value is computed before pixels are rounded to bytes.
      if (frame.order?.[place] === found) return frame.psnr[place];
      return psnr(this.truth, place * size, frame.pixels, found * size, size);
    });
  }

  /** The PSNR of every place at the kept steps: as shown, or, where some have no pixels, as each was paired then. */
  get scored() {
    const frames = this.store.steps.map((step) => this.store.get(step)).filter((one) => one.psnr);
    const isShown = frames.every((frame) => frame.pixels);
    return { isShown, points: frames.map((frame) => ({ step: frame.step, values: isShown ? this.qualities(frame) : frame.psnr })) };
  }

  // What a person does

  look(step) {
    const steps = this.steps;
    this.step = step === null || step >= steps.at(-1) ? null : step;
    this.settle();
    this.changed();
  }

  /** Report what is looked at once that stays. */
  settle() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.host.look?.(this.step), SETTLED_MILLISECONDS);
  }

  get isPlaying() {
    return this.timer !== undefined;
  }

  play() {
    this.stop();
    const steps = this.steps;
    if (steps.length < 2) return;
    if (this.isFollowing) this.look(steps[0]);
    this.timer = setInterval(() => {
      const next = this.steps.find((step) => step > this.shownStep);
      this.look(next ?? null);
      if (this.isFollowing) this.stop();
    }, PLAY_MILLISECONDS);
    this.changed();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = undefined;
    if (this.listeners.size) this.changed();
  }

  mark(place) {
    if (this.marked !== place) {
      this.marked = place;
      this.changed("mark");
    }
  }

  enlarge(place) {
    this.enlarged = place;
    this.changed();
  }

  sortBy(how) {
    this.sort = how;
    const frame = this.frame();
    const values = frame && (this.showsTruth ? this.qualities(frame) : null);
    const judged = values ?? frame?.confidence;
    this.places = how === "best first" && judged ? sorted(judged) : identity(this.source.numImages);
    this.changed();
  }

  /** Look at the newest moment again. */
  follow() {
    this.set({ step: null });
  }

  set(values) {
    Object.assign(this, values);
    this.changed();
  }

  changed(what = "all") {
    for (const listener of this.listeners) listener(what);
  }
}

/**
 * Several attacks on the same images, each with a player of its own, looked at together.
 *
 * There is one timeline: at a step, every attack shows the latest moment that it has kept until then. Place i belongs to
 * true image i in all of them; without the truth, the first attack decides which picture stands where.
 */
export class Comparison extends Player {
  constructor(rows) {
    super({ look: () => rows.forEach((row) => row.host.look?.(row.step)) });
    this.rows = rows;
    this.names = rows.map((_, index) => `attack ${index + 1}`);
    this.colours = rows.map((_, index) => index);
    for (const row of rows) {
      row.leastGain = COMPARED_GAIN;
      row.enlarge = (place) => this.enlarge(place);
      row.follow = () => this.look(null);
      row.listeners.add(() => this.gather());
    }
  }

  get steps() {
    return [...new Set(this.rows.flatMap((row) => row.steps))].sort((a, b) => a - b);
  }

  get newest() {
    return Math.max(...this.rows.map((row) => row.newest));
  }

  frame() {
    return this.rows[0].frame();
  }

  /** The mean of all attacks, each at its own frame. */
  qualities() {
    const each = this.rows.map((row) => row.frame() && row.qualities(row.frame()));
    return each.every(Boolean) ? this.places.map((_, place) => mean(each.map((values) => values[place]))) : null;
  }

  /** Something has changed in a row. */
  gather() {
    const sources = this.rows.map((row) => row.source);
    if (sources.every((source, index) => source === this.sources?.[index])) {
      this.changed();
      return;
    }
    this.sources = sources;
    // While a new client is built, one row may have its images and the other not yet.
    const images = (source) => source && `${source.numImages} ${source.shape}`;
    const isReady = sources.every((source) => source && images(source) === images(sources[0]));
    this.begin(isReady ? { ...sources[0] } : null, this.rows[0].truth);
  }

  changed(what = "all") {
    for (const row of this.rows ?? []) {
      const { showsTruth, enlarged } = this;
      const step = this.step === null ? null : (row.steps.findLast((one) => one <= this.step) ?? row.steps[0] ?? null);
      // Also where it is not the person but the attack that has moved: what is shown is what can be gone on from.
      if (step !== row.step) this.settle();
      Object.assign(row, { showsTruth, enlarged, step });
    }
    if (this.source && !this.truth) this.pairRows();
    super.changed(what);
  }

  pairRows() {
    const newest = this.rows.map((row) => row.store.latest(Infinity, (one) => one.pixels));
    if (newest.some((frame) => !frame) || newest.every((frame, index) => frame === this.alike?.[index])) return;
    this.alike = newest;
    const isEnd = newest.every((frame, index) => frame.step === this.rows[index].source.totalSteps);
    const { size } = this;
    const [first, ...others] = newest.map((frame) => frame.pixels);
    others.forEach((pixels, index) => {
      const row = this.rows[index + 1];
      const found = pairAlike(first, pixels, this.source.numImages, size);
      const alike = (pairs) => mean(pairs.map((other, one) => psnr(first, one * size, pixels, other * size, size)));
      if (!row.hasPairs || isEnd || alike(found) - alike(row.pairs) >= row.leastGain) row.pairs = found;
      row.hasPairs = true;
    });
  }
}

function identity(count) {
  return Array.from({ length: count }, (_, index) => index);
}

// ---------------------------------------------------------------------------------------------------------------
// Pieces of a page

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

/** A canvas with the pixels of one image; the style enlarges it without smoothing. */
class Picture {
  constructor(player, kind = "") {
    const [height, width] = player.source.shape;
    this.canvas = element("canvas", { width, height, class: `wbg-picture ${kind}`, "aria-hidden": "true" });
    this.context = this.canvas.getContext("2d");
    this.data = new ImageData(width, height);
    this.channels = player.source.shape[2];
  }

  draw(bytes, at) {
    const data = this.data.data;
    const channels = this.channels;
    for (let from = at, to = 0; to < data.length; from += channels, to += 4) {
      data[to] = bytes[from];
      data[to + 1] = bytes[channels === 3 ? from + 1 : from];
      data[to + 2] = bytes[channels === 3 ? from + 2 : from];
      data[to + 3] = 255;
    }
    this.context.putImageData(this.data, 0, 0);
  }

  /** How far two images are apart: the more, the more colour over the page's background. */
  drawError(first, firstAt, second, secondAt) {
    const data = this.data.data;
    const channels = this.channels;
    for (let pixel = 0, to = 0; to < data.length; pixel += channels, to += 4) {
      let sum = 0;
      for (let channel = 0; channel < channels; channel += 1) {
        sum += Math.abs(first[firstAt + pixel + channel] - second[secondAt + pixel + channel]);
      }
      data[to] = 225;
      data[to + 1] = 105;
      data[to + 2] = 10;
      data[to + 3] = Math.min(255, (2.2 * sum) / channels);
    }
    this.context.putImageData(this.data, 0, 0);
  }

  resize(scale) {
    this.canvas.style.width = `${this.canvas.width * scale}px`;
    this.canvas.style.height = `${this.canvas.height * scale}px`;
  }

  moveTo(x, y) {
    this.canvas.style.transform = `translate(${x}px, ${y}px)`;
  }
}

/** A chart with lines; both axes are given, so that values can be compared from moment to moment. */
function chart({ title, x, y, xRange, yRange, isLog, lines, levels = [], cursor = null, width, height = 240, marks = [] }) {
  const left = 52;
  const right = 150;
  const [top, bottom] = [26, 40];
  const svg = drawn("svg", { class: "wbg-chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.setAttribute("aria-label", title);
  const scaled = isLog ? Math.log10 : (value) => value;
  const [low, high] = yRange.map(scaled);
  const atX = (value) => left + ((value - xRange[0]) / Math.max(1e-9, xRange[1] - xRange[0])) * (width - left - right);
  const atY = (value) => {
    const share = (scaled(value) - low) / Math.max(1e-9, high - low);
    return height - bottom - Math.min(1, Math.max(0, share)) * (height - top - bottom);
  };
  svg.append(drawn("text", { x: left, y: 14, class: "wbg-title" }, title));
  for (const value of isLog ? logTicks(...yRange) : ticks(...yRange, 5)) {
    svg.append(drawn("line", { x1: left, x2: width - right, y1: atY(value), y2: atY(value), class: "wbg-grid" }));
    svg.append(drawn("text", { x: left - 6, y: atY(value) + 4, class: "wbg-tick", "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(...xRange, Math.min(10, width / 80)).filter(Number.isInteger)) {
    svg.append(drawn("text", { x: atX(value), y: height - bottom + 16, class: "wbg-tick", "text-anchor": "middle" }, short(value)));
  }
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, class: "wbg-tick", "text-anchor": "middle" }, x));
  svg.append(drawn("text", { x: -(top + height - bottom) / 2, y: 12, class: "wbg-tick", "text-anchor": "middle", transform: "rotate(-90)" }, y));
  // Names of levels that lie close together are moved apart.
  let lowest = Infinity;
  for (const level of [...levels].sort((a, b) => a.value - b.value)) {
    const at = atY(level.value);
    const textAt = Math.min(at + 4, lowest - 13);
    lowest = textAt;
    svg.append(drawn("line", { x1: left, x2: width - right, y1: at, y2: at, class: `wbg-level ${level.kind ?? ""}` }));
    svg.append(drawn("text", { x: width - right + 6, y: textAt, class: "wbg-tick" }, `${level.name} ${level.value.toFixed(1)}`));
  }
  for (const mark of marks) {
    svg.append(drawn("line", { x1: atX(mark.at), x2: atX(mark.at), y1: top, y2: height - bottom, class: "wbg-mark" }));
    const name = drawn("text", { x: 4 - (height - bottom), y: atX(mark.at) - 3, class: "wbg-tick", transform: "rotate(-90)" }, mark.name);
    svg.append(name);
  }
  for (const line of lines) {
    let path = "";
    let isOn = false;
    line.points.forEach(([at, value]) => {
      const isShown = Number.isFinite(value) && (!isLog || value > 0);
      if (isShown) path += `${isOn ? "L" : "M"}${atX(at).toFixed(1)} ${atY(value).toFixed(1)}`;
      isOn = isShown;
    });
    const drawnLine = drawn("path", { d: path, class: `wbg-line wbg-line-${line.colour} ${line.kind ?? ""}` });
    svg.append(drawnLine);
    if (line.place !== undefined) {
      drawnLine.dataset.place = line.place;
      drawnLine.append(drawn("title", {}, `Image ${line.place + 1}`));
    } else if (line.points.length <= 40) {
      for (const [at, value] of line.points.filter((point) => Number.isFinite(point[1]) && (!isLog || point[1] > 0))) {
        svg.append(drawn("circle", { cx: atX(at), cy: atY(value), r: 2.5, class: `wbg-dot wbg-line-${line.colour}` }));
      }
    }
  }
  const highest = Math.max(...lines.flatMap((line) => line.points.map(([, value]) => value)));
  if (highest > yRange[1]) {
    svg.append(drawn("text", { x: width - right + 6, y: top, class: "wbg-tick" }, `▲ up to ${highest.toFixed(1)}`));
  }
  if (cursor !== null && cursor >= xRange[0] && cursor <= xRange[1]) {
    svg.append(drawn("line", { x1: atX(cursor), x2: atX(cursor), y1: top, y2: height - bottom, class: "wbg-cursor" }));
  }
  return svg;
}

/** A question mark that opens an explanation of the control with this name. */
function question(name, text) {
  return element("details", { class: "wbg-help" }, element("summary", { "aria-label": `About ${name}` }, "?"), element("span", {}, text));
}

function swatch(colour, kind = "") {
  return element("span", { class: `wbg-swatch wbg-line-${colour} ${kind}`, "aria-hidden": "true" });
}

// ---------------------------------------------------------------------------------------------------------------
// Views

/** What all views share: they draw when they can be seen and something has changed. */
class View {
  constructor(player, root) {
    this.player = player;
    this.root = root;
    root.classList.add("wbg");
    // JupyterLab's shortcuts must not fire while a picture or a slider has the focus.
    root.dataset.lmSuppressShortcuts = "true";
    this.caption = element("p", { class: "wbg-caption" });
    const placeAt = (event) => {
      const place = event.target.closest("[data-place]")?.dataset.place;
      return place === undefined ? null : Number(place);
    };
    root.addEventListener("pointerover", (event) => player.mark(placeAt(event)));
    root.addEventListener("pointerleave", () => player.mark(null));
    root.addEventListener("click", (event) => {
      const place = placeAt(event);
      if (place !== null) player.enlarge(player.enlarged === place ? null : place);
    });
    this.listener = (what) => this.request(what);
    player.listeners.add(this.listener);
    this.observer = new ResizeObserver(() => this.request("size"));
    this.observer.observe(root);
  }

  get isVisible() {
    return this.root.clientWidth > 0;
  }

  request(what) {
    this.wanted ??= new Set();
    this.wanted.add(what);
    this.pending ??= requestAnimationFrame(() => {
      this.pending = undefined;
      const wanted = this.wanted;
      if (!this.isVisible || !this.root.isConnected) return;
      this.wanted = undefined;
      if (wanted.size === 1 && wanted.has("mark") && this.shown === this.player.source) this.mark();
      else this.update();
    });
  }

  update() {
    const { player, root } = this;
    if (this.shown !== player.source) {
      this.shown = player.source;
      root.replaceChildren();
      if (player.source) this.build();
    }
    if (player.source) this.draw();
    this.mark();
  }

  build() {}

  mark() {
    const marked = this.player.marked ?? this.player.enlarged;
    for (const one of this.root.querySelectorAll("[data-place]")) {
      one.classList.toggle("wbg-marked", marked !== null && Number(one.dataset.place) === marked);
    }
  }

  /** Whether the truth is shown, and the order of the pictures. */
  sortControls() {
    const { player } = this;
    const truth = element("input", { type: "checkbox" });
    truth.checked = player.showsTruth;
    truth.addEventListener("change", () => player.set({ showsTruth: truth.checked }));
    const best = element("button", { type: "button", class: "wbg-button", onclick: () => player.sortBy("best first") }, "Sort best first");
    this.inOrder = element("button", { type: "button", class: "wbg-button", onclick: () => player.sortBy("in order") }, "Original order");
    return element(
      "div",
      { class: "wbg-controls" },
      player.truth ? element("label", {}, truth, " Show the truth") : null,
      best,
      this.inOrder,
      question(
        "these controls",
        "Without the truth you see what the attacker sees. Sorting uses the PSNR at this moment (the mean of both, where two attacks are " +
          "compared), or the confidence (of the first) where the truth is not shown; images keep their places until you sort again.",
      ),
    );
  }

  /** A sentence about why the epochs cannot be seen, or nothing. */
  whyNoEpochs(frame) {
    if (frame?.epochs && frame.sets > 1) return "";
    if (frame && frame.sets === 1) return "There is one set of images for all epochs, because of the method or during the warm start.";
    return `Step ${this.player.shownStep}: only the combined images of this moment were kept.`;
  }

  /** Which step a frame is of, and whether that is the one which is looked at. */
  stepText(frame) {
    const wanted = this.player.shownStep;
    if (frame.step === wanted) return `Step ${frame.step}.`;
    return `Step ${frame.step}, the latest before step ${wanted} that was kept with its epochs.`;
  }

  destroy() {
    this.player.listeners.delete(this.listener);
    this.observer.disconnect();
    cancelAnimationFrame(this.pending);
  }
}

/** A button over every place, which the mouse and the keyboard can reach; arrow keys walk. */
class Places {
  constructor(player, parent) {
    this.player = player;
    this.buttons = player.places.map((_, place) => {
      const button = element("button", { type: "button", class: "wbg-place", tabindex: "-1", "data-place": place });
      button.addEventListener("focus", () => {
        player.mark(place);
        this.makeReachable(place);
      });
      button.addEventListener("blur", () => player.mark(null));
      button.addEventListener("keydown", (event) => this.walk(event, place));
      return button;
    });
    this.buttons[player.places[0]]?.setAttribute("tabindex", "0");
    parent.append(...this.buttons);
    this.columns = 1;
    this.order = null; // of the places, where it is not that of the player
  }

  makeReachable(place) {
    this.buttons.forEach((button, index) => button.setAttribute("tabindex", index === place ? "0" : "-1"));
  }

  walk(event, place) {
    const places = this.order ?? this.player.places;
    const at = places.indexOf(place);
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    if (event.key === "Escape") this.player.enlarge(null);
    let next = null;
    if (event.key in moves) next = at + moves[event.key];
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = places.length - 1;
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    if (next >= 0 && next < places.length) this.buttons[places[next]].focus();
  }

  put(place, x, y, width, height, label) {
    const button = this.buttons[place];
    Object.assign(button.style, { transform: `translate(${x}px, ${y}px)`, width: `${width}px`, height: `${height}px` });
    if (button.getAttribute("aria-label") !== label) button.setAttribute("aria-label", label);
    button.setAttribute("aria-expanded", String(this.player.enlarged === place));
  }
}

/** How well an image was recovered: "recovered", "weak" where a blank image would be nearly as good, or nothing. */
function recovery(player, place, value) {
  const { threshold, blank } = player.source;
  if (!(value > threshold)) return "";
  return value < (blank?.[place] ?? -Infinity) + BLANK_GAIN ? "weak" : "recovered";
}

const SPOKEN = { recovered: ", recovered", weak: ", recovered but little better than a blank image", "": "" };
const TICKS = { recovered: "✓ ", weak: "(✓) ", "": "" };

/** Frame a picture by how well it was recovered; returns the sign for its text. */
function showRecovery(picture, kind) {
  picture.canvas.classList.toggle("wbg-recovered", kind !== "");
  picture.canvas.classList.toggle("wbg-weak", kind === "weak");
  return TICKS[kind];
}

/** The name of an image and all that is known about it, as text. */
function describe(player, frame, place, values) {
  const found = player.pairs[place];
  const parts = [`Image ${place + 1}`];
  const label = player.truth && player.showsTruth ? player.source.names[place] : frame.classes[found];
  if (label) parts[0] += `, class ${label}`;
  if (values) parts.push(`PSNR ${values[place].toFixed(1)} dB${SPOKEN[recovery(player, place, values[place])]}`);
  if (frame.reads) parts.push(`the network predicts ${frame.reads[found]}`);
  const residual = frame.residuals?.[found];
  if (Number.isFinite(residual)) parts.push(`span residual ${short(residual)}`);
  const [name, ...facts] = parts;
  return facts.length ? `${name}: ${facts.join(", ")}` : name;
}

/** One image large: truth, combined, error, and every epoch. */
class Enlarged {
  constructor(player, nameOf = () => "") {
    this.player = player;
    this.nameOf = nameOf;
    this.text = element("span", {});
    this.row = element("div", { class: "wbg-row" });
    const close = element("button", { type: "button", class: "wbg-button", onclick: () => player.enlarge(null) }, "Close");
    this.root = element("section", { class: "wbg-enlarged", "aria-label": "The chosen image, enlarged", hidden: true },
      element("p", {}, this.text, close), this.row);
  }

  draw(frame) {
    const { player } = this;
    const place = player.enlarged;
    this.root.hidden = place === null || !frame;
    if (this.root.hidden) return;
    // Without a wish, frames of a running attack come without their residuals, and in this view without epochs.
    const isLacking = frame.isWhole === false || (frame.hasEpochs && !frame.epochs);
    if (isLacking && player.moments.includes(frame.step)) player.host.want?.(frame.step, true);
    const { size } = player;
    const found = player.pairs[place];
    const values = player.showsTruth ? player.qualities(frame) : null;
    const scale = Math.max(1, Math.round(96 / Math.max(...player.source.shape.slice(0, 2))));
    const figures = [];
    const add = (text, draw) => {
      const picture = new Picture(player);
      draw(picture);
      picture.resize(scale);
      figures.push(element("figure", {}, picture.canvas, element("figcaption", {}, text)));
    };
    const isCompared = player.truth && player.showsTruth;
    if (isCompared) add("truth", (one) => one.draw(player.truth, place * size));
    add("combined", (one) => one.draw(frame.pixels, found * size));
    if (isCompared) add("error", (one) => one.drawError(player.truth, place * size, frame.pixels, found * size));
    for (let epoch = 0; frame.epochs && frame.sets > 1 && epoch < frame.sets; epoch += 1) {
      const at = (epoch * player.source.numImages + frame.permutations[epoch][found]) * size;
      const quality = isCompared ? ` ${psnr(player.truth, place * size, frame.epochs, at, size).toFixed(1)} dB` : "";
      add(`epoch ${epoch + 1}${quality}`, (one) => one.draw(frame.epochs, at));
    }
    const ssim = isCompared && frame.order?.[place] === found && frame.ssim ? `, SSIM ${frame.ssim[place].toFixed(2)}` : "";
    const blank = isCompared ? `; a blank image would have ${player.source.blank[place].toFixed(1)} dB` : "";
    const name = this.nameOf();
    this.text.textContent = `${name && `${name}. `}${describe(player, frame, place, values)}${ssim}${blank}. Step ${frame.step}.`;
    this.row.replaceChildren(...figures);
  }
}

/** Truth above reconstruction, every picture in its place. */
class ReconstructionView extends View {
  build() {
    const { player, root } = this;
    this.sheet = element("div", { class: "wbg-sheet", role: "group", "aria-label": "Images" });
    this.truths = player.truth ? player.places.map(() => new Picture(player, "wbg-truth")) : [];
    this.founds = player.places.map(() => new Picture(player, "wbg-found"));
    this.texts = player.places.map((_, place) => element("span", { class: "wbg-text", "aria-hidden": "true", "data-place": place }));
    this.sheet.append(...this.truths.map((one) => one.canvas), ...this.founds.map((one) => one.canvas), ...this.texts);
    this.places = new Places(player, this.sheet);
    this.enlarged = new Enlarged(player);
    root.append(this.sortControls(), this.sheet, this.caption, this.enlarged.root);
  }

  draw() {
    const { player } = this;
    const frame = player.frame();
    this.inOrder.disabled = player.sort === "in order";
    this.enlarged.draw(frame);
    this.sheet.hidden = !frame;
    if (!frame) {
      this.caption.textContent = "There are no images yet.";
      return;
    }
    const isCompared = player.truth && player.showsTruth;
    const values = isCompared ? player.qualities(frame) : null;
    const [height, width] = player.source.shape;
    const rows = isCompared ? 2 : 1;
    const cell = (scale) => [Math.max(width * scale, 56) + 8, rows * (height * scale + 3) + 40];
    const { scale, columns, cellWidth, cellHeight } = fitView(this.root, player.places.length, cell);
    // A new size is no movement.
    this.sheet.classList.toggle("wbg-still", this.scale !== scale || this.columns !== columns || this.isCompared !== isCompared);
    Object.assign(this, { scale, columns, isCompared });
    this.places.columns = columns;
    this.sheet.style.height = `${Math.ceil(player.places.length / columns) * cellHeight}px`;
    const margin = (cellWidth - width * scale) / 2;
    player.places.forEach((place, at) => {
      const [x, y] = [(at % columns) * cellWidth, Math.floor(at / columns) * cellHeight];
      const found = player.pairs[place];
      const picture = this.founds[found];
      if (player.truth) {
        const truth = this.truths[place];
        truth.canvas.hidden = !isCompared;
        truth.canvas.dataset.place = place;
        truth.resize(scale);
        truth.moveTo(x + margin, y + 4);
        if (!truth.isDrawn) truth.draw(player.truth, place * player.size);
        truth.isDrawn = true;
      }
      picture.canvas.dataset.place = place;
      picture.canvas.dataset.image = found;
      picture.resize(scale);
      picture.moveTo(x + margin, y + 4 + (rows - 1) * (height * scale + 3));
      picture.draw(frame.pixels, found * player.size);
      const sign = showRecovery(picture, values ? recovery(player, place, values[place]) : "");
      const text = this.texts[place];
      text.textContent = this.below(frame, place, values, sign);
      text.style.transform = `translate(${x}px, ${y + cellHeight - 35}px)`;
      text.style.width = `${cellWidth}px`;
      this.places.put(place, x, y, cellWidth, cellHeight, describe(player, frame, place, values));
    });
    this.caption.textContent = this.text(frame, values);
  }

  below(frame, place, values, sign) {
    const { pairs, source } = this.player;
    const found = pairs[place];
    const read = frame.reads ? frame.reads[found] : "";
    if (values) {
      const ssim = frame.order?.[place] === found && frame.ssim ? frame.ssim[place].toFixed(2) : "";
      const seen = read && `${read === source.names[place] ? "" : "≠"}${read}`;
      return `${sign}${values[place].toFixed(1)} dB\n${[ssim, seen].filter(Boolean).join(" · ")}`;
    }
    const confidence = frame.confidence?.[found];
    const judged = Number.isFinite(confidence) ? ` ${confidence.toFixed(2)}` : "";
    return `${frame.classes[found]}${judged}\n${read && `predicts ${read}`}`;
  }

  text(frame, values) {
    const { player } = this;
    if (values) {
      const recovered = values.filter((value) => value > player.source.threshold).length;
      const pairs = frame.step === player.newest || !frame.order ? "" : ` Every image stays in the place that it has at step ${player.newest}.`;
      return (
        `Step ${frame.step}. Truth above, reconstruction below: ${recovered} of ${values.length} recovered ` +
        `(above ${player.source.threshold} dB, ✓), mean ${mean(values).toFixed(1)} dB. ` +
        `(✓): less than ${BLANK_GAIN} dB better than a blank image. ` +
        `Below each: PSNR, and SSIM${frame.reads ? " · the class that the client's network predicts, with ≠ where it is not the true one" : ""}.${pairs}`
      );
    }
    const judged = frame.confidence?.every(Number.isFinite)
      ? ", and the confidence, which needs no truth: 1 minus the span residual, less for a repetition, from 0 to 1."
      : `. ${player.source.spanText}`;
    return `Step ${frame.step}. ${player.pairs.length} reconstructions as the attacker sees them: the assumed class${judged}`;
  }
}

/** One row for each epoch; a column is one image, or as every epoch was optimised. */
class EpochsView extends View {
  build() {
    const { player, root } = this;
    this.toggle = element("button", { type: "button", class: "wbg-button", onclick: () => player.set({ matched: !player.matched }) });
    this.sheet = element("div", { class: "wbg-sheet" });
    this.scroll = element("div", { class: "wbg-scroll", tabindex: "0", role: "group", "aria-label": "One row for each epoch" }, this.sheet);
    this.rows = [];
    this.names = [];
    this.enlarged = new Enlarged(player);
    const about = question(
      "the order of the epochs",
      "Every epoch has its own reconstruction of every image, in an order of its own. Matched, a column is one image in all epochs; " +
        "as optimised, every epoch has its own order.",
    );
    root.append(element("div", { class: "wbg-controls" }, this.toggle, about), this.scroll, this.caption, this.enlarged.root);
  }

  prepare(sets) {
    if (this.sets === sets && this.places) return;
    const { player } = this;
    this.sets = sets;
    const rows = [...(player.truth ? ["truth"] : []), "combined", ...identity(sets).map((epoch) => `epoch ${epoch + 1}`)];
    this.names = rows.map((name) => element("span", { class: "wbg-name" }, name));
    this.rows = rows.map(() => player.places.map(() => new Picture(player)));
    this.sheet.replaceChildren(...this.names, ...this.rows.flat().map((one) => one.canvas));
    this.places = new Places(player, this.sheet);
    this.sheet.classList.add("wbg-still");
  }

  draw() {
    const { player } = this;
    const frame = player.frame(true);
    const why = this.whyNoEpochs(frame);
    this.enlarged.draw(frame);
    this.toggle.textContent = player.matched ? "Show as optimised" : "Show matched";
    this.toggle.disabled = Boolean(why);
    this.scroll.hidden = Boolean(why);
    if (why) {
      this.caption.textContent = why;
      return;
    }
    this.prepare(frame.sets);
    const [height, width] = player.source.shape;
    const { size } = player;
    const count = player.places.length;
    const margin = 74;
    const room = this.root.clientWidth - margin;
    const most = tallest(this.root);
    let scale = 4;
    while (scale > 1 && (count * (width * scale + 4) > room || this.rows.length * (height * scale + 4) > most)) scale -= 1;
    scale *= zoomOf(this.root);
    const [stepX, stepY] = [width * scale + 4, height * scale + 4];
    if (this.scale !== scale) this.sheet.classList.add("wbg-still");
    this.scale = scale;
    this.sheet.style.width = `${margin + count * stepX}px`;
    this.sheet.style.height = `${this.rows.length * stepY + 8}px`;
    this.names.forEach((name, row) => {
      name.style.transform = `translate(0px, ${row * stepY + 4}px)`;
      name.style.height = name.style.lineHeight = `${height * scale}px`;
    });
    const columnOf = inverse(player.places);
    const placeOf = inverse(player.pairs);
    const first = this.rows.length - frame.sets;
    const put = (picture, row, column, place, bytes, at) => {
      picture.resize(scale);
      picture.moveTo(margin + column * stepX, row * stepY + 4);
      picture.canvas.dataset.place = place;
      picture.draw(bytes, at * size);
    };
    player.pairs.forEach((found, place) => {
      const column = columnOf[place];
      if (player.truth) {
        put(this.rows[0][place], 0, column, place, player.truth, place);
        this.rows[0][place].canvas.hidden = !player.showsTruth;
      }
      put(this.rows[first - 1][found], first - 1, column, place, frame.pixels, found);
    });
    if (player.truth) this.names[0].hidden = !player.showsTruth;
    let moved = 0;
    for (let epoch = 0; epoch < frame.sets; epoch += 1) {
      const of = inverse(frame.permutations[epoch]);
      for (let image = 0; image < count; image += 1) {
        const found = of[image];
        const place = placeOf[found];
        const isMoved = frame.permutations[epoch][found] !== frame.permutations[0][found];
        moved += isMoved ? 1 : 0;
        const picture = this.rows[first + epoch][image];
        put(picture, first + epoch, player.matched ? columnOf[place] : image, place, frame.epochs, epoch * count + image);
        picture.canvas.classList.toggle("wbg-moved", isMoved);
      }
    }
    const values = player.showsTruth ? player.qualities(frame) : null;
    player.places.forEach((place, column) => {
      // As optimised, the pictures of a column are not of one image.
      const rows = player.matched ? this.rows.length : first;
      this.places.put(place, margin + column * stepX - 2, 0, stepX, rows * stepY + 4, describe(player, frame, place, values));
    });
    this.places.columns = count;
    // A changed style must reach the page before movements are shown again.
    requestAnimationFrame(() => requestAnimationFrame(() => this.sheet.classList.remove("wbg-still")));
    this.caption.textContent =
      `${this.stepText(frame)} ${frame.sets} epochs, ${player.matched ? "matched: a column is one image" : "each in the order it was optimised"}, ` +
      `and their combination. The matching moves ${moved} of ${(frame.sets - 1) * count} images (underlined).`;
  }
}

/** Epoch 1 above, another epoch below, and a line for each assignment. */
class MatchingView extends View {
  build() {
    const { player, root } = this;
    this.progress = 0; // 0: in the order of optimisation, 1: in the columns of epoch 1
    this.button = element("button", { type: "button", class: "wbg-button wbg-primary", onclick: () => this.toggle() }, "Match");
    this.slider = element("input", { type: "range", min: 2, max: 2, value: 2, "aria-label": "Epoch that is matched to epoch 1" });
    this.slider.addEventListener("input", () => {
      cancelAnimationFrame(this.moving);
      this.progress = 0;
      player.set({ epoch: Number(this.slider.value) });
    });
    this.number = element("output", {});
    this.sheet = element("div", { class: "wbg-sheet" });
    this.scroll = element("div", { class: "wbg-scroll", tabindex: "0", role: "group", "aria-label": "Epoch 1 above, the chosen epoch below" }, this.sheet);
    this.above = player.places.map(() => new Picture(player));
    this.below = player.places.map(() => new Picture(player));
    this.lines = drawn("svg", { class: "wbg-lines", "aria-hidden": "true" });
    this.paths = player.places.map(() => drawn("path", {}));
    this.lines.append(...this.paths);
    this.names = [0, 1].map(() => element("span", { class: "wbg-name" }));
    this.sheet.append(this.lines, ...this.names, ...this.above.map((one) => one.canvas), ...this.below.map((one) => one.canvas));
    this.places = new Places(player, this.sheet);
    this.heat = element("div", { class: "wbg-heat" });
    this.details = element("details", {}, element("summary", {}, "Details: the likeness of every pair"), this.heat);
    this.details.addEventListener("toggle", () => this.request("all"));
    this.enlarged = new Enlarged(player);
    root.append(
      element(
        "div",
        { class: "wbg-controls" },
        this.button,
        element("label", {}, "Epoch ", this.slider, " ", this.number),
        question(
          "matching",
          "Matching finds, for every image of epoch 1, the one of the chosen epoch that is most like it, so that all pairs together are " +
            "most alike (Appendix A). Match moves the images of the chosen epoch into these places.",
        ),
      ),
      this.scroll,
      this.caption,
      this.enlarged.root,
      this.details,
    );
  }

  toggle() {
    const to = this.progress < 0.5 ? 1 : 0;
    const from = this.progress;
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const began = performance.now();
    cancelAnimationFrame(this.moving);
    const move = (now) => {
      const time = isStill ? 1 : Math.min(1, Math.max(0, now - began) / MATCH_MILLISECONDS);
      this.progress = from + (to - from) * time * time * (3 - 2 * time);
      this.arrange();
      if (time < 1) this.moving = requestAnimationFrame(move);
    };
    this.moving = requestAnimationFrame(move);
    this.button.textContent = to ? "Back to the order of optimisation" : "Match";
  }

  draw() {
    const { player } = this;
    const frame = player.frame(true);
    const why = this.whyNoEpochs(frame);
    this.enlarged.draw(frame);
    this.scroll.hidden = this.details.hidden = Boolean(why);
    this.button.disabled = this.slider.disabled = Boolean(why);
    if (why) {
      this.caption.textContent = why;
      return;
    }
    const epoch = Math.min(player.epoch, frame.sets) - 1;
    this.slider.max = frame.sets;
    this.slider.value = epoch + 1;
    this.number.textContent = `${epoch + 1} of ${frame.sets}`;
    this.button.textContent = this.progress < 0.5 ? "Match" : "Back to the order of optimisation";
    this.frame = frame;
    this.epoch = epoch;
    const count = player.places.length;
    const { size } = player;
    const [height, width] = player.source.shape;
    const room = this.root.clientWidth - 74;
    let scale = 4;
    while (scale > 1 && count * (width * scale + 6) > room) scale -= 1;
    scale *= zoomOf(this.root);
    this.geometry = { margin: 74, stepX: width * scale + 6, width: width * scale, height: height * scale, gap: 110 };
    const { stepX, gap } = this.geometry;
    this.sheet.classList.add("wbg-still");
    this.sheet.style.width = `${74 + count * stepX}px`;
    this.sheet.style.height = `${2 * height * scale + gap + 12}px`;
    this.lines.setAttribute("width", 74 + count * stepX);
    this.lines.setAttribute("height", 2 * height * scale + gap + 12);
    const earlier = this.earlier(frame);
    this.changes = player.pairs.map((_, found) => Boolean(earlier) && earlier.permutations[epoch][found] !== frame.permutations[epoch][found]);
    const above = frame.permutations[0];
    const below = frame.permutations[epoch];
    // A straight line that others cross goes nowhere itself.
    const isCrossing = crossing(above, below).map((one, found) => one && above[found] !== below[found]);
    const placeOf = inverse(player.pairs);
    const values = player.showsTruth ? player.qualities(frame) : null;
    let moved = 0;
    above.forEach((top, found) => {
      const bottom = below[found];
      const place = placeOf[found];
      const alike = psnr(frame.epochs, top * size, frame.epochs, (epoch * count + bottom) * size, size);
      this.above[top].draw(frame.epochs, top * size);
      this.below[bottom].draw(frame.epochs, (epoch * count + bottom) * size);
      for (const picture of [this.above[top], this.below[bottom]]) {
        picture.resize(scale);
        picture.canvas.dataset.place = place;
      }
      this.below[bottom].canvas.classList.toggle("wbg-changed", this.changes[found]);
      const path = this.paths[found];
      path.dataset.place = place;
      path.setAttribute("class", `wbg-assignment${isCrossing[found] ? " wbg-crossing" : ""}${this.changes[found] ? " wbg-changed" : ""}`);
      // Noise is about 8 dB alike, one and the same picture 30.
      const share = Math.min(1, Math.max(0, (alike - 8) / 22));
      path.setAttribute("stroke-width", (1 + share * Math.min(7, stepX / 6)).toFixed(1));
      moved += top === bottom ? 0 : 1;
      const label = `${describe(player, frame, place, values)}; number ${top + 1} in epoch 1, number ${bottom + 1} in epoch ${epoch + 1}`;
      this.places.put(place, 74 + top * stepX - 3, 0, stepX, height * scale + 8, label);
    });
    this.places.columns = count;
    this.places.order = inverse(above).map((found) => placeOf[found]);
    this.names[0].textContent = "epoch 1";
    this.names[1].textContent = `epoch ${epoch + 1}`;
    this.arrange();
    const since = earlier
      ? ` Since step ${earlier.step}, ${this.changes.filter(Boolean).length} of ${count} assignments of this epoch changed (dashed).`
      : " There is no earlier moment to compare with.";
    this.caption.textContent =
      `${this.stepText(frame)} Epoch 1 above, epoch ${epoch + 1} below in the order it was optimised. A line joins two images that ` +
      `were matched, the thicker the more alike; in colour where it crosses others. ` +
      `Matching moves ${moved} of ${count} images.${since}`;
    if (this.details.open) this.drawHeat(frame, epoch);
  }

  /** The last kept moment before a frame whose matching can be compared with it. */
  earlier(frame) {
    const { moments, store } = this.player;
    // A live page also has frames of steps between the moments that are kept.
    const isKept = (one) => !moments.length || moments.includes(one.step);
    return store.latest(frame.step - 1, (one) => one.sets === frame.sets && isKept(one));
  }

  arrange() {
    const { frame, epoch, geometry } = this;
    const { margin, stepX, width, height, gap } = geometry;
    const top = (column) => margin + column * stepX;
    this.names[0].style.transform = "translate(0px, 4px)";
    this.names[1].style.transform = `translate(0px, ${height + gap + 4}px)`;
    for (const name of this.names) name.style.height = name.style.lineHeight = `${height}px`;
    frame.permutations[0].forEach((first, found) => {
      const own = frame.permutations[epoch][found];
      const column = own + (first - own) * this.progress;
      this.above[first].moveTo(top(first), 4);
      this.below[own].moveTo(top(column), height + gap + 4);
      const [x1, x2] = [top(first) + width / 2, top(column) + width / 2];
      const [y1, y2] = [height + 8, height + gap];
      const middle = (y1 + y2) / 2;
      this.paths[found].setAttribute("d", `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`);
    });
    this.sheet.dataset.progress = this.progress.toFixed(2);
  }

  drawHeat(frame, epoch) {
    const { player } = this;
    const count = player.places.length;
    const { size } = player;
    const values = likeness(frame, count, size, 0, epoch);
    const cell = Math.max(14, Math.min(36, Math.floor((Math.min(this.root.clientWidth, 760) - 60) / (count + 1))));
    const [low, high] = [5, 35];
    const svg = drawn("svg", { width: (count + 1) * cell + 4, height: (count + 1) * cell + 4, role: "img" });
    svg.setAttribute("aria-label", `Likeness of every image of epoch 1 (rows) and of epoch ${epoch + 1} (columns), in dB; circles mark the matching`);
    const pictures = element("div", { class: "wbg-axes" });
    const axis = (index, isRow) => {
      const picture = new Picture(player);
      picture.draw(frame.epochs, ((isRow ? 0 : epoch) * count + index) * size);
      Object.assign(picture.canvas.style, { width: `${cell - 2}px`, height: `${cell - 2}px` });
      picture.moveTo(isRow ? 0 : (index + 1) * cell, isRow ? (index + 1) * cell : 0);
      picture.canvas.title = `Number ${index + 1} of epoch ${isRow ? 1 : epoch + 1}`;
      pictures.append(picture.canvas);
    };
    for (let index = 0; index < count; index += 1) {
      axis(index, true);
      axis(index, false);
    }
    values.forEach((row, r) =>
      row.forEach((value, c) => {
        const share = Math.min(1, Math.max(0, (value - low) / (high - low)));
        const box = drawn("rect", { x: (c + 1) * cell, y: (r + 1) * cell, width: cell, height: cell, fill: heatColour(share) });
        box.append(drawn("title", {}, `${r + 1} of epoch 1, ${c + 1} of epoch ${epoch + 1}: ${value.toFixed(1)} dB`));
        svg.append(box);
      }),
    );
    frame.permutations[0].forEach((first, found) => {
      const own = frame.permutations[epoch][found];
      svg.append(drawn("circle", { cx: (own + 1.5) * cell, cy: (first + 1.5) * cell, r: cell * 0.32, class: "wbg-chosen" }));
    });
    const legend = element("p", { class: "wbg-caption" },
      `Rows: epoch 1, columns: epoch ${epoch + 1}, both counted from 1. From ${low} dB (dark) to ${high} dB (bright); circles mark the matching.`);
    this.heat.replaceChildren(element("div", { class: "wbg-scroll", tabindex: "0", role: "group", "aria-label": "Likeness of every pair" },
      element("div", { class: "wbg-sheet" }, svg, pictures)), legend);
  }
}

/** Dark blue to yellow, equally bright steps, distinguishable with any colour vision. */
function heatColour(share) {
  const stops = [[0, 32, 76], [65, 77, 107], [124, 123, 120], [186, 175, 113], [255, 234, 70]];
  const at = share * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(at));
  const mixed = stops[index].map((value, part) => Math.round(value + (stops[index + 1][part] - value) * (at - index)));
  return `rgb(${mixed.join(",")})`;
}

/** What combining more epochs does. */
class AveragingView extends View {
  build() {
    const { player, root } = this;
    this.slider = element("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Number of epochs combined" });
    this.slider.addEventListener("input", () => player.set({ count: Number(this.slider.value) }));
    this.number = element("output", {});
    this.sheet = element("div", { class: "wbg-sheet", role: "group", "aria-label": "Mean and median of the first epochs" });
    this.cells = player.places.map(() => ({
      mean: new Picture(player),
      median: new Picture(player),
      meanError: player.truth && new Picture(player, "wbg-error"),
      medianError: player.truth && new Picture(player, "wbg-error"),
    }));
    this.texts = player.places.map((_, place) => element("span", { class: "wbg-text", "aria-hidden": "true", "data-place": place }));
    for (const cell of this.cells) this.sheet.append(...Object.values(cell).filter(Boolean).map((one) => one.canvas));
    this.sheet.append(...this.texts);
    this.places = new Places(player, this.sheet);
    this.curve = element("div", {});
    this.legend = element("p", { class: "wbg-legend" },
      swatch(1), " mean of the epochs (left) ", swatch(2), " median (right)", player.truth ? "; below each, its error" : "");
    this.enlarged = new Enlarged(player);
    this.label = element("label", {}, "Combine 1 … ", this.slider, " ", this.number);
    const about = question(
      "the number of epochs combined",
      "The matched images of the first epochs become one, by their mean or their median (Appendix A). Errors that differ between epochs " +
        "average out. Dashed lines in the chart: what noise, a blank image and the mean of all true images would have.",
    );
    root.append(element("div", { class: "wbg-controls" }, this.label, about), this.legend, this.sheet, this.caption, this.enlarged.root, this.curve);
  }

  /** Mean and median of the first 1 to V epochs with their PSNR, kept for the frame and the pairing that are shown. */
  combined(frame) {
    const { player } = this;
    const { version } = player;
    if (this.known?.frame === frame && this.known.version === version) return this.known.results;
    const count = player.source.numImages;
    const results = ["mean", "median"].map((how) =>
      identity(frame.sets).map((index) => {
        const bytes = combineEpochs(frame, count, player.size, index + 1, how);
        const values = player.truth && player.pairs.map((found, place) =>
          psnr(player.truth, place * player.size, bytes, found * player.size, player.size));
        return { bytes, values };
      }),
    );
    this.known = { frame, version, results };
    return results;
  }

  draw() {
    const { player } = this;
    const frame = player.frame(true);
    const why = this.whyNoEpochs(frame);
    this.enlarged.draw(frame);
    this.sheet.hidden = this.legend.hidden = this.curve.hidden = Boolean(why);
    this.slider.disabled = Boolean(why);
    if (why) {
      this.caption.textContent = why;
      return;
    }
    const count = player.countOf(frame);
    this.slider.max = frame.sets;
    this.slider.value = count;
    this.slider.setAttribute("aria-valuetext", `${count} of ${frame.sets} epochs`);
    this.number.textContent = `${count} of ${frame.sets} epochs`;
    const isCompared = player.truth && player.showsTruth;
    const results = this.combined(frame);
    const [meanOf, medianOf] = results.map((each) => each[count - 1]);
    const [height, width] = player.source.shape;
    const rows = isCompared ? 2 : 1;
    const cell = (scale) => [Math.max(2 * width * scale + 4, isCompared ? 74 : 0) + 10, rows * (height * scale + 3) + 24];
    const { scale, columns, cellWidth, cellHeight } = fitView(this.root, player.places.length, cell);
    this.sheet.style.height = `${Math.ceil(player.places.length / columns) * cellHeight}px`;
    this.sheet.classList.toggle("wbg-still", this.scale !== scale || this.columns !== columns);
    Object.assign(this, { scale, columns });
    this.places.columns = columns;
    player.places.forEach((place, at) => {
      const [x, y] = [(at % columns) * cellWidth, Math.floor(at / columns) * cellHeight + 4];
      const margin = (cellWidth - 2 * width * scale - 4) / 2;
      const found = player.pairs[place];
      const parts = this.cells[found];
      [meanOf, medianOf].forEach((one, side) => {
        const left = x + margin + side * (width * scale + 4);
        const picture = side ? parts.median : parts.mean;
        picture.draw(one.bytes, found * player.size);
        picture.canvas.dataset.place = place;
        picture.resize(scale);
        picture.moveTo(left, y);
        showRecovery(picture, isCompared ? recovery(player, place, one.values[place]) : "");
        const error = side ? parts.medianError : parts.meanError;
        if (error) {
          error.canvas.hidden = !isCompared;
          error.drawError(player.truth, place * player.size, one.bytes, found * player.size);
          error.canvas.dataset.place = place;
          error.resize(scale);
          error.moveTo(left, y + height * scale + 3);
        }
      });
      const quality = isCompared ? `${meanOf.values[place].toFixed(1)} | ${medianOf.values[place].toFixed(1)}` : "";
      const text = this.texts[place];
      text.textContent = quality;
      text.style.transform = `translate(${x}px, ${y + cellHeight - 23}px)`;
      text.style.width = `${cellWidth}px`;
      const spoken = isCompared ? `: mean ${meanOf.values[place].toFixed(1)} dB, median ${medianOf.values[place].toFixed(1)} dB` : "";
      this.places.put(place, x, y - 4, cellWidth, cellHeight, `Image ${place + 1}, ${count} epochs combined${spoken}`);
    });
    this.drawCurve(frame, results, count, isCompared);
  }

  drawCurve(frame, results, count, isCompared) {
    const { player } = this;
    this.curve.hidden = !isCompared;
    if (!isCompared) {
      this.caption.textContent = `${this.stepText(frame)} ${count} of ${frame.sets} epochs combined. Without the truth the quality of a combination is not known.`;
      return;
    }
    const curves = results.map((each) => each.map((one) => mean(one.values)));
    const { noise, blank, mean: average } = player.source.levels;
    const start = noise === undefined ? [] : [{ name: "noise at the start", value: noise }];
    this.curve.replaceChildren(
      chart({
        title: "Quality by the number of epochs combined",
        x: "epochs combined",
        y: "mean PSNR (dB)",
        xRange: [1, frame.sets],
        yRange: AXIS,
        width: Math.min(this.root.clientWidth, 760),
        lines: curves.map((values, index) => ({ colour: index + 1, points: values.map((value, at) => [at + 1, value]) })),
        cursor: count,
        levels: [
          { name: "recovered above", value: player.source.threshold, kind: "wbg-threshold" },
          { name: "mean image", value: average },
          { name: "blank image", value: blank },
          ...start,
        ],
      }),
    );
    const [first, chosen] = [curves[0][0], curves.map((values) => values[count - 1].toFixed(1))];
    this.caption.textContent =
      `${this.stepText(frame)} One epoch ${first.toFixed(1)} dB; ${count} of ${frame.sets} combined: mean ${chosen[0]} dB, median ${chosen[1]} dB. ` +
      `All ${frame.sets}: mean ${curves[0].at(-1).toFixed(1)} dB, median ${curves[1].at(-1).toFixed(1)} dB. Numbers are PSNR in dB, mean | median.`;
  }
}

/** The loss and its terms at the cursor, null before the first step. */
function lossAt(player) {
  const { history } = player;
  if (!history?.loss.length) return null;
  const cursor = Math.min(player.shownStep, history.numSteps);
  // The loss is measured before a step, so after the last step there is only that of the step before.
  const at = Math.max(0, history.steps.findLastIndex((step) => step <= cursor));
  const terms = history.terms
    .map((term, index) => ({ ...term, colour: TERM_COLOURS[term.name] ?? index + 1, value: term.values[at] }))
    .filter((term) => term.values.some((value) => value > 0));
  return { cursor, value: history.loss[at], terms };
}

/** One term's value at the cursor, to stand beside its slider; the class of a place around it names the term. */
class TermView extends View {
  build() {
    this.name = [...this.root.closest("[class*='wb-term-']").classList].find((one) => one.startsWith("wb-term-")).slice("wb-term-".length);
    this.text = element("span", { class: "wbg-term" });
    this.root.append(this.text);
  }

  draw() {
    const loss = lossAt(this.player);
    if (this.name === "loss") {
      this.text.replaceChildren(swatch(0, "wbg-thick"), " loss ", element("b", {}, loss ? short(loss.value) : "not known yet"), " =");
      return;
    }
    const term = loss?.terms.find((one) => one.name === this.name);
    const sign = this.name === "update" ? "" : "+ ";
    const hasSlider = this.root.closest(".wb-term").querySelector(".wb-row") !== null;
    const label = hasSlider ? "" : ` ${term?.label}`;
    this.text.hidden = !term && !hasSlider;
    this.text.replaceChildren(sign, ...(term ? [swatch(term.colour), " ", element("b", {}, short(term.value)), label] : ["0"]));
  }
}

/** The loss with its terms, and the quality that the attacker cannot see. */
class LossView extends View {
  build() {
    // In a panel every term stands beside its slider.
    this.formula = element("p", { class: "wbg-formula", hidden: this.root.closest(".wb-panel") !== null });
    this.charts = element("div", { class: "wbg-charts" });
    this.enlarged = new Enlarged(this.player);
    this.root.append(this.formula, this.charts, this.caption, this.enlarged.root);
  }

  draw() {
    const { player } = this;
    const { history } = player;
    if (player.enlarged !== null) this.enlarged.draw(player.frame());
    else this.enlarged.root.hidden = true;
    const loss = lossAt(player);
    if (!loss) {
      this.formula.textContent = "";
      this.charts.replaceChildren();
      this.caption.textContent = "There are no steps yet.";
      return;
    }
    const { terms, cursor } = loss;
    const sum = terms.map((term, index) =>
      element("span", { class: "wbg-term" }, index ? "+ " : "= ", swatch(term.colour), ` ${term.label} `, element("b", {}, short(term.value))));
    this.formula.replaceChildren(
      element("span", { class: "wbg-term" }, swatch(0, "wbg-thick"), " loss ", element("b", {}, short(loss.value))), ...sum);
    const positive = [history.loss, ...terms.map((term) => term.values)].flat().filter((value) => value > 0 && Number.isFinite(value));
    const xRange = [0, Math.max(1, history.numSteps)];
    const width = Math.min(this.root.clientWidth, 1500);
    const points = (values) => history.steps.map((step, index) => [step, values[index]]);
    const marks = history.steering.length <= 8 ? history.steering.map((event) => ({ at: event.step, name: event.text })) : [];
    if (history.warmSteps > 0) marks.push({ at: Math.min(history.warmSteps, xRange[1]), name: "warm start ends" });
    const charts = [
      chart({
        title: "Loss before every step", x: "step", y: "loss (logarithmic)", xRange, isLog: true, width, height: 260, cursor, marks,
        yRange: [Math.min(...positive.slice(0, 1), ...positive), Math.max(...positive)].map((value, end) => value * (end ? 1.2 : 0.8)),
        lines: [...terms.map((term) => ({ colour: term.colour, points: points(term.values) })), { colour: 0, kind: "wbg-thick", points: points(history.loss) }],
      }),
    ];
    const { isShown, points: scored } = player.truth && player.showsTruth ? player.scored : { isShown: true, points: [] };
    if (scored.length) {
      const each = identity(player.source.numImages).map((place) => ({
        place, colour: 4, kind: "wbg-each", points: scored.map((one) => [one.step, one.values[place]]),
      }));
      const lines = [...each, { colour: 3, kind: "wbg-hidden", points: scored.map((one) => [one.step, mean(one.values)]) }];
      charts.push(
        chart({
          title: "True PSNR, which the attacker cannot see", x: "step", y: "mean PSNR (dB)", xRange, yRange: AXIS, width, height: 230, cursor, lines,
          levels: [
            { name: "recovered above", value: player.source.threshold, kind: "wbg-threshold" },
            { name: "blank image", value: player.source.levels.blank },
          ],
        }),
      );
    }
    this.charts.replaceChildren(...charts);
    const last = history.steering.at(-1);
    const steering = !last
      ? "Nothing was steered."
      : `${history.numSteered} steering ${history.numSteered === 1 ? "event" : "events"}, the last acting from step ${last.step + 1} on: ${last.text}.`;
    const warm = history.warmSteps > 0 ? ` The first ${history.warmSteps} steps are a warm start with a different loss.` : "";
    const chosen = scored.length ? " A thin line is one true image; point at it to find it in every view." : "";
    const others = isShown
      ? ""
      : " This page does not have the images of every step, so each is compared in the pairing that was the best then.";
    this.caption.textContent =
      `Loss ${short(history.loss[0])} at the first step, ${short(history.loss.at(-1))} at step ${history.numSteps}. ` +
      `The cursor is at step ${player.shownStep}. ${steering}${warm}${chosen}${others}`;
  }
}

/** The truth, a row for each attack and their difference, every image in one column; their quality on shared axes. */
class ComparisonView extends View {
  build() {
    const { player, root } = this;
    const pictures = (kind) => player.places.map(() => new Picture(player, kind));
    this.truths = player.truth ? pictures("wbg-truth") : [];
    this.founds = player.rows.map(() => pictures("wbg-found"));
    this.differences = pictures("wbg-error wbg-difference");
    this.texts = [...player.rows, null].map(() =>
      player.places.map((_, place) => element("span", { class: "wbg-text", "aria-hidden": "true", "data-place": place })),
    );
    this.names = [];
    this.sheet = element("div", { class: "wbg-sheet", role: "group", "aria-label": "The attacks, row by row" });
    this.sheet.append(...[this.truths, ...this.founds, this.differences].flat().map((one) => one.canvas), ...this.texts.flat());
    this.places = new Places(player, this.sheet);
    this.enlarged = player.rows.map((row, index) => new Enlarged(row, () => player.names[index]));
    this.legend = element("p", { class: "wbg-legend" });
    this.curves = element("div", {});
    root.append(this.sortControls(), this.sheet, this.caption, ...this.enlarged.map((one) => one.root), this.legend, this.curves);
  }

  draw() {
    const { player } = this;
    const frames = player.rows.map((row) => row.frame());
    const isThere = frames.every(Boolean);
    this.inOrder.disabled = player.sort === "in order";
    this.enlarged.forEach((one, index) => one.draw(frames[index]));
    this.sheet.hidden = this.legend.hidden = this.curves.hidden = !isThere;
    if (!isThere) {
      this.caption.textContent = "There are no images yet.";
      return;
    }
    const isCompared = Boolean(player.truth && player.showsTruth);
    const values = player.rows.map((row, index) => (isCompared ? row.qualities(frames[index]) : null));
    this.arrange(isCompared);
    this.put(frames, values);
    this.caption.textContent = this.text(frames, values);
    this.drawCurves(isCompared);
  }

  /** Where the rows and columns are: in bands, where not all images have room beside each other. */
  arrange(isCompared) {
    const { player } = this;
    const [height, width] = player.source.shape;
    const margin = 108;
    const [gap, line] = [4, 17];
    const rows = [...(isCompared ? ["truth"] : []), ...player.names, "difference"];
    const heightOf = (scale, row) => height * scale + gap + (isCompared && rows[row] !== "truth" ? line : 0);
    const offsets = (scale) => rows.reduce((tops, _, row) => [...tops, tops.at(-1) + heightOf(scale, row)], [gap]);
    const cell = (scale) => [Math.max(width * scale, 50) + 8, offsets(scale).at(-1) + 14];
    // Four rows need more height than the two of one attack.
    const { scale, columns, cellWidth, cellHeight } = fitView(this.root, player.places.length, cell, margin, 1.2);
    const bands = Math.ceil(player.places.length / columns);
    const layout = `${scale} ${columns} ${rows}`;
    this.sheet.classList.toggle("wbg-still", this.layout !== layout);
    this.layout = layout;
    this.places.columns = columns;
    this.sheet.style.height = `${bands * cellHeight}px`;
    this.geometry = { margin, scale, columns, cellWidth, cellHeight, tops: offsets(scale), size: height * scale };
    for (const name of this.names) name.remove();
    this.names = identity(bands).flatMap((band) =>
      rows.map((text, row) => {
        const name = element("span", { class: "wbg-name wbg-of-row", title: text }, text);
        name.style.transform = `translate(0px, ${band * cellHeight + this.geometry.tops[row]}px)`;
        name.style.height = name.style.lineHeight = `${height * scale}px`;
        return name;
      }),
    );
    this.sheet.prepend(...this.names);
  }

  put(frames, values) {
    const { player, geometry } = this;
    const { margin, scale, columns, cellWidth, cellHeight, tops, size: side } = geometry;
    const { size } = player;
    const isCompared = Boolean(values[0]);
    const first = isCompared ? 1 : 0;
    const inset = (cellWidth - player.source.shape[1] * scale) / 2;
    player.places.forEach((place, at) => {
      const [x, y] = [margin + (at % columns) * cellWidth, Math.floor(at / columns) * cellHeight];
      const show = (picture, row) => {
        picture.canvas.dataset.place = place;
        picture.resize(scale);
        picture.moveTo(x + inset, y + tops[row]);
      };
      const say = (index, text) => {
        const one = this.texts[index][place];
        one.textContent = text;
        one.style.transform = `translate(${x}px, ${y + tops[first + index] + side + 1}px)`;
        one.style.width = `${cellWidth}px`;
      };
      if (player.truth) {
        const truth = this.truths[place];
        truth.canvas.hidden = !isCompared;
        show(truth, 0);
        truth.draw(player.truth, place * size);
      }
      const spoken = [];
      player.rows.forEach((row, index) => {
        const found = row.pairs[place];
        const picture = this.founds[index][found];
        show(picture, first + index);
        picture.canvas.dataset.image = found;
        picture.draw(frames[index].pixels, found * size);
        const quality = values[index]?.[place];
        const sign = showRecovery(picture, isCompared ? recovery(player, place, quality) : "");
        say(index, isCompared ? `${sign}${quality.toFixed(1)}` : "");
        spoken.push(`${player.names[index]}${isCompared ? ` ${quality.toFixed(1)} dB` : ""}`);
      });
      const [left, right] = [player.rows[0], player.rows.at(-1)].map((row) => row.pairs[place] * size);
      const difference = this.differences[place];
      difference.drawError(frames[0].pixels, left, frames.at(-1).pixels, right);
      show(difference, tops.length - 2);
      say(player.rows.length, isCompared ? signed(values.at(-1)[place] - values[0][place]) : "");
      const label = isCompared ? `, class ${player.source.names[place]}` : "";
      this.places.put(place, x, y, cellWidth, cellHeight - 8, `Image ${place + 1}${label}: ${spoken.join(", ")}`);
    });
  }

  text(frames, values) {
    const { player } = this;
    const { names } = player;
    const each = frames.map((frame, index) => {
      if (!values[index]) return `${names[index]} at step ${frame.step}`;
      const recovered = values[index].filter((value) => value > player.source.threshold).length;
      return `${names[index]} at step ${frame.step}: mean ${mean(values[index]).toFixed(1)} dB, ${recovered} of ${values[index].length} recovered`;
    });
    const gain = values[0] ? ` ${names.at(-1)} minus ${names[0]}: ${signed(mean(values.at(-1)) - mean(values[0]))} dB in the mean.` : "";
    const numbers = values[0]
      ? ` Below each image its PSNR in dB (✓ above ${player.source.threshold}, (✓) less than ${BLANK_GAIN} dB better than a blank image), below the difference that of ${names.at(-1)} minus that of ${names[0]}.`
      : "";
    return `${each.join("; ")}.${gain} Difference: where the two images differ, the more the more colour.${numbers}`;
  }

  drawCurves(isCompared) {
    const { player } = this;
    this.legend.hidden = this.curves.hidden = !isCompared;
    if (!isCompared) return;
    const lines = player.rows.map((row, index) => ({
      colour: player.colours[index],
      points: row.scored.points.map((one) => [one.step, mean(one.values)]),
    }));
    this.legend.replaceChildren(...player.names.flatMap((name, index) => [swatch(player.colours[index]), ` ${name} `]));
    const last = Math.max(player.newest, ...player.rows.map((row) => row.source.totalSteps));
    this.curves.replaceChildren(
      chart({
        title: "True PSNR of both, which the attacker cannot see", x: "step", y: "mean PSNR (dB)", xRange: [0, Math.max(1, last)], yRange: AXIS,
        width: Math.min(this.root.clientWidth, 1500), height: 220, cursor: player.shownStep, lines,
        levels: [
          { name: "recovered above", value: player.source.threshold, kind: "wbg-threshold" },
          { name: "blank image", value: player.source.levels.blank },
        ],
      }),
    );
  }
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
}

/** Which moment is looked at. */
class TimelineView extends View {
  build() {
    const { player, root } = this;
    this.button = element("button", { type: "button", class: "wbg-button", onclick: () => (player.isPlaying ? player.stop() : player.play()) });
    this.button.title = "Play the kept moments; nothing is computed";
    this.slider = element("input", { type: "range", min: 0, max: 0, value: 0, step: 1, class: "wbg-wide", "aria-label": "Timeline" });
    this.slider.title = "Earlier moments; the right end follows the newest";
    this.slider.addEventListener("input", () => {
      if (player.isPlaying) player.stop();
      // The right end is the newest moment, also where a newer one has come that is not drawn yet.
      const at = Number(this.slider.value);
      player.look(at >= Number(this.slider.max) ? null : this.steps[at]);
    });
    this.text = element("output", { class: "wbg-step" });
    const about = question(
      "the timeline",
      "Earlier moments of the run; the right end follows the newest. Play and the slider show kept moments and compute nothing.",
    );
    root.append(element("div", { class: "wbg-controls wbg-timeline" }, this.button, this.slider, this.text, about));
  }

  draw() {
    const { player } = this;
    this.steps = player.steps;
    const last = Math.max(0, this.steps.length - 1);
    const at = player.isFollowing ? last : Math.max(0, this.steps.findLastIndex((step) => step <= player.shownStep));
    this.slider.max = last;
    this.slider.value = at;
    this.button.textContent = player.isPlaying ? "⏸ Stop playing" : "▶ Play";
    this.button.disabled = last < 1;
    // Where the visible tab needs no pictures, the page has none of the newest moment.
    const newest = Math.max(player.newest, this.steps.at(-1) ?? 0);
    const text = player.isFollowing ? `step ${newest}, ${player.source.isRecording ? "the end" : "the newest"}` : `step ${player.shownStep} of ${newest}`;
    this.text.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
  }
}

export const VIEWS = {
  reconstruction: ReconstructionView,
  epochs: EpochsView,
  matching: MatchingView,
  averaging: AveragingView,
  loss: LossView,
  term: TermView,
  comparison: ComparisonView,
  timeline: TimelineView,
};

// ---------------------------------------------------------------------------------------------------------------
// Live: a player whose frames come from a kernel

function bytesOf(buffer) {
  return buffer ? new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength) : null;
}

/** Whether each of the parts `names` of a message has come as a buffer, in this order. */
function withBuffers(content, buffers) {
  const found = { ...content };
  (content.buffers ?? []).forEach((name, index) => {
    found[name] = bytesOf(buffers[index]);
  });
  return found;
}

function connect(model) {
  let asked = { name: "", at: -Infinity };
  let waiting;
  const player = new Player({
    look: (step) => model.send({ kind: "look", step }),
    // At most five a second, and the same one again after a while: a busy kernel answers the last one only.
    want: (step, epochs) => {
      const name = `${player.source.key} ${step} ${epochs}`;
      const now = performance.now();
      if (now - asked.at < (name === asked.name ? 1000 : 200)) {
        waiting ??= setTimeout(() => {
          waiting = undefined;
          player.changed();
        }, 1000);
        return;
      }
      asked = { name, at: now };
      model.send({ kind: "want", step, epochs });
    },
  });
  const receive = (content, buffers) => {
    const message = withBuffers(content, buffers);
    if (message.kind === "source") {
      if (player.source?.key !== message.source.key) player.begin(message.source, message.truth ?? null);
    } else if (message.key !== player.source?.key) {
      return; // of a source that is no longer shown
    } else if (message.kind === "frame") {
      player.put({ ...message.frame, pixels: message.pixels ?? null, epochs: message.epochs ?? null });
    } else if (message.kind === "history") {
      player.set({ history: message.history });
    }
  };
  const follow = () => {
    const [key, moments, newest] = model.get("moments");
    if (key !== player.source?.key) return;
    // After a rewind, later frames are of a run that did not happen.
    if (newest < player.newest) player.store.dropAfter(newest);
    player.pair();
    player.set({ moments });
  };
  model.on("msg:custom", receive);
  model.on("change:moments", follow);
  model.on("change:followed", () => player.follow());
  // A page that was loaded again may not be connected yet, and then what it sends is lost: it asks until it is answered.
  const ask = () => {
    if (player.source) return;
    try {
      model.send({ kind: "hello" });
    } finally {
      setTimeout(ask, ASK_MILLISECONDS);
    }
  };
  return { player, ask };
}

/** A player of several models, each of one attack. */
async function join(model) {
  const names = model.get("grids").map((name) => name.slice("IPY_MODEL_".length));
  const rows = await Promise.all(names.map(async (name) => connect(await model.widget_manager.get_model(name))));
  const player = new Comparison(rows.map((row) => row.player));
  const call = () => player.set({ names: model.get("names"), colours: model.get("colours") });
  model.on("change:names", call);
  model.on("change:colours", call);
  call();
  return { player, ask: () => rows.forEach((row) => row.ask()) };
}

export default () => {
  let connected;
  return {
    async render({ model, el }) {
      // Not before something is shown: ipykernel 7.4 may lose the output of a cell if a message arrives while it runs.
      const isFirst = !connected;
      connected ??= Promise.resolve(model.get("grids") ? join(model) : connect(model));
      const { player, ask } = await connected;
      if (isFirst) ask();
      // The same model is shown in several places, whose class says which view belongs there. The element is not in
      // the page yet.
      const made = { view: undefined };
      const observer = new ResizeObserver(() => {
        const place = el.closest("[class*='wb-view-']");
        const name = place && [...place.classList].find((one) => one.startsWith("wb-view-"))?.slice("wb-view-".length);
        if (made.view || !(name in VIEWS)) return;
        made.view = new VIEWS[name](player, el);
        observer.disconnect();
      });
      observer.observe(el);
      return () => {
        observer.disconnect();
        made.view?.destroy();
      };
    },
  };
};

// ---------------------------------------------------------------------------------------------------------------
// From a file: a player whose frames are in the page

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const TITLES = { reconstruction: "Reconstruction", epochs: "Epochs", matching: "Matching", averaging: "Averaging", loss: "Loss" };

/** Play the recording in a page's data block `id` in the element before it. */
export async function playPage(id) {
  const data = JSON.parse(document.getElementById(id).textContent);
  const root = document.getElementById(`${id}-player`);
  const player = new Player();
  player.begin(data.source, data.truth ? await inflate(data.truth) : null);
  // The newest first: it pairs pictures with the truth, and every picture stays in its place.
  for (const frame of data.frames.toReversed()) {
    const [pixels, epochs] = [await inflate(frame.pixels), frame.epochs ? await inflate(frame.epochs) : null];
    player.put({ ...frame, pixels, epochs });
  }
  player.set({ history: data.history });
  const tabs = element("div", { class: "wbg-tabs", role: "tablist", "aria-label": "Views" });
  const panels = element("div", {});
  const views = Object.entries(TITLES).map(([name, title], index) => {
    const tab = element("button", { type: "button", role: "tab", id: `${id}-${name}-tab`, "aria-controls": `${id}-${name}` }, title);
    const panel = element("div", { role: "tabpanel", id: `${id}-${name}`, "aria-labelledby": `${id}-${name}-tab` });
    tab.addEventListener("click", () => choose(index));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) choose((index + move + views.length) % views.length, true);
    });
    tabs.append(tab);
    panels.append(panel);
    const place = element("div", {});
    panel.append(place);
    return { tab, panel, view: new VIEWS[name](player, place) };
  });
  const choose = (chosen, isFocused = false) => {
    views.forEach(({ tab, panel, view }, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.setAttribute("tabindex", index === chosen ? "0" : "-1");
      panel.hidden = index !== chosen;
      if (index === chosen) view.request("size");
    });
    if (isFocused) views[chosen].tab.focus();
  };
  const timeline = element("div", {});
  root.classList.add("wbg-page");
  root.replaceChildren(tabs, panels, timeline);
  choose(0);
  new TimelineView(player, timeline);
  root.dataset.ready = "true";
  return player;
}
