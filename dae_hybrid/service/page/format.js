// Numbers as text, and elements of the document.

/** A number in a few digits, without trailing zeros; a dash where there is none. */
export function short(value, digits = 5) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e6 || size < 1e-4
      ? value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e")
      : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−").replace("e-", "e−");
}

/** As `short`, with the sign in front. */
export function signed(value, digits = 3) {
  const text = short(value, digits);
  return value > 0 ? `+${text}` : text;
}

/** "1 event", "3 events". */
export function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** Create an element; a property that begins with "on" is a listener, other properties are attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A table from its caption, heads and rows; the first cell of a row is its head. */
export function table(caption, heads, rows) {
  const cell = (tag, content, scope) => element(tag, { scope }, ...(Array.isArray(content) ? content : [content]));
  return element(
    "table",
    {},
    element("caption", {}, ...(Array.isArray(caption) ? caption : [caption])),
    element("thead", {}, element("tr", {}, ...heads.map((head) => cell("th", head, "col")))),
    element(
      "tbody",
      {},
      ...rows.map(([first, ...others]) =>
        element("tr", {}, cell("th", first, "row"), ...others.map((other) => cell("td", other))),
      ),
    ),
  );
}
