// A dashboard: its title, variables, rows and panels.

import type { CSSProperties } from 'react';
import { dateTimeFormat, dateTimeForTimeZone, type DataFrame, type GrafanaTheme2, type TimeRange } from '@grafana/data';
import { Icon, PanelChrome } from '@grafana/ui';
import { placeOf } from '../layout.mjs';
import { PanelContent } from './panels';
import type { Panel, Picture, Position, Row } from './picture';

const MARGIN = 16;
const HEADER = 56;

interface DashboardProps {
  picture: Picture;
  // Data by panel id.
  data: Map<number, DataFrame[]>;
  theme: GrafanaTheme2;
}

export function Dashboard({ picture, data, theme }: DashboardProps) {
  const inner = picture.width - 2 * MARGIN;
  const positions = picture.rows.flatMap(({ place, panels }) => [
    ...(place ? [place] : []),
    ...panels.map((panel) => panel.gridPos),
  ]);
  const height = Math.max(...positions.map((position) => bottomOf(position, inner)));
  const styles: CSSProperties = {
    position: 'relative',
    width: picture.width,
    height: HEADER + height + MARGIN,
    background: theme.colors.background.canvas,
    color: theme.colors.text.primary,
  };
  return (
    <div id="picture" style={styles}>
      <Header picture={picture} theme={theme} />
      {picture.rows.map((row, index) => (
        <div key={index} style={{ position: 'absolute', left: MARGIN, top: HEADER }}>
          {row.place && <RowTitle row={row} width={inner} theme={theme} />}
          {row.panels.map((panel) => (
            <PlacedPanel key={panel.id} frames={data.get(panel.id)!} width={inner} {...{ panel, picture, theme }} />
          ))}
        </div>
      ))}
    </div>
  );
}

function bottomOf(position: Position, width: number): number {
  const { top, height } = placeOf(position, width);
  return top + height;
}

function Header({ picture, theme }: { picture: Picture; theme: GrafanaTheme2 }) {
  const format = { timeZone: 'utc', format: 'YYYY-MM-DD HH:mm:ss' };
  const line: CSSProperties = {
    position: 'absolute',
    inset: `12px ${MARGIN}px auto`,
    display: 'flex',
    gap: 8,
    alignItems: 'center',
  };
  const box: CSSProperties = {
    height: 32,
    lineHeight: '30px',
    padding: '0 8px',
    border: `1px solid ${theme.components.input.borderColor}`,
    borderRadius: theme.shape.radius.default,
    background: theme.colors.background.secondary,
    whiteSpace: 'nowrap',
  };
  return (
    <div style={line}>
      <span style={{ ...theme.typography.h4, whiteSpace: 'nowrap', marginRight: 16 }}>{picture.title}</span>
      {picture.variables.map(({ name, label, text }) => (
        <div key={name} style={{ display: 'flex' }}>
          <div style={{ ...box, fontWeight: 500, fontSize: 12 }}>{label}</div>
          <div style={{ ...box, background: theme.components.input.background, borderLeft: 'none' }}>{text}</div>
        </div>
      ))}
      <div style={{ ...box, marginLeft: 'auto' }}>
        <Icon name="clock-nine" style={{ marginRight: 8 }} />
        {dateTimeFormat(picture.from, format)} to {dateTimeFormat(picture.to, format)}
        <span style={{ color: theme.v1.palette.orange, fontSize: 12, marginLeft: 8 }}>UTC</span>
      </div>
    </div>
  );
}

function RowTitle({ row, width, theme }: { row: Row; width: number; theme: GrafanaTheme2 }) {
  const { left, top, height } = placeOf(row.place!, width);
  const place: CSSProperties = { position: 'absolute', left, top, height, whiteSpace: 'nowrap' };
  return (
    <div style={{ ...theme.typography.h5, ...place, lineHeight: `${height}px` }}>
      <Icon name="angle-down" style={{ margin: '0 8px 0 4px' }} />
      {row.title}
    </div>
  );
}

interface PlacedPanelProps {
  panel: Panel;
  frames: DataFrame[];
  picture: Picture;
  width: number;
  theme: GrafanaTheme2;
}

function PlacedPanel({ panel, frames, picture, width, theme }: PlacedPanelProps) {
  const place = placeOf(panel.gridPos, width);
  const range = timeRangeOf(picture);
  return (
    <div style={{ position: 'absolute', ...place }}>
      <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
        {(width, height) => <PanelContent {...{ panel, frames, width, height, range, theme }} marks={picture.marks} />}
      </PanelChrome>
    </div>
  );
}

function timeRangeOf({ from, to }: Picture): TimeRange {
  const [start, end] = [dateTimeForTimeZone('utc', from), dateTimeForTimeZone('utc', to)];
  return { from: start, to: end, raw: { from: start, to: end } };
}
