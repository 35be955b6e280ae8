// Converts a Prometheus's answers to Grafana's data frames, like Grafana's Prometheus data source.

import { FieldType, toDataFrame, type DataFrame } from '@grafana/data';
import type { Answer, Panel, Series, Target } from './picture';

// The frames of all of a panel's targets.
export function framesOf(panel: Panel, answers: Record<string, Answer>): DataFrame[] {
  return panel.targets.flatMap((target) => {
    const answer = answers[target.refId];
    if (!answer) {
      throw new Error(`panel ${panel.title}: query ${target.refId} has no answer`);
    }
    if (target.format === 'table') {
      return answer.result.length > 0 ? [tableFrame(target, answer.result, panel.targets.length > 1)] : [];
    }
    return answer.result.map((series) => seriesFrame(target, series, answer.step));
  });
}

function seriesFrame({ refId, legendFormat }: Target, series: Series, step: number): DataFrame {
  const points = series.values ?? [series.value!];
  return toDataFrame({
    refId,
    fields: [
      // Grafana needs the interval to leave gaps for missing points.
      { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1_000), config: { interval: step } },
      {
        name: 'Value',
        type: FieldType.number,
        labels: series.metric,
        values: points.map(([, value]) => parseValue(value)),
        config: { displayNameFromDS: legendOf(legendFormat, series.metric) },
      },
    ],
  });
}

function tableFrame({ refId }: Target, result: Series[], isOneOfMany: boolean): DataFrame {
  const labels = [...new Set(result.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const points = result.map((series) => series.value ?? series.values!.at(-1)!);
  return toDataFrame({
    refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([time]) => time * 1_000) },
      ...labels.map((name) => ({
        name,
        type: FieldType.string,
        values: result.map(({ metric }) => metric[name] ?? ''),
      })),
      {
        name: isOneOfMany ? `Value #${refId}` : 'Value',
        type: FieldType.number,
        values: points.map(([, value]) => parseValue(value)),
      },
    ],
  });
}

// Prometheus writes infinities as +Inf and -Inf.
function parseValue(text: string): number {
  return Number(text.replace('Inf', 'Infinity'));
}

// The legend's text: the format with its {{labels}} replaced, or all labels.
function legendOf(format: string | undefined, labels: Record<string, string>): string {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, name) => labels[name] ?? name);
  }
  const { __name__: name = '', ...others } = labels;
  const pairs = Object.entries(others).map(([label, value]) => `${label}="${value}"`);
  return `${name}{${pairs.join(', ')}}`;
}
