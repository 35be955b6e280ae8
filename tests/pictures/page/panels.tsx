// The content of a panel, by the panel's type.

import {
  VizOrientation,
  getDisplayProcessor,
  getDisplayValueAlignmentFactors,
  getFieldDisplayValues,
  type DataFrame,
  type FieldDisplay,
  type GrafanaTheme2,
  type TimeRange,
} from '@grafana/data';
import { BarGauge, BigValue, VizRepeater, type VizRepeaterRenderValueProps } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import type { Mark, Panel } from './picture';
import { TimeSeriesPanel } from './timeseries';

export interface ContentProps {
  panel: Panel;
  frames: DataFrame[];
  width: number;
  height: number;
  range: TimeRange;
  marks: Mark[];
  theme: GrafanaTheme2;
}

type RepeatedProps = VizRepeaterRenderValueProps<FieldDisplay, ReturnType<typeof getDisplayValueAlignmentFactors>>;

export function PanelContent(props: ContentProps) {
  const { panel, frames } = props;
  if (frames.every((frame) => frame.length === 0)) {
    return <NoData {...props} />;
  }
  switch (panel.type) {
    case 'timeseries':
      return <TimeSeriesPanel {...props} />;
    case 'stat':
      return <Stat {...props} />;
    case 'bargauge':
      return <BarGauges {...props} />;
    case 'table':
      return <Table {...props} />;
    default:
      throw new Error(`panel ${panel.title}: panels of type ${panel.type} are not supported`);
  }
}

function NoData({ panel, width, height, theme }: ContentProps) {
  const color = theme.colors.text.secondary;
  return (
    <div style={{ width, height, display: 'grid', placeItems: 'center', color, fontSize: 18 }}>
      {panel.fieldConfig.defaults.noValue ?? 'No data'}
    </div>
  );
}

// The values of a stat or a bar gauge, each reduced from a series.
function reducedValues({ panel, frames, theme }: ContentProps, sparkline: boolean): FieldDisplay[] {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text,
    sparkline,
    theme,
    timeZone: 'utc',
  });
}

function Stat(props: ContentProps) {
  const { panel, frames, width, height, range, theme } = props;
  const { colorMode, graphMode, justifyMode, orientation, textMode, wideLayout } = panel.options;
  const renderValue = ({ value, width, height, alignmentFactors, count }: RepeatedProps) => (
    <BigValue
      value={value.display}
      sparkline={value.sparkline && { ...value.sparkline, timeRange: range }}
      count={count}
      colorMode={colorMode}
      graphMode={graphMode}
      justifyMode={justifyMode}
      textMode={textMode}
      disableWideLayout={!wideLayout}
      alignmentFactors={alignmentFactors}
      width={width}
      height={height}
      theme={theme}
    />
  );
  return (
    <VizRepeater
      getValues={() => reducedValues(props, graphMode !== 'none')}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={renderValue}
      source={frames}
      renderCounter={0}
      autoGrid
      orientation={orientation}
      width={width}
      height={height}
    />
  );
}

function BarGauges(props: ContentProps) {
  const { panel, frames, width, height, theme } = props;
  const { displayMode, maxVizHeight, minVizHeight, minVizWidth, namePlacement, orientation, showUnfilled, valueMode } =
    panel.options;
  const renderValue = ({ value, width, height, alignmentFactors, orientation, count }: RepeatedProps) => (
    <BarGauge
      value={count === 1 ? { ...value.display, title: undefined } : value.display}
      field={value.field}
      display={getDisplayProcessor({ field: { config: value.field }, theme })}
      alignmentFactors={alignmentFactors}
      orientation={orientation}
      displayMode={displayMode}
      namePlacement={namePlacement}
      showUnfilled={showUnfilled}
      valueDisplayMode={valueMode}
      itemSpacing={8}
      lcdCellWidth={12}
      isOverflow={false}
      width={width}
      height={height}
      theme={theme}
    />
  );
  return (
    <VizRepeater
      getValues={() => reducedValues(props, false)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={renderValue}
      source={frames}
      renderCounter={0}
      itemSpacing={10}
      orientation={orientation as VizOrientation}
      minVizHeight={minVizHeight}
      minVizWidth={minVizWidth}
      maxVizHeight={maxVizHeight}
      width={width}
      height={height}
    />
  );
}

function Table({ panel, frames, width, height, range }: ContentProps) {
  const { cellHeight, frameIndex, showHeader } = panel.options;
  return (
    <TableNG
      data={frames[frameIndex]}
      fieldConfig={panel.fieldConfig}
      noHeader={!showHeader}
      cellHeight={cellHeight}
      timeRange={range}
      enableVirtualization={false}
      width={width}
      height={height}
    />
  );
}
