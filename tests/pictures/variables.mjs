// Variables of a dashboard: chooses their values, and substitutes them in queries and texts.

// Values by name, given as name=value. A variable without a value must default to All.
export function chooseVariables(dashboard, given) {
  const chosen = Object.fromEntries(
    given.map((text) => {
      const at = text.indexOf('=');
      if (at < 1) {
        throw new Error(`--var ${text} is not name=value`);
      }
      return [text.slice(0, at), text.slice(at + 1)];
    }),
  );
  const variables = dashboard.templating.list.filter(({ type }) => type !== 'datasource');
  const unknown = Object.keys(chosen).find((name) => !variables.some((variable) => variable.name === name));
  if (unknown !== undefined) {
    throw new Error(`dashboard ${dashboard.title} has no variable ${unknown}`);
  }
  return variables.map((variable) => {
    const { name, label = name } = variable;
    if (chosen[name] !== undefined) {
      return { name, label, text: chosen[name], value: chosen[name] };
    }
    if (variable.current?.value !== '$__all') {
      throw new Error(`dashboard ${dashboard.title} needs --var ${name}=VALUE`);
    }
    return { name, label, text: 'All', value: variable.allValue ?? '.*' };
  });
}

// The text with $name, ${name} and ${name:format} replaced.
export function substitute(text, values) {
  return text.replace(/\$(?:(\w+)|\{(\w+)(?::\w+)?\})/g, (whole, plain, braced) => {
    const value = values[plain ?? braced];
    if (value === undefined) {
      throw new Error(`unknown variable ${whole} in ${text}`);
    }
    return value;
  });
}
