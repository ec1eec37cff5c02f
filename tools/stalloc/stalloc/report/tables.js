// SPDX-License-Identifier: Apache-2.0
// The parts of the page in words and numbers: allocators, fit, holders, holes, the text for a ticket.

// Returns the names of the frames that show where in the program a stack is, by the rule of call_stacks.informative_frames.
function informativeFrames(report, stack) {
  report.uninformative ??= new Set(report.uninformative_frames);
  report.python ??= new Set(report.python_frames);
  const frames = report.stacks[stack] || [];
  const python = frames.filter((frame) => report.python.has(frame));
  const native = frames.filter((frame) => !report.uninformative.has(frame));
  const shown = python.length ? python : native.length ? native : frames;
  return shown.map((frame) => report.frames[frame]);
}

// `numbers`: the columns that are aligned to the right. Cells are texts or elements.
function table(head, rows, numbers) {
  const cell = (tag, content, at) => element(tag, {className: numbers.includes(at) ? 'number' : ''}, content);
  const line = (tag, cells) => element('tr', {}, ...cells.map((content, at) => cell(tag, content, at)));
  return element('table', {}, element('thead', {}, line('th', head)),
                 element('tbody', {}, ...rows.map((row) => line('td', row))));
}

function allocatorTable(device) {
  const rows = device.allocators.map((row) => {
    const {name, color, dash} = ALLOCATORS[row.allocator];
    const key = element('span', {className: 'key'});
    key.style.borderTopColor = color;
    if (dash.length) key.style.borderTopStyle = dash[0] > 4 ? 'dashed' : 'dotted';
    return [element('span', {}, key, name), sizeText(row.live_bytes), sizeText(row.held_bytes),
            percentText(row.lost_share)];
  });
  const made = table(['allocator (simulated)', 'live at the peak', 'held', 'lost'], rows, [1, 2, 3]);
  made.id = 'allocators';
  return made;
}

// The memory of cards as their makers state it.
const CARDS = [['T4', 16], ['RTX 4090, L4', 24], ['V100', 32], ['A100 40 GB', 40], ['L40S', 48], ['A100 80 GB, H100', 80],
               ['H100 NVL', 94], ['H200', 141], ['B200', 180]];

function fitPanel(host, device) {
  const choose = element('select', {id: 'card'}), own = element('input', {id: 'card-size', type: 'number', min: 1, step: 'any'});
  const kept = element('input', {id: 'card-kept', type: 'number', min: 0, step: 'any', value: 0});
  const asked = device.fit.length ? device.fit[0].card_bytes : 0;
  if (asked) choose.append(element('option', {value: asked, textContent: `${device.name || 'this card'}: ${sizeText(asked)}`}));
  for (const [name, size] of CARDS) choose.append(element('option', {value: size * 2 ** 30, textContent: `${name}: ${size} GiB, nominal`}));
  choose.append(element('option', {value: '', textContent: 'another size'}));
  const answer = element('div', {id: 'fit-answer'});
  const show = () => {
    own.disabled = choose.value !== '';
    if (choose.value !== '') own.value = +(Number(choose.value) / 2 ** 30).toFixed(3);
    const card = choose.value === '' ? Number(own.value) * 2 ** 30 : Number(choose.value);
    answer.replaceChildren(fitTable(device, card, Number(kept.value) * 2 ** 30));
  };
  for (const input of [choose, own, kept]) input.addEventListener('input', show);
  host.append(element('div', {className: 'controls'}, element('label', {}, 'Card ', choose),
                      element('label', {}, 'GiB ', own), element('label', {}, 'less, GiB ', kept)),
              element('p', {className: 'hint', textContent: 'The card must have room for what the allocator holds and for requests of ' +
                  `libraries that bypass it (at most ${sizeText(device.outside_peak_bytes)}). An allocator that would hold more ` +
                  "gives back memory that is not in use, at the cost of waiting, so the run may still fit. CUDA's context and code " +
                  'take more, which no allocator sees: enter it under "less". A driver offers a little less than the nominal size.'}), answer);
  show();
}

// The least that an allocator needs for the run, as fit.py computes it.
function leastBytes(device, row) {
  if (row.allocator === 'native') return device.native_peak.held_bytes - device.native_peak.free.whole_segment.bytes;
  return row.allocator === 'planned' ? row.held_bytes : row.live_bytes;
}

