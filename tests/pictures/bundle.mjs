// Bundles the page that draws a dashboard.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as esbuild from 'esbuild';

// Grafana draws tables with a fork of react-data-grid that is not in the registry. The published one uses contexts as
// components, which needs React 19. With React 18 this has to be the context's Provider.
const contextsOfReact18 = {
  name: 'contexts-of-react-18',
  setup(build) {
    build.onLoad({ filter: /react-data-grid[\\/]lib[\\/]bundle\.js$/ }, async ({ path }) => {
      const source = await readFile(path, 'utf8');
      return { contents: source.replace(/\b(jsxs?)\((\w+Context),/g, '$1($2.Provider,') };
    });
  },
};

// The script and the styles of the page.
export async function bundlePage() {
  const folder = await mkdtemp(join(tmpdir(), 'vit-pictures-'));
  try {
    await esbuild.build({
      entryPoints: [fileURLToPath(new URL('page/main.tsx', import.meta.url))],
      outdir: folder,
      bundle: true,
      format: 'esm',
      jsx: 'automatic',
      target: 'es2022',
      logLevel: 'silent',
      define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
      loader: { '.ttf': 'empty' },
      plugins: [contextsOfReact18],
    });
    return {
      script: await readFile(join(folder, 'main.js')),
      styles: await readFile(join(folder, 'main.css')),
    };
  } finally {
    await rm(folder, { recursive: true });
  }
}
