// Functions that make elements. Text stays text: nothing here parses HTML.

export type Child = Node | string | null | undefined | false;

export interface Props {
  class?: string;
  title?: string;
  /** Attributes, including aria-* and data-*. An attribute with null or false is left out. */
  attr?: Record<string, string | number | boolean | null | undefined>;
  on?: { [E in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[E]) => void };
}

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (props.class) element.className = props.class;
  if (props.title) element.title = props.title;
  for (const [name, value] of Object.entries(props.attr ?? {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const [name, listener] of Object.entries(props.on ?? {})) element.addEventListener(name, listener as EventListener);
  fill(element, ...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, attr: Record<string, string | number> = {}, ...children: Node[]): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attr)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

/** Replaces the content of an element. */
export function fill(element: Element, ...children: Child[]): void {
  element.replaceChildren(...children.filter((child): child is Node | string => !!child || child === ""));
}

/** Sets text only if it differs, so that unchanged text does not disturb selections and screen readers. */
export function say(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** A button with a label. If there is an icon, it shows only the icon. */
export function button(label: string, press: () => void, options: { icon?: Node; class?: string; hint?: string } = {}): HTMLButtonElement {
  return h(
    "button",
    {
      class: options.class ?? (options.icon ? "icon" : ""),
      title: options.hint ?? (options.icon ? label : undefined),
      attr: { type: "button", "aria-label": options.icon ? label : null },
      on: { click: press },
    },
    options.icon ?? label,
  );
}
