// Draws a command's terminal output as a PNG file.

import { readFile } from 'node:fs/promises';
import { AnsiUp } from 'ansi_up';
import { readArguments, run } from './arguments.mjs';
import { takePicture } from './browser.mjs';

const STYLES = `
  body { margin: 0; background: transparent; }
  #picture { display: inline-block; background: #181b1f; color: #ccccdc; border-radius: 8px; overflow: hidden; }
  .bar { display: flex; gap: 8px; padding: 12px; background: #22252b; }
  .bar i { width: 12px; height: 12px; border-radius: 50%; background: #44474e; }
  pre { margin: 0; padding: 14px 18px 18px; font: 14px/1.35 'DejaVu Sans Mono', monospace; }
  .prompt { color: #73bf69; }
  .ansi-red-fg { color: #ff7383; } .ansi-green-fg { color: #73bf69; } .ansi-yellow-fg { color: #fade2a; }
  .ansi-blue-fg { color: #8ab8ff; } .ansi-magenta-fg { color: #ca95e5; } .ansi-cyan-fg { color: #6ed0e0; }
  .ansi-bright-black-fg { color: #8e8e9c; }
`;

await run(async () => {
  const options = readArguments(
    {
      command: { type: 'string' },
      in: { type: 'string' },
      out: { type: 'string' },
      width: { type: 'string', default: '1400' },
    },
    ['command', 'in', 'out'],
  );
  // On a terminal, lines also end with a carriage return.
  const output = (await readFile(options.in, 'utf8')).replaceAll('\r', '').trimEnd();
  const ansi = new AnsiUp();
  ansi.use_classes = true;
  const prompt = `<span class="prompt">$</span> ${ansi.ansi_to_html(options.command)}`;
  const html = `<!doctype html>
    <meta charset="utf-8">
    <style>${STYLES}</style>
    <div id="picture">
      <div class="bar"><i></i><i></i><i></i></div>
      <pre>${prompt}\n${ansi.ansi_to_html(output)}</pre>
    </div>`;
  await takePicture(options.out, Number(options.width), (page) => page.setContent(html));
});
