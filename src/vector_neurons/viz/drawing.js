"use strict";
// Clouds and meshes on a canvas, with a depth buffer; and rotations, which are arrays of nine numbers, row by row.

const IDENTITY = [1, 0, 0, 0, 1, 0, 0, 0, 1];
const SHARPNESS = 2, MAX_SIDE = 1200; // pixels drawn for each of the page, which smooths edges; and at most

function product(a, b) {
  const out = new Array(9);
  for (let i = 0; i < 9; i++) {
    const r = 3 * Math.floor(i / 3), c = i % 3;
    out[i] = a[r] * b[c] + a[r + 1] * b[c + 3] + a[r + 2] * b[c + 6];
  }
  return out;
}

function axisAngle([x, y, z], angle) {
  const s = Math.sin(angle), c = Math.cos(angle), d = 1 - c;
  return [
    c + d * x * x, d * x * y - s * z, d * x * z + s * y,
    d * x * y + s * z, c + d * y * y, d * y * z - s * x,
    d * x * z - s * y, d * y * z + s * x, c + d * z * z,
  ];
}

// Rounding adds up over thousands of turns.
function orthonormal([a, b, c, d, e, f]) {
  const first = Math.hypot(a, b, c);
  [a, b, c] = [a / first, b / first, c / first];
  const along = a * d + b * e + c * f;
  [d, e, f] = [d - along * a, e - along * b, f - along * c];
  const second = Math.hypot(d, e, f);
  [d, e, f] = [d / second, e / second, f / second];
  return [a, b, c, d, e, f, b * f - c * e, c * d - a * f, a * e - b * d];
}

function randomRotation() {
  let q, size;
  do {
    q = [0, 0, 0, 0].map(() => 2 * Math.random() - 1);
    size = Math.hypot(...q);
  } while (size > 1 || size < 0.1);
  const [w, ...v] = q.map((x) => x / size);
  const sine = Math.hypot(...v);
  return sine < 1e-9 ? IDENTITY : axisAngle(v.map((x) => x / sine), 2 * Math.atan2(sine, w));
}

const degrees = (trace) => (180 / Math.PI) * Math.acos(Math.min(1, Math.max(-1, (trace - 1) / 2)));

class Canvas {
  constructor(element, picture, palette) {
    Object.assign(this, { element, picture, palette });
    this.context = element.getContext("2d", { willReadFrequently: true }); // in memory: pixels are set one by one
    let far = 0;
    for (let i = 0; i < picture.points.length; i += 3)
      far = Math.max(far, Math.hypot(picture.points[i], picture.points[i + 1], picture.points[i + 2]));
    this.radius = far || 1;
  }

  resize() {
    const side = Math.min(MAX_SIDE, Math.max(64, Math.round(SHARPNESS * this.element.clientWidth)));
    if (this.side === side) return;
    this.side = this.element.width = this.element.height = side;
    this.image = this.context.createImageData(side, side);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.depth = new Float32Array(side * side);
  }

  // view: from coordinates of the input to right, up and toward the camera.
  draw(view, zoom, pose, back) {
    this.resize();
    const { points, faces, parts } = this.picture, count = points.length / 3, side = this.side;
    const scale = (zoom * side) / (2.1 * this.radius), half = side / 2;
    const x = new Float32Array(count), y = new Float32Array(count), z = new Float32Array(count);
    for (let i = 0, j = 0; i < count; i++, j += 3) {
      const a = points[j], b = points[j + 1], c = points[j + 2];
      x[i] = half + scale * (view[0] * a + view[1] * b + view[2] * c);
      y[i] = half - scale * (view[3] * a + view[4] * b + view[5] * c);
      z[i] = scale * (view[6] * a + view[7] * b + view[8] * c);
    }
    this.pixels.fill(0);
    this.depth.fill(-Infinity);
    const first = parts && parts.length > count ? pose * count : 0; // parts of all poses, or of each
    const color = (i) => this.palette[parts ? parts[first + i] % this.palette.length : 0];
    this.haze = { back, near: scale * this.radius };
    if (faces) this.triangles(faces, x, y, z, color);
    else this.balls(x, y, z, color);
    this.context.putImageData(this.image, 0, 0);
  }

  // A color in the light, which fades into the background with the distance.
  shade([r, g, b], light, z) {
    const fade = 0.25 * Math.min(2, Math.max(0, 1 - z / this.haze.near)), keep = (1 - fade) * light;
    const [u, v, w] = this.haze.back;
    return 0xff000000 | ((keep * b + fade * w) << 16) | ((keep * g + fade * v) << 8) | (keep * r + fade * u);
  }

  balls(x, y, z, color) {
    const side = this.side, size = Math.min(side / 50, Math.max(2, (0.24 * side) / Math.sqrt(x.length)));
    const reach = Math.ceil(size), stamp = [];
    for (let dy = -reach; dy <= reach; dy++)
      for (let dx = -reach; dx <= reach; dx++) {
        const up = size * size - dx * dx - dy * dy;
        if (up <= 0) continue;
        const dz = Math.sqrt(up), light = (-0.3 * dx - dy + 0.6 * dz) / (1.2 * size);
        stamp.push([dx, dy, dz, 0.72 + 0.28 * Math.max(0, light)]);
      }
    for (let i = 0; i < x.length; i++) {
      const base = color(i), cx = Math.round(x[i]), cy = Math.round(y[i]);
      for (const [dx, dy, dz, light] of stamp) {
        const px = cx + dx, py = cy + dy;
        if (px < 0 || py < 0 || px >= side || py >= side) continue;
        const at = py * side + px;
        if (z[i] + dz <= this.depth[at]) continue;
        this.depth[at] = z[i] + dz;
        this.pixels[at] = this.shade(base, light, z[i]);
      }
    }
  }

  triangles(faces, x, y, z, color) {
    const side = this.side;
    for (let f = 0; f < faces.length; f += 3) {
      const i = faces[f], j = faces[f + 1], k = faces[f + 2];
      const ux = x[j] - x[i], uy = y[j] - y[i], uz = z[j] - z[i];
      const vx = x[k] - x[i], vy = y[k] - y[i], vz = z[k] - z[i];
      const nx = uy * vz - uz * vy, ny = uz * vx - ux * vz, nz = ux * vy - uy * vx; // y points down here
      if (Math.abs(nz) < 1e-9) continue; // seen edge-on
      const size = Math.hypot(nx, ny, nz) * Math.sign(nz); // both sides of a face are lit
      const light = 0.6 + 0.5 * Math.max(0, (-0.3 * nx - ny + 0.6 * nz) / (1.2 * size));
      const value = this.shade(color(i), Math.min(1, light), this.haze.near); // the light gives depth enough
      const left = Math.max(0, Math.floor(Math.min(x[i], x[j], x[k])));
      const right = Math.min(side - 1, Math.ceil(Math.max(x[i], x[j], x[k])));
      const top = Math.max(0, Math.floor(Math.min(y[i], y[j], y[k])));
      const bottom = Math.min(side - 1, Math.ceil(Math.max(y[i], y[j], y[k])));
      for (let py = top; py <= bottom; py++)
        for (let px = left; px <= right; px++) {
          const dx = px - x[i], dy = py - y[i];
          const b = (dx * vy - dy * vx) / nz, c = (ux * dy - uy * dx) / nz;
          if (b < 0 || c < 0 || b + c > 1) continue;
          const depth = z[i] + b * uz + c * vz, at = py * side + px;
          if (depth <= this.depth[at]) continue;
          this.depth[at] = depth;
          this.pixels[at] = value;
        }
    }
  }
}
