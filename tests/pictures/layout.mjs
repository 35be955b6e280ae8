// Grafana's layout of a dashboard's panels: a grid of 24 columns and rows of 30 pixels, with gaps of 8 pixels.

const COLUMNS = 24;
const ROW_HEIGHT = 30;
const GAP = 8;

// Width in pixels of `columns` columns of a grid that is `width` pixels wide.
export function widthOf(columns, width) {
  const column = (width - GAP * (COLUMNS - 1)) / COLUMNS;
  return Math.floor(column * columns + GAP * (columns - 1));
}

// The place in pixels of a grid position, in a grid that is `width` pixels wide.
export function placeOf(position, width) {
  return {
    left: position.x === 0 ? 0 : widthOf(position.x, width) + GAP,
    top: position.y * (ROW_HEIGHT + GAP),
    width: widthOf(position.w, width),
    height: position.h * ROW_HEIGHT + (position.h - 1) * GAP,
  };
}

// The dashboard's rows with their panels, without gaps. `titles`, if given, lists the rows to keep, separated by
// commas; titles may contain commas.
export function rowsOf(dashboard, titles) {
  const rows = [];
  for (const panel of dashboard.panels) {
    if (panel.type === 'row') {
      rows.push({ title: panel.title, panels: [...panel.panels] });
    } else if (rows.length === 0) {
      rows.push({ title: undefined, panels: [panel] });
    } else {
      rows.at(-1).panels.push(panel);
    }
  }
  const chosen = titles === undefined ? rows : chooseRows(rows, titles, dashboard.title);
  let y = 0;
  return chosen.map((row) => {
    const heading = row.title === undefined ? undefined : { x: 0, y, w: COLUMNS, h: 1 };
    const start = y + (heading ? 1 : 0);
    const top = Math.min(...row.panels.map((panel) => panel.gridPos.y));
    const panels = row.panels.map((panel) => ({
      ...panel,
      gridPos: { ...panel.gridPos, y: panel.gridPos.y - top + start },
    }));
    y = Math.max(start, ...panels.map((panel) => panel.gridPos.y + panel.gridPos.h));
    return { title: row.title, place: heading, panels };
  });
}

function chooseRows(rows, titles, dashboard) {
  let rest = titles;
  const chosen = rows.filter(({ title }) => {
    const parts = rest.split(title);
    rest = parts.join('');
    return parts.length > 1;
  });
  if (rest.replaceAll(/[, ]/g, '') !== '') {
    const known = rows.map((row) => row.title).join('; ');
    throw new Error(`dashboard ${dashboard} has no row ${JSON.stringify(rest)}; it has: ${known}`);
  }
  return chosen;
}
