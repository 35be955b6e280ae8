// Draws the dashboard in `window.picture`, then sets `window.drawn`.

import { useEffect } from 'react';
import { createRoot } from 'react-dom/client';
import {
  ThemeContext,
  cacheFieldDisplayNames,
  createTheme,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
  type DataFrame,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { GlobalStyles, PortalContainer } from '@grafana/ui';
import { lastValueFrom } from 'rxjs';
import { Dashboard } from './dashboard';
import { applyFieldConfig } from './fields';
import { framesOf } from './frames';
import type { Answer, Panel, Picture } from './picture';

declare global {
  interface Window {
    picture: Picture;
    drawn: boolean;
  }
}

const theme = createTheme({ colors: { mode: 'dark' } });

// Some transformers also exist under an old name.
const transformers = new Map(Object.values(standardTransformers).map((transformer) => [transformer.id, transformer]));
standardTransformersRegistry.setInit(() =>
  [...transformers.values()].map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation,
    editor: () => null,
    imageDark: '',
    imageLight: '',
  })),
);

// The panel's data, with its transformations and field configuration applied.
async function prepare(panel: Panel, answers: Record<string, Answer> | undefined): Promise<DataFrame[]> {
  if (!answers) {
    throw new Error(`panel ${panel.title}: its queries have no answers`);
  }
  const transformed = transformDataFrame(panel.transformations ?? [], framesOf(panel, answers));
  const frames = applyFieldConfig(panel, await lastValueFrom(transformed), theme);
  cacheFieldDisplayNames(frames);
  return frames;
}

function Page({ data }: { data: Map<number, DataFrame[]> }) {
  useEffect(() => {
    window.drawn = true;
  }, []);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PortalContainer />
      <Dashboard picture={window.picture} data={data} theme={theme} />
    </ThemeContext.Provider>
  );
}

await initPluginTranslations('grafana');
// Panels measure texts when they are first drawn, so the font must be loaded first.
await Promise.all(['400 14px Inter', '500 14px Inter'].map((font) => document.fonts.load(font)));
const { rows, panels } = window.picture;
const data = new Map<number, DataFrame[]>();
for (const panel of rows.flatMap((row) => row.panels)) {
  data.set(panel.id, await prepare(panel, panels[panel.id]));
}
createRoot(document.getElementById('root')!).render(<Page data={data} />);
