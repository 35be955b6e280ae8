// A panel with lines over time and the marks of annotations.

import { useLayoutEffect, useMemo } from 'react';
import { FieldType, applyNullInsertThreshold, getFieldDisplayName, type DataFrame } from '@grafana/data';
import { TimeSeries, type UPlotConfigBuilder } from '@grafana/ui';
import type { ContentProps } from './panels';
import type { Mark } from './picture';

export function TimeSeriesPanel({ panel, frames, width, height, range, marks, theme }: ContentProps) {
  const graphed = useMemo(() => graphable(frames), [frames]);
  const colored = marks.map((mark) => ({ ...mark, color: theme.visualization.getColorByName(mark.color) }));
  return (
    <TimeSeries
      frames={graphed}
      structureRev={1}
      timeRange={range}
      timeZone="utc"
      width={width}
      height={height}
      legend={panel.options.legend}
      options={panel.options}
    >
      {(config: UPlotConfigBuilder) => <Marks config={config} marks={colored} />}
    </TimeSeries>
  );
}

// Copies of the frames, with gaps for missing points and NaN, which TimeSeries adds only to the first frame. Fields are
// named as in the legend, since TimeSeries chooses colors by name and drops display names.
function graphable(frames: DataFrame[]): DataFrame[] {
  return frames.map((frame) => {
    const fields = frame.fields.map((field) =>
      field.type === FieldType.number
        ? {
            ...field,
            name: getFieldDisplayName(field, frame, frames),
            values: field.values.map((value) => (Number.isFinite(value) ? value : null)),
          }
        : { ...field },
    );
    return applyNullInsertThreshold({ frame: { ...frame, fields }, refFieldName: 'Time' });
  });
}

// Dashed lines at the start and end of each mark, with a triangle at the start, and a tint between.
function Marks({ config, marks }: { config: UPlotConfigBuilder; marks: Mark[] }) {
  useLayoutEffect(() => {
    config.addHook('draw', (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      for (const { time, timeEnd, color } of marks) {
        const [left, right] = [time, timeEnd].map((at) => plot.valToPos(at, 'x', true));
        ctx.fillStyle = color;
        ctx.strokeStyle = color;
        ctx.lineWidth = 2;
        ctx.setLineDash([5, 5]);
        ctx.globalAlpha = 0.1;
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.globalAlpha = 1;
        ctx.beginPath();
        for (const x of new Set([left, right])) {
          ctx.moveTo(x, bbox.top);
          ctx.lineTo(x, bbox.top + bbox.height);
        }
        ctx.stroke();
        ctx.beginPath();
        ctx.moveTo(left, bbox.top + bbox.height);
        ctx.lineTo(left - 5, bbox.top + bbox.height + 5);
        ctx.lineTo(left + 5, bbox.top + bbox.height + 5);
        ctx.fill();
      }
      ctx.restore();
    });
  }, [config, marks]);
  return null;
}
