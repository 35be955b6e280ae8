// Draws a dashboard as a PNG file, with the answers that collect.mjs saved.

import { readFile } from 'node:fs/promises';
import { readArguments, run } from './arguments.mjs';
import { takePicture } from './browser.mjs';
import { bundlePage } from './bundle.mjs';
import { rowsOf } from './layout.mjs';
import { marksOf } from './marks.mjs';

// This process serves the page to the browser; no request reaches a network.
const ORIGIN = 'http://pictures.invalid';
const ICONS = new URL('node_modules/@grafana/ui/dist/public/img/icons/', import.meta.url);
const FONTS = new URL('node_modules/@fontsource/inter/files/', import.meta.url);
// Font weights by Grafana's file names; the font's package names files by weight.
const WEIGHTS = { 'Inter-Regular.woff2': 400, 'Inter-Medium.woff2': 500 };

const PAGE = `<!doctype html>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/main.css">
<div id="root"></div>
<script type="module" src="/main.js"></script>
`;

await run(async () => {
  const options = readArguments(
    {
      dashboard: { type: 'string' },
      answers: { type: 'string' },
      out: { type: 'string' },
      width: { type: 'string', default: '1400' },
      rows: { type: 'string' },
    },
    ['dashboard', 'answers', 'out'],
  );
  const dashboard = JSON.parse(await readFile(options.dashboard, 'utf8'));
  const answers = JSON.parse(await readFile(options.answers, 'utf8'));
  if (answers.dashboard !== dashboard.uid) {
    throw new Error(`${options.answers} has answers to ${answers.dashboard}; ${options.dashboard} is ${dashboard.uid}`);
  }
  const picture = {
    title: dashboard.title,
    width: Number(options.width),
    rows: rowsOf(dashboard, options.rows),
    variables: answers.variables,
    from: answers.from,
    to: answers.to,
    panels: answers.panels,
    marks: marksOf(dashboard, answers),
  };
  const { script, styles } = await bundlePage();
  const files = {
    '/': { contentType: 'text/html', body: PAGE },
    '/main.js': { contentType: 'text/javascript', body: script },
    '/main.css': { contentType: 'text/css', body: styles },
  };
  await takePicture(options.out, picture.width, async (page) => {
    await page.setRequestInterception(true);
    page.on('request', (request) => respond(request, files));
    await page.evaluateOnNewDocument((value) => {
      window.picture = value;
      window.__grafana_public_path__ = '/';
    }, picture);
    await page.goto(`${ORIGIN}/`);
    await page.waitForFunction('window.drawn', { timeout: 60_000 });
  });
});

// Answers a request of the page with a bundled file, a Grafana icon or a font.
async function respond(request, files) {
  const { pathname, protocol } = new URL(request.url());
  if (protocol === 'data:') {
    return request.continue();
  }
  const [, icon] = pathname.split('/build/img/icons/');
  const [, font] = pathname.split('/fonts/inter/');
  if (files[pathname]) {
    return request.respond(files[pathname]);
  }
  if (icon) {
    return request.respond({ contentType: 'image/svg+xml', body: await readFile(new URL(icon, ICONS)) });
  }
  if (WEIGHTS[font]) {
    const file = new URL(`inter-latin-${WEIGHTS[font]}-normal.woff2`, FONTS);
    return request.respond({ contentType: 'font/woff2', body: await readFile(file) });
  }
  return request.abort();
}
