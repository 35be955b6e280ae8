// Runs all queries of a dashboard on a Prometheus, and saves the answers for draw.mjs.

import { readFile, writeFile } from 'node:fs/promises';
import { readArguments, run } from './arguments.mjs';
import { rowsOf, widthOf } from './layout.mjs';
import { queryInstant, queryRange } from './prometheus.mjs';
import { formatDuration, parseDuration, parseTime, queryInterval } from './times.mjs';
import { chooseVariables, substitute } from './variables.mjs';

// Grafana's default step of an annotation's query.
const ANNOTATION_STEP = '60s';

await run(async () => {
  const options = readArguments(
    {
      prometheus: { type: 'string' },
      dashboard: { type: 'string' },
      out: { type: 'string' },
      var: { type: 'string', multiple: true, default: [] },
      from: { type: 'string', default: '-1h' },
      to: { type: 'string', default: 'now' },
      width: { type: 'string', default: '1400' },
      'scrape-interval': { type: 'string', default: '5s' },
    },
    ['prometheus', 'dashboard', 'out'],
  );
  const dashboard = JSON.parse(await readFile(options.dashboard, 'utf8'));
  const now = Date.now();
  const session = {
    server: options.prometheus,
    scrapeInterval: parseDuration(options['scrape-interval']),
    from: parseTime(options.from, now),
    to: parseTime(options.to, now),
    variables: chooseVariables(dashboard, options.var),
  };
  if (session.from >= session.to) {
    throw new Error(`--from ${options.from} is not before --to ${options.to}`);
  }
  const panels = {};
  for (const panel of rowsOf(dashboard).flatMap((row) => row.panels)) {
    const points = widthOf(panel.gridPos.w, Number(options.width));
    panels[panel.id] = {};
    for (const target of panel.targets ?? []) {
      panels[panel.id][target.refId] = await answer(session, target, points, `panel ${panel.title}`);
    }
  }
  const annotations = {};
  for (const { name, target, step = ANNOTATION_STEP } of dashboard.annotations.list) {
    const coarse = { ...session, scrapeInterval: Math.max(parseDuration(step), session.scrapeInterval) };
    annotations[name] = await answer(coarse, target, Number(options.width), `annotation ${name}`);
  }
  const { from, to, variables } = session;
  const answers = { dashboard: dashboard.uid, from, to, variables, panels, annotations };
  await writeFile(options.out, `${JSON.stringify(answers)}\n`);
});

// The Prometheus's answer to one query, with the query's step.
async function answer(session, target, points, place) {
  const range = session.to - session.from;
  const step = queryInterval(range, points, session.scrapeInterval);
  const values = {
    ...Object.fromEntries(session.variables.map(({ name, value }) => [name, value])),
    __interval: formatDuration(step),
    __rate_interval: formatDuration(Math.max(step + session.scrapeInterval, 4 * session.scrapeInterval)),
    __range: formatDuration(Math.round(range / 1_000) * 1_000),
  };
  try {
    const expr = substitute(target.expr, values);
    if (target.instant) {
      return { step, result: await queryInstant(session.server, expr, session.to) };
    }
    // Grafana aligns queries to whole steps, so that a redrawn picture does not change.
    const from = Math.floor(session.from / step) * step;
    const to = Math.floor(session.to / step) * step;
    return { step, from, to, result: await queryRange(session.server, expr, { from, to, step }) };
  } catch (error) {
    throw new Error(`${place}: ${error.message}`);
  }
}
