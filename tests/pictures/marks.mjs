// Converts a dashboard's annotations to marks in time.

// One mark for each run of points above zero, as in Grafana.
export function marksOf(dashboard, answers) {
  return dashboard.annotations.list.flatMap(({ name, iconColor }) => {
    const { step, result } = answers.annotations[name];
    return result.flatMap(({ values }) => {
      const marks = [];
      for (const [seconds, value] of values) {
        const time = seconds * 1_000;
        const last = marks.at(-1);
        if (Number(value) <= 0) {
          continue;
        }
        if (last && last.timeEnd + step >= time) {
          last.timeEnd = time;
        } else {
          marks.push({ time, timeEnd: time, color: iconColor });
        }
      }
      return marks;
    });
  });
}