// The same as fit.py computes.
function fitTable(device, card, kept) {
  const rows = device.allocators.map((row) => {
    const left = card - kept - device.outside_peak_bytes;
    const room = left - row.held_bytes, mostRoom = left - leastBytes(device, row);
    const words = room >= 0 ? `fits, ${sizeText(room)} left` :
        mostRoom >= 0 ? `may fit, ${sizeText(-room)} over` : `does not fit, ${sizeText(-mostRoom)} short`;
    return [ALLOCATORS[row.allocator].name, sizeText(row.held_bytes + device.outside_peak_bytes),
            element('span', {className: room >= 0 ? '' : 'short', textContent: words})];
  });
  return table(['allocator', 'holds', `of ${sizeText(card)}`], rows, [1]);
}

function libraryTable(report, device) {
  const sums = new Map();
  for (const holder of device.peak.holders) {
    const key = `${report.modules[holder.module] || 'library not recorded'}\n${holder.outside ? 'no' : 'yes'}`;
    const sum = sums.get(key) || {bytes: 0, requests: 0};
    sums.set(key, {bytes: sum.bytes + holder.bytes, requests: sum.requests + holder.requests});
  }
  const rows = [...sums].sort((a, b) => b[1].bytes - a[1].bytes).map(([key, sum]) => {
    const [name, seen] = key.split('\n');
    return [name, seen, String(sum.requests), sizeText(sum.bytes), percentText(sum.bytes / device.peak.bytes)];
  });
  const made = table(['requesting library', 'seen by PyTorch', 'requests', 'bytes', 'share'], rows, [2, 3, 4]);
  made.id = 'libraries';
  return made;
}

// One frame, which unfolds to the whole stack.
function stackCell(report, site) {
  const frames = (report.stacks[site.stack] || []).map((index) => report.frames[index]);
  if (!frames.length) return 'no call stack';
  return element('details', {}, element('summary', {textContent: informativeFrames(report, site.stack)[0]}),
                 element('pre', {textContent: frames.join('\n')}));
}

const HOLES = {whole_segment: 'segments with nothing in use: given back when the card is full, or by torch.cuda.empty_cache()',
               too_small: 'of the stream of the request, but each too small for it',
               remainder: 'beside the request, which was served from a part of it', other_stream: 'of other streams',
               other_pool: 'reserved for requests of the other size class (up to 1 MiB, or larger)'};
const MOST_ROWS = 30;

function holesPanel(host, report, device) {
  const peak = device.native_peak;
  if (peak.request === null) return;
  const kinds = Object.entries(HOLES).map(([kind, text]) => [text, String(peak.free[kind].holes), sizeText(peak.free[kind].bytes)]);
  const sums = table(['free bytes', 'holes', 'bytes'], kinds, [1, 2]);
  sums.id = 'free';
  const pinned = peak.pinned_by.slice(0, MOST_ROWS).map((pin) => [stackCell(report, pin), String(pin.holes), sizeText(pin.bytes)]);
  const largest = peak.holes.slice(0, MOST_ROWS).map((hole) =>
      [sizeText(hole.bytes), `${hole.segment} (${sizeText(hole.segment_bytes)})`, String(hole.stream),
       hole.small ? 'small' : 'large', hole.before === null ? '' : `request ${hole.before}`,
       hole.after === null ? '' : `request ${hole.after}`]);
  host.append(element('p', {textContent: `Request ${peak.request}: ${sizeText(peak.held_bytes)} held in ${peak.segments} ` +
                  `segments, ${sizeText(peak.live_bytes)} in use, ${sizeText(peak.rounding_bytes)} at the ends of blocks in use.`}),
              sums, element('h3', {textContent: 'Blocks that keep the holes apart'}),
              table(['blocks of', 'holes', 'bytes'], pinned, [1, 2]),
              element('details', {}, element('summary', {textContent: 'The largest holes'}),
                      table(['bytes', 'segment', 'stream', 'pool', 'before it', 'after it'], largest, [0])));
}

function ticketPanel(host, report) {
  const text = element('pre', {id: 'ticket-text', textContent: report.ticket});
  const copy = element('button', {type: 'button', textContent: 'Copy', onclick: async () => {
    try {
      await navigator.clipboard.writeText(report.ticket);
    } catch {  // a page that was opened from a file may not write to the clipboard
      getSelection().selectAllChildren(text);
      document.execCommand('copy');
    }
    copy.textContent = 'Copied';
  }});
  host.append(element('div', {className: 'controls'}, copy), text);
}
