// SPDX-License-Identifier: Apache-2.0
// Who holds the memory at the peak, as a flame graph: the program's entry is on top, and the width shows bytes.

const ROW = 18;

class FlameView extends View {
  constructor(host, report, peak) {
    const root = flameTree(report, peak.holders);
    const rows = depthOf(root);
    super(host, 'holders', 'Bytes at the peak by call stack', rows * ROW + 8, new Span(0, Math.max(root.bytes, 1)),
          new Span(0, rows));
    this.margin = {left: 4, right: 4, top: 4, bottom: 4};
    Object.assign(this, {root, rows});
  }
  draw(pen) {
    const {left, top, width, height} = this.inner;
    pen.clipped(left, top, width, height, () => this.drawNode(pen, this.root, 0));
  }
  drawNode(pen, node, depth) {
    const from = Math.max(this.toX(node.from), this.inner.left);
    const to = Math.min(this.toX(node.from + node.bytes), this.inner.left + this.inner.width);
    if (to - from < 0.5) return;
    const y = this.inner.top + depth * ROW, color = depth ? PALETTE[node.color] : GREY;
    pen.rect(from, y, Math.max(to - from - 1, 0.5), ROW - 1, color);
    const letters = Math.floor((to - from - 8) / 6.6);
    if (letters > 3) {
      const words = node.name.length > letters ? `${node.name.slice(0, letters - 1)}…` : node.name;
      pen.text(from + 4, y + 13, words, DARK_TEXT.has(color) ? '#000000' : '#ffffff');
    }
    for (const child of node.children.values()) this.drawNode(pen, child, depth + 1);
  }
  at(atX, atY) {
    const bytes = this.fromX(atX), depth = Math.floor((atY - this.inner.top) / ROW);
    let node = this.root;
    if (bytes < node.from || bytes >= node.from + node.bytes || depth < 0) return null;
    for (let d = 0; d < depth; ++d) {
      node = [...node.children.values()].find((child) => child.from <= bytes && bytes < child.from + child.bytes);
      if (!node) return null;
    }
    return node;
  }
  describe(atX, atY) {
    const node = this.at(atX, atY);
    return node && `${node.name}\n${sizeText(node.bytes)}, ${percentText(node.bytes / this.root.bytes)}, ` +
                       `${node.requests} requests`;
  }
  click(atX, atY) {
    const node = this.at(atX, atY);
    if (!node) return;
    this.x.show(node.from, Math.max(node.bytes, LEAST_SPAN));
    this.schedule();
  }
}

const DARK_TEXT = new Set(['#e69f00', '#56b4e9', '#f0e442', '#cc79a7', GREY]);

// Makes the tree. A node has the bytes of all nodes below it; siblings lie side by side, the largest first.
function flameTree(report, holders) {
  const root = newNode('all', 0);
  const libraries = new Map();
  for (const holder of holders) {
    const indices = report.stacks[holder.stack] || [];
    const names = indices.map((index) => report.frames[index]).reverse();
    const library = report.modules[holder.module] || '';
    if (!names.length || holder.outside) names.unshift(library || 'no call stack');
    let node = root;
    for (const name of ['', ...names]) {
      if (name) {
        const key = name.split(/[:+]/)[0];
        if (!libraries.has(key)) libraries.set(key, libraries.size % PALETTE.length);
        if (!node.children.has(name)) node.children.set(name, newNode(name, libraries.get(key)));
        node = node.children.get(name);
      }
      node.bytes += holder.bytes;
      node.requests += holder.requests;
    }
  }
  place(root, 0);
  return root;
}
function newNode(name, color) { return {name, color, bytes: 0, requests: 0, from: 0, children: new Map()}; }
function place(node, from) {
  node.from = from;
  for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
    place(child, from);
    from += child.bytes;
  }
}
function depthOf(node) { return 1 + Math.max(0, ...[...node.children.values()].map(depthOf)); }
