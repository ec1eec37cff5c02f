// SPDX-License-Identifier: Apache-2.0
// Puts the views and tables of a device on the page.

const report = JSON.parse(document.getElementById('data').textContent);
// For tests and benchmarks: the views of the device that is shown, and a promise that they are ready.
const stallocReport = {report, views: {}, ready: null};
window.stallocReport = stallocReport;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const view of Object.values(stallocReport.views)) {
    view.whole = null;
    view.schedule();
  }
}
function toggleTheme() { setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'); }

function hint(textContent) { return element('p', {className: 'hint', textContent}); }

async function show(device) {
  for (const view of Object.values(stallocReport.views)) view.observer.disconnect();
  const sections = {};
  for (const section of document.querySelectorAll('main > section')) {
    section.replaceChildren(section.querySelector('h2'));
    sections[section.id] = section;
  }
  const [requests, slots] = await Promise.all([unpackColumns(device.all_requests), unpackColumns(device.plan.slots)]);
  const views = {};
  sections.memory.append(allocatorTable(device));
  views.memory = new CurvesView(sections.memory, device, requests);
  fitPanel(sections.fit, device);
  sections.plan.append(hint(`${sizeText(device.plan.physical_bytes)} of physical memory; stitched views beside the home ` +
                            `view: ${device.plan.views.length - 1}. What is striped is stitched from several pieces.`));
  views.plan = new PlanView(sections.plan, report, device, requests, slots);
  sections.holders.append(hint(`${sizeText(device.peak.bytes)} live at request ${device.peak.request}. ${pythonNote()}`));
  views.holders = new FlameView(sections.holders, report, device.peak);
  sections.holders.append(libraryTable(report, device));
  sections.holders.append(table(['call stack', 'requests', 'bytes'], device.peak.holders.slice(0, MOST_ROWS).map(
      (holder) => [stackCell(report, holder), String(holder.requests), sizeText(holder.bytes)]), [1, 2]));
  holesPanel(sections.holes, report, device);
  ticketPanel(sections.ticket, report);
  stallocReport.views = views;
  stallocReport.columns = {requests, slots};
  for (const view of Object.values(views)) view.paint();
}

function pythonNote() {
  if (report.recorded_by_pytorch) return 'The call stacks are those that PyTorch recorded.';
  if (!Object.keys(report.stacks).length) return 'No call stacks were recorded.';
  if (report.python_frames.length) return 'The call stacks are those of Python, and inside of them those of native code.';
  return 'The call stacks are of native code: no Python frames were recorded.';
}

async function begin() {
  setTheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
  document.title = `stalloc report: ${report.source}`;
  const began = report.start_unix_ns ? new Date(report.start_unix_ns / 1e6).toISOString() : '';
  document.getElementById('run').textContent =
      [report.source, report.command, report.host, report.rank && `rank ${report.rank}`,
       began && `${began.slice(0, 16).replace('T', ' ')} UTC`, `by stalloc ${report.version}`].filter(Boolean).join(', ');
  const choose = document.getElementById('device');
  for (const [index, device] of report.devices.entries()) {
    choose.append(element('option', {value: index, textContent: `${device.device} ${device.name}`}));
  }
  document.getElementById('device-label').hidden = report.devices.length < 2;
  choose.onchange = () => { stallocReport.ready = show(report.devices[choose.value]); };
  document.getElementById('theme').onclick = toggleTheme;
  document.addEventListener('keydown', (event) => {
    const typing = ['INPUT', 'SELECT', 'TEXTAREA'].includes(event.target.tagName);
    if (event.key.toLowerCase() === 't' && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) toggleTheme();
  });
  let before = 'light';
  addEventListener('beforeprint', () => {
    before = document.documentElement.dataset.theme;
    setTheme('light');
    for (const view of Object.values(stallocReport.views)) view.paint();
  });
  addEventListener('afterprint', () => setTheme(before));
  if (report.devices.length) return show(report.devices[0]);
  document.querySelector('main').textContent = 'There are no requests in it.';
  return null;
}

// If an old browser lacks what the page needs, the page says so.
stallocReport.ready = begin().catch((error) => {
  const old = typeof DecompressionStream === 'undefined';
  document.querySelector('main').prepend(element('p', {className: 'short', textContent: old ?
      'This browser is too old for this page; Chrome 80, Firefox 113, Safari 16.4 and newer ones show it.' : `${error}`}));
  throw error;
});
