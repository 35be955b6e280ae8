// Applies a panel's field configuration (units, colors, overrides) to its data frames.

import {
  FieldConfigOptionsRegistry,
  applyFieldOverrides,
  displayNameOverrideProcessor,
  identityOverrideProcessor,
  numberOverrideProcessor,
  thresholdsOverrideProcessor,
  type DataFrame,
  type FieldConfigPropertyItem,
  type GrafanaTheme2,
} from '@grafana/data';
import type { Panel } from './picture';

type Process = FieldConfigPropertyItem['process'];

const STANDARD: Record<string, Process> = {
  color: identityOverrideProcessor,
  decimals: numberOverrideProcessor,
  displayName: displayNameOverrideProcessor,
  links: identityOverrideProcessor,
  mappings: identityOverrideProcessor,
  max: numberOverrideProcessor,
  min: numberOverrideProcessor,
  noValue: identityOverrideProcessor,
  thresholds: thresholdsOverrideProcessor,
  unit: identityOverrideProcessor,
};

// Options of each panel type, with Grafana's defaults.
const CUSTOM: Record<string, Record<string, unknown>> = {
  timeseries: {
    axisBorderShow: false,
    axisCenteredZero: false,
    axisColorMode: 'text',
    axisGridShow: undefined,
    axisLabel: '',
    axisPlacement: 'auto',
    axisSoftMax: undefined,
    axisSoftMin: undefined,
    axisWidth: undefined,
    barAlignment: 0,
    barMaxWidth: undefined,
    barWidthFactor: 0.6,
    drawStyle: 'line',
    fillBelowTo: undefined,
    fillOpacity: 0,
    gradientMode: 'none',
    hideFrom: { legend: false, tooltip: false, viz: false },
    insertNulls: false,
    lineColor: undefined,
    lineInterpolation: 'linear',
    lineStyle: undefined,
    lineWidth: 1,
    pointColor: undefined,
    pointSize: 5,
    pointSymbol: undefined,
    scaleDistribution: { type: 'linear' },
    showPoints: 'auto',
    showValues: false,
    spanNulls: false,
    stacking: { mode: 'none', group: 'A' },
    thresholdsStyle: { mode: 'off' },
    transform: undefined,
  },
  table: {
    align: 'auto',
    cellOptions: { type: 'auto' },
    filterable: undefined,
    hidden: undefined,
    hideFrom: { legend: false, tooltip: false, viz: false },
    inspect: false,
    minWidth: undefined,
    width: undefined,
    wrapHeaderText: undefined,
  },
  stat: {},
  bargauge: {},
};

// The frames with the panel's defaults and overrides in their fields. An unknown option is an error, since Grafana
// would silently ignore it.
export function applyFieldConfig(panel: Panel, data: DataFrame[], theme: GrafanaTheme2): DataFrame[] {
  const custom = CUSTOM[panel.type];
  if (!custom) {
    throw new Error(`panel ${panel.title}: panels of type ${panel.type} are not supported`);
  }
  const { defaults, overrides } = panel.fieldConfig;
  const used = [
    ...Object.keys(defaults).filter((name) => name !== 'custom'),
    ...Object.keys(defaults.custom ?? {}).map((name) => `custom.${name}`),
    ...overrides.flatMap(({ properties }) => properties.map(({ id }) => id)),
  ];
  const isKnown = (id: string) => (id.startsWith('custom.') ? id.slice('custom.'.length) in custom : id in STANDARD);
  const unknown = used.find((id) => !isKnown(id));
  if (unknown !== undefined) {
    throw new Error(`panel ${panel.title}: the field option ${unknown} is not supported`);
  }
  const registry = new FieldConfigOptionsRegistry(() => [
    ...Object.entries(STANDARD).map(([path, process]) => property(path, process)),
    ...Object.keys(custom).map((path) => property(path, identityOverrideProcessor, true)),
  ]);
  return applyFieldOverrides({
    data,
    fieldConfig: { defaults: { ...defaults, custom: { ...custom, ...defaults.custom } }, overrides },
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
}

function property(path: string, process: Process, isCustom = false): FieldConfigPropertyItem {
  return {
    id: isCustom ? `custom.${path}` : path,
    path,
    name: path,
    isCustom,
    process,
    shouldApply: () => true,
    editor: () => null,
    override: () => null,
  };
}
