// The input of the page from draw.mjs: parts of a dashboard, and the answers of collect.mjs.

import type { DataTransformerConfig, FieldConfigSource } from '@grafana/data';

export interface Position {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Target {
  refId: string;
  legendFormat?: string;
  instant?: boolean;
  format?: 'time_series' | 'table';
}

export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: Position;
  targets: Target[];
  fieldConfig: FieldConfigSource;
  // The options depend on the panel's type.
  options: Record<string, any>;
  transformations?: DataTransformerConfig[];
}

export interface Row {
  title?: string;
  place?: Position;
  panels: Panel[];
}

export interface Series {
  metric: Record<string, string>;
  // Result of an instant query.
  value?: [number, string];
  // Result of a range query.
  values?: Array<[number, string]>;
}

export interface Answer {
  step: number;
  from?: number;
  to?: number;
  result: Series[];
}

export interface Mark {
  time: number;
  timeEnd: number;
  color: string;
}

export interface Picture {
  title: string;
  width: number;
  rows: Row[];
  variables: Array<{ name: string; label: string; text: string }>;
  from: number;
  to: number;
  panels: Record<string, Record<string, Answer>>;
  marks: Mark[];
}
